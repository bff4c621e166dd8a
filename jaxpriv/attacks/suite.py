"""The table of membership attacks that reports, command line, leaderboard and tests run.

Adding an attack takes one file and one row here. In the shapes below `n` counts records.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from jaxpriv import signals
from jaxpriv.attacks import (
    _networks,
    label_only,
    lira,
    neural,
    quantile,
    rmia,
    shadow_classifier,
    threshold,
)
from jaxpriv.attacks._networks import Training
from jaxpriv.attacks.evidence import Evidence

Need = Literal[
    "signals",
    "logits",
    "labels",
    "inputs",
    "predict",
    "revealed",
    "shadow_signals",
    "out_shadow_signals",
    "shadow_logits",
    "out_shadow_logits",
    "population_inputs",
    "population_logits",
    "population_shadow_logits",
]
"""A part of the evidence; `missing` describes each."""

Run = Callable[[PRNGKeyArray, Evidence], Shaped[np.ndarray, " n"]]

FPRS = (0.5, 0.1, 0.01, 0.001)
"""False positive rates at which quantile regression estimates its quantiles."""

_GAMMA, _A = 1.0, 0.3
"""RMIA's ratio to exceed, and its slope between OUT and IN probabilities; neither is tuned."""

_CLASSIFIER_SHADOWS = 16
"""Shadow models whose outputs train the shadow classifiers."""

_FLIP_PROB, _NOISE_STD = 0.02, 0.5
"""Perturbations of the label-only attack: of binary inputs, and of others."""

_LOG_PROB_FLOOR = -30.0
"""Smaller log probabilities count as this in the neural attack."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One row of the table.

    name: key in JSON files.
    title: name on pages and in tables.
    needs: parts of the evidence that the attack uses.
    run: `run(key, evidence) -> scores [n]`, higher = more likely a member.
    trains: whether the attack is fitted to examples of members and non-members, so that a
      balanced accuracy below the gap baseline shows that it did not learn.
    decision_at_zero: whether the attack calls records with scores above 0 members.
    reference: the publication.
    """

    name: str
    title: str
    needs: tuple[Need, ...]
    run: Run
    trains: bool = False
    decision_at_zero: bool = False
    reference: str


def attacks(
    *, training: Training = _networks.DEFAULT, copies: int = 16, fprs: Sequence[float] = FPRS
) -> tuple[Attack, ...]:
    """Lists the membership attacks, from the weakest attacker to the strongest.

    Args:
      training: of the attacks that train a network.
      copies: perturbed copies of each record in the label-only attack.
      fprs: false positive rates at which quantile regression estimates its quantiles.

    Returns:
      The table. The blind attack, which needs the truth, is not part of it.
    """
    return (
        *_SIGNALS,
        *_THRESHOLDS,
        Attack(
            name="label_only",
            title="label-only",
            needs=("inputs", "labels", "predict"),
            run=lambda key, evidence: _label_only(key, evidence, copies=copies),
            reference="Choquette-Choo et al., Label-Only Membership Inference Attacks, 2021",
        ),
        *_networks_of(training, tuple(fprs)),
        *_SHADOW_MODELS,
    )


def applicable(table: Iterable[Attack], evidence: Evidence) -> tuple[Attack, ...]:
    """Selects the attacks that the evidence supports.

    Args:
      table: attacks, as from `attacks()`.
      evidence: what the attacker has.

    Returns:
      The attacks that miss nothing, in the order of the table.
    """
    return tuple(attack for attack in table if not missing(attack, evidence))


def missing(attack: Attack, evidence: Evidence) -> str:
    """Describes what an attack needs and the evidence lacks.

    Args:
      attack: a row of the table.
      evidence: what the attacker has.

    Returns:
      A phrase such as "needs shadow models and labels"; empty if nothing is missing.
    """
    parts = [_PARTS[need] for need in attack.needs if not _PARTS[need].is_available(evidence)]
    *first, last = [part.description for part in parts] or [""]
    return f"needs {', '.join(first)}{' and ' if first else ''}{last}" if last else ""


