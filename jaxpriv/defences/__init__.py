"""Defences against membership inference, and what they promise."""

from jaxpriv.defences import base, outputs
from jaxpriv.defences.base import Defence, Promise

__all__ = ["Defence", "Promise", "base", "outputs"]
