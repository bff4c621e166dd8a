"""Plays the differential-identifiability game for a training of a report."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PRNGKeyArray, Shaped

from jaxpriv import audit, grads, sensitivity, training
from jaxpriv._names import Relation
from jaxpriv.audit import di
from jaxpriv.reports import _networks
from jaxpriv.reports._networks import Network
from jaxpriv.reports._training import Recipe
from jaxpriv.reports.findings import Game, Promise
from jaxpriv.reports.partition import Partition
from jaxpriv.reports.settings import Settings

_CONFIDENCE = 0.95
_QUANTILES = (0.05, 0.5, 0.95)

_NUM_STEPS = 100
"""Number of steps, at most, at which beliefs are stored."""

_CHUNK = 10
"""Number of repetitions between two checkpoints."""


def play(
    key: PRNGKeyArray,
    *,
    recipe: Recipe,
    network: Network,
    settings: Settings,
    records: Partition,
    promise: Promise,
    bound_confidence: float,
    checkpoints: Path | None,
) -> Game:
    """Repeats a training with and without the most dissimilar member.

    Args:
      key: PRNG key.
      recipe: configuration of the training, with DP.
      network: network that is trained.
      settings: settings of the report, with `repetitions`.
      records: members, which are the data set D, and non-members, of which one may replace a
        member; the units are records.
      promise: guarantee of the training.
      bound_confidence: confidence of the lower bound on epsilon.
      checkpoints: folder for training checkpoints; None saves none.

    Returns:
      The beliefs of the adversary, its advantage and a lower bound on epsilon.
    """
    assert recipe.noise_multiplier is not None
    assert settings.repetitions is not None
    trainer = di.Trainer(
        grad=grads.clipped_grad(network.loss, clip_norm=settings.clip_norm),
        optimizer=recipe.schedule.optimizer,
        steps=recipe.schedule.steps,
        noise_multiplier=recipe.noise_multiplier,
        noise="global",
        sampling_prob=settings.sampling_prob,
    )
    x = _networks.inputs(records.pool, settings)
    measure = sensitivity.euclidean if settings.tokens is None else sensitivity.hamming
    first, second = _differing_records(x, records, measure, promise.relation)
    repetitions = di.play(
        jax.random.split(key, settings.repetitions),
        trainer,
        network.init,
        _pair(x, records, first, second),
        chunk=min(_CHUNK, settings.repetitions),
        checkpoints=None if checkpoints is None else training.Checkpoints(directory=checkpoints),
    )
    return _summary(repetitions, records, promise, first, second, bound_confidence)


def _differing_records(
    x: Shaped[np.ndarray, "n ..."],
    records: Partition,
    measure: sensitivity.dataset.Measure,
    relation: Relation,
) -> tuple[int, int | None]:
    """Returns the positions in the pool of the member that differs and of its replacement."""
    members, nonmembers = (np.flatnonzero(records.is_member == side) for side in (True, False))
    if relation == "add_or_remove_one":
        removals = sensitivity.removals(x[members], measure=measure, largest=1, smallest=0)
        return int(members[removals.records[0]]), None
    pairs = sensitivity.replacements(
        x[members], x[nonmembers], measure=measure, largest=1, smallest=0
    )
    return int(members[pairs.records[0]]), int(nonmembers[pairs.candidates[0]])


def _pair(
    x: Shaped[np.ndarray, "n ..."], records: Partition, first: int, second: int | None
) -> di.Pair:
    y = records.pool.y.astype(np.int32)
    shared = np.flatnonzero(records.is_member & (np.arange(len(x)) != first))

    def record(position: int):
        return jnp.asarray(x[position]), jnp.asarray(y[position])

    return di.Pair(
        shared=(x[shared], y[shared]),
        first=record(first),
        second=None if second is None else record(second),
    )


def _summary(
    repetitions: di.Repetitions,
    records: Partition,
    promise: Promise,
    first: int,
    second: int | None,
    bound_confidence: float,
) -> Game:
    stated = promise.stated()
    observed = di.advantage(repetitions, confidence=_CONFIDENCE)
    # A belief never exceeds 1, the bound without a finite epsilon.
    rho = min(stated.rho_beta, float(np.nextafter(1, 0)))
    violations = di.violations(repetitions, rho=rho, confidence=_CONFIDENCE)
    steps = _steps(repetitions.log_odds.shape[1])
    low, median, high = np.quantile(di.beliefs(repetitions)[:, steps - 1], _QUANTILES, axis=0)
    return Game(
        repetitions=len(repetitions.in_d),
        relation=promise.relation,
        row=int(records.rows[first]),
        replacement=None if second is None else int(records.rows[second]),
        confidence=_CONFIDENCE,
        advantage=observed.value,
        advantage_interval=(observed.lower, observed.upper),
        epsilon_lower_bound=_lower_bound(repetitions, promise, bound_confidence),
        bound_confidence=bound_confidence,
        violations=violations.value,
        violations_interval=(violations.lower, violations.upper),
        steps=tuple(steps.tolist()),
        belief_low=tuple(low.tolist()),
        belief_median=tuple(median.tolist()),
        belief_high=tuple(high.tolist()),
    )


def _lower_bound(repetitions: di.Repetitions, promise: Promise, confidence: float) -> float:
    """Returns the lower bound on epsilon; 0 if all trainings were on the same data set."""
    if repetitions.in_d.all() or not repetitions.in_d.any():
        return 0.0
    bounds = audit.lower_bounds(
        repetitions.log_odds[:, -1],
        repetitions.in_d,
        design="independent_runs",
        delta=promise.stated().delta,
        relation=promise.relation,
        confidence=confidence,
    )
    return bounds.clopper_pearson or 0.0


def _steps(count: int) -> Int[np.ndarray, " k"]:
    """Returns the numbers of at most `_NUM_STEPS` steps, evenly spaced, with the last."""
    return np.unique(np.linspace(1, count, min(count, _NUM_STEPS)).round().astype(int))
