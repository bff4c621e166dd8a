"""Assembles a report: subjects, their evidence, attacks, findings, recommendations."""

import dataclasses
import datetime
import platform
import re
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

import jaxpriv
from jaxpriv import units
from jaxpriv.attacks import Training, suite
from jaxpriv.attacks import evidence as evidence_lib
from jaxpriv.data import Dataset
from jaxpriv.defences.base import Defence, from_text
from jaxpriv.metrics import verdict
from jaxpriv.reports import assessment, findings, partition, subjects, wording
from jaxpriv.reports.assessment import Store
from jaxpriv.reports.findings import Entry, Report
from jaxpriv.reports.settings import Settings, Unit
from jaxpriv.reports.subjects import Log, Subject

AUDIT_DELTA = 1e-5
"""Delta at which epsilon is bounded from below where no delta is stated."""


class Folders(NamedTuple):
    """Where a report saves what it needs; None saves nothing.

    checkpoints: trainings and scores of attacks, for a report that is resumed.
    evidence: outputs of the models, for those who attack them again.
    """

    checkpoints: Path | None = None
    evidence: Path | None = None


NO_FOLDERS = Folders()


def assemble(
    key: PRNGKeyArray,
    dataset: Dataset,
    settings: Settings,
    *,
    attacks: Sequence[suite.Attack] | None = None,
    folders: Folders = NO_FOLDERS,
    log: Log = lambda message: None,
) -> Report:
    """Trains the models of a report, attacks them and accounts for them.

    Args:
      key: consumed; anyone who has it can redraw the noise.
      dataset: records of members, non-members and population.
      settings: what to train and to promise.
      attacks: table of attacks; None takes `attacks.suite.attacks`.
      folders: checkpoints and evidence.
      log: receives progress messages.

    Returns:
      The report; its command is empty and its seed None until the caller sets them.

    Raises:
      ValueError: if there are too few records, or an epsilon or a defence is impossible.
    """
    started = time.monotonic()
    settings.check_subject()
    defences = _defences(settings)
    split_key, shadow_key, blind_key, *model_keys = jax.random.split(key, 4 + len(settings.epsilon))
    records = partition.partition_records(split_key, dataset, unit=settings.unit)
    shadow_is_member = units.halves(shadow_key, records.units, num_models=settings.shadows)
    recipes = subjects.recipes(records, settings, log=log)
    log("attacking the inputs alone")
    blind = assessment.blind_metrics(
        blind_key,
        np.asarray(subjects.inputs(records.pool)),
        records.is_member,
        records.units,
        store=Store(_below(folders.checkpoints, "attacks")),
    )
    entries: list[Entry] = []
    for i, (model_key, recipe) in enumerate(zip(model_keys, recipes, strict=True)):
        log(f"{recipe.name}: training the target and {settings.shadows} shadow models")
        train_key, attack_key = jax.random.split(model_key)
        subject = subjects.train(
            train_key,
            recipe,
            records,
            shadow_is_member=shadow_is_member,
            settings=settings,
            checkpoints=_below(folders.checkpoints, f"model-{i}"),
        )
        entries += examine(
            attack_key,
            subject,
            defences=defences if recipe.noise_multiplier is None else (),
            attacks=_trained_table(settings) if attacks is None else attacks,
            unit=records.units,
            delta=AUDIT_DELTA if settings.delta is None else settings.delta,
            folders=folders,
            log=log,
        )
    return _report(
        settings,
        partition.describe(dataset, records),
        "group" if records.units.kind == "group" else "record",
        blind,
        entries,
        started,
    )


def assemble_scores(
    key: PRNGKeyArray,
    settings: Settings,
    *,
    attacks: Sequence[suite.Attack] | None = None,
    folders: Folders = NO_FOLDERS,
    log: Log = lambda message: None,
) -> Report:
    """Attacks the outputs of a file; trains no model and promises nothing.

    Args:
      key: consumed, by the attacks that train or draw.
      settings: with `scores`.
      attacks, folders, log: as for `assemble`.

    Returns:
      The report.

    Raises:
      ValueError: if the file is damaged or has no `is_member`, or a defence is impossible.
    """
    started = time.monotonic()
    path = settings.scores
    if path is None:
        raise ValueError("Expected settings with scores, got none.")
    defences = _defences(settings)
    subject = subjects.from_scores(path)
    unit = units.of_records(len(subject.evidence), group=subject.evidence.unit_id)
    blind_key, attack_key = jax.random.split(key)
    blind = None
    if subject.evidence.inputs is not None:
        log("attacking the inputs alone")
        blind = assessment.blind_metrics(
            blind_key,
            subject.evidence.inputs,
            subject.is_member,
            unit,
            store=Store(_below(folders.checkpoints, "attacks")),
        )
    entries = examine(
        attack_key,
        subject,
        defences=defences,
        attacks=_table(settings) if attacks is None else attacks,
        unit=unit,
        delta=AUDIT_DELTA,
        no_audit="how members were chosen is not known",
        folders=folders,
        log=log,
    )
    kind: Unit = "group" if unit.kind == "group" else "record"
    return _report(settings, subjects.describe_scores(path, subject), kind, blind, entries, started)


