"""RMIA, the robust membership inference attack: each record is compared with a population.

Relative to other models, the target should find a member more likely than population records.
In the shapes below `m` counts shadow models, `n` audited records and `k` population records.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from jaxpriv import _check
from jaxpriv.attacks import _shadows
from jaxpriv.attacks._shadows import IsMember
from jaxpriv.metrics import intervals

__all__ = [
    "Population",
    "TiesWarning",
    "Tuned",
    "can_tune",
    "offline",
    "offline_ratio",
    "online",
    "online_ratio",
    "tune",
]

_SLACK = 1e-3
"""Log probabilities may exceed 0 by this much through rounding."""


_MAX_TIES = 1e-3
"""Largest share of records that may have the highest score without a warning."""


class TiesWarning(UserWarning):
    """Many records have the same, highest score."""


class Tuned(NamedTuple):
    """Options of RMIA that were chosen on shadow models.

    temperature: divisor of the logits before the softmax.
    a: slope of `offline`; None if `online` was tuned.
    auc: mean AUC on the shadow models that took the place of the target.
    """

    temperature: float
    a: float | None
    auc: float


class Population(NamedTuple):
    """Records of the same distribution on which neither the target nor any shadow was trained.

    They must not be among the audited records, which cannot be verified from log probabilities.

    log_probs: log p(label) of each record under the target.
    shadow_log_probs: the same under each shadow model.
    """

    log_probs: Shaped[Array | np.ndarray, " k"]
    shadow_log_probs: Shaped[Array | np.ndarray, "m k"]


def online(
    log_probs: Shaped[Array | np.ndarray, " n"],
    shadow_log_probs: Shaped[Array | np.ndarray, "m n"],
    shadow_is_member: IsMember,
    *,
    population: Population,
    gamma: float,
) -> Float[np.ndarray, " n"]:
    """Scores a record by the share of the population that it dominates.

    score(x) = share of z with [p_target(x) / p(x)] / [p_target(z) / p(z)] >= gamma. p(x) is the
    average of the mean probability over IN shadows and the mean over OUT shadows; p(z) is the
    mean over all shadows, since population records are OUT of all of them.

    Args:
      log_probs: log p(label) of each record under the target in nats, as from `negative_loss`.
      shadow_log_probs: the same under each shadow model.
      shadow_is_member: which records each shadow model was trained on.
      population: records that are disjoint from the audited ones and from all training data.
      gamma: ratio by which a record must dominate; > 0, from 1 to 2 in the paper.

    Returns:
      Shares in [0, 1]; higher = more likely a member. A record that is not `lira.covered` has
      ratio p_target(x) / p(x) = 1, no evidence.

    Raises:
      ValueError: for NaN, log probabilities above 0, shapes that do not fit, membership other
        than 0 and 1, an empty population, or gamma not positive.

    References:
      Zarifzadeh, Liu and Shokri, Low-Cost High-Power Membership Inference Attacks, 2024.

    Example:
      >>> population = Population(
      ...     np.log([0.5, 0.6, 0.3, 0.2]), np.log([[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]])
      ... )
      >>> shadows, is_member = np.log([[0.9, 0.8], [0.3, 0.4]]), np.array([[1, 1], [0, 0]])
      >>> online(np.log([0.9, 0.4]), shadows, is_member, population=population, gamma=1.0)
      array([1. , 0.5])
    """
    target, shadows, is_member = _checked(log_probs, shadow_log_probs, shadow_is_member)
    ratio = _online_ratio(target, shadows, is_member)
    reference, reference_shadows, all_out = _checked_population(population, len(shadows))
    return _dominated(ratio, _log_ratio(reference, _log_mean(reference_shadows, all_out)), gamma)


def offline(
    log_probs: Shaped[Array | np.ndarray, " n"],
    shadow_log_probs: Shaped[Array | np.ndarray, "m n"],
    shadow_is_member: IsMember,
    *,
    population: Population,
    gamma: float,
    a: float,
) -> Float[np.ndarray, " n"]:
    """Scores a record by the share of the population that it dominates, from OUT shadows alone.

    The score is that of `online`, with the probability over IN shadows approximated by
    a p_out + (1 - a), so that p = ((1 + a) p_out + (1 - a)) / 2 for records and population alike.
    a = 1 assumes that training on a record does not change p; a = 0 assumes p_in = 1.

    Args:
      log_probs: log p(label) of each record under the target in nats, as from `negative_loss`.
      shadow_log_probs: the same under each shadow model.
      shadow_is_member: which records each shadow model was trained on; IN probabilities are not
        used.
      population: records that are disjoint from the audited ones and from all training data.
      gamma: ratio by which a record must dominate; > 0, from 1 to 2 in the paper.
      a: slope between p_out and p_in, in [0, 1]; tune it on a shadow model used as target. 0.3
        for the paper's CIFAR-10 models.

    Returns:
      Shares in [0, 1]; higher = more likely a member. A record that is not `lira.covered_offline`
      has ratio p_target(x) / p(x) = 1, no evidence.

    Raises:
      ValueError: for NaN, log probabilities above 0, shapes that do not fit, membership other
        than 0 and 1, an empty population, gamma not positive, or a outside [0, 1].

    References:
      Zarifzadeh, Liu and Shokri, Low-Cost High-Power Membership Inference Attacks, 2024.

    Example:
      >>> population = Population(
      ...     np.log([0.5, 0.6, 0.3, 0.2]), np.log([[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]])
      ... )
      >>> shadows, is_member = np.log([[0.3, 0.4], [0.3, 0.4]]), np.zeros((2, 2), bool)
      >>> log_probs = np.log([0.9, 0.3])
      >>> offline(log_probs, shadows, is_member, population=population, gamma=1.0, a=0.3)
      array([1. , 0.5])
    """
    _check.closed_unit(a=a)
    target, shadows, is_member = _checked(log_probs, shadow_log_probs, shadow_is_member)
    ratio = _offline_ratios(target, shadows, is_member, (a,))[a]
    reference, reference_shadows, all_out = _checked_population(population, len(shadows))
    log_out = _log_mean(reference_shadows, all_out)
    return _dominated(ratio, _log_ratio(reference, _log_prior(log_out, a)), gamma)


def online_ratio(
    log_probs: Shaped[Array | np.ndarray, " n"],
    shadow_log_probs: Shaped[Array | np.ndarray, "m n"],
    shadow_is_member: IsMember,
) -> Float[np.ndarray, " n"]:
    """Scores a record by its log ratio log p_target(x) / p(x), without a population.

    For one target the score of `online` is a step function of this ratio, so the ratio ranks
    records at least as finely. It is also the score of the attack BASE.

    Args:
      log_probs: log p(label) of each record under the target in nats, as from `negative_loss`.
      shadow_log_probs: the same under each shadow model.
      shadow_is_member: which records each shadow model was trained on.

    Returns:
      Log ratios in nats; higher = more likely a member. 0 for records that are not `lira.covered`.

    Raises:
      ValueError: for NaN, log probabilities above 0, shapes that do not fit, or membership other
        than 0 and 1.

    References:
      Zarifzadeh, Liu and Shokri, Low-Cost High-Power Membership Inference Attacks, 2024; Lassila
      et al., Practical Bayes-Optimal Membership Inference Attacks, 2025 (BASE).

    Example:
      >>> shadows, is_member = np.log([[0.9, 0.8], [0.3, 0.4]]), np.array([[1, 1], [0, 0]])
      >>> online_ratio(np.log([0.9, 0.4]), shadows, is_member).round(3)
      array([ 0.405, -0.405])
    """
    return _online_ratio(*_checked(log_probs, shadow_log_probs, shadow_is_member))


def offline_ratio(
    log_probs: Shaped[Array | np.ndarray, " n"],
    shadow_log_probs: Shaped[Array | np.ndarray, "m n"],
    shadow_is_member: IsMember,
    *,
    a: float,
) -> Float[np.ndarray, " n"]:
    """Scores a record by its log ratio log p_target(x) / p(x), from OUT shadows alone.

    Args:
      log_probs: log p(label) of each record under the target in nats, as from `negative_loss`.
      shadow_log_probs: the same under each shadow model.
      shadow_is_member: which records each shadow model was trained on; IN probabilities are not
        used.
      a: slope between p_out and p_in, as in `offline`.

    Returns:
      Log ratios in nats; higher = more likely a member. 0 for records that are not
      `lira.covered_offline`.

    Raises:
      ValueError: as `online_ratio`, or for a outside [0, 1].

    References:
      Zarifzadeh, Liu and Shokri, Low-Cost High-Power Membership Inference Attacks, 2024.

    Example:
      >>> shadows = np.log([[0.3, 0.4], [0.3, 0.4]])
      >>> offline_ratio(np.log([0.9, 0.4]), shadows, np.zeros((2, 2), bool), a=1.0).round(3)
      array([1.099, 0.   ])
    """
    _check.closed_unit(a=a)
    return _offline_ratios(*_checked(log_probs, shadow_log_probs, shadow_is_member), (a,))[a]


def tune(
    shadow_log_probs: Callable[[float], Float[np.ndarray, "m n"]],
    shadow_is_member: IsMember,
    *,
    temperatures: Sequence[float] = (0.5, 1.0, 2.0, 4.0),
    slopes: Sequence[float] | None = None,
    trials: int = 2,
) -> Tuned:
    """Chooses the temperature of the softmax, and the slope a of `offline`, on shadow models.

    Each of the first `trials` shadow models takes the place of the target and is attacked with the
    others. Its complement is left out of them, since the number of models trained on a record would
    reveal its membership. The target takes no part in the choice.

    Args:
      shadow_log_probs: function from a temperature T to log softmax(logits / T) at the label of
        each record under each shadow model, in nats.
      shadow_is_member: which records each shadow model was trained on.
      temperatures: temperatures to try; > 0.
      slopes: values of a to try, in [0, 1]; None tunes the ratio of `online`, which has none.
      trials: number of shadow models that take the place of the target.

    Returns:
      The choice with the largest mean AUC.

    Raises:
      ValueError: if no shadow model is left to attack with, or for the errors of `online_ratio`.

    References:
      Zarifzadeh, Liu and Shokri, Low-Cost High-Power Membership Inference Attacks, 2024,
      where a is tuned on shadow models too.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> half = rng.random((4, 300)) < 0.5
      >>> is_member = np.concatenate([half, ~half])
      >>> margin = rng.normal(size=300) + rng.normal(size=(8, 300)) + is_member
      >>> tuned = tune(lambda t: -np.logaddexp(0, -margin / t), is_member, slopes=(0.2, 1.0))
      >>> 0.5 < tuned.auc < 1.0, tuned.a in (0.2, 1.0)
      (True, True)
    """
    is_member = _shadows.as_bool(shadow_is_member)
    _check.positive_int(trials=trials)
    for a in slopes or ():
        _check.closed_unit(a=a)
    targets = _trial_targets(is_member, trials)
    if not targets:
        raise ValueError("Expected at least two pairs of shadow models to tune on.")
    aucs: dict[tuple[float, float | None], list[float]] = {}
    for temperature in temperatures:
        _check.positive(temperature=temperature)
        log_probs = shadow_log_probs(temperature)
        for t, is_other in targets:
            arrays = _checked(log_probs[t], log_probs[is_other], is_member[is_other])
            if slopes is None:
                ratios = {None: _online_ratio(*arrays)}
            else:
                ratios = _offline_ratios(*arrays, slopes)
            for a, ratio in ratios.items():
                auc = intervals.delong(ratio, is_member[t], confidence=0.95).auc
                aucs.setdefault((temperature, a), []).append(auc)
    (temperature, a), values = max(aucs.items(), key=lambda item: float(np.mean(item[1])))
    return Tuned(temperature, a, float(np.mean(values)))


def can_tune(shadow_is_member: IsMember) -> bool:
    """Returns whether there are enough shadow models for `tune`.

    Args:
      shadow_is_member: which records each shadow model was trained on.

    Returns:
      Whether a shadow model that has members and non-members is left with others to attack it.

    Raises:
      ValueError: for membership other than 0 and 1.

    Example:
      >>> half = np.array([[1, 0, 1], [0, 1, 1]])
      >>> can_tune(np.concatenate([half, 1 - half])), can_tune(half[:1])
      (True, False)
    """
    is_member = _shadows.as_bool(shadow_is_member)
    return bool(_trial_targets(is_member, len(is_member)))


def _trial_targets(
    is_member: Bool[np.ndarray, "m n"], trials: int
) -> list[tuple[int, Bool[np.ndarray, " m"]]]:
    """Returns the first shadow models that may take the target's place, and those that attack."""
    targets = []
    for t, members in enumerate(is_member):
        is_other = (np.arange(len(is_member)) != t) & ~(is_member == ~members).all(axis=1)
        if is_other.any() and members.any() and not members.all():
            targets.append((t, is_other))
    return targets[:trials]


