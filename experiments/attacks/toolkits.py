"""Attacks of public toolkits as rows of the suite, from their published formulas.

Where a formula departs from the paper that it implements, the docstring says how. Versions:
Privacy Meter (github.com/privacytrustlab/ml_privacy_meter, modules/mia), LeakPro
(github.com/aidotse/LeakPro, attacks/mia_attacks), PrivacyGuard
(github.com/facebookresearch/PrivacyGuard, attacks) and quantile-mia
(github.com/amazon-science/quantile-mia), all read on 2026-11-28. The Adversarial Robustness Toolbox
(ART) itself runs if it is installed. In the shapes below `m` counts shadow models, `n` records and
`k` population records.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from jaxpriv import _keys, metrics, models, signals
from jaxpriv.attacks import Attack, Evidence

_SLOPES = np.arange(11) / 10
_QUANTILE_WIDTHS = (64, 64)
_QUANTILE_BATCH = 128
_Z_SHARE = 0.5
"""Share of the audited records that LeakPro compares with, its default."""


def attacks(*, steps: int) -> tuple[Attack, ...]:
    """Lists the attacks of the toolkits.

    Args:
      steps: number of gradient steps of quantile-mia's network.
    """
    shadows = ("logits", "labels", "shadow_logits")
    population = ("population_logits", "population_shadow_logits")
    rows = (
        Attack(
            name="privacy_meter_rmia",
            title="Privacy Meter: RMIA",
            needs=(*shadows, *population),
            run=_privacy_meter_rmia,
            reference="Privacy Meter, modules/mia/attacks/rmia.py",
        ),
        Attack(
            name="privacyguard_rmia",
            title="PrivacyGuard: RMIA",
            needs=(*shadows, *population),
            run=_privacyguard_rmia,
            reference="PrivacyGuard, attacks/rmia_attack.py",
        ),
        Attack(
            name="privacyguard_lira",
            title="PrivacyGuard: LiRA online, fixed variance",
            needs=shadows,
            run=_privacyguard_lira,
            reference="PrivacyGuard, attacks/lira_attack.py",
        ),
        Attack(
            name="leakpro_lira",
            title="LeakPro: LiRA online",
            needs=shadows,
            run=_leakpro_lira,
            reference="LeakPro, attacks/mia_attacks/lira.py",
        ),
        Attack(
            name="leakpro_rmia",
            title="LeakPro: RMIA online",
            needs=shadows,
            run=_leakpro_rmia,
            reference="LeakPro, attacks/mia_attacks/rmia.py",
        ),
        Attack(
            name="quantile_mia",
            title="quantile-mia: Gaussian",
            needs=("inputs", "logits", "labels", "population_inputs", "population_logits"),
            run=_quantile_mia(steps),
            reference="quantile-mia, image_QMIA and tabular_QMIA",
        ),
    )
    return (*rows, *_art_rows()) if importlib.util.find_spec("art") else rows


def upper_mean(
    probs: Float[np.ndarray, "m n"], is_member: Bool[np.ndarray, "m n"]
) -> Float[np.ndarray, " n"]:
    """Averages the largest half of the probabilities, with 0 in place of IN shadow models.

    With complementary halves this is the mean over OUT shadow models for an audited record. For a
    population record, which is OUT of all, it keeps the upper half, where the paper takes the mean
    over all.
    """
    count = max(len(probs) // 2, 1)
    return np.sort(probs * ~is_member, axis=0)[-count:].mean(axis=0)


def share_above(ratio: np.ndarray, reference: np.ndarray, *, gamma: float) -> np.ndarray:
    """Computes the share of reference ratios that a ratio exceeds by more than a factor gamma."""
    return np.searchsorted(np.sort(reference), ratio / gamma, side="left") / len(reference)


def rmia(
    evidence: Evidence, *, a: float, is_member: Bool[np.ndarray, "m n"] | None = None
) -> Float[np.ndarray, " n"]:
    """Scores by RMIA as in Privacy Meter and PrivacyGuard: offline, temperature 1, gamma 1.

    Departs from the paper in the mean over the shadow models of population records; see
    `upper_mean`.

    Args:
      evidence: what the attacker has.
      a: slope between the probabilities under OUT and IN shadow models.
      is_member: in place of the membership in the evidence.
    """
    (population,) = evidence.require("population")
    target, shadows = _probs(evidence, 1.0)
    other_target, other_shadows = _probs(population, 1.0)
    is_member = evidence.shadow_is_member if is_member is None else is_member
    none = np.zeros(other_shadows.shape, bool)

    def ratio(target, shadows, is_member):
        return target / ((1 + a) / 2 * upper_mean(shadows, is_member) + (1 - a) / 2)

    return share_above(
        ratio(target, shadows, is_member), ratio(other_target, other_shadows, none), gamma=1.0
    )


def leakpro_deviations(
    shadows: Float[np.ndarray, "m n"], is_side: Bool[np.ndarray, "m n"]
) -> Float[np.ndarray, " n"] | float:
    """Computes the standard deviations of one side in LeakPro's variant "carlini".

    Below 64 shadow models it is the deviation of all signals of the side from their common mean,
    which contains the differences between records; the paper takes deviations from each record's
    mean. From 64 on it is each record's own, without Bessel's correction.
    """
    if len(shadows) < 64:
        return float(shadows[is_side].std())
    return np.std(shadows, axis=0, where=is_side)


def _privacy_meter_rmia(key: jax.Array, evidence: Evidence) -> np.ndarray:
    """Chooses a on a shadow model in the target's place.

    Privacy Meter tunes on the complement of the target, whose members reveal the target's.
    """
    del key
    logits, is_member = evidence.require("shadow_logits", "shadow_is_member")
    (population,) = evidence.require("population")
    is_other = np.any(is_member == is_member[0], axis=1)  # not its complement
    is_other[0] = False
    if not is_other.any():
        return rmia(evidence, a=0.3)
    trial = Evidence(
        labels=evidence.labels,
        logits=logits[0],
        shadow_logits=logits[is_other],
        shadow_is_member=is_member[is_other],
        population=Evidence(
            labels=population.labels,
            logits=population.require("shadow_logits")[0][0],
            shadow_logits=population.require("shadow_logits")[0][is_other],
        ),
    )
    aucs = [metrics.membership(rmia(trial, a=float(a)), is_member[0]).auc for a in _SLOPES]
    return rmia(evidence, a=float(_SLOPES[int(np.argmax(aucs))]))


def _privacyguard_rmia(key: jax.Array, evidence: Evidence) -> np.ndarray:
    del key
    return rmia(evidence, a=0.3)


def _privacyguard_lira(key: jax.Array, evidence: Evidence) -> np.ndarray:
    """Divides by the deviation of the target's own signals over all records, its default."""
    del key
    target, shadows = evidence.signal_arrays(signals.logit_confidence)
    (is_member,) = evidence.require("shadow_is_member")
    in_mean, out_mean = (shadows.mean(axis=0, where=side) for side in (is_member, ~is_member))
    return ((target - out_mean) ** 2 - (target - in_mean) ** 2) / (2 * target.var(ddof=1))


