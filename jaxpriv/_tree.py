"""Arithmetic and noise on pytrees and arrays that optax.tree, jax.numpy and jax.random lack."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, UInt32

_MAX_ENTRIES_OF_JOINT_DRAW = 2**16
"""Size of the largest leaf whose noise is part of one draw."""

_MAX_ENTRIES_AT_ONCE = 2**18
"""Number of entries from which noise is drawn in a loop, whose random bits stay in the caches."""


def check_float(params: PyTree) -> None:
    """Raises ValueError unless every leaf is of a float type, as noise on parameters needs."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            name = jax.tree_util.keystr(path) or "params"
            raise ValueError(
                f"Expected float parameters, got {jnp.result_type(leaf)} in {name}: noise on it "
                "would be rounded away."
            )


def accumulation_dtype(dtype: object) -> np.dtype:
    """Returns the type of norms, sums and noise: float64 for float64, otherwise float32."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def at_least_float32(x: Array) -> Array:
    """Converts an array to its accumulation type."""
    return x.astype(accumulation_dtype(x.dtype))


def normal_like(key: PRNGKeyArray, tree: PyTree, *, std: float | Float[Array, ""]) -> PyTree:
    """Draws N(0, std^2) for every entry, independently.

    Small leaves are parts of one draw, since the program of a draw takes XLA longer to compile than
    a layer; each large leaf has a key and a draw of its own, which bounds memory. The noise is
    drawn in at least float32 whatever the type of the leaf: rounding to bfloat16 would coarsen it.

    `jax.random.normal` ends at 5.2 standard deviations in float32. A sum beyond that end would
    prove that a record is present, for one whose gradient has a single non-zero entry with
    probability 0.004 in 5,000 batches at sampling probability 0.01 and noise multiplier 0.7. The
    noise here ends at 9.1 standard deviations, where that probability is below 1e-12.

    Args:
      key: PRNG key.
      tree: arrays, whose shapes the noise has.
      std: standard deviation, >= 0.

    Returns:
      A tree of noise, float32 or wider.
    """
    leaves, treedef = jax.tree.flatten(tree)
    groups: dict[object, list[int]] = {}
    for i, leaf in enumerate(leaves):
        is_small = leaf.size <= _MAX_ENTRIES_OF_JOINT_DRAW
        groups.setdefault(accumulation_dtype(leaf.dtype) if is_small else i, []).append(i)
    noise = list(leaves)
    for group_key, members in zip(
        jax.random.split(key, max(1, len(groups))), groups.values(), strict=False
    ):
        dtype = accumulation_dtype(leaves[members[0]].dtype)
        ends = np.cumsum([leaves[i].size for i in members])
        drawn = jnp.asarray(std, dtype) * _standard_normal(group_key, int(ends[-1]), dtype)
        for i, part in zip(members, jnp.split(drawn, ends[:-1]), strict=True):
            noise[i] = part.reshape(leaves[i].shape)
    return jax.tree.unflatten(treedef, noise)


def _standard_normal(key: PRNGKeyArray, size: int, dtype: np.dtype) -> Float[Array, " size"]:
    def draw(key: PRNGKeyArray) -> Array:
        high, low = jax.random.bits(key, (2, length), jnp.uint32)
        return normal_of_bits(high, low, dtype)

    rows = max(1, math.ceil(size / _MAX_ENTRIES_AT_ONCE))
    length = math.ceil(size / rows)
    if rows == 1:
        return draw(key)
    return jax.lax.map(draw, jax.random.split(key, rows)).reshape(-1)[:size]


def normal_of_bits(
    high: UInt32[Array, " n"], low: UInt32[Array, " n"], dtype: np.dtype
) -> Float[Array, " n"]:
    """Converts random bits to standard normal numbers by the inverse of the distribution function.

    The first bit is the sign, and the other 63 are a probability in (0, 1/2), whose smallest value
    is 2^-65. Floating-point numbers resolve probabilities near 0, unlike those near 1.
    """
    below = jax.scipy.special.ndtri(uniform_of_bits(high & 0x7FFFFFFF, low, dtype))
    return jnp.where(high >> 31 == 1, -below, below)


def uniform_of_bits(
    high: UInt32[Array, " n"], low: UInt32[Array, " n"], dtype: np.dtype
) -> Float[Array, " n"]:
    """Converts random bits to uniform numbers in (0, 1); the smallest is 2^-65."""
    fraction = (low.astype(dtype) + 0.5) * 2.0**-32
    return (high.astype(dtype) + fraction) * 2.0**-32


def take(tree: PyTree, indices: Array) -> PyTree:
    """Gathers rows along the leading axis of every leaf."""
    return jax.tree.map(lambda leaf: leaf[indices], tree)


def num_rows(tree: PyTree, *, name: str) -> int:
    """Returns the number of rows of the leaves; `name` is that of the argument, for the message.

    Raises ValueError for no leaves, a leaf without rows, or leaves of different lengths.
    """
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]
    if not shapes or not all(shapes) or len({shape[0] for shape in shapes}) > 1:
        got = ", ".join(str(list(shape)) for shape in shapes) or "none"
        raise ValueError(f"Expected arrays with equal numbers of rows in {name}, got shapes {got}.")
    return shapes[0][0]


def zeros(shapes: PyTree) -> PyTree:
    """Returns zeros in the shapes and types of the leaves."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def norm(x: Array) -> Float[Array, ""]:
    """Computes the Euclidean norm of an array in float32 or wider.

    The entries are divided by the largest before they are squared, so the norm of finite entries
    neither overflows nor underflows.
    """
    x = at_least_float32(x)
    largest = power_of_two(jnp.max(jnp.abs(x), initial=0.0))
    scaled = x / jnp.where(largest > 0, largest, 1.0)
    return largest * jnp.sqrt(jnp.sum(jnp.square(scaled)))


def power_of_two(x: Array) -> Array:
    """Rounds non-negative numbers to a power of two, 0 and non-finite ones to themselves.

    Division by a power of two is exact. The result is at most that of `largest_divisor`, and at
    least the smallest normal number, since accelerators do not flush subnormal ones to 0.
    """
    info = jnp.finfo(x.dtype)
    rounded = jax.lax.reduce_precision(x, exponent_bits=info.nexp, mantissa_bits=0)
    rounded = jnp.clip(rounded, info.tiny, largest_divisor(x.dtype))
    return jnp.where(jnp.isfinite(x) & (x > 0), rounded, x)


def largest_divisor(dtype: np.dtype) -> float:
    """Returns the largest power of two whose reciprocal is not rounded to 0, 2^126 for float32.

    XLA divides by a number that is broadcast by multiplying with its reciprocal, and the
    reciprocals of larger numbers are subnormal, which it flushes to 0.
    """
    return 2.0 ** (int(jnp.finfo(dtype).maxexp) - 2)


def sum_in_widest(terms: Sequence[Array]) -> Array:
    """Adds at least one array, in the widest of their types."""
    widest = max((term.dtype for term in terms), key=lambda dtype: dtype.itemsize)
    return sum((term.astype(widest) for term in terms[1:]), terms[0].astype(widest))


def stack_in_widest(terms: Sequence[Array]) -> Array:
    """Stacks at least one array, in the widest of their types."""
    widest = max((term.dtype for term in terms), key=lambda dtype: dtype.itemsize)
    return jnp.stack([term.astype(widest) for term in terms])
