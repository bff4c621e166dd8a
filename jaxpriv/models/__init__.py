"""Flax modules of the models of the papers and of the report."""

from jaxpriv.models import mlp
from jaxpriv.models.mlp import MLP

__all__ = ["MLP", "mlp"]
