"""Privacy audits: lower bounds on epsilon from attack scores, tests of the noise, beliefs."""

from jaxpriv.audit import bounds, di, independent_runs, noise, one_run
from jaxpriv.audit.bounds import LowerBounds, lower_bounds
from jaxpriv.audit.noise import NoiseFindings, check_noise, collect_residuals

__all__ = [
    "LowerBounds",
    "NoiseFindings",
    "bounds",
    "check_noise",
    "collect_residuals",
    "di",
    "independent_runs",
    "lower_bounds",
    "noise",
    "one_run",
]
