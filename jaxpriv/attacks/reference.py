"""Attacks R and P: each record's signal is compared with reference models, or with a population.

In the shapes below `m` counts shadow models, `n` records and `k` population records.
"""

import math

import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxpriv import _check
from jaxpriv.attacks import _predictive, _shadows
from jaxpriv.attacks._shadows import IsMember

__all__ = ["attack_p", "attack_r"]


def attack_r(
    signals: Shaped[Array | np.ndarray, " n"],
    shadow_signals: Shaped[Array | np.ndarray, "m n"],
    shadow_is_member: IsMember,
) -> Float[np.ndarray, " n"]:
    """Scores records by the rank of their signal among their OUT shadow models.

    The i-th smallest of k OUT signals is sent to Phi^-1((i - 1/2) / k), signals between two of
    them linearly, and signals beyond by their distance in standard deviations of the record's OUT
    signals. No distribution is assumed within the range of the OUT signals.

    Args:
      signals: signal of each record under the target, such as `negative_loss`.
      shadow_signals: the same signal under each shadow model.
      shadow_is_member: which records each shadow model was trained on; IN signals are not used.

    Returns:
      Normal scores; higher = more likely a member. 0 for records without an OUT shadow.

    Raises:
      ValueError: for NaN, shapes that do not fit, or membership other than 0 and 1.

    References:
      Ye et al., Enhanced Membership Inference Attacks against Machine Learning Models, 2022,
      Attack R, with a smooth rank.

    Example:
      >>> shadows = np.array([[0.0], [1.0], [2.0], [3.0]])
      >>> attack_r(np.array([1.5]), shadows, np.zeros((4, 1), bool)).round(3)
      array([0.])
      >>> attack_r(np.array([4.0]), shadows, np.zeros((4, 1), bool)).round(3)
      array([1.925])
    """
    target = _check.real_array("signals", signals).astype(np.float64)
    shadows = _check.real_array("shadow_signals", shadow_signals)
    is_member = _shadows.as_bool(shadow_is_member)
    _shadows.check_shapes(target, shadows, is_member)
    if target.ndim != 1:
        raise ValueError(f"Expected signals of shape [n], got {list(target.shape)}.")
    low, high = _predictive.finite_range(target, shadows)
    target = np.clip(target, low, high)
    (out_side,) = _predictive.moments(shadows, (~is_member,), low, high)
    deviation = _deviations(out_side)
    return np.concatenate(
        [
            _ranks(
                target[rows],
                _shadows.float64_block(shadows, rows, low, high),
                ~is_member[:, rows],
                deviation[rows],
            )
            for rows in _shadows.blocks(len(target))
        ]
    )


def attack_p(
    signals: Shaped[Array | np.ndarray, " n"],
    population_signals: Shaped[Array | np.ndarray, " k"],
) -> Float[np.ndarray, " n"]:
    """Scores records by the share of a population whose signal under the target is lower.

    It ranks records as the signal does. Its scale is that of a false positive rate: records with a
    score above 1 - fpr are members at this rate, up to the size of the population.

    Args:
      signals: signal of each record under the target, such as `negative_loss`.
      population_signals: the same signal of records that the target was not trained on.

    Returns:
      Shares in [0, 1]; equal signals count as not lower.

    Raises:
      ValueError: for NaN, or an empty population.

    References:
      Ye et al., Enhanced Membership Inference Attacks against Machine Learning Models, 2022,
      Attack P.

    Example:
      >>> attack_p(np.array([0.5, 2.0]), np.array([0.0, 1.0, 2.0, 3.0]))
      array([0.25, 0.5 ])
    """
    target = _check.scores(signals, name="signals")
    population = np.sort(_check.scores(population_signals, name="population_signals"))
    if not population.size:
        raise ValueError("Expected a population, got no records.")
    return np.searchsorted(population, target, "left") / population.size


def _deviations(side: _predictive.Moments) -> Float[np.ndarray, " n"]:
    """Returns the deviation of each record's signals; the pooled one if they do not vary."""
    deviation = np.sqrt(side.squares / np.maximum(side.size - 1, 1))
    pooled = _predictive.pooled_variance(side) if (side.size > 1).any() else 0.0
    return np.where(deviation > 0, deviation, math.sqrt(pooled) or 1.0)


def _ranks(
    s: Float[np.ndarray, " a"],
    shadows: Float[np.ndarray, "m a"],
    is_out: Bool[np.ndarray, "m a"],
    deviation: Float[np.ndarray, " a"],
) -> Float[np.ndarray, " a"]:
    from scipy import special

    size = is_out.sum(axis=0)
    ordered = np.sort(np.where(is_out, shadows, np.inf), axis=0)
    below = ((shadows < s) & is_out).sum(axis=0)
    not_above = ((shadows <= s) & is_out).sum(axis=0)

    def normal(position: Shaped[np.ndarray, " a"]) -> Float[np.ndarray, " a"]:
        return special.ndtri(np.clip((position - 0.5) / np.maximum(size, 1), 1e-12, 1 - 1e-12))

    def signal(index: Int[np.ndarray, " a"]) -> Float[np.ndarray, " a"]:
        rows = np.clip(index, 0, len(ordered) - 1)
        return np.take_along_axis(ordered, rows[None], axis=0)[0]

    is_between = (below > 0) & (below < size)
    left = np.where(is_between, signal(below - 1), 0.0)
    gap = np.where(is_between, signal(below), 1.0) - left
    first, last = (
        np.where(size > 0, signal(rank), 0.0)
        for rank in (np.zeros_like(size), np.maximum(size - 1, 0))
    )
    share = np.where(is_between, s - left, 0.0) / np.where(gap > 0, gap, 1.0)
    between = normal(below) + share * (normal(below + 1) - normal(below))
    result = np.where(not_above > below, normal((below + 1 + not_above) / 2), between)
    result = np.where(below == size, normal(size) + (s - last) / deviation, result)
    result = np.where(not_above == 0, normal(np.ones_like(size)) + (s - first) / deviation, result)
    return np.where(size > 0, result, 0.0)