def _leakpro_lira(key: jax.Array, evidence: Evidence) -> np.ndarray:
    from scipy import stats

    del key
    target, shadows = evidence.signal_arrays(signals.logit_confidence)
    (is_member,) = evidence.require("shadow_is_member")
    in_density, out_density = (
        stats.norm.logpdf(
            target, shadows.mean(axis=0, where=side), leakpro_deviations(shadows, side) + 1e-30
        )
        for side in (is_member, ~is_member)
    )
    return in_density - out_density


def _leakpro_rmia(key: jax.Array, evidence: Evidence) -> np.ndarray:
    """Compares with half of the audited records, members included; temperature and gamma 2."""
    target, shadows = _probs(evidence, 2.0)
    ratio = target / (shadows.mean(axis=0) + 1e-6)
    rows = _keys.numpy_rng(key).choice(len(ratio), int(_Z_SHARE * len(ratio)), replace=False)
    return share_above(ratio, ratio[rows], gamma=2.0)


def _quantile_mia(steps: int) -> Callable[[jax.Array, Evidence], np.ndarray]:
    """Makes the attack with a Gaussian for the margin of a non-member, and no calibration."""
    network = models.MLP(widths=_QUANTILE_WIDTHS, num_classes=2)

    def mean_and_deviation(params: Any, x: Array) -> tuple[Array, Array]:
        out = jnp.asarray(network.apply(params, x))
        return out[..., 0], jnp.exp(out[..., 1])

    def run(key: jax.Array, evidence: Evidence) -> np.ndarray:
        (population,) = evidence.require("population")
        init_key, batch_key = jax.random.split(key)
        x, s = _features(population), _margins(population)
        center, scale = x.mean(axis=0), x.std(axis=0) + 1e-6
        data = jnp.asarray((x - center) / scale), jnp.asarray((s - s.mean()) / s.std())
        optimizer = optax.adam(1e-3)

        def loss(params, rows):
            mean, deviation = mean_and_deviation(params, data[0][rows])
            z = (data[1][rows] - mean) / deviation
            return jnp.mean(z**2 / 2 + jnp.log(deviation))

        def step(carry, rows):
            params, state = carry
            with jax.numpy_dtype_promotion("standard"):
                updates, state = optimizer.update(jax.grad(loss)(params, rows), state, params)
            return (optax.apply_updates(params, updates), state), None

        params = network.init(init_key, data[0][0])
        rows = jax.random.randint(batch_key, (steps, _QUANTILE_BATCH), 0, len(s))
        (params, _), _ = jax.jit(lambda carry: jax.lax.scan(step, carry, rows))(
            (params, optimizer.init(params))
        )
        mean, deviation = mean_and_deviation(
            params, jnp.asarray((_features(evidence) - center) / scale)
        )
        standard = (_margins(evidence) - s.mean()) / s.std()
        return (standard - np.asarray(mean, np.float64)) / np.asarray(deviation, np.float64)

    return run


