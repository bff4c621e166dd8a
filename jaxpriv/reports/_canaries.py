"""Audits a training of a report by canaries, in one more training.

members + N canaries with constant gradients + N with wrong labels, a coin for each
--training of the model--> parameters --scores of both kinds--> lower bounds on epsilon
"""

import functools
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from jaxpriv import _keys, audit, signals, training
from jaxpriv._types import Params
from jaxpriv.audit import canaries
from jaxpriv.reports import _networks, findings
from jaxpriv.reports._networks import Network
from jaxpriv.reports._training import Recipe
from jaxpriv.reports.partition import Partition
from jaxpriv.reports.settings import Settings

_RELATION = "add_or_remove_one"
"""Relation of the audit: a coin adds each canary or leaves it out."""

_NUM_KINDS = 2
_MICROBATCH_SIZE = 64


def check(records: Partition, settings: Settings) -> None:
    """Raises ValueError if there are too few records outside of the training for the canaries."""
    assert settings.canaries is not None
    available = int((~records.is_member).sum()) + len(records.population)
    if available < settings.canaries:
        raise ValueError(
            f"Expected at most {available} canaries, one for each record outside of the training, "
            f"got --canaries {settings.canaries}."
        )


def audit_training(
    key: PRNGKeyArray,
    *,
    recipe: Recipe,
    network: Network,
    settings: Settings,
    records: Partition,
    delta: float,
    confidence: float,
    checkpoints: Path | None,
) -> findings.CanaryAudit:
    """Trains on the members with canaries, and bounds epsilon by their scores.

    Args:
      key: PRNG key.
      recipe: configuration of the training.
      network: network that is trained.
      settings: settings of the report, with `canaries`.
      records: members; canaries with wrong labels are copies of other records.
      delta: delta at which epsilon is bounded.
      confidence: confidence of all bounds together.
      checkpoints: folder for training checkpoints; None saves none.

    Returns:
      The lower bounds, under `add_or_remove_one`.

    Raises:
      ValueError: if the network has fewer parameters than there are canaries.
    """
    init_key, dirac_key, draw_key, fit_key = jax.random.split(key, 4)
    params = network.init(init_key)
    drawn = _draw(_keys.numpy_rng(draw_key), dirac_key, params, settings, records)
    alg = recipe.make_alg(
        len(drawn.rows.tag),
        None,
        loss=canaries.loss_with_canaries(network.loss, canaries=drawn.dirac),
        microbatch_size=_MICROBATCH_SIZE,
    )
    state, _ = training.fit(
        fit_key,
        alg,
        params,
        drawn.rows,
        steps=recipe.schedule.steps,
        checkpoints=None if checkpoints is None else training.Checkpoints(directory=checkpoints),
    )
    by_gradient = np.asarray(drawn.dirac.scores(before=params, after=state.params))
    x, wrong = drawn.labelled
    logits = network.apply(state.params, jnp.asarray(x))
    by_label = signals.score_records(signals.negative_loss, logits, wrong)
    each = 1 - (1 - confidence) / _NUM_KINDS
    bound = functools.partial(_bounds, delta=delta, confidence=each)
    gradients, gradients_fdp = bound(by_gradient, drawn.is_dirac_member)
    labels, labels_fdp = bound(by_label, drawn.is_label_member)
    return findings.CanaryAudit(
        num_canaries=len(wrong),
        delta=delta,
        relation=_RELATION,
        confidence=each,
        gradients=gradients,
        gradients_fdp=gradients_fdp,
        labels=labels,
        labels_fdp=labels_fdp,
        ceiling=audit.one_run.largest_epsilon(len(wrong), delta=delta, confidence=each),
    )


class _Drawn(NamedTuple):
    """Members with canaries, the canaries of both kinds, and their coins."""

    rows: canaries.Tagged
    dirac: canaries.Dirac
    labelled: tuple[np.ndarray, np.ndarray]
    is_dirac_member: Bool[np.ndarray, " m"]
    is_label_member: Bool[np.ndarray, " m"]


def _draw(
    rng: np.random.Generator,
    key: PRNGKeyArray,
    params: Params,
    settings: Settings,
    records: Partition,
) -> _Drawn:
    """Draws canaries; those with wrong labels are copies of records that are not members."""
    assert settings.canaries is not None
    count = settings.canaries
    is_dirac_member, is_label_member = rng.random((_NUM_KINDS, count)) < 0.5
    dirac = canaries.dirac(key, params, count=count, scale=2 * settings.clip_norm)
    parts = records.pool, records.population
    x, population_x = (_networks.inputs(part, settings) for part in parts)
    y, population_y = (part.y.astype(np.int32) for part in parts)
    is_member = records.is_member
    nonmember_x = np.concatenate([x[~is_member], population_x])
    nonmember_y = np.concatenate([y[~is_member], population_y])
    chosen = rng.permutation(len(nonmember_y))[:count]
    wrong = canaries.mislabelled(rng, nonmember_y[chosen], num_classes=records.pool.num_classes)
    labelled = nonmember_x[chosen], wrong
    rows = canaries.ordinary((x[is_member], y[is_member]))
    rows = canaries.with_inputs(rows, labelled, is_label_member)
    rows = canaries.with_dirac(rows, dirac, is_dirac_member)
    return _Drawn(rows, dirac, labelled, is_dirac_member, is_label_member)


def _bounds(
    scores: Float[np.ndarray, " m"],
    is_member: Bool[np.ndarray, " m"],
    *,
    delta: float,
    confidence: float,
) -> tuple[float, float]:
    """Returns the bound for every mechanism, and that for a Gaussian one."""
    bounds = audit.lower_bounds(
        scores,
        is_member,
        design="one_run",
        delta=delta,
        relation=_RELATION,
        confidence=confidence,
    )
    return bounds.one_run or 0.0, bounds.one_run_fdp or 0.0
