"""Audits a training of a report by canaries, in one more training.

members + N canaries with constant gradients + N with wrong labels, a coin for each
--training of the model--> parameters --scores of both kinds--> lower bounds on epsilon
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from jaxpriv import _keys, audit, signals, training
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
    others = int((~records.is_member).sum()) + len(records.population)
    if others < settings.canaries:
        raise ValueError(
            f"Expected at most {others} canaries, one for each record outside of the training, got "
            f"--canaries {settings.canaries}."
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
    assert settings.canaries is not None
    init_key, dirac_key, draw_key, fit_key = jax.random.split(key, 4)
    rng, count = _keys.numpy_rng(draw_key), settings.canaries
    is_dirac_member, is_label_member = rng.random((_NUM_KINDS, count)) < 0.5
    params = network.init(init_key)
    dirac = canaries.dirac(dirac_key, params, count=count, scale=2 * settings.clip_norm)
    x, y = _networks.inputs(records.pool, settings), records.pool.y.astype(np.int32)
    population_x = _networks.inputs(records.population, settings)
    other_x = np.concatenate([x[~records.is_member], population_x])
    other_y = np.concatenate([y[~records.is_member], records.population.y.astype(np.int32)])
    chosen = rng.permutation(len(other_y))[:count]
    wrong = canaries.mislabelled(rng, other_y[chosen], num_classes=records.pool.num_classes)
    labelled = (other_x[chosen], wrong)
    rows = canaries.ordinary((x[records.is_member], y[records.is_member]))
    rows = canaries.with_inputs(rows, labelled, is_label_member)
    rows = canaries.with_dirac(rows, dirac, is_dirac_member)
    alg = recipe.make_alg(
        len(rows.tag),
        None,
        loss=canaries.loss_with_canaries(network.loss, canaries=dirac),
        microbatch_size=_MICROBATCH_SIZE,
    )
    state, _ = training.fit(
        fit_key,
        alg,
        params,
        rows,
        steps=recipe.schedule.steps,
        checkpoints=None if checkpoints is None else training.Checkpoints(directory=checkpoints),
    )
    logits = network.apply(state.params, jnp.asarray(labelled[0]))
    scores = (
        (np.asarray(dirac.scores(before=params, after=state.params)), is_dirac_member),
        (signals.score_records(signals.negative_loss, logits, wrong), is_label_member),
    )
    each = 1 - (1 - confidence) / _NUM_KINDS
    gradients, labels = (_bounds(*pair, delta=delta, confidence=each) for pair in scores)
    return findings.CanaryAudit(
        num_canaries=count,
        delta=delta,
        relation=_RELATION,
        confidence=each,
        gradients=gradients[0],
        gradients_fdp=gradients[1],
        labels=labels[0],
        labels_fdp=labels[1],
        ceiling=audit.one_run.largest_epsilon(count, delta=delta, confidence=each),
    )


def _bounds(
    scores: Float[np.ndarray, " m"],
    is_member: Bool[np.ndarray, " m"],
    *,
    delta: float,
    confidence: float,
) -> tuple[float, float]:
    """Returns the bound for every mechanism, and that for a Gaussian one."""
    found = audit.lower_bounds(
        scores,
        is_member,
        design="one_run",
        delta=delta,
        relation=_RELATION,
        confidence=confidence,
    )
    return found.one_run or 0.0, found.one_run_fdp or 0.0