def _art_rows() -> tuple[Attack, ...]:
    """Lists ART's attack on predictions, fitted to the records of revealed membership."""
    kinds = {"rf": "random forest", "gb": "gradient boosting"}
    if importlib.util.find_spec("torch"):
        kinds = {"nn": "network (default)", **kinds}
    return tuple(
        Attack(
            name=f"art_{kind}",
            title=f"ART: {title}",
            needs=("logits", "labels", "revealed"),
            run=_art(kind),
            trains=True,
            reference="Adversarial Robustness Toolbox, MembershipInferenceBlackBox",
        )
        for kind, title in kinds.items()
    )


def _art(kind: str) -> Callable[[jax.Array, Evidence], np.ndarray]:
    def run(key: jax.Array, evidence: Evidence) -> np.ndarray:
        from art.attacks.inference.membership_inference import MembershipInferenceBlackBox
        from art.estimators.classification import BlackBoxClassifier

        del key  # ART has no seed of its own
        logits, labels = evidence.require("logits", "labels")
        revealed, is_member = evidence.require("revealed", "revealed_is_member")
        probs = np.exp(np.asarray(signals.log_probabilities(logits), np.float64))
        # The "records" are row numbers, which the classifier looks up.
        classifier = BlackBoxClassifier(
            lambda rows: probs[np.asarray(rows, int)[:, 0]], (1,), probs.shape[1]
        )
        members, nonmembers = np.flatnonzero(is_member), np.flatnonzero(revealed & ~is_member)
        attack = MembershipInferenceBlackBox(classifier, attack_model_type=kind)
        attack.fit(members[:, None], labels[members], nonmembers[:, None], labels[nonmembers])
        every = np.arange(len(labels))
        scores = attack.infer(every[:, None], labels, probabilities=True)
        return np.asarray(scores, np.float64).reshape(len(labels), -1)[:, -1]

    return run


def _probs(evidence: Evidence, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Computes p(label) under the target and under the shadow models."""
    logits, shadow_logits, labels = evidence.require("logits", "shadow_logits", "labels")

    def loss(logits, label):
        return signals.negative_loss(logits, label, temperature=temperature)

    target, shadows = (
        np.exp(signals.score_records(loss, each, labels).astype(np.float64))
        for each in (logits, shadow_logits)
    )
    return target, shadows


def _features(evidence: Evidence) -> np.ndarray:
    (inputs,) = evidence.require("inputs")
    return inputs.reshape(len(inputs), -1).astype(np.float32)


def _margins(evidence: Evidence) -> np.ndarray:
    return signals.score_records(signals.margin, *evidence.require("logits", "labels"))
