"""Names for the types that cross module borders. In shapes, `b` counts the rows of a batch."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree, UInt32

from jaxpriv._names import RELATIONS as RELATIONS
from jaxpriv._names import Relation as Relation

Keys = Key[Array, " _"] | UInt32[Array, "_ _"]
"""Several keys, one a row."""

Scalar = float | Float[Array, ""]
"""A number, static or traced."""

Params = PyTree
"""Trainable leaves only; frozen ones are closed over by the loss."""

Example = PyTree
"""One record: a pytree of arrays without a batch axis."""

Batch = PyTree
"""Records stacked: every leaf has the leading axis `b`."""

Loss = Callable[[Params, Example, PRNGKeyArray], Float[Array, ""]]
"""`loss(params, example, key)` of one example, as `jax.grad` takes it."""


@runtime_checkable
class Sampler(Protocol):
    """Draws the rows of a batch, and names what that costs."""

    @property
    def num_examples(self) -> int: ...

    @property
    def expected_batch_size(self) -> float: ...

    @property
    def capacity(self) -> int: ...

    def sample(self, key: PRNGKeyArray) -> tuple[Int[Array, " b"], Bool[Array, " b"]]: ...

    def event(self, *, noise_multiplier: float, steps: int) -> Any: ...
