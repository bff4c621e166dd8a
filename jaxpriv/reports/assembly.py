"""Assembles a report from subjects, their evidence, attacks, findings and recommendations.

The data flow is settings -> partition -> subjects with evidence -> findings -> report.
"""

import dataclasses
import datetime
import functools
import platform
import re
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, PRNGKeyArray, Shaped

import jaxpriv
from jaxpriv import _keys, _progress, units
from jaxpriv._names import Relation
from jaxpriv.attacks import Attack, Training, suite
from jaxpriv.attacks import evidence as evidence_lib
from jaxpriv.data import Dataset
from jaxpriv.defences import Defence
from jaxpriv.defences.base import from_text
from jaxpriv.reports import (
    _additions,
    _assessment,
    _attribute,
    _canaries,
    _defended,
    _evidence_files,
    _game,
    _networks,
    _predicted,
    _promise,
    _report_wording,
    _training,
    _user_training,
    findings,
    partition,
    subjects,
)
from jaxpriv.reports.findings import Entry, Report
from jaxpriv.reports.settings import Settings, Unit
from jaxpriv.reports.subjects import Subject

__all__ = ["Folders", "assemble", "assemble_outputs", "examine"]

_AUDIT_DELTA = 1e-5
"""Delta at which epsilon is bounded from below if the settings have no delta."""

_COIN_RELATION = "add_or_remove_one"
"""Relation of the audit of a report's own training: a coin adds each unit or leaves it out."""

_Log = Callable[[str], None]


class Folders(NamedTuple):
    """Folders in which a report saves intermediate results; None saves nothing.

    checkpoints: folder for trainings and scores of attacks, from which a report is resumed.
    evidence: folder for the outputs of the models, which can be attacked again.
    """

    checkpoints: Path | None = None
    evidence: Path | None = None


_NO_FOLDERS = Folders()


def assemble(
    key: PRNGKeyArray,
    dataset: Dataset,
    settings: Settings,
    *,
    train: _user_training.Train | None = None,
    event: _user_training.Event | None = None,
    attacks: Sequence[Attack] | None = None,
    folders: Folders = _NO_FOLDERS,
    log: _Log = lambda message: None,
) -> Report:
    """Trains the models of a report, attacks them and accounts for them.

    Args:
      key: PRNG key; anyone who has it can redraw the noise.
      dataset: records of members, non-members and population.
      settings: settings of the report; with `train` those with `no_dp`, or with delta and relation
        for `event`.
      train: `train(key, records) -> predict`, which trains a model of any framework on a data set
        and returns `predict(x [n, ...]) -> logits [n, c]`; called once for the target and once for
        each shadow model. None trains the network of the settings.
      event: `event(n)`, the dp_accounting event of the whole of `train` on n records, such as
        `make_alg(n).event(steps)`. The report computes the guarantee from it and states it as a
        claim, since it cannot see the training. None: `train` is not private.
      attacks: table of attacks; None takes `attacks.suite.attacks`.
      folders: folders for checkpoints and evidence.
      log: receives progress messages.

    Returns:
      The report, with an empty command and without a seed; the caller may set them.

    Raises:
      ValueError: if there are too few records, or if an epsilon or a defence is impossible.

    Example:
      >>> import jax
      >>> from jaxpriv import data, reports
      >>> settings = reports.Settings(epsilon=(2.0,), delta=1e-4, relation="add_or_remove_one")
      >>> digits = data.load("digits")
      >>> report = assemble(jax.random.key(0), digits, settings)  # doctest: +SKIP
      >>> [entry.recommendation for entry in report.entries]  # doctest: +SKIP
      ['do_not_publish', 'publish_with_dp']
    """
    started = time.monotonic()
    if event is None:
        settings.check_subject()
    else:
        _user_training.check_event(train, settings)
    defences = _defences(settings)
    _check_answers(defences, num_classes=dataset.num_classes)
    if train is not None:
        _check_outputs_only(defences, "a given training, whose parameters the report does not have")
    if settings.sensitive is not None:
        _attribute.find(dataset, settings.sensitive)
    split_key, shadow_key, blind_key, *model_keys = jax.random.split(key, 4 + len(settings.epsilon))
    records = partition.partition_records(
        split_key, dataset, unit=settings.unit, max_records=settings.max_records
    )
    _check_records(records, defences, settings)
    shadow_is_member = units.halves(shadow_key, records.units, num_models=settings.shadows)
    inputs, trainings = _trainings(
        _keys.named(key, "defences"),
        records,
        shadow_is_member,
        defences,
        settings,
        train,
        event,
        log,
    )
    sensitive = None
    if settings.sensitive is not None:
        sensitive = _attribute.prepare(
            _keys.named(key, "sensitive"),
            dataset,
            records,
            settings,
            store=_assessment.Store(_below(folders.checkpoints, "attacks")),
        )
    log("attacking the inputs alone")
    blind = _assessment.blind_metrics(
        blind_key,
        inputs,
        records.is_member,
        records.units,
        store=_assessment.Store(_below(folders.checkpoints, "attacks")),
    )
    after_training = [defence for defence in defences if defence.algorithm is None]
    entries: list[Entry] = []
    subjects_of_classes: list[Subject] = []
    models_started = time.monotonic()
    model_keys += [_keys.named(key, each.name) for each in trainings[len(model_keys) :]]
    for i, (model_key, each) in enumerate(zip(model_keys, trainings, strict=True)):
        left = _time_left(time.monotonic() - models_started, done=i, total=len(trainings))
        log(f"{each.name}: training the target and {settings.shadows} shadow models{left}")
        train_key, attack_key, game_key = jax.random.split(model_key, 3)
        judged = np.ones(len(records.pool), bool) if each.is_judged is None else each.is_judged
        subject = each.run(
            train_key,
            records=records,
            shadow_is_member=shadow_is_member,
            checkpoints=_below(folders.checkpoints, f"model-{i}"),
        )
        subjects_of_classes += [subject] if subject.predict_one is not None else []
        examined = examine(
            attack_key,
            subject,
            defences=() if each.is_private or each.is_judged is not None else after_training,
            attacks=_table_for_logits(settings) if attacks is None else attacks,
            unit=records.units.subset(judged),
            delta=_AUDIT_DELTA if settings.delta is None else settings.delta,
            relation=_COIN_RELATION,
            keep_inputs=settings.keep_inputs,
            sensitive=sensitive and sensitive._replace(imputed=sensitive.imputed[judged]),
            folders=folders,
            log=log,
        )
        examined[0] = _with_additions(
            game_key, examined[0], each, records, settings, name=str(i), folders=folders, log=log
        )
        entries += examined
    report = _report(
        settings,
        partition.describe(dataset, records),
        records.units.kind,
        blind,
        entries,
        started,
    )
    if records.units.kind != "class":
        return report
    inverted = _additions.inversion(
        _keys.named(key, "inversion"),
        records,
        subjects_of_classes,
        settings=settings,
        checkpoints=folders.checkpoints,
        log=log,
    )
    run = dataclasses.replace(report.run, seconds=round(time.monotonic() - started, 1))
    return dataclasses.replace(report, run=run, **inverted)


