"""Sampled sensitivity of a training: distances of the parameters on neighbouring data sets.

    data source --pairs of data sets--> two trainings each (`fit_many`) --> distances --> largest

In the shapes below `p` counts pairs and `k` the records of a data set.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxpriv import _check, _keys, _tree
from jaxpriv._types import Params, Sampler
from jaxpriv.training import Algorithm, Checkpoints, fit_many

if TYPE_CHECKING:
    from dp_accounting import DpEvent

__all__ = ["SampledPairs", "sample_pairs"]

_BLOCK = 1024
"""Entries that are summed first, which bounds the rounding error of a norm in float32."""


class SampledPairs(NamedTuple):
    """Neighbouring data sets and the distances of the parameters that were trained on them.

    distances: L2 distance over all parameters of each pair, rounded up.
    records: indices of the k records of the first data set of each pair, in order, and of the
      record that replaces one of them in the second.
    slots: position, in 0..k-1, of the record that is replaced.
    are_disjoint: whether no record is in two pairs. Otherwise the pairs are not independent, as
      the guarantee of `accounting.random_dp` assumes.
    """

    distances: Float[np.ndarray, " p"]
    records: Int[np.ndarray, "p k1"]
    slots: Int[np.ndarray, " p"]
    are_disjoint: bool

    @property
    def sensitivity(self) -> float:
        """Largest distance, S."""
        return float(self.distances.max())


def sample_pairs(
    key: PRNGKeyArray,
    make_alg: Callable[[int, Any], Algorithm],
    params: Params,
    data: PyTree,
    *,
    num_pairs: int,
    num_records: int,
    steps: int,
    chunk: int | None = None,
    strategy: Literal["auto", "vmap", "map"] = "auto",
    checkpoints: Checkpoints | None = None,
) -> SampledPairs:
    """Trains on pairs of neighbouring data sets and measures the distances of the parameters.

    The data sets of a pair differ in one record (`replace_one`). Both trainings begin at the same
    parameters and have the same key, so the batches are equal except that the new record takes the
    slot of the old one; equal records give the distance 0 exactly. All pairs begin at the same
    parameters. Each has its own key, so the seed of the training is sampled together with the data.

    The distance covers every leaf of the final `state.params`, also running statistics if these are
    `training.Variables`. Preprocessing that depends on the data is not covered: vocabularies and
    normalisation constants must be fixed beforehand.

    What the result means, see `accounting.random_dp`: the pairs must be independent of the private
    data, and come from the same source. They are drawn without replacement if the data suffice for
    all pairs, and otherwise share records, which `are_disjoint` states.

    Args:
      key: PRNG key.
      make_alg: `make_alg(k, None)`, the algorithm for k records, as for `fit_many`. Its sampler
        draws records. It is trained without noise: the noise is added to the parameters once.
      params: initial parameters, those of the private training.
      data: records of the source; pytree with leading axis n.
      num_pairs: number of pairs; each takes two trainings.
      num_records: number k of records of a data set, that of the private training.
      steps: number of steps of a training.
      chunk: number of pairs in one program, as for `fit_many`.
      strategy: as for `fit_many`.
      checkpoints: folder of checkpoints, one for each chunk of pairs, from which an interrupted
        call continues.

    Returns:
      The pairs and their distances.

    Raises:
      ValueError: if the data have fewer than num_records + 1 records or leaves of different
        lengths, a parameter is not of a float type, the sampler draws classes, or as for
        `fit_many`.

    References:
      Rubinstein and Alda, Pain-Free Random Differential Privacy with Sensitivity Sampling, 2017;
      Yang et al., On the Privacy Risks of Deploying Recurrent Neural Networks in Machine Learning
      Models, 2023, Algorithm 2.

    Example:
      >>> import optax
      >>> from jaxpriv import sampling, training
      >>> def make_alg(k, hyper):  # one step to the mean
      ...     loss = lambda w, x, key: (w - x) ** 2
      ...     return training.sgd(loss, optax.sgd(0.5), sampling.full_batch(k))
      >>> data = jnp.arange(12.0)
      >>> pairs = sample_pairs(
      ...     jax.random.key(0), make_alg, jnp.float32(0), data,
      ...     num_pairs=3, num_records=3, steps=1,
      ... )
      >>> old = pairs.records[np.arange(3), pairs.slots]
      >>> bool(np.allclose(pairs.distances, np.abs(old - pairs.records[:, 3]) / 3, rtol=1e-3))
      True
    """
    _check.positive_int(num_pairs=num_pairs, num_records=num_records, steps=steps)
    _tree.check_float(params)
    n = _tree.num_rows(data, name="data")
    if n < num_records + 1:
        raise ValueError(f"Expected at least num_records + 1 = {num_records + 1} records, got {n}.")
    draw_key, run_key = jax.random.split(key)
    rng = _keys.numpy_rng(draw_key)
    are_disjoint = num_pairs * (num_records + 1) <= n
    records = _draw(rng, n, num_pairs, num_records + 1, are_disjoint=are_disjoint)
    slots = rng.integers(num_records, size=num_pairs).astype(np.int32)
    distances, _ = fit_many(
        jax.random.split(run_key, num_pairs),
        functools.partial(_paired, make_alg),
        jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_pairs, *jnp.shape(leaf))), params),
        data,
        members=records,
        steps=steps,
        hyper=jnp.asarray(slots),
        keep=_distance,
        chunk=chunk,
        strategy=strategy,
        checkpoints=checkpoints,
    )
    return SampledPairs(
        np.asarray(distances, np.float64), records.astype(np.int64), slots, are_disjoint
    )


def _draw(
    rng: np.random.Generator, n: int, num_pairs: int, size: int, *, are_disjoint: bool
) -> Int[np.ndarray, "p s"]:
    """Draws the records of each pair in random order."""
    if are_disjoint:
        return rng.permutation(n)[: num_pairs * size].reshape(num_pairs, size)
    return np.stack([rng.choice(n, size, replace=False) for _ in range(num_pairs)])


class _PairState(NamedTuple):
    """States of both trainings, stacked along a first axis of size 2."""

    states: Any

    @property
    def params(self) -> Params:
        return self.states.params

    @property
    def step(self) -> Int[Array, ""]:
        return self.states.step[0]


@dataclass(frozen=True, kw_only=True)
class _PairedSampler:
    """Sampler over k + 1 records: rows of both data sets, [b, 2], of which the last has a slot.

    sampler: sampler over the k records of a data set.
    slot: position of the record that is replaced; may be traced.
    """

    sampler: Sampler
    slot: Any

    @property
    def num_examples(self) -> int:
        return self.sampler.num_examples + 1

    @property
    def expected_batch_size(self) -> float:
        return self.sampler.expected_batch_size

    @property
    def capacity(self) -> int:
        return self.sampler.capacity

    def sample(self, key: PRNGKeyArray) -> tuple[Int[Array, "b 2"], Bool[Array, " b"]]:
        indices, mask = self.sampler.sample(key)
        new = jnp.asarray(self.sampler.num_examples, indices.dtype)
        replaced = jnp.where(indices == self.slot, new, indices)
        return jnp.stack([indices, replaced], axis=-1), mask

    def event(self, *, noise_multiplier: float, steps: int) -> "DpEvent":
        return self.sampler.event(noise_multiplier=noise_multiplier, steps=steps)


def _paired(make_alg: Callable[[int, Any], Algorithm], size: int, slot: Any) -> Algorithm:
    """Makes the algorithm that trains on both data sets of a pair at once."""
    alg = make_alg(size - 1, None)
    if hasattr(alg.sampler, "num_units"):
        raise ValueError("Expected a sampler of records for pairs, got one of classes.")

    def init(params: Params) -> _PairState:
        state = alg.init(params)
        return _PairState(jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state))

    def update(key: PRNGKeyArray, pair: _PairState, batch: PyTree, mask: Any) -> Any:
        def one(training: tuple[Any, PyTree]) -> Any:
            state, rows = training
            return alg.update(key, state, rows, mask)

        both = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), batch)
        # The same compiled body for both, so that equal data give equal bits.
        states, info = jax.lax.map(one, (pair.states, both))
        return _PairState(states), info

    return Algorithm(init, update, _PairedSampler(sampler=alg.sampler, slot=slot), alg.event)


def _distance(pair: _PairState) -> Float[Array, ""]:
    """Computes the L2 distance of the parameters, rounded up."""
    differences = [jnp.ravel(_difference(leaf)) for leaf in jax.tree.leaves(pair.params)]
    sizes = [jnp.max(jnp.abs(x), initial=0.0) for x in differences]
    largest = jnp.max(_tree.power_of_two(_tree.stack_in_widest(sizes)))
    divisor = jnp.where(largest > 0, largest, 1.0)
    total = _tree.sum_in_widest([_sum_of_squares(x / divisor) for x in differences])
    size = sum(x.size for x in differences)
    # Rounding errors of a sum in blocks, of the squares and of the differences.
    rounding = (_BLOCK + size / _BLOCK + len(differences) + 16) * 2.0**-24
    return largest * jnp.sqrt(total) * (1 + rounding)


def _difference(leaf: Float[Array, "2 ..."]) -> Float[Array, "..."]:
    """Subtracts in the type of the leaf, or float32; different numbers never differ by 0."""
    first, second = _tree.at_least_float32(leaf)
    difference = first - second
    # A difference below the smallest normal number is flushed to 0.
    is_lost = (difference == 0) & (first != second)
    return jnp.where(is_lost, jnp.finfo(difference.dtype).tiny, difference)


def _sum_of_squares(x: Float[Array, " d"]) -> Float[Array, ""]:
    blocks = jnp.pad(x, (0, -x.size % _BLOCK)).reshape(-1, _BLOCK)
    return jnp.sum(jnp.sum(jnp.square(blocks), axis=1))
