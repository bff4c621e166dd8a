"""Defences against membership inference, and their guarantees."""

from jaxpriv.defences import base, outputs
from jaxpriv.defences._defence import (
    Defence,
    MakeAlgorithm,
    Predict,
    Promise,
    Release,
    Respond,
)

__all__ = [
    "Defence",
    "MakeAlgorithm",
    "Predict",
    "Promise",
    "Release",
    "Respond",
    "base",
    "outputs",
]
