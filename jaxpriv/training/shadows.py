"""Shadow models: the target's training repeated on random halves of one pool.

Halves (`units.halves`) come in complementary pairs, so every record is a member of exactly half of
the models, and the memberships of a pair are not independent. In the shapes below `m` counts models
and `n` records.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Shaped

from jaxpriv import _check, _tree, units
from jaxpriv._types import Params
from jaxpriv.training import many
from jaxpriv.training.algorithms import Algorithm
from jaxpriv.training.checkpoint import Checkpoints

__all__ = ["halves", "outputs", "train"]


def halves(
    key: PRNGKeyArray,
    n: int,
    *,
    num_models: int,
    group: Shaped[np.ndarray, " n"] | None = None,
) -> Bool[np.ndarray, "m n"]:
    """Draws complementary random halves of n records, keeping groups together.

    Args:
      key: PRNG key.
      n: number of records in the pool; >= 2.
      num_models: number of models, m; even.
      group: group (person, household) of each record; None if records are independent.

    Returns:
      Whether record j is a member of model i. Model i + m/2 is the complement of model i.

    Raises:
      ValueError: if num_models is odd, n < 2, group has another length than n, or there are fewer
        than two groups.

    Example:
      >>> is_member = halves(jax.random.key(0), 6, num_models=4)
      >>> is_member.sum(axis=1), is_member.sum(axis=0)
      (array([3, 3, 3, 3]), array([2, 2, 2, 2, 2, 2]))
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
    hyper: Callable[[Int[np.ndarray, "g k"]], PyTree] | None = None,
    chunk: int | None = None,
    strategy: Literal["auto", "vmap", "map"] = "auto",
    checkpoints: Checkpoints | None = None,
) -> Params:
    """Trains one model for each row of is_member.

    Args:
      key: PRNG key.
      make_alg: `make_alg(k, hyper)`, the algorithm for k members, as for `fit_many`.
      init: `init(key)`, the initial parameters.
      data: the pool; pytree with leading axis n.
      is_member: the members of each model, as from `halves`.
      steps: number of steps of every model.
      hyper: `hyper(members)`, the hyper-parameters of models with the members [g, k], with leading
        axis g, such as the labels for `sampling.by_class`. None gives every model None.
      chunk: number of models in one program, as for `fit_many`.
      strategy: as for `fit_many`.
      checkpoints: folder of checkpoints, as for `fit_many`.

    Returns:
      Final parameters, stacked along m, in the order of the rows.

    Raises:
      ValueError: if is_member is not bool [m, n] with a member in every row, or as for `fit_many`.

    Example:
      >>> import optax
      >>> from jaxpriv import sampling, training
      >>> def make_alg(k, hyper):
      ...     loss = lambda w, x, key: (w - x) ** 2
      ...     return training.sgd(loss, optax.sgd(0.5), sampling.full_batch(k))
      >>> data = jnp.array([1.0, 3.0, 5.0, 7.0])
      >>> is_member = np.array([[True, True, False, False], [False, False, True, True]])
      >>> init = lambda key: jnp.float32(0)
      >>> train(jax.random.key(0), make_alg, init, data, is_member=is_member, steps=3).tolist()
      [2.0, 6.0]
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
            hyper=None if hyper is None else hyper(members),
            chunk=chunk,
            strategy=strategy,
            checkpoints=_subfolder(checkpoints, int(size)),
        )
        trained.append(states.params)
        order.append(models)
    positions = np.argsort(np.concatenate(order))
    return jax.tree.map(lambda *x: jnp.concatenate(x)[positions], *trained)


def outputs(
    apply: Callable[[Params, PyTree], Float[Array, "*c"]],
    params: Params,
    x: PyTree,
    *,
    batch_size: int = 1024,
) -> Float[np.ndarray, "m n *c"]:
    """Computes the output of every model for every record, one model after the other.

    `apply` takes a single record, so an output cannot depend on other records of a batch.

    Args:
      apply: `apply(params, example)`, an output such as logits, in inference mode.
      params: parameters, stacked along m.
      x: records; pytree with leading axis n.
      batch_size: number of records evaluated together, which bounds the memory.

    Returns:
      The outputs, of the type that `apply` returns.

    Raises:
      ValueError: if batch_size < 1.

    Example:
      >>> params, x = jnp.array([1.0, -1.0]), jnp.array([2.0, 3.0, 4.0])
      >>> outputs(lambda w, x: w * x, params, x)
      array([[ 2.,  3.,  4.],
             [-2., -3., -4.]], dtype=float32)
    """
    _check.positive_int(batch_size=batch_size)

    @jax.jit
    def predict(params, x):
        return jax.lax.map(lambda example: apply(params, example), x, batch_size=batch_size)

    count = len(jax.tree.leaves(params)[0])
    rows = (jax.tree.map(lambda leaf, i=i: leaf[i], params) for i in range(count))
    return np.stack([np.asarray(predict(row, x)) for row in rows])


def _check_is_member(is_member: np.ndarray, data: PyTree) -> None:
    n = _tree.num_rows(data, name="data")
    if is_member.dtype != bool or is_member.shape[1:] != (n,) or not is_member.any(axis=1).all():
        raise ValueError(
            f"Expected is_member of bool [models, {n}] with members in every row, "
            f"got {is_member.dtype} of shape {is_member.shape}."
        )


def _subfolder(checkpoints: Checkpoints | None, size: int) -> Checkpoints | None:
    """Returns a folder for the models with `size` members, which are a separate run."""
    if checkpoints is None:
        return None
    folder = Path(checkpoints.directory) / f"members-{size}"
    return dataclasses.replace(checkpoints, directory=folder)
