"""Runs each attack of the suite on evidence: `run(key, evidence) -> scores [n]`.

A run takes the arrays that its attack needs from the evidence and passes them on. Runs with
options are made by a function of these options. In the shapes below `n` counts records.
"""

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from jaxpriv import _keys, signals
from jaxpriv.attacks import (
    forest,
    label_only,
    neural,
    quantile,
    reference,
    rmia,
    shadow_classifier,
    threshold,
)
from jaxpriv.attacks._networks import Training
from jaxpriv.attacks.evidence import Evidence

Run = Callable[[PRNGKeyArray, Evidence], Shaped[np.ndarray, " n"]]
"""`run(key, evidence) -> scores [n]`, higher = more likely a member."""

_CLASSIFIER_SHADOWS = 16
"""Number of shadow models whose outputs train the shadow classifiers."""

_FLIP_PROB, _NOISE_STD = 0.02, 0.5
"""Perturbations of the label-only attack: of binary inputs, and of others."""

_GAMMA = 1.0
"""Ratio by which a record must dominate in RMIA.

Above 1, records whose probability is near 1 under all models have score 0 and tie.
"""

SLOPES = tuple(np.linspace(0.0, 1.0, 11).tolist())
"""Slopes that are tried for RMIA offline."""

_DEFAULT_TEMPERATURE, _DEFAULT_A = 2.0, 0.3
"""Values without tuning, from the authors' configurations and paper."""

_LOG_PROB_FLOOR = -30.0
"""Smaller log probabilities are raised to this value in the neural attack."""


def given_signals(key: PRNGKeyArray, evidence: Evidence) -> Shaped[np.ndarray, " n"]:
    """Returns the signals of the evidence as they are."""
    del key
    return evidence.require("signals")[0]


