"""Training, private or not, of one model or many."""

from jaxpriv.training import shadows
from jaxpriv.training.algorithms import Algorithm, DpsgdInfo, SgdInfo, State, dpsgd, sgd
from jaxpriv.training.loop import Budget, History, ManyInfo, fit, fit_many

__all__ = [
    "Algorithm",
    "Budget",
    "DpsgdInfo",
    "History",
    "ManyInfo",
    "SgdInfo",
    "State",
    "dpsgd",
    "fit",
    "fit_many",
    "sgd",
    "shadows",
]
