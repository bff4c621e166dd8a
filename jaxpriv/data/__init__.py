"""Data sets by name or path, and text corpora."""

from jaxpriv.data import tfds
from jaxpriv.data.catalogue import Listing, available, load, path
from jaxpriv.data.dataset import Dataset, num_duplicates, num_shared, standardiser
from jaxpriv.data.purchases import load_purchases
from jaxpriv.data.synthetic import purchase_like
from jaxpriv.data.text import Pairs, load_pairs
from jaxpriv.data.vocabulary import Vocabulary, batches_by_length, padded, tokenise

__all__ = [
    "Dataset",
    "Listing",
    "Pairs",
    "Vocabulary",
    "available",
    "batches_by_length",
    "load",
    "load_pairs",
    "load_purchases",
    "num_duplicates",
    "num_shared",
    "padded",
    "path",
    "purchase_like",
    "standardiser",
    "tfds",
    "tokenise",
]