def signal(signal: Callable[..., Array]) -> Run:
    """Makes a run whose score is a signal of the target's logits and labels."""

    def run(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
        del key
        return signals.score_records(signal, *evidence.require("logits", "labels"))

    return run


def entropy(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
    """Scores by the negative entropy, the one signal without labels."""
    del key
    return signals.score_records(signals.entropy, *evidence.require("logits"))


def loss_threshold(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
    """Scores by a threshold on the loss that is chosen on the shadow models."""
    del key
    (is_member,) = evidence.require("shadow_is_member")
    target, shadows = evidence.signal_arrays(signals.negative_loss)
    return threshold.apply(threshold.fit(shadows, is_member), target)


def loss_threshold_per_class(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
    """Scores by one threshold on the loss for each class."""
    del key
    classes, is_member = evidence.require("labels", "shadow_is_member")
    target, shadows = evidence.signal_arrays(signals.negative_loss)
    present, labels = np.unique(classes, return_inverse=True)
    fitted = threshold.fit_per_class(shadows, is_member, labels, num_classes=len(present))
    return threshold.apply(fitted, target, labels)


def perturbed_labels(*, copies: int) -> Run:
    """Makes a label-only run: bit flips of binary inputs, Gaussian noise on others."""

    def run(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
        rng_key, predict_key = jax.random.split(key)
        rng = _keys.numpy_rng(rng_key)
        inputs, labels, query = evidence.require("inputs", "labels", "predict")
        calls = itertools.count()

        def predict(x: np.ndarray) -> np.ndarray:
            call_key = jax.random.fold_in(predict_key, next(calls))
            return np.asarray(query(call_key, x)).argmax(axis=-1)

        is_binary = ((inputs == 0) | (inputs == 1)).all()
        perturb = (
            label_only.bit_flips(prob=_FLIP_PROB)
            if is_binary
            else label_only.gaussian_noise(std=_NOISE_STD)
        )
        return label_only.robustness(rng, predict, inputs, labels, perturb=perturb, copies=copies)

    return run


def shadow_outputs(fit: Callable[..., shadow_classifier.Fitted], *, training: Training) -> Run:
    """Makes a run of a classifier that is trained on outputs of the shadow models."""

    def run(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
        logits, labels = evidence.require("logits", "labels")
        shadows = evidence.require("shadow_logits", "shadow_is_member")
        shadow_logits, is_member = (array[:_CLASSIFIER_SHADOWS] for array in shadows)
        log_probs = signals.log_probabilities(shadow_logits)
        fitted = fit(key, log_probs, labels, is_member, training=training)
        return shadow_classifier.apply(fitted, signals.log_probabilities(logits), labels)

    return run


def revealed_records(*, training: Training) -> Run:
    """Makes a run of the neural attack, trained on the records of revealed membership."""

    def run(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
        logits, labels = evidence.require("logits", "labels")
        revealed, is_member = evidence.require("revealed", "revealed_is_member")
        log_probs = np.maximum(signals.log_probabilities(logits), _LOG_PROB_FLOOR)
        members, nonmembers = (
            neural.Outputs(log_probs[rows], labels[rows])
            for rows in (is_member, revealed & ~is_member)
        )
        params = neural.fit(key, members, nonmembers, training=training)
        return neural.apply(params, neural.Outputs(log_probs, labels))

    return run


def revealed_probabilities(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
    """Runs the forest attack, fitted to the records of revealed membership."""
    logits, labels = evidence.require("logits", "labels")
    revealed, is_member = evidence.require("revealed", "revealed_is_member")
    probabilities = np.exp(signals.log_probabilities(logits))
    fitted = forest.fit(
        _keys.numpy_rng(key), probabilities[revealed], labels[revealed], is_member[revealed]
    )
    return forest.apply(fitted, probabilities, labels)


def population_quantiles(*, fprs: tuple[float, ...], training: Training) -> Run:
    """Makes a run of quantile regression on a population, by a network.

    Rates that the population cannot calibrate are left out.
    """

    def run(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
        (population,) = evidence.require("population")
        # Other attacks draw half a batch of non-members; here all rows are non-members.
        doubled = dataclasses.replace(training, batch_size=2 * training.batch_size)
        x, s = _features(population), _confidence(population)
        fitted = quantile.fit(key, x, s, fprs=_calibrated(fprs, len(s)), training=doubled)
        return quantile.apply(fitted, _features(evidence), _confidence(evidence))

    return run


def boosted_quantiles(*, fprs: tuple[float, ...]) -> Run:
    """Makes a run of quantile regression on a population, by gradient boosting."""

    def run(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
        (population,) = evidence.require("population")
        x, s = _features(population), _confidence(population)
        fitted = quantile.fit_boosting(_keys.numpy_rng(key), x, s, fprs=_calibrated(fprs, len(s)))
        return quantile.apply(fitted, _features(evidence), _confidence(evidence))

    return run


def _calibrated(fprs: tuple[float, ...], num_known: int) -> tuple[float, ...]:
    """Selects the rates that this number of non-members can calibrate, and at least two."""
    smallest = quantile.smallest_fpr(num_known)
    selected = tuple(fpr for fpr in fprs if fpr >= smallest)
    return selected if len(selected) > 1 else (0.75, 0.5)


def shadow_confidences(attack: Callable[..., np.ndarray], **options: str) -> Run:
    """Makes a run of a LiRA on the logit-scaled confidence."""

    def run(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
        del key
        target, shadows = evidence.signal_arrays(signals.logit_confidence)
        return attack(target, shadows, evidence.shadow_is_member, **options)

    return run


def shadow_ranks(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
    """Runs Attack R on the logit-scaled confidence."""
    del key
    target, shadows = evidence.signal_arrays(signals.logit_confidence)
    (is_member,) = evidence.require("shadow_is_member")
    return reference.attack_r(target, shadows, is_member)


def population_shares(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
    """Runs Attack P on the loss."""
    del key
    (population,) = evidence.require("population")
    target, reference_signals = (
        signals.score_records(signals.negative_loss, *part.require("logits", "labels"))
        for part in (evidence, population)
    )
    return reference.attack_p(target, reference_signals)


def population_ratios(*, slopes: tuple[float, ...] | None) -> Run:
    """Makes a run of RMIA: offline with the slopes that are tried, or online with None.

    Temperature and slope are those that are best on a shadow model in the target's place.
    """

    def run(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
        del key
        (population,) = evidence.require("population")
        temperature, a = _tuned(evidence, slopes)
        attack = rmia.online if a is None else functools.partial(rmia.offline, a=a)
        with warnings.catch_warnings():
            # The row BASE ranks without ties.
            warnings.simplefilter("ignore", rmia.TiesWarning)
            return attack(
                *_log_probs(evidence, temperature),
                *evidence.require("shadow_is_member"),
                population=rmia.Population(*_log_probs(population, temperature)),
                gamma=_GAMMA,
            )

    return run


def ratio(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
    """Runs BASE, the ratio of RMIA at temperature 1 without a population."""
    del key
    arrays = _log_probs(evidence, 1.0)
    return rmia.online_ratio(*arrays, evidence.require("shadow_is_member")[0])


def _tuned(evidence: Evidence, slopes: tuple[float, ...] | None) -> tuple[float, float | None]:
    """Tunes RMIA on two shadow models; with too few of them takes the authors' values."""
    shadow_logits, labels, is_member = evidence.require(
        "shadow_logits", "labels", "shadow_is_member"
    )
    if not rmia.can_tune(is_member):
        return _DEFAULT_TEMPERATURE, None if slopes is None else _DEFAULT_A
    tuned = rmia.tune(
        lambda t: signals.score_records(_loss_at(t), shadow_logits, labels),
        is_member,
        slopes=slopes,
    )
    return tuned.temperature, tuned.a


def _features(evidence: Evidence) -> Shaped[np.ndarray, "n d"]:
    (inputs,) = evidence.require("inputs")
    return inputs.reshape(len(inputs), -1)


def _confidence(evidence: Evidence) -> Float[np.ndarray, " n"]:
    return signals.score_records(signals.logit_confidence, *evidence.require("logits", "labels"))


def _log_probs(
    evidence: Evidence, temperature: float
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "m n"]]:
    """Returns log p(label) under the target and under the shadow models."""
    logits, shadow_logits, labels = evidence.require("logits", "shadow_logits", "labels")
    loss = _loss_at(temperature)
    return (
        signals.score_records(loss, logits, labels),
        signals.score_records(loss, shadow_logits, labels),
    )


@functools.cache
def _loss_at(temperature: float) -> Callable[..., Array]:
    """Returns one function for each temperature, as `score_records` compiles each function once."""
    return functools.partial(signals.negative_loss, temperature=temperature)
