"""Every membership attack behind one signature: what the attacker holds in, scores out."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from jaxpriv.attacks import (
    blind,
    label_only,
    lira,
    neural,
    quantile,
    rmia,
    shadow_classifier,
    threshold,
)
from jaxpriv.metrics import scores

FPRS = (0.5, 0.1, 0.01, 0.001)
_GAMMA, _A = 1.0, 0.3  # RMIA's, not tuned here
_LEARNED_FROM = 16  # shadows whose outputs train the shadow classifier


class Outputs(NamedTuple):
    """Of one set of records: inputs, labels, logits of the target and of m shadow models."""

    x: np.ndarray
    labels: np.ndarray
    logits: np.ndarray
    shadow_logits: np.ndarray


class Problem(NamedTuple):
    """What an attacker of one target may hold.

    audited: the records in question, n of them.
    shadow_is_member: [m, n].
    known: an index of audited records whose membership the neural attack is told; they are
      judged for no attack.
    is_member: the truth, which only the neural attack (for `known`) and the blind attack (out of
      fold) look at.
    population: records that no model was trained on.
    predict: the target's label of each input.
    group: the household of each audited record, where membership goes by them.
    steps: of attacks that train.
    copies: of each record, for the label-only attacks.
    """

    audited: Outputs
    shadow_is_member: np.ndarray
    known: np.ndarray
    is_member: np.ndarray
    population: Outputs
    predict: Callable[[np.ndarray], np.ndarray]
    steps: int
    copies: int
    group: np.ndarray | None


def _log_probs(logits: np.ndarray) -> np.ndarray:
    return np.asarray(jax.nn.log_softmax(logits.astype(np.float32)))


def _plain(name: str) -> Callable[[jax.Array, Problem], np.ndarray]:
    """The score itself, which needs nothing but the target."""
    return lambda key, p: scores.of_records(
        getattr(scores, name), p.audited.logits, p.audited.labels
    )


def _entropy(key: jax.Array, p: Problem) -> np.ndarray:
    del key
    return np.asarray(jax.vmap(scores.entropy)(p.audited.logits))


def _per_class(key: jax.Array, p: Problem) -> np.ndarray:
    del key
    labels, c = p.audited.labels, p.audited.logits.shape[-1]
    losses = scores.of_records(scores.negative_loss, p.audited.shadow_logits, labels)
    fitted = threshold.fit_per_class(losses, p.shadow_is_member, labels, num_classes=c)
    mine = scores.of_records(scores.negative_loss, p.audited.logits, labels)
    return threshold.apply_per_class(fitted, mine, labels)


def _lira(attack, **settings) -> Callable[[jax.Array, Problem], np.ndarray]:
    def run(key: jax.Array, p: Problem) -> np.ndarray:
        del key
        mine = scores.of_records(scores.logit_confidence, p.audited.logits, p.audited.labels)
        theirs = scores.of_records(
            scores.logit_confidence, p.audited.shadow_logits, p.audited.labels
        )
        return attack(mine, theirs, p.shadow_is_member, **settings)

    return run


def _rmia(attack, **settings) -> Callable[[jax.Array, Problem], np.ndarray]:
    def run(key: jax.Array, p: Problem) -> np.ndarray:
        del key
        held = [
            scores.of_records(scores.negative_loss, logits, part.labels)
            for part in (p.audited, p.population)
            for logits in (part.logits, part.shadow_logits)
        ]
        population = rmia.Population(held[2], held[3])
        return attack(*held[:2], p.shadow_is_member, population=population, **settings)

    return run


def _shadow_classifier(fit) -> Callable[[jax.Array, Problem], np.ndarray]:
    def run(key: jax.Array, p: Problem) -> np.ndarray:
        some = slice(_LEARNED_FROM)
        log_probs = _log_probs(p.audited.shadow_logits[some])
        labels = p.audited.labels
        fitted = fit(key, log_probs, labels, p.shadow_is_member[some], steps=p.steps)
        return shadow_classifier.apply(fitted, _log_probs(p.audited.logits), labels)

    return run


def _neural(key: jax.Array, p: Problem) -> np.ndarray:
    log_probs = np.maximum(_log_probs(p.audited.logits), -30)
    sides = [p.known[p.is_member[p.known] == side] for side in (True, False)]
    told = [neural.Outputs(log_probs[side], p.audited.labels[side]) for side in sides]
    params = neural.fit(key, *told, steps=p.steps)
    return neural.apply(params, neural.Outputs(log_probs, p.audited.labels))


def _quantile(key: jax.Array, p: Problem) -> np.ndarray:
    held = [
        (
            part.x.reshape(len(part.x), -1),
            scores.of_records(scores.logit_confidence, part.logits, part.labels),
        )
        for part in (p.population, p.audited)
    ]
    fitted = quantile.fit(key, *held[0], fprs=FPRS, steps=p.steps)
    return quantile.apply(fitted, *held[1])


def _rng(key: jax.Array) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def _label_only(key: jax.Array, p: Problem) -> np.ndarray:
    """Flips of binary inputs, Gaussian noise on others."""
    x, labels, rng = p.audited.x, p.audited.labels, _rng(key)
    if ((x == 0) | (x == 1)).all():
        return label_only.flip_robustness(
            rng, p.predict, x, labels, flip_prob=0.02, copies=p.copies
        )
    return label_only.noise_robustness(rng, p.predict, x, labels, scale=0.5, copies=p.copies)


def _blind(key: jax.Array, p: Problem) -> np.ndarray:
    return blind.cross_validated(_rng(key), p.audited.x, p.is_member, group=p.group)


ATTACKS: dict[str, Callable[[jax.Array, Problem], np.ndarray]] = {
    "blind (inputs alone)": _blind,
    "gap (correctness)": _plain("correctness"),
    "loss threshold": _plain("negative_loss"),
    "loss threshold, per class": _per_class,
    "confidence": _plain("confidence"),
    "entropy": _entropy,
    "modified entropy": _plain("modified_entropy"),
    "margin": _plain("margin"),
    "label-only": _label_only,
    "shadow classifier": _shadow_classifier(shadow_classifier.fit),
    "shadow classifier, per class": _shadow_classifier(shadow_classifier.fit_per_class),
    "neural (told 20 % of the records)": _neural,
    "quantile regression": _quantile,
    "LiRA offline": _lira(lira.offline),
    "LiRA offline, density": _lira(lira.offline_density),
    "LiRA online": _lira(lira.online),
    "LiRA online, per-example variance": _lira(lira.online, variance="per_example"),
    "RMIA offline": _rmia(rmia.offline, gamma=_GAMMA, a=_A),
    "RMIA online": _rmia(rmia.online, gamma=_GAMMA),
}
"""From the weakest attacker to the strongest."""

LEARNED = ("shadow classifier", "shadow classifier, per class", "neural", "quantile")
"""Beginnings of the names of attacks that train: below the gap baseline they are flagged."""
