"""Trains many models at once, by vmap or by map.

In the shapes below `m` counts models, `n` the records of the pool and `k` those of one model.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from jaxpriv import _check, _tree
from jaxpriv._types import Keys, Params
from jaxpriv.training import loop
from jaxpriv.training.algorithms import Algorithm
from jaxpriv.training.checkpoint import Checkpoints, fingerprint

_MODELS_AT_ONCE = 64
_MODELS_BETWEEN_CHECKPOINTS = 8
_BYTES_AT_ONCE = 2**30


class ManyInfo(NamedTuple):
    """How many models were trained at once, and what the algorithm said.

    info: the algorithm's Info, every leaf [m, steps, ...].
    strategy: "vmap" trains a chunk side by side, "map" one after the other in one program.
    chunk: models a program.
    """

    info: PyTree
    strategy: Literal["vmap", "map"]
    chunk: int


def fit_many(
    keys: Keys,
    make_alg: Callable[[Any], Algorithm],
    params: Params,
    data: PyTree,
    *,
    members: Int[Array, "m k"] | Int[np.ndarray, "m k"],
    steps: int,
    hyper: PyTree = None,
    chunk: int | None = None,
    checkpoints: Checkpoints | None = None,
) -> tuple[Any, ManyInfo]:
    """Trains many models, each on its own members; equal to `fit` with the same keys.

    On a GPU or TPU a chunk of models runs side by side by vmap; on a CPU, where batched
    products are slow, one after the other inside one program.

    Args:
      keys: [m], one a model.
      make_alg: hyper-parameters of one model -> algorithm. They are traced inside (a learning
        rate); privacy parameters must not depend on them.
      params: initial, leading axis m.
      data: the pool; pytree with leading axis n.
      members: indices into the pool. Rows have equal length k: the sampler is over k records.
      steps: of every model.
      hyper: pytree with leading axis m, or None; checked on the host for every model first.
      chunk: models in one program, which bounds memory; default: as many as fit 1 GiB of
        parameters and optimiser state, at most 64 where vmap is used, and at most 8 with
        checkpoints.
      checkpoints: where finished chunks are saved, all of them, and looked for.

    Returns:
      The states, stacked along m, and how it was done.

    Raises:
      ValueError: if lengths disagree, a member is out of range, make_alg refuses, or the
        checkpoints are of another run.
    """
    members = np.asarray(members)
    many = len(members)
    _check_many(keys, make_alg, params, data, members=members, steps=steps, hyper=hyper)
    strategy: Literal["vmap", "map"] = "map" if jax.default_backend() == "cpu" else "vmap"
    if chunk is None:
        chunk = _default_chunk(make_alg(_row(hyper, 0)), _row(params, 0), many, strategy)
        chunk = chunk if checkpoints is None else min(chunk, _MODELS_BETWEEN_CHECKPOINTS)
    _check.positive_int(chunk=chunk)

    def one(run):
        key, params, mine, hyper = run
        alg = make_alg(hyper)
        return loop.scan_steps(alg, steps, key, alg.init(params), data, jnp.int32(steps), mine)

    program = jax.jit(jax.vmap(one) if strategy == "vmap" else lambda runs: jax.lax.map(one, runs))
    runs = (keys, params, jnp.asarray(members), hyper)
    mark = ""
    if checkpoints is not None:
        checkpoints = dataclasses.replace(checkpoints, keep=None)
        first = _tree.take(runs, jnp.arange(chunk) % many)
        mark = fingerprint(runs, data, program.lower(first).as_text(), steps, chunk)
    results = []
    with loop.progress_bar(many) as advance:
        for start in range(0, many, chunk):
            # The last chunk repeats models so that one program serves all.
            rows = jnp.arange(start, start + chunk) % many
            results.append(_one_chunk(program, _tree.take(runs, rows), start, checkpoints, mark))
            advance(min(start + chunk, many))
    states, info = jax.tree.map(lambda *x: jnp.concatenate(x)[:many], *results)
    return states, ManyInfo(info, strategy, chunk)


def _one_chunk(program, runs: PyTree, start: int, checkpoints: Checkpoints | None, mark: str):
    """Runs a chunk of models, or finds it done."""
    if checkpoints is None:
        return jax.block_until_ready(program(runs))
    found = checkpoints.at(start, fingerprint=mark)
    structure = jax.tree.structure(jax.eval_shape(program, runs))
    if found is None:
        leaves = jax.tree.leaves(jax.block_until_ready(program(runs)))
        checkpoints.save(start, leaves, fingerprint=mark)
    else:
        leaves = [jnp.asarray(x) for x in found.restore([0] * structure.num_leaves)]
    return jax.tree.unflatten(structure, leaves)


def _default_chunk(alg: Algorithm, params: Params, many: int, strategy: str) -> int:
    if strategy == "map":
        return many
    state = jax.eval_shape(alg.init, params)
    size = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(state))
    return max(1, min(many, _MODELS_AT_ONCE, _BYTES_AT_ONCE // max(size, 1)))


def _check_many(keys, make_alg, params, data, *, members, steps, hyper) -> None:
    """Refuses on the host what would be wrong, or unchecked, inside the map."""
    many = len(members)
    _check.positive_int(steps=steps)
    _check.same_length(keys=keys, members=members)
    _check_stacked(many, params=params, hyper=hyper)
    _check_members(members, data)
    for i in range(many):
        alg = make_alg(_row(hyper, i))
        if alg.sampler.num_examples != members.shape[1]:
            raise ValueError(
                f"Expected a sampler over the {members.shape[1]} members of a model, "
                f"got one over {alg.sampler.num_examples} examples."
            )


def _check_stacked(many: int, **trees: PyTree) -> None:
    for name, tree in trees.items():
        for leaf in jax.tree.leaves(tree):
            if jnp.ndim(leaf) == 0 or leaf.shape[0] != many:
                raise ValueError(
                    f"Expected {name} stacked for {many} models, got shape {jnp.shape(leaf)}."
                )
            if not np.all(np.isfinite(np.asarray(leaf, np.float64))):
                raise ValueError(f"Expected finite {name}, got NaN or inf.")


def _check_members(members: Int[np.ndarray, "m k"], data: PyTree) -> None:
    n = min(leaf.shape[0] for leaf in jax.tree.leaves(data))
    if members.size == 0 or members.min() < 0 or members.max() >= n:
        raise ValueError(f"Expected members in 0..{n - 1}, got {members.shape} rows beyond that.")
    ordered = np.sort(members, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        raise ValueError("Expected distinct members of a model, got one that is listed twice.")


def _row(tree: PyTree, i: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[i], tree)
