"""Audits of a training algorithm as a whole: of its noise, and of what it promises.

    residuals of one training --check_noise--> rejected tests  \\
    many trainings with and without one record --scores--> lower bound > promise -> findings

In the shapes below `r` counts trainings and `t` steps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxpriv import _check, _tree, accounting, training
from jaxpriv._names import Relation
from jaxpriv._types import Batch, Example, Keys, Params
from jaxpriv.audit import bounds, noise
from jaxpriv.training import Algorithm, _scan

__all__ = [
    "Exchange",
    "Outcomes",
    "TrainingFindings",
    "check_training",
    "repeat",
    "residuals",
]

_NUM_PAIRS = 100
"""Number of pairs of trainings without noise, whose mean difference the scores measure."""

_PAIRS_AT_ONCE = 10
"""Number of these pairs in memory."""


class Exchange(NamedTuple):
    """Neighbouring data sets of an audit: shared and present, or shared and absent.

    shared: the records that both have, every leaf [n - 1, ...].
    present: the record that is included by the coin.
    absent: the row in its place otherwise: another record for replace-one. For add-or-remove-one
      it is a row whose loss is 0, as in `canaries`.

    Example:
      >>> Exchange(shared=np.ones((3, 2)), present=np.ones(2), absent=np.zeros(2)).num_records
      4
    """

    shared: Batch
    present: Example
    absent: Example

    @property
    def num_records(self) -> int:
        """Number of rows of a training."""
        return 1 + len(jax.tree.leaves(self.shared)[0])


class Outcomes(NamedTuple):
    """Outcomes of trainings, for `lower_bounds` with design `independent_runs`.

    scores: score of each training; higher = the record was more likely present.
    is_member: whether the record was present.
    """

    scores: Float[np.ndarray, " r"]
    is_member: Bool[np.ndarray, " r"]


class TrainingFindings(NamedTuple):
    """Findings of `check_training`.

    is_flagged: whether the noise or the promise is wrong. For a correct training the probability is
      at most the level.
    promised: epsilon by the event of the algorithm.
    bounds: lower bounds on epsilon from the outcomes; above `promised` the promise is wrong.
    noise: tests of the noise.
    outcomes: scores and coins of the trainings.
    """

    is_flagged: bool
    promised: float
    bounds: bounds.LowerBounds
    noise: noise.NoiseFindings
    outcomes: Outcomes


def check_training(
    key: PRNGKeyArray,
    algorithm: Algorithm,
    params: Params,
    *,
    exchange: Exchange,
    noiseless: Algorithm,
    std: float,
    delta: float,
    relation: Relation,
    steps: int,
    runs: int,
    level: float,
) -> TrainingFindings:
    """Audits an algorithm by its noise, and by trainings with and without one record.

    The attacker has the initial parameters, both data sets and the algorithm without noise. A
    training is scored by the inner product of its update with the difference of the updates of
    both data sets without noise, on average over 100 trainings with equal batches. The record has
    to be chosen so that a fault would show: a gradient of large norm, against those of the other
    records (see `canaries`). A large delta, at which the promised epsilon is small, needs fewer
    trainings.

    Args:
      key: PRNG key.
      algorithm: the algorithm, with an event that has a guarantee.
      params: initial parameters.
      exchange: the data sets.
      noiseless: the same algorithm without noise.
      std: standard deviation of the noise in each step of the parameters: for SGD the learning
        rate times noise_multiplier * clip_norm / expected batch size.
      delta: delta of the promise, in [0, 1).
      relation: neighbouring relation of the promise, and of the exchange.
      steps: number of steps of a training.
      runs: number of trainings, r.
      level: probability with which a correct training may be flagged, in (0, 1).

    Returns:
      The findings; half of the level is spent on the noise and half on the promise.

    Raises:
      ValueError: if an argument is out of range, or as for `training.fit_many`.

    Example:
      >>> import optax
      >>> import jaxpriv as jp
      >>> grad = jp.grads.clipped_grad(lambda w, x, key: jnp.dot(w, x), clip_norm=1.0)
      >>> def algorithm(z):
      ...     sampler = jp.sampling.full_batch(4)
      ...     return jp.training.dpsgd(grad, optax.sgd(1.0), sampler, noise_multiplier=z)
      >>> findings = check_training(
      ...     jax.random.key(0), algorithm(2.0), jnp.zeros(20),
      ...     exchange=Exchange(np.zeros((3, 20)), np.eye(20)[0], np.zeros(20)),
      ...     noiseless=algorithm(0.0), std=2.0 / 4, delta=0.05, relation="add_or_remove_one",
      ...     steps=4, runs=200, level=0.05)
      >>> findings.is_flagged
      False
    """
    _check.open_unit(level=level)
    noise_key, run_key, audit_key = jax.random.split(key, 3)
    rows = _rows(exchange)
    data = jax.tree.map(lambda leaf: leaf[:-1], rows)
    observed = residuals(
        jax.random.split(noise_key, steps), algorithm, params, data, noiseless=noiseless
    )
    tested = noise.check_noise(observed, std=std, level=level / 2)
    direction = _direction(audit_key, noiseless, params, rows, steps)

    def score(released: Params) -> Float[Array, ""]:
        products = jax.tree.map(lambda d, a: jnp.vdot(d, a.astype(d.dtype)), direction, released)
        return _tree.sum_in_widest(jax.tree.leaves(products))

    outcomes = repeat(run_key, algorithm, params, exchange, score, steps=steps, runs=runs)
    proved = bounds.lower_bounds(
        outcomes.scores,
        outcomes.is_member,
        design="independent_runs",
        delta=delta,
        relation=relation,
        confidence=1 - level / 2,
    )
    promised = accounting.epsilon(algorithm.event(steps), delta=delta, relation=relation)
    exceeds = (proved.clopper_pearson or 0.0) > promised
    return TrainingFindings(bool(tested.rejected) or exceeds, promised, proved, tested, outcomes)


def repeat(
    key: PRNGKeyArray,
    algorithm: Algorithm,
    params: Params,
    exchange: Exchange,
    score: Callable[[Params], Float[Array, ""]],
    *,
    steps: int,
    runs: int,
) -> Outcomes:
    """Trains with or without one record, by a fair coin for each training, and scores the result.

    Args:
      key: PRNG key.
      algorithm: the algorithm.
      params: initial parameters of all trainings.
      exchange: the data sets.
      score: `score(params)` of released parameters; higher = the record was more likely present.
      steps: number of steps of a training.
      runs: number of trainings, r.

    Returns:
      Scores and coins.

    Raises:
      ValueError: as for `training.fit_many`.

    Example:
      >>> import optax
      >>> from jaxpriv import sampling, training
      >>> loss = lambda w, x, key: (w - x) ** 2
      >>> mean = training.sgd(loss, optax.sgd(0.5), sampling.full_batch(2))
      >>> exchange = Exchange(np.zeros(1), np.float64(1.0), np.float64(0.0))
      >>> outcomes = repeat(
      ...     jax.random.key(0), mean, jnp.float32(0.0), exchange, lambda w: w, steps=1, runs=9)
      >>> bool(((outcomes.scores > 0) == outcomes.is_member).all())  # the mean shows the record
      True
    """
    coin_key, train_key = jax.random.split(key)
    is_member = np.asarray(jax.random.bernoulli(coin_key, shape=(runs,)))
    if is_member.all() or not is_member.any():
        raise ValueError(f"Expected more trainings for a fair coin each, got runs={runs}.")
    shared = exchange.num_records - 1
    last = np.where(is_member, shared, shared + 1)
    members = np.column_stack([np.tile(np.arange(shared), (runs, 1)), last])
    scores, _ = training.fit_many(
        jax.random.split(train_key, runs),
        lambda k, hyper: algorithm,
        _tiled(params, runs),
        _rows(exchange),
        members=members,
        steps=steps,
        keep=lambda state: score(state.params),
        strategy="vmap",
        chunk=min(runs, 1000),
    )
    return Outcomes(np.asarray(scores, np.float64), is_member)


def residuals(
    keys: Keys, algorithm: Algorithm, params: Params, data: PyTree, *, noiseless: Algorithm
) -> PyTree[Float[Array, "t ..."]]:
    """Collects the noise of each step of a training.

    Each step is done twice from one state, with the same batch: with noise and without. Noise of
    earlier steps that the state remembers, as momentum does, is therefore not part of a residual.

    Args:
      keys: [t], one for each step.
      algorithm: the algorithm.
      params: initial parameters.
      data: pytree with one row for each record.
      noiseless: the same algorithm without noise.

    Returns:
      Differences of the parameters after each step, for `check_noise`.

    Example:
      >>> import optax
      >>> from jaxpriv import grads, sampling
      >>> grad = grads.clipped_grad(lambda w, x, key: jnp.dot(w, x), clip_norm=1.0)
      >>> def algorithm(z):
      ...     sampler = sampling.full_batch(4)
      ...     return training.dpsgd(grad, optax.sgd(1.0), sampler, noise_multiplier=z)
      >>> keys = jax.random.split(jax.random.key(0), 10)
      >>> noises = residuals(
      ...     keys, algorithm(2.0), jnp.zeros(50), np.ones((4, 50)), noiseless=algorithm(0.0))
      >>> noise.check_noise(noises, std=2.0 / 4, level=0.01).rejected
      ()
    """
    data = jax.tree.map(jnp.asarray, data)

    def step(state: Any, key: PRNGKeyArray) -> tuple[Any, PyTree]:
        sample_key, update_key = jax.random.split(key)
        indices, mask = algorithm.sampler.sample(sample_key)
        batch = _tree.take(data, indices)
        after, _ = algorithm.update(update_key, state, batch, mask)
        exact, _ = noiseless.update(update_key, state, batch, mask)
        return after, jax.tree.map(lambda a, b: a - b, after.params, exact.params)

    _, differences = jax.jit(lambda: jax.lax.scan(step, algorithm.init(params), keys))()
    return differences


def _direction(
    key: PRNGKeyArray, noiseless: Algorithm, params: Params, rows: Batch, steps: int
) -> Params:
    """Computes the mean difference of trainings with and without the record, without noise.

    Both trainings of a pair have one key, as different batches would hide the record. The mean is
    over several pairs, as a sampled batch may not contain it.
    """
    shared = len(jax.tree.leaves(rows)[0]) - 2
    members = np.stack([np.append(np.arange(shared), shared + i) for i in range(2)])

    def difference(key: PRNGKeyArray) -> Params:
        def train(members: Int[Array, " n"]) -> Params:
            start = noiseless.init(params)
            state, _ = _scan.scan_steps(
                noiseless, steps, key, start, rows, jnp.int32(steps), members
            )
            return jax.tree.map(_tree.at_least_float32, state.params)

        both = jax.lax.map(train, jnp.asarray(members))
        return jax.tree.map(lambda leaf: leaf[0] - leaf[1], both)

    @jax.jit
    def total(key: PRNGKeyArray) -> Params:
        def add(total: Params, keys: Keys) -> tuple[Params, None]:
            differences = jax.vmap(difference)(keys)
            return jax.tree.map(lambda t, d: t + d.sum(axis=0), total, differences), None

        keys = jax.random.split(key, (_NUM_PAIRS // _PAIRS_AT_ONCE, _PAIRS_AT_ONCE))
        return jax.lax.scan(add, _tree.zeros(jax.eval_shape(difference, key)), keys)[0]

    return jax.tree.map(lambda leaf: leaf / _NUM_PAIRS, total(key))


def _rows(exchange: Exchange) -> Batch:
    """Stacks the shared records, the present one and the absent one."""

    def join(shared: Any, present: Any, absent: Any) -> Array:
        return jnp.concatenate([jnp.asarray(shared), jnp.stack([present, absent])])

    return jax.tree.map(join, *exchange)


def _tiled(params: Params, count: int) -> Params:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), params)