class _Part(NamedTuple):
    """A part of the evidence: what it is, and whether it is there."""

    description: str
    is_available: Callable[[Evidence], bool]


def _population_has(*names: str) -> Callable[[Evidence], bool]:
    def is_available(evidence: Evidence) -> bool:
        return all(getattr(evidence.population, name, None) is not None for name in names)

    return is_available


def _some_revealed(evidence: Evidence) -> bool:
    if evidence.revealed is None or evidence.revealed_is_member is None:
        return False
    return bool(0 < evidence.revealed_is_member.sum() < evidence.revealed.sum())


_PARTS: dict[Need, _Part] = {
    "signals": _Part("scores", lambda e: e.signals is not None),
    "logits": _Part("logits", lambda e: e.logits is not None),
    "labels": _Part("labels", lambda e: e.labels is not None),
    "inputs": _Part("inputs", lambda e: e.inputs is not None),
    "predict": _Part("queries of the target", lambda e: e.predict is not None),
    "revealed": _Part("members and non-members known to the attacker", _some_revealed),
    "shadow_signals": _Part(
        "IN and OUT shadow models", lambda e: e.shadows_vary and e.has_shadow_signals
    ),
    "out_shadow_signals": _Part(
        "shadow models that were not trained on the records",
        lambda e: (
            e.has_shadow_signals and e.shadow_is_member is not None and not e.shadow_is_member.all()
        ),
    ),
    "shadow_logits": _Part(
        "shadow logits",
        lambda e: e.shadow_logits is not None and e.shadows_vary,
    ),
    "out_shadow_logits": _Part(
        "shadow logits of models that were not trained on the records",
        lambda e: (
            e.shadow_logits is not None
            and e.shadow_is_member is not None
            and not e.shadow_is_member.all()
        ),
    ),
    "population_inputs": _Part("inputs of a population", _population_has("inputs")),
    "population_logits": _Part("logits of a population", _population_has("logits", "labels")),
    "population_shadow_logits": _Part(
        "shadow logits of a population", _population_has("shadow_logits")
    ),
}

_YEOM = "Yeom et al., Privacy Risk in Machine Learning, 2018"
_SONG = "Song and Mittal, Systematic Evaluation of Privacy Risks of Machine Learning Models, 2021"
_SALEM = "Salem et al., ML-Leaks, 2019"
_SHOKRI = "Shokri et al., Membership Inference Attacks Against Machine Learning Models, 2017"
_CARLINI = "Carlini et al., Membership Inference Attacks From First Principles, 2022"
_ZARIFZADEH = "Zarifzadeh et al., Low-Cost High-Power Membership Inference Attacks, 2024"