def examine(
    key: PRNGKeyArray,
    subject: Subject,
    *,
    defences: Sequence[Defence],
    attacks: Sequence[suite.Attack],
    unit: units.Units,
    delta: float,
    no_audit: str | None = None,
    folders: Folders = NO_FOLDERS,
    log: Log = lambda message: None,
) -> list[Entry]:
    """Attacks a subject, and the subject behind each defence of its outputs.

    The attacker of a defence is adaptive: the outputs of shadow models pass through it too.

    Args:
      key: consumed.
      subject: the model.
      defences: of its outputs.
      attacks: table of attacks.
      unit: of privacy.
      delta: at which epsilon is bounded from below.
      no_audit: why no audit applies; None where a fair coin decided over each unit.
      folders, log: as for `assemble`.

    Returns:
      An entry for the subject and one for each defence.
    """
    entries = []
    for defence in (None, *defences):
        evidence = subject.evidence
        name = subject.name if defence is None else f"{subject.name}, {defence.title}"
        attack_key = key
        if defence is not None:
            assert defence.respond is not None
            attack_key, respond_key = jax.random.split(assessment.named_key(key, name))
            evidence = evidence_lib.defended(respond_key, evidence, defence.respond)
        log(f"{name}: attacking")
        result = assessment.assess(
            attack_key,
            evidence,
            subject.is_member,
            attacks=attacks,
            unit=unit,
            delta=delta,
            no_audit=no_audit,
            store=Store(_below(folders.checkpoints, f"attacks/{_file_name(name)}")),
            log=log,
        )
        file = None
        if folders.evidence is not None:
            file = f"{folders.evidence.name}/{_file_name(name)}.npz"
            _save_evidence(folders.evidence / f"{_file_name(name)}.npz", evidence, subject)
        entries.append(
            Entry(
                name=name,
                defence=None if defence is None else defence.title,
                training=subject.training,
                promise=subject.promise,
                utility=assessment.utility(evidence, subject.is_member),
                findings=result,
                recommendation=_recommend(result, subject.promise),
                evidence=file,
            )
        )
    return entries


def _defences(settings: Settings) -> list[Defence]:
    defences = [from_text(text) for text in settings.defence]
    titles = [defence.title for defence in defences]
    for defence in defences:
        if defence.respond is None or defence.algorithm or defence.release:
            raise ValueError(f"Expected defences of the outputs, got {defence.title!r}.")
        if titles.count(defence.title) > 1:
            raise ValueError(f"Expected different defences, got {defence.title!r} twice.")
    return defences


def _table(settings: Settings) -> tuple[suite.Attack, ...]:
    return suite.attacks(training=Training(steps=settings.attack_steps))


def _trained_table(settings: Settings) -> tuple[suite.Attack, ...]:
    """The table without attacks that need scores of a file alone: a trained model has logits."""
    return tuple(attack for attack in _table(settings) if attack.needs != ("signals",))


def _recommend(
    result: findings.Findings, promise: findings.Promise | None
) -> verdict.Recommendation:
    bound = None if result.audit is None else result.audit.one_run
    epsilon = None if promise is None else promise.of(assessment.AUDIT_RELATION).epsilon
    return verdict.recommend(
        leaks=bool(result.leaks),
        promised_epsilon=epsilon,
        vacuous=promise is not None and bool(promise.vacuous),
        epsilon_lower_bound=bound,
    )


def _save_evidence(path: Path, evidence: evidence_lib.Evidence, subject: Subject) -> None:
    """Saves outputs and memberships, without the records themselves."""
    population = evidence.population
    if population is not None:
        population = dataclasses.replace(population, inputs=None)
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = dataclasses.replace(evidence, inputs=None, population=population)
    evidence_lib.save(path, stored, subject.is_member, private=True)


def _report(
    settings: Settings,
    data: findings.Data,
    unit: Unit,
    blind: findings.Metrics | None,
    entries: Sequence[Entry],
    started: float,
) -> Report:
    return Report(
        schema_version=2,
        run=findings.Run(
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            command="",
            seed=None,
            seconds=round(time.monotonic() - started, 1),
            jaxpriv=jaxpriv.__version__,
            versions=_versions(),
        ),
        settings=settings,
        unit=unit,
        data=data,
        blind=blind,
        entries=tuple(sorted(entries, key=lambda entry: entry.defence is not None)),
        limits=wording.limits(data, unit=unit, trained=data.by_coin),
    )


def _versions() -> dict[str, str]:
    names = ("jax", "flax", "optax", "numpy", "scipy", "dp-accounting")
    return {
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        **{name: metadata.version(name) for name in names},
    }


def _below(folder: Path | None, name: str) -> Path | None:
    return None if folder is None else folder / name


def _file_name(name: str) -> str:
    """Turns the name of a model into that of a file: 'DP-SGD, epsilon 2' -> 'dp-sgd-epsilon-2'."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
