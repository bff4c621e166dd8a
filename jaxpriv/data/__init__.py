"""Data sets by name or path, and text corpora."""

from jaxpriv.data import (
    catalogue,
    dataset,
    images,
    packaged,
    purchases,
    synthetic,
    tabular,
    text,
    tfds,
    user_files,
    vocabulary,
)
from jaxpriv.data.catalogue import Listing, available, load, path
from jaxpriv.data.dataset import Column, Dataset, num_duplicates
from jaxpriv.data.purchases import load_purchases
from jaxpriv.data.synthetic import purchase_like
from jaxpriv.data.text import Pairs, load_pairs
from jaxpriv.data.vocabulary import (
    Vocabulary,
    batches_by_length,
    pad,
    pad_word_pieces,
    tokenise,
)

__all__ = [
    "Column",
    "Dataset",
    "Listing",
    "Pairs",
    "Vocabulary",
    "available",
    "batches_by_length",
    "catalogue",
    "dataset",
    "images",
    "load",
    "load_pairs",
    "load_purchases",
    "num_duplicates",
    "packaged",
    "pad",
    "pad_word_pieces",
    "path",
    "purchase_like",
    "purchases",
    "synthetic",
    "tabular",
    "text",
    "tfds",
    "tokenise",
    "user_files",
    "vocabulary",
]