def assemble_outputs(
    key: PRNGKeyArray,
    settings: Settings,
    *,
    attacks: Sequence[Attack] | None = None,
    folders: Folders = _NO_FOLDERS,
    log: _Log = lambda message: None,
) -> Report:
    """Attacks the outputs of a trained model, from a file or by queries.

    Args:
      key: PRNG key, for attacks that train or draw.
      settings: settings with `scores`, or with `predict`, `members` and `nonmembers`.
      attacks: table of attacks; None takes `attacks.suite.attacks`.
      folders: folders for checkpoints and evidence.
      log: receives progress messages.

    Returns:
      The report, with the guarantee that the settings claim, if any.

    Raises:
      ValueError: if a file is damaged or has no `is_member`, the user's function fails, or a
        defence is impossible.

    Example:
      >>> import tempfile
      >>> import jax, numpy as np
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = f"{folder}/clinic.npz"
      ...     np.savez(path, scores=np.arange(60), is_member=np.arange(60) >= 30)
      ...     report = assemble_outputs(jax.random.key(0), Settings(scores=path))
      >>> report.entries[0].findings.leaks, report.entries[0].recommendation
      (('signals',), 'do_not_publish')
    """
    started = time.monotonic()
    if settings.trains:
        raise ValueError("Expected settings with scores or predict, got none.")
    defences = _defences(settings)
    _check_outputs_only(defences, "outputs, whose model the report does not have")
    if settings.scores is None:
        subject, described = _predicted.load(settings, log=log)
    else:
        subject = subjects.from_scores(settings.scores)
        described = subjects.describe_scores(settings.scores, subject)
    described = dataclasses.replace(described, by_coin=settings.by_coin)
    subject = subject._replace(promise=_claim(settings, subject))
    unit = units.of_records(len(subject.evidence), group=subject.evidence.unit_id)
    _check_judged(subject, unit)
    logits = subject.evidence.logits
    if defences and logits is None:
        raise ValueError("Expected logits for --defence, got scores alone.")
    if logits is not None:
        _check_answers(defences, num_classes=logits.shape[1])
    blind_key, attack_key = jax.random.split(key)
    blind = None
    if subject.evidence.inputs is not None:
        log("attacking the inputs alone")
        blind = _assessment.blind_metrics(
            blind_key,
            subject.evidence.inputs,
            subject.is_member,
            unit,
            store=_assessment.Store(_below(folders.checkpoints, "attacks")),
        )
    entries = examine(
        attack_key,
        subject,
        defences=defences,
        attacks=_table(settings) if attacks is None else attacks,
        unit=unit,
        delta=_AUDIT_DELTA if settings.delta is None else settings.delta,
        relation=settings.relation or _COIN_RELATION,
        no_audit=None if settings.by_coin else "how members were chosen is not known",
        keep_inputs=settings.keep_inputs,
        folders=folders,
        log=log,
    )
    return _report(settings, described, unit.kind, blind, entries, started)


