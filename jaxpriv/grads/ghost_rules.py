"""What one call of a layer contributes to the gradient of its parameters.

A rule turns a layer's input and the cotangent of its output into *factors*: the per-example
gradient written as outer products that are never multiplied out. All rules are for one example;
`t` counts positions, `i` and `o` the two sides of a kernel.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpriv._tree import wide

PRECISE = jax.lax.Precision.HIGHEST
"""On GPUs and TPUs a default product rounds to 10 bits or fewer; a norm must not."""


class Outer(NamedTuple):
    """The gradient sum_t left[t] (outer) right[t], reshaped to the leaf."""

    left: Float[Array, "*b t i"]
    right: Float[Array, "*b t o"]


class Whole(NamedTuple):
    """The gradient itself: for leaves that are small beside the activations."""

    grad: Float[Array, "..."]


Factor = Outer | Whole


class Rule(NamedTuple):
    """How to take one kind of call apart.

    accepts: whether this module, so configured, is covered.
    factors: (module, input, cotangent of output) -> a factor for each parameter name.
    """

    accepts: Callable[[nn.Module], bool]
    factors: Callable[[nn.Module, Any, Any], Mapping[str, Factor]]


def squared_norm(factor: Factor) -> Float[Array, ""]:
    """Squared Frobenius norm of one example's gradient, in float32.

    One position: |left|^2 |right|^2. Several: the Gram product over pairs of positions, or the
    gradient itself, whichever takes fewer multiplications.

    Args:
      factor: of one example.

    Returns:
      The squared norm.
    """
    if isinstance(factor, Whole):
        return jnp.sum(jnp.square(wide(factor.grad)))
    left, right = wide(factor.left), wide(factor.right)
    (t, i), o = left.shape, right.shape[-1]
    if t == 1:
        return jnp.sum(jnp.square(left)) * jnp.sum(jnp.square(right))
    if t * (i + o) < i * o:
        grams = [jnp.einsum("ti,si->ts", x, x, precision=PRECISE) for x in (left, right)]
        return jnp.maximum(jnp.vdot(*grams, precision=PRECISE), 0.0)
    return jnp.sum(jnp.square(jnp.einsum("ti,to->io", left, right, precision=PRECISE)))


def joined(factors: list[Factor]) -> list[Factor]:
    """Adds the uses of one parameter before its norm is taken; at most two factors remain.

    Args:
      factors: of one leaf, one a use.

    Returns:
      One Outer (positions concatenated) and one Whole, or whichever there is.
    """
    outers = [f for f in factors if isinstance(f, Outer)]
    wholes = [f for f in factors if isinstance(f, Whole)]
    result: list[Factor] = []
    if outers:
        sides = [jnp.concatenate(side, axis=-2) for side in zip(*outers, strict=True)]
        result.append(Outer(*sides))
    if wholes:
        result.append(Whole(sum((f.grad for f in wholes[1:]), wholes[0].grad)))
    return result


def materialised(factor: Factor) -> Whole:
    """Multiplies out: the gradient of one example, as [i, o] or as it is."""
    if isinstance(factor, Whole):
        return factor
    left, right = wide(factor.left), wide(factor.right)
    return Whole(jnp.einsum("ti,to->io", left, right, precision=PRECISE))


def weighted_total(weights: Float[Array, " b"], factor: Factor) -> Float[Array, "*leaf"]:
    """Sums the gradients of a batch, each times its weight: one contraction.

    Args:
      weights: 0 where a row must not count; what it holds is then ignored, NaN too.
      factor: of the whole batch, leading axis b.

    Returns:
      sum_i weights[i] gradient_i in float32; an Outer as [i, o].
    """
    parts = [wide(jnp.where(_like(weights, part) > 0, part, 0)) for part in factor]
    if isinstance(factor, Whole):
        return jnp.tensordot(weights, parts[0], axes=1, precision=PRECISE)
    left, right = parts
    return jnp.einsum("bti,bto->io", left, right * _like(weights, right), precision=PRECISE)


def _like(weights: Array, rows: Array) -> Array:
    return jnp.expand_dims(weights, range(1, rows.ndim))


def _dense_accepts(module: nn.Module) -> bool:
    assert isinstance(module, nn.Dense)
    return module.dot_general is None and module.dot_general_cls is None


def _dense_factors(module: nn.Module, x: Array, delta: Array) -> dict[str, Factor]:
    """y = x W + b: dW = sum_t x_t (outer) delta_t, db = sum_t delta_t."""
    del module
    x, delta = x.reshape(-1, x.shape[-1]), delta.reshape(-1, delta.shape[-1])
    return {"kernel": Outer(x, delta), "bias": Whole(jnp.sum(wide(delta), axis=0))}


RULES: dict[tuple[type[nn.Module], str], Rule] = {
    (nn.Dense, "__call__"): Rule(_dense_accepts, _dense_factors),
}
