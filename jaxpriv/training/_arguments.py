"""Checks the kinds of arguments, with error messages that show a correct one."""

from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from jaxpriv import _check

_ALGORITHM = ("init", "update", "sampler", "event")


def check_sampler(sampler: object) -> None:
    """Raises ValueError unless the argument has the attributes of a sampler of records."""
    names = ("num_examples", "expected_batch_size", "sample", "event")
    _check.attributes(names, "sampling.poisson(...)", sampler=sampler)
    if hasattr(sampler, "num_units"):
        raise ValueError(
            f"Expected a sampler of records such as sampling.poisson(...), got "
            f"{type(sampler).__name__}, a sampler of classes: use training.class_dpsgd."
        )


def check_class_sampler(sampler: object) -> None:
    """Raises ValueError unless the argument has the attributes of a sampler of classes."""
    _check.attributes(("num_units", "classes", "sample"), "sampling.by_class(...)", sampler=sampler)


def check_optimizer(optimizer: object) -> None:
    """Raises ValueError unless the argument is an optax transformation."""
    _check.attributes(("init", "update"), "optax.adam(...)", optimizer=optimizer)


def check_algorithm(**algorithms: object) -> None:
    """Raises ValueError unless every argument is an algorithm."""
    _check.attributes(_ALGORITHM, "training.dpsgd(...)", **algorithms)


def check_run(key: Any, alg: Any, evaluate: Any, checkpoints: Any) -> None:
    """Raises ValueError unless the arguments of `fit` are of the right kinds."""
    check_key(key)
    check_algorithm(alg=alg)
    if checkpoints is not None:
        _check.attributes(
            ("directory", "latest"), "training.Checkpoints(directory=...)", checkpoints=checkpoints
        )
    if evaluate is not None:
        _check.takes("evaluate(params, step)", evaluate)


def check_key(key: Any) -> None:
    """Raises ValueError unless the argument is one PRNG key."""
    dtype = getattr(key, "dtype", None)
    is_typed = dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
    if not ((is_typed and key.shape == ()) or (dtype == np.uint32 and key.ndim == 1)):
        shape = getattr(key, "shape", None)
        text = type(key).__name__ if shape is None else f"{dtype}{list(shape)}"
        raise ValueError(f"Expected key=jax.random.key(seed), got {text}.")


def check_rows(data: PyTree, alg: Any) -> None:
    """Raises ValueError unless the data are arrays with a row for each example of the sampler."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        name = f"data{jax.tree_util.keystr(path)}"
        if not hasattr(leaf, "shape"):
            raise ValueError(f"Expected arrays as data, got {type(leaf).__name__} as {name}.")
        if leaf.ndim == 0 or leaf.shape[0] != alg.sampler.num_examples:
            raise ValueError(
                f"Expected {alg.sampler.num_examples} records as in the sampler, "
                f"got shape {leaf.shape} as {name}."
            )


def describe_losses(losses: PyTree) -> str:
    """Describes the value of a loss for one example, from the values of several."""
    if not hasattr(losses, "shape"):
        return f"a {type(losses).__name__}"
    return f"shape {losses.shape[1:]}"
