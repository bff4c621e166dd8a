"""Shadow models: the same training on random halves of one pool.

Halves come in complementary pairs, so every record is a member of exactly half of the models.
Within a pair memberships are therefore not independent. In the shapes below `m` counts models
and `n` records.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

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
    make_alg: Callable[[int], Algorithm],
    init: Callable[[PRNGKeyArray], Params],
    data: PyTree,
    *,
    is_member: Bool[np.ndarray, "m n"],
    steps: int,
    chunk: int | None = None,
    checkpoints: Checkpoints | None = None,
) -> Params:
    """Trains one model on each row of members.

    Args:
      key: consumed.
      make_alg: number of members -> algorithm.
      init: key -> initial parameters.
      data: the pool; pytree with leading axis n.
      is_member: from `halves`, or any rows.
      steps: of every model.
      chunk: models in one program, as for `fit_many`.
      checkpoints: where finished chunks are saved, and looked for.

    Returns:
      Final parameters, stacked along m, in the order of the rows.
    """
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
            lambda _, size=int(size): make_alg(size),
            jax.tree.map(lambda leaf, models=models: leaf[models], params),
            data,
            members=members,
            steps=steps,
            chunk=chunk,
            checkpoints=_part(checkpoints, int(size)),
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

    The function sees one record, so no record's output depends on its batch mates.

    Args:
      apply: `apply(params, example) -> output` in inference mode, such as logits.
      params: stacked along m.
      x: records; pytree with leading axis n.
      batch_size: records at once, which bounds the memory.

    Returns:
      The outputs, in the type that `apply` returns.

    Raises:
      ValueError: if batch_size < 1.
    """
    _check.positive_int(batch_size=batch_size)

    @jax.jit
    def of_one(params, x):
        return jax.lax.map(lambda example: apply(params, example), x, batch_size=batch_size)

    count = len(jax.tree.leaves(params)[0])
    rows = (jax.tree.map(lambda leaf, i=i: leaf[i], params) for i in range(count))
    return np.stack([np.asarray(of_one(row, x)) for row in rows])


def _part(checkpoints: Checkpoints | None, size: int) -> Checkpoints | None:
    """A folder for the models of one size: they are a run of their own."""
    if checkpoints is None:
        return None
    folder = Path(checkpoints.directory) / f"members-{size}"
    return dataclasses.replace(checkpoints, directory=folder)
