"""LiRA, the likelihood ratio attack: each record against its own IN and OUT shadow models.

In the shapes below `m` counts shadow models and `n` records; `a` counts those of a block.
"""

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer, Shaped

from jaxpriv import _check

IsMember = Bool[Array | np.ndarray, "m n"] | Integer[Array | np.ndarray, "m n"]

_BLOCK = 4096
"""Records at a time: the temporaries stay in the cache, and memory does not grow with n."""

_LARGEST = 1e100
"""Scores beyond count as this. With _SMALLEST it keeps every ratio below 1e301."""

_SMALLEST = 1e-100
"""Smallest variance, where all scores of a side are zero or nearly so."""

_FLOOR = 1e-6
"""Smallest variance of one record, as a share of the median one."""

_ROUNDING = 1e-10
"""Deviations below this share of a record's mean are rounding, not spread."""


class _Side(NamedTuple):
    """Moments of each record's scores under the shadows that hold it, or that do not."""

    size: Int[np.ndarray, " a"]
    mean: Float[np.ndarray, " a"]
    squares: Float[np.ndarray, " a"]


def online(
    scores: Shaped[Array | np.ndarray, " n"],
    shadow_scores: Shaped[Array | np.ndarray, "m n"],
    shadow_is_member: IsMember,
    *,
    variance: Literal["fixed", "per_example"] = "fixed",
) -> Float[np.ndarray, " n"]:
    """Scores records by the log likelihood ratio of Gaussians fitted to IN and OUT shadows.

    log N(s; mean_in, var_in) - log N(s; mean_out, var_out), the means being each record's own.
    With "fixed", one variance serves all records on each side: the squared deviations from the
    records' own means, summed, over (scores - records); the paper's choice below 64 shadows.
    With "per_example" each record has its own unbiased variances, at least 1e-6 of the median
    one; a side with a single score takes the fixed one. The ratio is finite: infinite scores
    count as the extreme finite ones among target and shadows, those beyond 1e100 as 1e100.

    Args:
      scores: the target's score of each record; logit_confidence is close to Gaussian.
      shadow_scores: the same score under each shadow model.
      shadow_is_member: which records each shadow model was trained on.
      variance: "fixed" or "per_example".

    Returns:
      Log likelihood ratios, nats; > 0 favours membership. 0, no evidence, for records that are
      not `covered`.

    Raises:
      ValueError: for NaN, shapes that do not fit, membership other than 0 and 1, or an unknown
        variance.

    References:
      Carlini et al., Membership Inference Attacks From First Principles, 2022, Algorithm 1.

    Example:
      >>> shadows = np.array([[3.0], [5.0], [0.0], [2.0]])
      >>> inside = np.array([[True], [True], [False], [False]])
      >>> online(np.array([3.5]), shadows, inside).round(6)
      array([1.5])
    """
    _check.one_of(("fixed", "per_example"), variance=variance)
    target, shadows = _float64("scores", scores), _float64("shadow_scores", shadow_scores)
    inside = _is_member(shadow_is_member)
    _fitting(target, shadows, inside)
    low, high = _finite_range(target, shadows)
    ins, outs = _moments(np.clip(shadows, low, high), inside)
    both = (ins.size > 0) & (outs.size > 0)
    var_in, var_out = _variances(ins, outs, both, own=variance == "per_example")
    ratio = _log_ratio(np.clip(target, low, high), ins.mean, var_in, outs.mean, var_out)
    return np.where(both, ratio, 0.0)


def covered(shadow_is_member: IsMember) -> Bool[np.ndarray, " n"]:
    """Tells which records have both an IN and an OUT shadow model, as `online` needs.

    Args:
      shadow_is_member: which records each shadow model was trained on.

    Returns:
      True where LiRA has evidence; elsewhere its score is 0.

    Raises:
      ValueError: for membership other than 0 and 1.
    """
    inside = _is_member(shadow_is_member)
    held = inside.sum(axis=0)
    return (held > 0) & (held < len(inside))


def _moments(shadows: Float[np.ndarray, "m n"], inside: Bool[np.ndarray, "m n"]) -> list[_Side]:
    """The moments of the IN side, then of the OUT side, block by block."""
    sides = []
    for mask in (inside, ~inside):
        starts = range(0, max(mask.shape[1], 1), _BLOCK)
        parts = [_block(shadows[:, i : i + _BLOCK], mask[:, i : i + _BLOCK]) for i in starts]
        sides.append(_Side(*map(np.concatenate, zip(*parts, strict=True))))
    return sides


