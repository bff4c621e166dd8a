"""Models of the papers and of the report, as flax.linen modules."""

from jaxpriv.models.mlp import MLP

__all__ = ["MLP"]