def _online_ratio(
    target: Float[np.ndarray, " n"],
    shadows: Shaped[np.ndarray, "m n"],
    is_member: Bool[np.ndarray, "m n"],
) -> Float[np.ndarray, " n"]:
    with np.errstate(divide="ignore"):
        sides = np.logaddexp(_log_mean(shadows, is_member), _log_mean(shadows, ~is_member))
    ratio = _log_ratio(target, sides - np.log(2))
    return np.where(_shadows.have_in_and_out(is_member), ratio, 0.0)


def _offline_ratios(
    target: Float[np.ndarray, " n"],
    shadows: Shaped[np.ndarray, "m n"],
    is_member: Bool[np.ndarray, "m n"],
    slopes: Sequence[float],
) -> dict[float, Float[np.ndarray, " n"]]:
    """Computes the log ratios at each slope from one pass over the shadow models."""
    log_out, has_out = _log_mean(shadows, ~is_member), _shadows.have_out(is_member)
    return {a: np.where(has_out, _log_ratio(target, _log_prior(log_out, a)), 0.0) for a in slopes}


def _log_prior(log_out: Float[np.ndarray, " n"], a: float) -> Float[np.ndarray, " n"]:
    """Computes log p from log p_out, with p_in = a p_out + (1 - a)."""
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log((1 + a) / 2) + log_out, np.log((1 - a) / 2))


