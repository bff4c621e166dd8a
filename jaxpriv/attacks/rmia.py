"""RMIA, the robust membership inference attack: each record is compared with a population.

Relative to other models, the target should find a member more likely than population records.
In the shapes below `m` counts shadow models, `n` audited records and `k` population records.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from jaxpriv import _check
from jaxpriv.attacks import _shadows
from jaxpriv.attacks._shadows import IsMember

__all__ = ["Population", "offline", "online"]

_SLACK = 1e-3
"""Log probabilities may exceed 0 by this much through rounding."""


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
    with np.errstate(divide="ignore"):
        sides = np.logaddexp(_log_mean(shadows, is_member), _log_mean(shadows, ~is_member))
    ratio = np.where(
        _shadows.have_in_and_out(is_member), _log_ratio(target, sides - np.log(2)), 0.0
    )
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
    if not 0 <= a <= 1:
        raise ValueError(f"Expected 0 <= a <= 1, got a={a}.")

    def log_prior(log_out):
        with np.errstate(divide="ignore"):
            return np.logaddexp(np.log((1 + a) / 2) + log_out, np.log((1 - a) / 2))

    target, shadows, is_member = _checked(log_probs, shadow_log_probs, shadow_is_member)
    ratio = _log_ratio(target, log_prior(_log_mean(shadows, ~is_member)))
    ratio = np.where(_shadows.have_out(is_member), ratio, 0.0)
    reference, reference_shadows, all_out = _checked_population(population, len(shadows))
    log_out = _log_mean(reference_shadows, all_out)
    return _dominated(ratio, _log_ratio(reference, log_prior(log_out)), gamma)


def _dominated(
    ratio: Float[np.ndarray, " n"], reference: Float[np.ndarray, " k"], gamma: float
) -> Float[np.ndarray, " n"]:
    """Computes the share of the population's log ratios at least log gamma below each ratio."""
    _check.positive(gamma=gamma)
    return np.searchsorted(np.sort(reference), ratio - np.log(gamma), "right") / reference.size


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
