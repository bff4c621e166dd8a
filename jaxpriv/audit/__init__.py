"""What attacks prove: lower bounds on epsilon, and tests of the noise itself."""

from jaxpriv.audit import bounds, independent_runs, noise, one_run
from jaxpriv.audit.bounds import LowerBounds, lower_bounds
from jaxpriv.audit.noise import NoiseFindings, check_noise, residuals_of

__all__ = [
    "LowerBounds",
    "NoiseFindings",
    "bounds",
    "check_noise",
    "independent_runs",
    "lower_bounds",
    "noise",
    "one_run",
    "residuals_of",
]
