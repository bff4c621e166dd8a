"""Shadow models: the same training on random halves of one pool.

Halves come in complementary pairs, so every record is a member of exactly half of the models.
Within a pair memberships are therefore not independent. In the shapes below `m` counts models
and `n` records.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree, Shaped

from jaxpriv import _check, units
from jaxpriv._types import Params
from jaxpriv.training import many
from jaxpriv.training.algorithms import Algorithm
from jaxpriv.training.checkpoint import Checkpoints


def halves(
    key: PRNGKeyArray,
    n: int,
    *,
    num_models: int,
    group: Shaped[np.ndarray, " n"] | None = None,
) -> Bool[np.ndarray, "m n"]:
    """Draws complementary random halves of n records, in whole groups where there are groups.

    Args:
      key: consumed.
      n: records in the pool; >= 2.
      num_models: even.
      group: the person or household of each record; None: every record on its own.

    Returns:
      Whether record j is a member of model i; as `units.halves`.

    Raises:
      ValueError: if num_models is odd, n < 2, group has another length than n, or there are fewer
        than two groups.
    """
    return units.halves(key, units.of_records(n, group=group), num_models=num_models)


def train(
    key: PRNGKeyArray,
    make_alg: Callable[[int, Any], Algorithm],
    init: Callable[[PRNGKeyArray], Params],
    data: PyTree,
    *,
    is_member: Bool[np.ndarray, "m n"],
    steps: int,
    chunk: int | None = None,
    strategy: Literal["auto", "vmap", "map"] = "auto",
    checkpoints: Checkpoints | None = None,
) -> Params:
    """Trains one model on each row of members.

    Args:
      key: PRNG key.
      make_alg: (number of members, None) -> algorithm; the second argument is that of the
        hyper-parameters in `fit_many`.
      init: key -> initial parameters.
      data: the pool; pytree with leading axis n.
      is_member: from `halves`, or any rows.
      steps: number of steps of every model.
      chunk: number of models in one program, as for `fit_many`.
      strategy: as for `fit_many`.
      checkpoints: folder where finished chunks are saved, and looked for.

    Returns:
      Final parameters, stacked along m, in the order of the rows.
    """
    _check_is_member(is_member, data)
    init_key, run_key = jax.random.split(key)
    params = jax.vmap(init)(jax.random.split(init_key, len(is_member)))
    keys = jax.random.split(run_key, len(is_member))
    sizes = is_member.sum(axis=1)
    trained, order = [], []
    for size in np.unique(sizes):
        (models,) = np.nonzero(sizes == size)
        members = np.stack([np.nonzero(is_member[i])[0] for i in models])
        states, _ = many.fit_many(
            keys[models],
            make_alg,
            jax.tree.map(lambda leaf, models=models: leaf[models], params),
            data,
            members=members,
            steps=steps,
            chunk=chunk,
            strategy=strategy,
            checkpoints=_subfolder(checkpoints, int(size)),
        )
        trained.append(states.params)
        order.append(models)
    back = np.argsort(np.concatenate(order))
    return jax.tree.map(lambda *x: jnp.concatenate(x)[back], *trained)


def outputs(
    apply: Callable[[Params, PyTree], Float[Array, "*c"]],
    params: Params,
    x: PyTree,
    *,
    batch_size: int = 1024,
) -> Float[np.ndarray, "m n *c"]:
    """Runs every model on every record, one model after the other.

    The function sees one record, so no output depends on the other records of a batch.

    Args:
      apply: `apply(params, example) -> output` in inference mode, such as logits.
      params: parameters, stacked along m.
      x: records; pytree with leading axis n.
      batch_size: number of records evaluated together, which bounds the memory.

    Returns:
      The outputs, of the type that `apply` returns.

    Raises:
      ValueError: if batch_size < 1.
    """
    _check.positive_int(batch_size=batch_size)

    @jax.jit
    def predict(params, x):
        return jax.lax.map(lambda example: apply(params, example), x, batch_size=batch_size)

    count = len(jax.tree.leaves(params)[0])
    rows = (jax.tree.map(lambda leaf, i=i: leaf[i], params) for i in range(count))
    return np.stack([np.asarray(predict(row, x)) for row in rows])


def _check_is_member(is_member: np.ndarray, data: PyTree) -> None:
    n = min(leaf.shape[0] for leaf in jax.tree.leaves(data))
    if is_member.dtype != bool or is_member.shape[1:] != (n,) or not is_member.any(axis=1).all():
        raise ValueError(
            f"Expected is_member of bool [models, {n}] with members in every row, "
            f"got {is_member.dtype} of shape {is_member.shape}."
        )


def _subfolder(checkpoints: Checkpoints | None, size: int) -> Checkpoints | None:
    """Returns a folder for the models of one size, which are a run by themselves."""
    if checkpoints is None:
        return None
    folder = Path(checkpoints.directory) / f"members-{size}"
    return dataclasses.replace(checkpoints, directory=folder)