def _dominated(
    ratio: Float[np.ndarray, " n"], reference: Float[np.ndarray, " k"], gamma: float
) -> Float[np.ndarray, " n"]:
    """Computes the share of the population's log ratios at least log gamma below each ratio."""
    _check.positive(gamma=gamma)
    scores = np.searchsorted(np.sort(reference), ratio - np.log(gamma), "right") / reference.size
    ties = int((scores == scores.max(initial=-1.0)).sum())
    if ties > max(1, _MAX_TIES * scores.size):
        warnings.warn(
            f"{ties} of {scores.size} records share the highest RMIA score, so the TPR at lower "
            "false positive rates is not resolved; use a larger population or gamma, or the ratio.",
            TiesWarning,
            stacklevel=3,
        )
    return scores


def _log_ratio(
    log_probs: Float[np.ndarray, " n"], log_prior: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Computes log p_target / p, or 0 (no evidence) if both are 0."""
    impossible = (log_probs == -np.inf) & (log_prior == -np.inf)
    return np.where(impossible, 0.0, log_probs - np.where(impossible, 0.0, log_prior))


def _log_mean(
    shadows: Shaped[np.ndarray, "m n"], chosen: Bool[np.ndarray, "m n"]
) -> Float[np.ndarray, " n"]:
    """Computes the log of the mean probability over the chosen shadows; -inf if there are none.

    The largest log probability is subtracted before exponentiation, so the mean cannot underflow.
    """
    means = []
    for rows in _shadows.blocks(shadows.shape[1]):
        log_p = np.where(chosen[:, rows], _shadows.float64_block(shadows, rows), -np.inf)
        top = np.max(log_p, axis=0, initial=-np.inf)
        top = np.where(top == -np.inf, 0.0, top)
        total = np.exp(log_p - top).sum(axis=0) / np.maximum(chosen[:, rows].sum(axis=0), 1)
        with np.errstate(divide="ignore"):
            means.append(top + np.log(total))
    return np.concatenate(means)


def _checked(
    log_probs: Shaped[Array | np.ndarray, " n"],
    shadow_log_probs: Shaped[Array | np.ndarray, "m n"],
    shadow_is_member: IsMember,
) -> tuple[Float[np.ndarray, " n"], Shaped[np.ndarray, "m n"], Bool[np.ndarray, "m n"]]:
    target = _log_probabilities("log_probs", log_probs)
    shadows = _log_probabilities("shadow_log_probs", shadow_log_probs)
    is_member = _shadows.as_bool(shadow_is_member)
    _shadows.check_shapes(target, shadows, is_member)
    if target.ndim != 1:
        raise ValueError(f"Expected log_probs of shape [n], got {list(target.shape)}.")
    return target.astype(np.float64), shadows, is_member


def _checked_population(
    population: Population, num_shadows: int
) -> tuple[Float[np.ndarray, " k"], Shaped[np.ndarray, "m k"], Bool[np.ndarray, "m k"]]:
    """Returns the arrays of the population, and a mask that selects every shadow."""
    target = _log_probabilities("population.log_probs", population.log_probs)
    shadows = _log_probabilities("population.shadow_log_probs", population.shadow_log_probs)
    if not (target.ndim == 1 and target.size and shadows.shape == (num_shadows, target.size)):
        raise ValueError(
            f"Expected a population of shapes [k] and [{num_shadows}, k] with k >= 1, "
            f"got {list(target.shape)} and {list(shadows.shape)}."
        )
    return target.astype(np.float64), shadows, np.ones(shadows.shape, bool)


def _log_probabilities(name: str, values: Shaped[Array | np.ndarray, "..."]) -> np.ndarray:
    array = _check.real_array(name, values)
    if array.size and array.max() > _SLACK:
        raise ValueError(f"Expected {name} <= 0, log probabilities, got {float(array.max()):g}.")
    return array