def examine(
    key: PRNGKeyArray,
    subject: Subject,
    *,
    defences: Sequence[Defence],
    attacks: Sequence[Attack],
    unit: units.Units,
    delta: float,
    relation: Relation,
    no_audit: str | None = None,
    keep_inputs: bool = False,
    sensitive: _attribute.Sensitive | None = None,
    folders: Folders = _NO_FOLDERS,
    log: _Log = lambda message: None,
) -> list[Entry]:
    """Attacks a subject, and the subject behind each defence of its parameters or outputs.

    The attacker of a defence is adaptive: the shadow models and their outputs also pass through it,
    and the answers of a random defence to repeated queries are averaged.

    Args:
      key: PRNG key.
      subject: model to attack.
      defences: defences of its parameters, which need `subject.release`, or of its outputs.
      attacks: table of attacks.
      unit: unit of privacy of each record.
      delta: delta at which epsilon is bounded from below.
      relation: neighbouring relation of that bound.
      no_audit: reason why no audit applies; None if a fair coin decided each unit's membership.
      keep_inputs: whether evidence files contain the inputs of the records, and findings pictures.
      sensitive: column to infer from models with inputs and `predict`; None infers none.
      folders: folders for checkpoints and evidence.
      log: receives progress messages.

    Returns:
      An entry for the subject and one for each defence.

    Example:
      >>> import jax, numpy as np
      >>> from jaxpriv import attacks, units
      >>> evidence = attacks.Evidence(signals=np.arange(60.0))
      >>> subject = Subject("A model", evidence, np.arange(60) >= 30, None, None)
      >>> (entry,) = examine(
      ...     jax.random.key(0), subject, defences=(), attacks=attacks.suite.attacks(),
      ...     unit=units.records(60), delta=1e-5, relation="add_or_remove_one",
      ... )
      >>> entry.findings.strongest_attack().metrics.auc, entry.findings.audit.one_run > 1
      (1.0, True)
    """
    entries = []
    for defence in (None, *defences):
        name, attack_key, evidence, tested = _behind(key, subject, defence)
        pairs = None
        if defence is not None and defence.num_pairs and subject.sample_pairs is not None:
            log(f"{name}: training {defence.num_pairs} pairs of models")
            pairs = subject.sample_pairs(_keys.named(key, "pairs"), defence.num_pairs)
        log(f"{name}: attacking")
        result = _assessment.assess(
            attack_key,
            evidence,
            subject.is_member,
            attacks=attacks,
            unit=unit,
            delta=delta,
            relation=relation,
            no_audit=no_audit,
            rows=subject.rows,
            show_inputs=keep_inputs,
            table_path=_below(folders.evidence, f"{_file_name(name)}.csv"),
            store=_assessment.Store(_below(folders.checkpoints, f"attacks/{_file_name(name)}")),
            log=log,
        )
        file, table, has_logits = None, None, True
        if folders.evidence is not None:
            file, table = (
                f"{folders.evidence.name}/{_file_name(name)}.{suffix}" for suffix in ("npz", "csv")
            )
            path = folders.evidence / f"{_file_name(name)}.npz"
            has_logits = _evidence_files.save(
                path, evidence, subject.is_member, keep_inputs=keep_inputs
            )
        entries.append(
            Entry(
                name=name,
                defence=subject.defence if defence is None else defence.title,
                training=subject.training,
                promise=subject.promise,
                utility=_assessment.utility(*(tested or (evidence, subject.is_member)), unit),
                findings=result,
                recommendation=_additions.recommend(result, subject.promise),
                evidence=file,
                evidence_has_logits=has_logits,
                scores=table,
                defence_guarantee=None
                if defence is None
                else _promise.of_defence(
                    defence,
                    num_classes=None if evidence.logits is None else evidence.logits.shape[1],
                    pairs=pairs,
                    num_members=int(subject.is_member.sum()),
                ),
                attribute=None
                if sensitive is None
                else _attribute.measure(
                    _keys.named(attack_key, "sensitive"),
                    evidence,
                    subject.is_member,
                    sensitive,
                    unit=unit,
                ),
            )
        )
    return entries


