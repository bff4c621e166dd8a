"""Derives PRNG keys by name, and NumPy generators from keys."""

import zlib

import jax
import numpy as np
from jaxtyping import PRNGKeyArray


def named(key: PRNGKeyArray, name: str) -> PRNGKeyArray:
    """Derives the key of an attack or model from its name, independently of other names."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def numpy_rng(key: PRNGKeyArray) -> np.random.Generator:
    """Makes a NumPy generator from a key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))
