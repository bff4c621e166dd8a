"""Data sets and score files."""

from jaxpriv.data.base import Dataset, load
from jaxpriv.data.scores import Scores, load_scores

__all__ = ["Dataset", "Scores", "load", "load_scores"]
