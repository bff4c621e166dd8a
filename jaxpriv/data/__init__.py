"""Data sets and score files."""

from jaxpriv.data.base import Dataset, num_duplicates, num_shared, standardiser
from jaxpriv.data.catalogue import Listing, available, load, path
from jaxpriv.data.own import load_own
from jaxpriv.data.purchases import load_purchases
from jaxpriv.data.scores import Scores, load_scores
from jaxpriv.data.synthetic import purchase_like

__all__ = [
    "Dataset",
    "Listing",
    "Scores",
    "available",
    "load",
    "load_own",
    "load_purchases",
    "load_scores",
    "num_duplicates",
    "num_shared",
    "path",
    "purchase_like",
    "standardiser",
]