class _Behind(NamedTuple):
    """A subject behind a defence: its name, the key of its attacks, and the defended outputs."""

    name: str
    key: PRNGKeyArray
    evidence: evidence_lib.Evidence
    tested: tuple[evidence_lib.Evidence, Bool[np.ndarray, " n"]] | None


def _behind(key: PRNGKeyArray, subject: Subject, defence: Defence | None) -> _Behind:
    """Puts a subject behind a defence, or behind none."""
    if defence is None:
        return _Behind(subject.name, key, subject.evidence, subject.tested)
    name = f"{subject.name}, {defence.title}"
    attack_key, respond_key = jax.random.split(_keys.named(key, name))
    evidence, tested = subject.evidence, subject.tested
    if defence.release is not None:
        assert subject.release is not None
        release_key = _keys.named(respond_key, "release")
        evidence, tested = subject.release(release_key, defence.release)
    if defence.respond is None:
        return _Behind(name, attack_key, evidence, tested)
    if tested is None and defence.queries > 1:
        # The accuracy is that of one answer, the attackers have all of them.
        tested = evidence, subject.is_member
    if tested is not None:
        outputs, is_trained = tested
        tested_key = _keys.named(respond_key, "tested")
        tested = evidence_lib.defended(tested_key, outputs, defence.respond), is_trained
    evidence = evidence_lib.defended(
        respond_key, evidence, defence.respond, queries=defence.queries
    )
    return _Behind(name, attack_key, evidence, tested)


class _Training(NamedTuple):
    """A training of the target and its shadow models: `run(key, ...) -> subject`.

    play: `play(key, ...) -> game`; None without DP.
    audit: `audit(key, ...) -> canary audit`; None if the loss of one example is not known.
    is_judged: records on which a model with a defence in its training is attacked; None without.
    """

    name: str
    run: Callable[..., Subject]
    play: Callable[..., findings.Game] | None
    audit: Callable[..., findings.CanaryAudit] | None
    is_judged: Bool[np.ndarray, " n"] | None = None

    @property
    def is_private(self) -> bool:
        """Whether the training has DP."""
        return self.play is not None


def _with_additions(
    key: PRNGKeyArray,
    entry: Entry,
    training: _Training,
    records: partition.Partition,
    settings: Settings,
    *,
    name: str,
    folders: Folders,
    log: _Log,
) -> Entry:
    """Adds the game and the audit by canaries to an entry, where the settings ask for them."""
    if settings.repetitions is not None and training.is_private:
        log(f"{entry.name}: playing {settings.repetitions} repetitions of the game")
        folder = _below(folders.checkpoints, f"game-{name}")
        entry = _additions.with_game(key, entry, training.play, records, folder)
    if settings.canaries is not None and training.audit is not None:
        log(f"{entry.name}: training with {settings.canaries} canaries of each kind")
        folder = _below(folders.checkpoints, f"canaries-{name}")
        audit_key = _keys.named(key, "canaries")
        entry = _additions.with_canaries(audit_key, entry, training.audit, records, folder)
    return entry


def _trainings(
    key: PRNGKeyArray,
    records: partition.Partition,
    shadow_is_member: Bool[np.ndarray, "m n"],
    defences: Sequence[Defence],
    settings: Settings,
    train: _user_training.Train | None,
    event: _user_training.Event | None,
    log: _Log,
) -> tuple[Shaped[np.ndarray, "n ..."], list[_Training]]:
    """Returns the inputs of the networks, and the trainings of a report."""
    if train is not None:
        _user_training.check(train, settings)
        promise = None if event is None else _user_training.claim(event, records, settings)
        run = functools.partial(_user_training.train, train, promise=promise)
        return records.pool.x, [_Training("Given training", run, play=None, audit=None)]
    network = _networks.network_for(records.pool, settings)
    if settings.canaries is not None and network.batch_loss is not None:
        raise ValueError(
            f"Expected no --canaries for {network.description}, whose state mixes the examples of "
            "a batch."
        )
    trainings = []
    for recipe in _training.recipes(network, records, settings, log=log):
        parts = {"recipe": recipe, "network": network, "settings": settings}
        play = None
        if recipe.noise_multiplier is not None:
            play = functools.partial(_game.play, **parts)
        run = functools.partial(_training.train, **parts)
        audit = None
        if network.batch_loss is None:
            delta = _AUDIT_DELTA if settings.delta is None else settings.delta
            audit = functools.partial(_canaries.audit_training, **parts, delta=delta)
        trainings.append(_Training(recipe.name, run, play, audit))
    for defence in defences:
        if defence.algorithm is not None:
            recipe = _defended.recipe(
                _keys.named(key, defence.title),
                defence,
                network=network,
                records=records,
                shadow_is_member=shadow_is_member,
                settings=settings,
            )
            run = functools.partial(
                _training.train, recipe=recipe, network=network, settings=settings
            )
            trainings.append(_Training(recipe.name, run, None, None, recipe.is_judged))
    return _networks.inputs(records.pool, settings), trainings


