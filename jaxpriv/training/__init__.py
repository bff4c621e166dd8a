"""Training of one model or many, with and without differential privacy."""

from jaxpriv.training import (
    adaptive,
    algorithms,
    averaging,
    budget,
    checkpoint,
    class_level,
    loop,
    many,
    shadows,
    stateful,
    translation,
)
from jaxpriv.training._step import DpsgdInfo, State
from jaxpriv.training.adaptive import AdaptiveState, adaptive_dpsgd
from jaxpriv.training.algorithms import Algorithm, AlgorithmState, SgdInfo, dpsgd, sgd
from jaxpriv.training.averaging import AveragedState, averaged
from jaxpriv.training.budget import Budget
from jaxpriv.training.checkpoint import Checkpoints, SavedCheckpoint
from jaxpriv.training.class_level import class_dpsgd
from jaxpriv.training.loop import Evaluation, History, fit
from jaxpriv.training.many import ManyInfo, Strategy, fit_many
from jaxpriv.training.stateful import BatchLoss, Variables, stateful_sgd
from jaxpriv.training.translation import SentencePair

__all__ = [
    "AdaptiveState",
    "Algorithm",
    "AlgorithmState",
    "AveragedState",
    "BatchLoss",
    "Budget",
    "Checkpoints",
    "DpsgdInfo",
    "Evaluation",
    "History",
    "ManyInfo",
    "SavedCheckpoint",
    "SentencePair",
    "SgdInfo",
    "State",
    "Strategy",
    "Variables",
    "adaptive",
    "adaptive_dpsgd",
    "algorithms",
    "averaged",
    "averaging",
    "budget",
    "checkpoint",
    "class_dpsgd",
    "class_level",
    "dpsgd",
    "fit",
    "fit_many",
    "loop",
    "many",
    "sgd",
    "shadows",
    "stateful",
    "stateful_sgd",
    "translation",
]
