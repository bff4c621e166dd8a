"""Data-set sensitivity: the neighbouring data sets that a model is expected to notice most."""

from jaxpriv.sensitivity import dataset
from jaxpriv.sensitivity.dataset import (
    Removals,
    Replacements,
    cosine,
    euclidean,
    hamming,
    manhattan,
    negative_ssim,
    removals,
    replacements,
)

__all__ = [
    "Removals",
    "Replacements",
    "cosine",
    "dataset",
    "euclidean",
    "hamming",
    "manhattan",
    "negative_ssim",
    "removals",
    "replacements",
]
