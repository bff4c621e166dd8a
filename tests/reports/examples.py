"""Reports made by hand: no model is trained."""

import dataclasses

import jax
import numpy as np

from jaxpriv import units
from jaxpriv.attacks import Attack, suite
from jaxpriv.attacks.evidence import Evidence
from jaxpriv.reports import assembly, findings
from jaxpriv.reports.settings import Settings
from jaxpriv.reports.subjects import Subject

KEY = jax.random.key(3)
CHEAP = ("signals", "correctness", "negative_loss", "entropy", "threshold", "lira", "lira_offline")
"""Attacks that train no network."""

TRAINING = findings.Training(
    model="a network",
    inputs="inputs as they are",
    optimizer="DP-SGD with Adam",
    learning_rate=0.01,
    steps=400,
    sampling_prob=0.1,
    noise_multiplier=1.23456,
    clip_norm=1.0,
    target_epsilon=2.0,
)


TOY = Attack(
    name="toy",
    title="toy attack",
    needs=("logits",),
    run=lambda key, evidence: np.asarray(evidence.logits)[:, 0],
    reference="a test",
)


def cheap_attacks():
    return tuple(attack for attack in suite.attacks() if attack.name in CHEAP)


def make_evidence(*, leak, n=300, num_shadows=16, seed=0, **parts):
    """Logits that are larger at the label where a record is a member; and the truth."""
    rng = np.random.default_rng(seed)
    labels, difficulty = rng.integers(0, 3, n), rng.normal(size=n)
    is_member = rng.random(n) < 0.5
    half = rng.random((num_shadows // 2, n)) < 0.5
    shadow_is_member = np.concatenate([half, ~half])

    def logits(inside):
        shift = (1 + difficulty + leak * inside)[..., None] * np.eye(3)[labels]
        return (shift + 0.5 * rng.normal(size=(*inside.shape, 3))).astype(np.float32)

    evidence = Evidence(
        labels=labels,
        logits=logits(is_member),
        shadow_logits=logits(shadow_is_member),
        shadow_is_member=shadow_is_member,
        **parts,
    )
    return evidence, is_member


def make_guarantee(relation, *, epsilon=2.0, delta=1e-4, unit="record", size=1, advantage=0.3):
    return findings.Guarantee(
        unit=unit,
        size=size,
        relation=relation,
        epsilon=epsilon,
        unbounded=epsilon is None,
        delta=delta,
        advantage_bound=advantage,
        rho_beta=1.0 if epsilon is None else 1 / (1 + np.exp(-epsilon)),
        violation_probability=1e-5 if unit == "record" else None,
    )


def make_promise(*, epsilon=2.0, vacuous=(), relation="add_or_remove_one"):
    return findings.Promise(
        unit="record",
        relation=relation,
        guarantees=(
            make_guarantee("add_or_remove_one", epsilon=epsilon),
            make_guarantee("replace_one", epsilon=epsilon and 2.2 * epsilon),
        ),
        vacuous=vacuous,
    )


def make_entries(*, leak, promise=None, attacks=None, defences=(), no_audit=None, **options):
    evidence, is_member = make_evidence(leak=leak, **options)
    name = "Without DP" if promise is None else "DP-SGD, epsilon 2"
    training = TRAINING
    if promise is None:
        training = dataclasses.replace(
            TRAINING, optimizer="Adam", noise_multiplier=None, clip_norm=None, target_epsilon=None
        )
    return assembly.examine(
        KEY,
        Subject(name, evidence, is_member, training, promise),
        defences=defences,
        attacks=cheap_attacks() if attacks is None else attacks,
        unit=units.records(len(evidence)),
        delta=1e-4,
        relation="add_or_remove_one",
        no_audit=no_audit,
    )


def make_canary_audit(**changes):
    found = findings.CanaryAudit(
        num_canaries=1000,
        delta=1e-5,
        relation="add_or_remove_one",
        confidence=0.99,
        gradients=0.0,
        gradients_fdp=0.3,
        labels=0.0,
        labels_fdp=0.0,
        ceiling=4.5,
    )
    return dataclasses.replace(found, **changes)


def make_game(**changes):
    game = findings.Game(
        repetitions=50,
        relation="add_or_remove_one",
        row=12,
        replacement=None,
        confidence=0.95,
        advantage=0.12,
        advantage_interval=(-0.15, 0.36),
        epsilon_lower_bound=0.0,
        bound_confidence=0.99,
        violations=0.02,
        violations_interval=(0.001, 0.11),
        steps=(1, 400),
        belief_low=(0.4, 0.2),
        belief_median=(0.5, 0.55),
        belief_high=(0.6, 0.8),
    )
    return dataclasses.replace(game, **changes)


def make_data(**changes):
    data = findings.Data(
        name="patients",
        source="made by hand",
        num_records=330,
        num_classes=3,
        class_names=("benign", "malignant", "unclear"),
        notes=(),
        not_private=(),
        num_members=150,
        num_nonmembers=150,
        num_population=30,
        num_groups=None,
        largest_group=None,
        num_duplicates=0,
        by_coin=True,
    )
    return dataclasses.replace(data, **changes)


def make_report(*entries, seed=None, data=None, blind=None, unit="record"):
    return findings.Report(
        schema_version=2,
        run=findings.Run(
            date="2026-11-28",
            command="jaxpriv report <data & more>",
            seed=seed,
            seconds=1.5,
            jaxpriv="0.1.0",
            versions={"jax": "0.10.2"},
        ),
        settings=Settings(epsilon=(2.0,), delta=1e-4, relation="add_or_remove_one"),
        unit=unit,
        data=make_data() if data is None else data,
        blind=entries[0].findings.attacks[0].metrics if blind is None else blind,
        entries=entries,
        limits=("A limit.",),
    )