def _block(shadows: Float[np.ndarray, "m a"], chosen: Bool[np.ndarray, "m a"]) -> _Side:
    """Sums over the chosen scores of each record; in two passes, as squares of scores cancel."""
    size = chosen.sum(axis=0)
    mean = (shadows * chosen).sum(axis=0) / np.maximum(size, 1)
    deviation = (shadows - mean) * chosen
    return _Side(size, mean, np.einsum("ma,ma->a", deviation, deviation))


def _variances(
    ins: _Side, outs: _Side, both: Bool[np.ndarray, " n"], *, own: bool
) -> list[Float[np.ndarray, " n"]]:
    """The variance of each record's IN and OUT scores, all positive."""
    gap = (ins.mean - outs.mean)[both]
    known = [_fixed(side) for side in (ins, outs) if (side.size > 1).any()]
    # Where no record repeats on either side, the variance that ignores membership is left.
    known = known or [float(np.square(gap).mean()) / 2 if gap.size else 1.0]
    fixed = (known[0], known[-1])
    rounding = _ROUNDING * np.maximum(np.abs(ins.mean), np.abs(outs.mean))
    least = np.maximum(rounding**2, _SMALLEST)
    values = _own((ins, outs), fixed) if own else fixed
    return [np.maximum(value, least) for value in values]


def _fixed(side: _Side) -> float:
    return float(side.squares.sum() / np.maximum(side.size - 1, 0).sum())


def _own(sides: tuple[_Side, _Side], fixed: tuple[float, float]) -> list[Float[np.ndarray, " n"]]:
    """Each record's unbiased variances; both sides have one floor, so equal sides stay equal."""
    repeated = [side.size > 1 for side in sides]
    own = [side.squares / np.maximum(side.size - 1, 1) for side in sides]
    seen = np.concatenate([values[rows] for values, rows in zip(own, repeated, strict=True)])
    floor = _FLOOR * np.median(seen) if seen.size else 0.0
    return [
        np.where(rows, np.maximum(values, floor), whole)
        for values, rows, whole in zip(own, repeated, fixed, strict=True)
    ]


def _log_ratio(
    s: Float[np.ndarray, " n"],
    mean_in: Float[np.ndarray, " n"],
    var_in: Float[np.ndarray, " n"],
    mean_out: Float[np.ndarray, " n"],
    var_out: Float[np.ndarray, " n"],
) -> Float[np.ndarray, " n"]:
    """log N(s; mean_in, var_in) - log N(s; mean_out, var_out), always finite."""
    z_in, z_out = (s - mean_in) / np.sqrt(var_in), (s - mean_out) / np.sqrt(var_out)
    return (np.log(var_out) - np.log(var_in) + (z_out - z_in) * (z_out + z_in)) / 2


def _finite_range(*arrays: Float[np.ndarray, "..."]) -> tuple[float, float]:
    """The smallest and largest finite number; (-1, 1) where there is none."""
    low = min(np.min(a, where=np.isfinite(a), initial=np.inf) for a in arrays)
    high = max(np.max(a, where=np.isfinite(a), initial=-np.inf) for a in arrays)
    if low > high:
        return -1.0, 1.0
    low, high = np.clip([low, high], -_LARGEST, _LARGEST)
    return float(low), float(high)


def _fitting(target: np.ndarray, shadows: np.ndarray, inside: np.ndarray) -> None:
    if not (inside.ndim == 2 and inside.shape == shadows.shape == (len(inside), *target.shape)):
        raise ValueError(
            f"Expected shapes [n], [m, n] and [m, n], got {list(target.shape)}, "
            f"{list(shadows.shape)} and {list(inside.shape)}."
        )


def _float64(name: str, values: Shaped[Array | np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    array = np.asarray(values).astype(np.float64, copy=False)
    if np.isnan(array).any():
        raise ValueError(f"Expected {name} without NaN, got {np.isnan(array).sum()} NaN.")
    return array


def _is_member(values: IsMember) -> Bool[np.ndarray, "m n"]:
    array = np.asarray(values)
    if array.dtype != bool and not np.isin(array, (0, 1)).all():
        raise ValueError("Expected shadow_is_member to hold only 0 and 1, got other numbers.")
    return array.astype(bool, copy=False)