def _signal(signal: Callable[..., Array]) -> Run:
    """An attack whose score is a signal of the target alone."""

    def run(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
        del key
        return signals.score_records(signal, *evidence.require("logits", "labels"))

    return run


def _entropy(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
    del key
    return signals.score_records(signals.entropy, *evidence.require("logits"))


_TARGET: tuple[Need, ...] = ("logits", "labels")


def _given(key: PRNGKeyArray, evidence: Evidence) -> Shaped[np.ndarray, " n"]:
    del key
    return evidence.require("signals")[0]


_SIGNALS = (
    Attack(
        name="signals",
        title="scores as given",
        needs=("signals",),
        run=_given,
        reference="the file of scores",
    ),
    Attack(
        name="correctness",
        title="gap (correctness)",
        needs=_TARGET,
        run=_signal(signals.correctness),
        decision_at_zero=True,
        reference=_YEOM,
    ),
    Attack(
        name="negative_loss",
        title="loss",
        needs=_TARGET,
        run=_signal(signals.negative_loss),
        reference=_YEOM,
    ),
    Attack(
        name="confidence",
        title="confidence",
        needs=_TARGET,
        run=_signal(signals.confidence),
        reference=_SALEM,
    ),
    Attack(name="entropy", title="entropy", needs=("logits",), run=_entropy, reference=_SALEM),
    Attack(
        name="modified_entropy",
        title="modified entropy",
        needs=_TARGET,
        run=_signal(signals.modified_entropy),
        reference=_SONG,
    ),
    Attack(
        name="margin", title="margin", needs=_TARGET, run=_signal(signals.margin), reference=_SALEM
    ),
)


def _threshold(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
    del key
    (is_member,) = evidence.require("shadow_is_member")
    target, shadows = evidence.signal_arrays(signals.negative_loss)
    return threshold.apply(threshold.fit(shadows, is_member), target)


def _threshold_per_class(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
    del key
    classes, is_member = evidence.require("labels", "shadow_is_member")
    target, shadows = evidence.signal_arrays(signals.negative_loss)
    present, labels = np.unique(classes, return_inverse=True)
    fitted = threshold.fit_per_class(shadows, is_member, labels, num_classes=len(present))
    return threshold.apply(fitted, target, labels)


_THRESHOLDS = (
    Attack(
        name="threshold",
        title="loss threshold",
        needs=("shadow_signals",),
        run=_threshold,
        trains=True,
        decision_at_zero=True,
        reference=_YEOM,
    ),
    Attack(
        name="threshold_per_class",
        title="loss threshold, per class",
        needs=("shadow_signals", "labels"),
        run=_threshold_per_class,
        trains=True,
        decision_at_zero=True,
        reference=_SONG,
    ),
)


def _label_only(key: PRNGKeyArray, evidence: Evidence, *, copies: int) -> Float[np.ndarray, " n"]:
    """Flips of binary inputs, Gaussian noise on others."""
    rng_key, predict_key = jax.random.split(key)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(rng_key)))
    inputs, labels, query = evidence.require("inputs", "labels", "predict")
    calls = itertools.count()

    def predict(x: np.ndarray) -> np.ndarray:
        call_key = jax.random.fold_in(predict_key, next(calls))
        return np.asarray(query(call_key, x)).argmax(axis=-1)

    is_binary = ((inputs == 0) | (inputs == 1)).all()
    flips, noise = label_only.bit_flips(prob=_FLIP_PROB), label_only.gaussian_noise(std=_NOISE_STD)
    perturb = flips if is_binary else noise
    return label_only.robustness(rng, predict, inputs, labels, perturb=perturb, copies=copies)


def _networks_of(training: Training, fprs: tuple[float, ...]) -> tuple[Attack, ...]:
    """The attacks that train a network."""

    def classify(fit: Callable[..., shadow_classifier.Fitted]) -> Run:
        def run(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
            logits, labels = evidence.require("logits", "labels")
            shadows = evidence.require("shadow_logits", "shadow_is_member")
            shadow_logits, is_member = (array[:_CLASSIFIER_SHADOWS] for array in shadows)
            log_probs = signals.log_probabilities(shadow_logits)
            fitted = fit(key, log_probs, labels, is_member, training=training)
            return shadow_classifier.apply(fitted, signals.log_probabilities(logits), labels)

        return run

    def learn_from_revealed(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
        logits, labels = evidence.require("logits", "labels")
        revealed, is_member = evidence.require("revealed", "revealed_is_member")
        log_probs = signals.log_probabilities(logits)
        outputs = neural.Outputs(np.maximum(log_probs, _LOG_PROB_FLOOR), labels)
        sides = is_member, revealed & ~is_member
        members, nonmembers = (neural.Outputs(*(part[side] for part in outputs)) for side in sides)
        params = neural.fit(key, members, nonmembers, training=training)
        return neural.apply(params, outputs)

    def regress(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
        known, audited = (
            (_rows(part), _confidence(part)) for part in (*evidence.require("population"), evidence)
        )
        # Other attacks draw half a batch of non-members; here all rows are non-members.
        doubled = dataclasses.replace(training, batch_size=2 * training.batch_size)
        fitted = quantile.fit(key, *known, fprs=fprs, training=doubled)
        return quantile.apply(fitted, *audited)

    shadows: tuple[Need, ...] = ("logits", "labels", "shadow_logits")
    return (
        Attack(
            name="shadow_classifier",
            title="shadow classifier",
            needs=shadows,
            run=classify(shadow_classifier.fit),
            trains=True,
            decision_at_zero=True,
            reference=_SHOKRI,
        ),
        Attack(
            name="shadow_classifier_per_class",
            title="shadow classifier, per class",
            needs=shadows,
            run=classify(shadow_classifier.fit_per_class),
            trains=True,
            decision_at_zero=True,
            reference=_SHOKRI,
        ),
        Attack(
            name="neural",
            title="neural",
            needs=("logits", "labels", "revealed"),
            run=learn_from_revealed,
            trains=True,
            decision_at_zero=True,
            reference="Nasr et al., Machine Learning with Membership Privacy using Adversarial "
            "Regularization, 2018",
        ),
        Attack(
            name="quantile",
            title="quantile regression",
            needs=("inputs", "logits", "labels", "population_inputs", "population_logits"),
            run=regress,
            trains=True,
            reference="Bertran et al., Scalable Membership Inference Attacks via Quantile "
            "Regression, 2023",
        ),
    )


def _rows(evidence: Evidence) -> Shaped[np.ndarray, "n d"]:
    (inputs,) = evidence.require("inputs")
    return inputs.reshape(len(inputs), -1)


def _confidence(evidence: Evidence) -> Float[np.ndarray, " n"]:
    return signals.score_records(signals.logit_confidence, *evidence.require("logits", "labels"))


def _lira(attack: Callable[..., np.ndarray], **options: str) -> Run:
    def run(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
        del key
        target, shadows = evidence.signal_arrays(signals.logit_confidence)
        return attack(target, shadows, evidence.shadow_is_member, **options)

    return run


def _rmia(attack: Callable[..., np.ndarray], **options: float) -> Run:
    def run(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
        del key
        target, shadows, *population = (
            signals.score_records(signals.negative_loss, logits, *part.require("labels"))
            for part in (evidence, *evidence.require("population"))
            for logits in part.require("logits", "shadow_logits")
        )
        reference = rmia.Population(*population)
        is_member = evidence.shadow_is_member
        return attack(target, shadows, is_member, population=reference, **options)

    return run


_POPULATION: tuple[Need, ...] = ("population_logits", "population_shadow_logits")

_SHADOW_MODELS = (
    Attack(
        name="lira_offline",
        title="LiRA offline",
        needs=("out_shadow_signals",),
        run=_lira(lira.offline),
        reference=_CARLINI,
    ),
    Attack(
        name="lira_offline_density",
        title="LiRA offline, density",
        needs=("out_shadow_signals",),
        run=_lira(lira.offline_density),
        reference=_CARLINI,
    ),
    Attack(
        name="lira",
        title="LiRA online",
        needs=("shadow_signals",),
        run=_lira(lira.online),
        decision_at_zero=True,
        reference=_CARLINI,
    ),
    Attack(
        name="lira_per_example",
        title="LiRA online, per-example variance",
        needs=("shadow_signals",),
        run=_lira(lira.online, variance="per_example"),
        decision_at_zero=True,
        reference=_CARLINI,
    ),
    Attack(
        name="rmia_offline",
        title="RMIA offline",
        needs=("logits", "labels", "out_shadow_logits", *_POPULATION),
        run=_rmia(rmia.offline, gamma=_GAMMA, a=_A),
        reference=_ZARIFZADEH,
    ),
    Attack(
        name="rmia",
        title="RMIA online",
        needs=("logits", "labels", "shadow_logits", *_POPULATION),
        run=_rmia(rmia.online, gamma=_GAMMA),
        reference=_ZARIFZADEH,
    ),
)
