"""Sensitivity of a data set, of sampled trainings, and of smoothed SGD in the worst case."""

from jaxpriv.sensitivity import bound, dataset, pairs
from jaxpriv.sensitivity.bound import recursive_bound, theorem_5_2
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
from jaxpriv.sensitivity.pairs import SampledPairs, sample_pairs

__all__ = [
    "Removals",
    "Replacements",
    "SampledPairs",
    "bound",
    "cosine",
    "dataset",
    "euclidean",
    "hamming",
    "manhattan",
    "negative_ssim",
    "pairs",
    "recursive_bound",
    "removals",
    "replacements",
    "sample_pairs",
    "theorem_5_2",
]
