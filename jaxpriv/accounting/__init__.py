"""Privacy accounting: epsilon and delta of training, and the noise or steps a budget allows."""

from jaxpriv.accounting import accountant, dirichlet, gaussian, groups, printed, random_dp
from jaxpriv.accounting._large_delta import LargeDeltaWarning
from jaxpriv.accounting.accountant import (
    EpsilonByRelation,
    advantage_bound,
    calibrate,
    calibrate_event,
    delta,
    delta_curve,
    epsilon,
    epsilon_by_relation,
    epsilon_curve,
    max_steps,
    poisson_event,
)
from jaxpriv.accounting.groups import GroupPrivacy, group_epsilon, group_privacy
from jaxpriv.accounting.printed import (
    rnnmia2022_printed_epsilon_no_guarantee,
    zhang2020_printed_epsilon_no_guarantee,
)

__all__ = [
    "EpsilonByRelation",
    "GroupPrivacy",
    "LargeDeltaWarning",
    "accountant",
    "advantage_bound",
    "calibrate",
    "calibrate_event",
    "delta",
    "delta_curve",
    "dirichlet",
    "epsilon",
    "epsilon_by_relation",
    "epsilon_curve",
    "gaussian",
    "group_epsilon",
    "group_privacy",
    "groups",
    "max_steps",
    "poisson_event",
    "printed",
    "random_dp",
    "rnnmia2022_printed_epsilon_no_guarantee",
    "zhang2020_printed_epsilon_no_guarantee",
]
