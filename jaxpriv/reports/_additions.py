"""Optional parts of a report: the game, the audit by canaries, the inversion of classes."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
from jaxtyping import PRNGKeyArray

from jaxpriv.data import available
from jaxpriv.metrics import verdict
from jaxpriv.reports import _assessment, _inversion, _networks, _training, findings
from jaxpriv.reports.findings import Entry
from jaxpriv.reports.partition import Partition
from jaxpriv.reports.settings import Settings
from jaxpriv.reports.subjects import Subject


def recommend(
    result: findings.Findings,
    promise: findings.Promise | None,
    *,
    game: findings.Game | None = None,
    canaries: findings.CanaryAudit | None = None,
) -> verdict.Recommendation:
    """Recommends whether to publish a model, by all lower bounds on its epsilon.

    A claimed guarantee, which may come without an audit, is also compared with the AUC.

    Args:
      result: results of the attacks.
      promise: guarantee; None without one.
      game: repetitions of the training; None if none were played.
      canaries: audit by canaries; None without one.

    Returns:
      The recommendation.
    """
    if promise is not None and promise.contradicted_auc(result) is not None:
        return "do_not_publish"
    bound, audited = None, None
    if result.audit is not None:
        bound = result.audit.one_run
        # An audit bounds epsilon from below under its own relation.
        audited = None if promise is None else promise.of(result.audit.relation)
    epsilon = None if promise is None else (audited or promise.stated()).epsilon
    if promise is not None and game is not None:
        if promise.is_exceeded(game.epsilon_lower_bound, game.relation):
            bound, epsilon = game.epsilon_lower_bound, promise.stated().epsilon
    if promise is not None and canaries is not None:
        if promise.is_exceeded(canaries.largest, canaries.relation):
            bound, epsilon = canaries.largest, promise.stated().epsilon
    return verdict.recommend(
        leaks=bool(result.leaks),
        promised_epsilon=epsilon,
        vacuous=promise is not None and bool(promise.vacuous),
        epsilon_lower_bound=bound,
    )


def with_game(
    key: PRNGKeyArray,
    entry: Entry,
    play: Callable[..., findings.Game] | None,
    records: Partition,
    checkpoints: Path | None,
) -> Entry:
    """Adds the game of a private training to its entry, and what it changes."""
    assert play is not None
    game = play(
        key,
        records=records,
        promise=entry.promise,
        bound_confidence=entry.findings.corrected_confidence,
        checkpoints=checkpoints,
    )
    recommendation = recommend(entry.findings, entry.promise, game=game)
    return dataclasses.replace(entry, game=game, recommendation=recommendation)


def with_canaries(
    key: PRNGKeyArray,
    entry: Entry,
    audit: Callable[..., findings.CanaryAudit],
    records: Partition,
    checkpoints: Path | None,
) -> Entry:
    """Adds the audit of a training by canaries to its entry, and what it changes."""
    result = audit(
        key,
        records=records,
        confidence=entry.findings.corrected_confidence,
        checkpoints=checkpoints,
    )
    recommendation = recommend(entry.findings, entry.promise, game=entry.game, canaries=result)
    return dataclasses.replace(entry, canaries=result, recommendation=recommendation)


def inversion(
    key: PRNGKeyArray,
    records: Partition,
    trained: Sequence[Subject],
    *,
    settings: Settings,
    checkpoints: Path | None,
    log: Callable[[str], None],
) -> dict[str, findings.Inversion | str | None]:
    """Inverts the models of a report on classes, and models with DP for a record beside them.

    Returns:
      `inversion` and `no_inversion` of the report.
    """
    assert records.is_held_out is not None
    reason = _inversion.missing(records.pool.x, records.pool.y, records.is_held_out)
    if reason is not None:
        return {"inversion": None, "no_inversion": reason}
    record_key, invert_key = jax.random.split(key)
    by_record = _training.train_by_record(
        record_key,
        network=_networks.network_for(records.pool, settings),
        settings=settings,
        records=records,
        checkpoints=None if checkpoints is None else checkpoints / "by-record",
        log=log,
    )
    plain, *by_class = trained
    pairs = [subject for pair in zip(by_record, by_class, strict=True) for subject in pair]
    published = {entry.name for entry in available()}
    result = _inversion.invert(
        invert_key,
        [plain, *pairs],
        _networks.inputs(records.pool, settings),
        records.pool.y,
        records.is_held_out,
        shows_originals=settings.keep_inputs or settings.data in published,
        store=_assessment.Store(None if checkpoints is None else checkpoints / "inversion"),
        log=log,
    )
    return {"inversion": result, "no_inversion": None}
