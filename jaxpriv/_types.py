"""Types that several packages share. In shapes, `b` counts the rows of a batch."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree, Shaped, UInt32

from jaxpriv._names import RELATIONS as RELATIONS
from jaxpriv._names import Relation as Relation

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Keys = Key[Array, " _"] | UInt32[Array, "_ _"]
"""Several PRNG keys, one per row."""

Scalar = float | Float[Array, ""]
"""A number, static or traced."""

Column = Shaped[Array | np.ndarray, "..."]
"""Numbers [n] or [n, 1] of any real type; the shape is checked by `_check.scores`."""

Params = PyTree
"""Trainable leaves only; frozen ones are closed over by the loss."""

Example = PyTree
"""One record: a pytree of arrays without a batch axis."""

Batch = PyTree
"""Records stacked: every leaf has the leading axis `b`."""

Loss = Callable[[Params, Example, PRNGKeyArray], Float[Array, ""]]
"""The loss of one example, `loss(params, example, key)`; `jax.grad` applies to it."""


@runtime_checkable
class Sampler(Protocol):
    """Draws batches and provides the matching dp_accounting event.

    Indices and mask are [b], one row for each record, or [b, rows], one row for each class. A
    sampler of classes has their number as `num_units`.
    """

    @property
    def num_examples(self) -> int: ...

    @property
    def expected_batch_size(self) -> float: ...

    @property
    def capacity(self) -> int: ...

    def sample(self, key: PRNGKeyArray) -> tuple[Int[Array, "b ..."], Bool[Array, "b ..."]]: ...

    def event(self, *, noise_multiplier: float, steps: int) -> "DpEvent": ...


def num_units(sampler: object) -> int | None:
    """Returns the number of units that a sampler draws from: of classes, or else of records."""
    return getattr(sampler, "num_units", getattr(sampler, "num_examples", None))