def _check_answers(defences: Sequence[Defence], *, num_classes: int) -> None:
    """Raises ValueError for defences of another number of classes, before models are trained."""
    for defence in defences:
        if defence.output_guarantee is not None:
            defence.output_guarantee(num_classes)
        if defence.respond is not None:
            jax.eval_shape(defence.respond, jax.random.key(0), jnp.zeros(num_classes))


def _defences(settings: Settings) -> list[Defence]:
    defences = [from_text(text) for text in settings.defence]
    titles = [defence.title for defence in defences]
    for defence in defences:
        if titles.count(defence.title) > 1:
            raise ValueError(f"Expected different defences, got {defence.title!r} twice.")
    return defences


def _check_records(
    records: partition.Partition, defences: Sequence[Defence], settings: Settings
) -> None:
    """Refuses records that optional parts of the report cannot use, before models are trained."""
    if settings.repetitions is not None and records.units.kind != "record":
        raise ValueError(
            f"Expected --unit record for --repetitions, as {records.pool.name} has groups and the "
            "adversary identifies one record."
        )
    if settings.canaries is not None:
        _canaries.check(records, settings)
    members = int(records.is_member.sum())
    nonmembers = len(records.is_member) - members + len(records.population)
    if nonmembers <= members and any(defence.num_pairs for defence in defences):
        raise ValueError(
            f"Expected more records outside of the training than the {members} members, from which "
            f"pairs are drawn, got {nonmembers}: another seed draws others."
        )


def _check_outputs_only(defences: Sequence[Defence], subject: str) -> None:
    """Refuses defences of trainings and of parameters."""
    for defence in defences:
        if defence.release is not None or defence.algorithm is not None:
            raise ValueError(f"Expected no {defence.name} defence for {subject}.")


def _check_judged(subject: Subject, unit: units.Units) -> None:
    """Refuses memberships that no attack can be judged on, before attacks are trained."""
    subject.evidence.check_judged(subject.is_member)
    judged = subject.evidence.judged
    is_member = subject.is_member[judged]
    units.canaries(unit.subset(judged), np.zeros(len(is_member)), is_member)


def _table(settings: Settings) -> tuple[Attack, ...]:
    return suite.attacks(training=Training(steps=settings.attack_steps))


def _table_for_logits(settings: Settings) -> tuple[Attack, ...]:
    """Returns the table without the attack on given scores, since trained models have logits."""
    return tuple(attack for attack in _table(settings) if attack.needs != ("signals",))


def _claim(settings: Settings, subject: Subject) -> findings.Promise | None:
    if settings.claimed_epsilon is None or settings.delta is None or settings.relation is None:
        return None
    if subject.evidence.unit_id is not None:
        # The page would compare attacks on groups with a bound for one record.
        raise ValueError(
            "Expected records without groups for --claimed-epsilon, which is for one record."
        )
    return _promise.claimed(
        epsilon=settings.claimed_epsilon,
        delta=settings.delta,
        relation=settings.relation,
        num_members=int(subject.is_member.sum()),
    )


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
        limits=_report_wording.limits(data, unit=unit, trained=settings.trains),
    )


def _versions() -> dict[str, str]:
    names = ("jax", "flax", "optax", "numpy", "scipy", "dp-accounting")
    return {
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        **{name: metadata.version(name) for name in names},
    }


def _time_left(seconds: float, *, done: int, total: int) -> str:
    """Estimates the remaining time from the models that are done; '' without one."""
    if not done:
        return ""
    return f" (about {_progress.in_words(seconds / done * (total - done))} left)"


def _below(folder: Path | None, name: str) -> Path | None:
    return None if folder is None else folder / name


def _file_name(name: str) -> str:
    """Converts the name of a model to a file name: 'DP-SGD, epsilon 2' -> 'dp-sgd-epsilon-2'."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
