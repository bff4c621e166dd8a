"""Trains many models, in parallel by vmap or one after the other by map.

In the shapes below `m` counts models, `n` the records of the pool and `k` those of one model.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from jaxpriv import _check, _progress, _tree
from jaxpriv._types import Keys, Params
from jaxpriv.training import _arguments, _identity, _scan
from jaxpriv.training.algorithms import Algorithm
from jaxpriv.training.checkpoint import Checkpoints

__all__ = ["ManyInfo", "Strategy", "fit_many"]

Strategy = Literal["vmap", "map"]
"""How the models of a chunk are trained: in parallel, or one after the other."""

_MAX_MODELS_BY_VMAP = 64
_MAX_BYTES_BY_VMAP = 2**30
"""Bytes of parameters and optimiser state of the models of a chunk."""

_MAX_MODELS_BETWEEN_CHECKPOINTS = 8


class ManyInfo(NamedTuple):
    """Diagnostics of `fit_many`.

    info: diagnostics of the algorithm, every leaf [m, steps, ...].
    strategy: "vmap" if the models of a chunk were trained in parallel, "map" if one after the
      other.
    chunk: number of models in one program.
    """

    info: PyTree
    strategy: Strategy
    chunk: int


def fit_many(
    keys: Keys,
    make_alg: Callable[[int, Any], Algorithm],
    params: Params,
    data: PyTree,
    *,
    members: Int[Array, "m k"] | Int[np.ndarray, "m k"],
    steps: int,
    hyper: PyTree = None,
    keep: Callable[[Any], PyTree] | None = None,
    chunk: int | None = None,
    strategy: Literal["auto", "vmap", "map"] = "auto",
    checkpoints: Checkpoints | None = None,
) -> tuple[Any, ManyInfo]:
    """Trains many models, each on its own members.

    Model i equals the result of `fit` with keys[i] on data[members[i]].

    Args:
      keys: [m], one for each model. They must differ, since equal keys give equal noise.
      make_alg: `make_alg(k, hyper)`, the algorithm for k records. The hyper-parameters of the
        model, such as a learning rate, are traced; privacy parameters must not depend on them.
      params: initial parameters, with leading axis m.
      data: the pool; pytree with leading axis n.
      members: indices into the pool, k for each model.
      steps: number of steps of every model.
      hyper: hyper-parameters, a pytree with leading axis m, or None.
      keep: `keep(state)`, what is returned of each final state, so that the memory of many models
        is bounded; None keeps all of it.
      chunk: number of models in one program, which bounds memory. By default as many as fit into
        1 GiB of parameters and optimiser state, at most 64 by vmap and 8 with checkpoints.
      strategy: "vmap" trains the models of a chunk in parallel, "map" one after the other in one
        program; "auto" is "map" on a CPU, where batched products are slow, otherwise "vmap".
      checkpoints: folder of checkpoints, one for each finished chunk; all are kept.

    Returns:
      The states, or what is kept of them, stacked along m, and the diagnostics.

    Raises:
      ValueError: if lengths disagree, two keys are equal, a member is out of range, make_alg
        raises, or the checkpoints belong to a run with other arguments.

    Example:
      >>> import optax
      >>> from jaxpriv import sampling, training
      >>> def make_alg(k, hyper):
      ...     loss = lambda w, x, key: (w - x) ** 2
      ...     return training.sgd(loss, optax.sgd(0.5), sampling.full_batch(k))
      >>> keys, data = jax.random.split(jax.random.key(0), 2), jnp.array([1.0, 3.0, 5.0, 7.0])
      >>> members = np.array([[0, 1], [2, 3]])
      >>> states, info = fit_many(keys, make_alg, jnp.zeros(2), data, members=members, steps=3)
      >>> states.params.tolist()  # each model has the mean of its members
      [2.0, 6.0]
    """
    _check.one_of(("auto", "vmap", "map"), strategy=strategy)
    members = np.asarray(members)
    num_models = len(members)
    alg = _check_models(keys, make_alg, params, data, members=members, steps=steps, hyper=hyper)
    resolved: Strategy = _default_strategy() if strategy == "auto" else strategy
    if chunk is None:
        chunk = _default_chunk(alg, _model(params, 0), num_models, resolved)
        chunk = chunk if checkpoints is None else min(chunk, _MAX_MODELS_BETWEEN_CHECKPOINTS)
    _check.positive_int(chunk=chunk)

    def train(run):
        key, params, members, hyper = run
        alg = make_alg(len(members), hyper)
        start = alg.init(params)
        state, info = _scan.scan_steps(alg, steps, key, start, data, jnp.int32(steps), members)
        return (state if keep is None else keep(state)), info

    data = jax.tree.map(jnp.asarray, data)  # rows are gathered in the program
    program = jax.jit(
        jax.vmap(train) if resolved == "vmap" else lambda runs: jax.lax.map(train, runs)
    )
    identity = {}
    if checkpoints is not None:
        checkpoints = dataclasses.replace(checkpoints, keep=None)
        identity = _identity.describe(
            keys=keys,
            params=params,
            data=data,
            members=members,
            steps=steps,
            hyper=hyper,
            algorithm=alg,
            chunk=chunk,
            strategy=resolved,
        )
        if keep is not None:
            identity |= _identity.describe(keep=keep)
        identity |= _identity.versions()
    runs = (keys, params, jnp.asarray(members), hyper)
    states, info = _train_chunks(program, runs, num_models, chunk, checkpoints, identity)
    _warn_if_not_finite(info)
    return states, ManyInfo(info, resolved, chunk)


def _train_chunks(
    program: Any,
    runs: PyTree,
    num_models: int,
    chunk: int,
    checkpoints: Checkpoints | None,
    identity: Mapping[str, str],
) -> tuple[Any, PyTree]:
    """Trains all models, one chunk after the other; returns states and diagnostics."""
    results = []
    with _progress.bar("training", num_models) as advance:
        for start in range(0, num_models, chunk):
            # The last chunk repeats models, so that one compiled program serves all chunks.
            rows = jnp.arange(start, start + chunk) % num_models
            chunk_runs = _tree.take(runs, rows)
            results.append(_train_chunk(program, chunk_runs, start, checkpoints, identity))
            advance(min(start + chunk, num_models))
    return jax.tree.map(lambda *x: jnp.concatenate(x)[:num_models], *results)


def _train_chunk(
    program: Any,
    runs: PyTree,
    start: int,
    checkpoints: Checkpoints | None,
    identity: Mapping[str, str],
) -> tuple[Any, PyTree]:
    """Trains the models of a chunk, or restores them from a checkpoint."""
    if checkpoints is None:
        return jax.block_until_ready(program(runs))
    like = jax.eval_shape(program, runs)
    saved = checkpoints.find(start, identity=identity)
    if saved is None:
        leaves = jax.tree.leaves(jax.block_until_ready(program(runs)))
        checkpoints.save(start, leaves, identity=identity)
    else:
        leaves = [jnp.asarray(x) for x in saved.restore(jax.tree.leaves(like))]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _default_strategy() -> Strategy:
    return "map" if jax.default_backend() == "cpu" else "vmap"


def _default_chunk(alg: Algorithm, params: Params, num_models: int, strategy: Strategy) -> int:
    if strategy == "map":
        return num_models
    state = jax.eval_shape(alg.init, params)
    size = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(state))
    return max(1, min(num_models, _MAX_MODELS_BY_VMAP, _MAX_BYTES_BY_VMAP // max(size, 1)))


def _warn_if_not_finite(info: PyTree) -> None:
    dropped = int(np.asarray(getattr(info, "num_nonfinite", 0)).sum())
    if dropped:
        rows = int(np.asarray(info.batch_size).sum())
        warnings.warn(_scan.nonfinite_warning(dropped, rows), stacklevel=3)


def _check_models(keys, make_alg, params, data, *, members, steps, hyper) -> Algorithm:
    """Checks the arguments of all models on the host, and returns the first model's algorithm.

    Inside jit they are traced: indices out of range would be clamped without an error.
    """
    num_models = len(members)
    if members.ndim != 2 or members.dtype.kind not in "iu" or num_models == 0:
        raise ValueError(
            f"Expected members [models, records] as indices, got {members.dtype} of shape "
            f"{members.shape}."
        )
    _check.positive_int(steps=steps)
    _check.same_length(keys=keys, members=members)
    _check_keys(keys)
    _check_stacked(num_models, params=params, hyper=hyper)
    _check_members(members, data)
    num_different = num_models if jax.tree.leaves(hyper) else 1
    algorithms = [make_alg(members.shape[1], _model(hyper, i)) for i in range(num_different)]
    for alg in algorithms:
        _arguments.check_algorithm(make_alg=alg)
        if alg.sampler.num_examples != members.shape[1]:
            raise ValueError(
                f"Expected a sampler over the {members.shape[1]} members of a model, "
                f"got one over {alg.sampler.num_examples} examples."
            )
    return algorithms[0]


def _check_keys(keys: Keys) -> None:
    is_typed = jax.dtypes.issubdtype(keys.dtype, jax.dtypes.prng_key)
    bits = np.asarray(jax.random.key_data(keys) if is_typed else keys)
    _, first, index = np.unique(
        bits.reshape(len(bits), -1), axis=0, return_index=True, return_inverse=True
    )
    repeated = np.flatnonzero(first[index.ravel()] != np.arange(len(bits)))
    if len(repeated):
        i = int(repeated[0])
        raise ValueError(
            f"Expected different keys, got the key of model {first[index.ravel()[i]]} again for "
            f"model {i}: their noise would be equal."
        )


def _check_stacked(num_models: int, **trees: PyTree) -> None:
    for name, tree in trees.items():
        for leaf in jax.tree.leaves(tree):
            if jnp.ndim(leaf) == 0 or leaf.shape[0] != num_models:
                raise ValueError(
                    f"Expected {name} stacked for {num_models} models, got shape {jnp.shape(leaf)}."
                )
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                continue
            if not np.all(np.isfinite(np.asarray(leaf, np.float64))):
                raise ValueError(f"Expected finite {name}, got NaN or inf.")


def _check_members(members: Int[np.ndarray, "m k"], data: PyTree) -> None:
    n = _tree.num_rows(data, name="data")
    if members.size == 0 or members.min() < 0 or members.max() >= n:
        outside = members[(members < 0) | (members >= n)]
        example = f", got {outside[0]}" if outside.size else ", got none"
        raise ValueError(f"Expected members in 0..{n - 1}{example}.")
    ordered = np.sort(members, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        raise ValueError("Expected distinct members of a model, got one that is listed twice.")


def _model(tree: PyTree, i: int) -> PyTree:
    """Selects one model of a stacked tree."""
    return jax.tree.map(lambda leaf: leaf[i], tree)
