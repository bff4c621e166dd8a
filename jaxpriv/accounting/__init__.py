"""What training costs: epsilon, delta, and the noise or the steps that a budget allows."""

from jaxpriv.accounting import accountant, gaussian
from jaxpriv.accounting.accountant import (
    LargeDeltaWarning,
    advantage_bound,
    calibrate,
    calibrate_event,
    delta,
    delta_curve,
    epsilon,
    epsilon_curve,
    max_steps,
    poisson_event,
    warn_if_large,
)

__all__ = [
    "LargeDeltaWarning",
    "accountant",
    "advantage_bound",
    "calibrate",
    "calibrate_event",
    "delta",
    "delta_curve",
    "epsilon",
    "epsilon_curve",
    "gaussian",
    "max_steps",
    "poisson_event",
    "warn_if_large",
]
