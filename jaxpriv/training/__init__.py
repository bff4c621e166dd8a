"""Training of one model or many, with and without differential privacy."""

from jaxpriv.training import shadows
from jaxpriv.training.adaptive import AdaptiveState, adaptive_dpsgd
from jaxpriv.training.algorithms import Algorithm, DpsgdInfo, SgdInfo, State, dpsgd, sgd
from jaxpriv.training.averaging import AveragedState, averaged
from jaxpriv.training.budget import Budget
from jaxpriv.training.checkpoint import Checkpoints
from jaxpriv.training.loop import Evaluation, History, fit
from jaxpriv.training.many import ManyInfo, fit_many

__all__ = [
    "AdaptiveState",
    "Algorithm",
    "AveragedState",
    "Budget",
    "Checkpoints",
    "DpsgdInfo",
    "Evaluation",
    "History",
    "ManyInfo",
    "SgdInfo",
    "State",
    "adaptive_dpsgd",
    "averaged",
    "dpsgd",
    "fit",
    "fit_many",
    "sgd",
    "shadows",
]
