"""Defences against membership inference, and their guarantees."""

from jaxpriv.defences import adversarial, base, dirichlet, gaussian, outputs
from jaxpriv.defences._defence import (
    Defence,
    MakeAlgorithm,
    MakeOutputGuarantee,
    OutputGuarantee,
    Predict,
    Promise,
    Release,
    Respond,
)

__all__ = [
    "Defence",
    "MakeAlgorithm",
    "MakeOutputGuarantee",
    "OutputGuarantee",
    "Predict",
    "Promise",
    "Release",
    "Respond",
    "adversarial",
    "base",
    "dirichlet",
    "gaussian",
    "outputs",
]
