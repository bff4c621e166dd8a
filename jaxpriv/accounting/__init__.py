"""Privacy accounting: epsilon and delta of training, and the noise or steps a budget allows."""

from jaxpriv.accounting import accountant, gaussian
from jaxpriv.accounting._large_delta import LargeDeltaWarning
from jaxpriv.accounting.accountant import (
    advantage_bound,
    calibrate,
    calibrate_event,
    delta,
    delta_curve,
    epsilon,
    epsilon_curve,
    max_steps,
    poisson_event,
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
]
