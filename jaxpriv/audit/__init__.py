"""Privacy audits: bounds on epsilon from attack scores, tests of noise, beliefs, canaries."""

from jaxpriv.audit import bounds, canaries, di, independent_runs, noise, one_run, trainings
from jaxpriv.audit.bounds import LowerBounds, lower_bounds
from jaxpriv.audit.noise import NoiseFindings, check_noise, collect_residuals
from jaxpriv.audit.trainings import TrainingFindings, check_training

__all__ = [
    "LowerBounds",
    "NoiseFindings",
    "TrainingFindings",
    "bounds",
    "canaries",
    "check_noise",
    "check_training",
    "collect_residuals",
    "di",
    "independent_runs",
    "lower_bounds",
    "noise",
    "one_run",
    "trainings",
]
