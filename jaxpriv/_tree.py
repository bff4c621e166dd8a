"""Arithmetic on pytrees that optax.tree lacks."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree


def wide_dtype(dtype: object) -> np.dtype:
    """The type in which norms, sums and noise are kept: float64 for float64, else float32."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def wide(x: Array) -> Array:
    """The array in float32, or float64 if it has that."""
    return x.astype(wide_dtype(x.dtype))


def normal_like(key: PRNGKeyArray, tree: PyTree, *, std: float | Float[Array, ""]) -> PyTree:
    """Draws N(0, std^2) for every entry, independently between leaves.

    Each leaf has a key of its own, so leaves of equal shape get different noise. Drawn in at
    least float32 whatever the leaf's type: rounding to bfloat16 would coarsen the noise.

    Args:
      key: consumed.
      tree: its leaves give the shapes.
      std: standard deviation, >= 0.

    Returns:
      A tree of noise, float32 or wider.
    """
    leaves, treedef = jax.tree.flatten(tree)
    keys = jax.random.split(key, max(len(leaves), 1))
    drawn = [
        jnp.asarray(std, wide_dtype(leaf.dtype))
        * jax.random.normal(k, leaf.shape, wide_dtype(leaf.dtype))
        for k, leaf in zip(keys, leaves, strict=False)
    ]
    return jax.tree.unflatten(treedef, drawn)


def where(condition: Array, chosen: PyTree, other: PyTree) -> PyTree:
    """Chooses every leaf of one tree or of the other, by one scalar condition."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), chosen, other)


def take(tree: PyTree, indices: Array) -> PyTree:
    """Gathers rows along the leading axis of every leaf."""
    return jax.tree.map(lambda leaf: leaf[indices], tree)


def zeros(shapes: PyTree) -> PyTree:
    """Returns zeros in the shapes and types of the leaves."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def norm(x: Array) -> Float[Array, ""]:
    """Euclidean norm of one array, float32 or wider; finite entries are scaled before squaring."""
    x = wide(x)
    largest = power_of_two(jnp.max(jnp.abs(x), initial=0.0))
    scaled = x / jnp.where(largest > 0, largest, 1.0)
    return largest * jnp.sqrt(jnp.sum(jnp.square(scaled)))


def power_of_two(x: Array) -> Array:
    """Rounds non-negative numbers to a power of two, 0 and non-finite ones to themselves."""
    info = jnp.finfo(x.dtype)
    rounded = jax.lax.reduce_precision(x, exponent_bits=info.nexp, mantissa_bits=0)
    return jnp.where(jnp.isfinite(x), jnp.minimum(rounded, info.max / 2), x)


def add_all(terms: Sequence[Array]) -> Array:
    """Sums at least one array, in the widest of their types."""
    widest = max((term.dtype for term in terms), key=lambda dtype: dtype.itemsize)
    return sum((term.astype(widest) for term in terms[1:]), terms[0].astype(widest))


def stack(terms: Sequence[Array]) -> Array:
    """Stacks at least one array, in the widest of their types."""
    widest = max((term.dtype for term in terms), key=lambda dtype: dtype.itemsize)
    return jnp.stack([term.astype(widest) for term in terms])
