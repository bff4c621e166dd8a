"""LiRA, the likelihood ratio attack: each record against its own IN and OUT shadow models.

Where each record was queried several times (augmented copies), scores and shadow scores have one
more axis. Queries count as independent given the record, as in the paper: each has moments of its
own, and the log ratios are summed. In the shapes below `m` counts shadow models, `n` records and
`q` queries of each (none or one axis); `a` counts the records of a block.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxpriv import _check
from jaxpriv.attacks import _shadows
from jaxpriv.attacks._shadows import IsMember

MIN_SHADOWS = 16
"""Below this, the distributions are estimated from fewer than 8 shadow models a side."""

Variance = Literal["fixed", "per_example"]
"""One variance for all records on each side, or each record's own."""

_SCORE_LIMIT = 1e100
"""Signals are clipped to this magnitude. With _MIN_VARIANCE it keeps every ratio below 1e301."""

_MIN_VARIANCE = 1e-100
"""Smallest variance, where all scores of a side are zero or nearly so."""

_MIN_VARIANCE_RATIO = 1e-6
"""Smallest variance of one record, as a share of the median one."""

_MAX_VARIANCE_RATIO = 100.0
"""In the pooled variance, each record's variance is capped at this multiple of the median."""

_ROUNDING = 1e-10
"""Deviations below this share of a record's mean are rounding, not spread."""


class _Moments(NamedTuple):
    """Moments of each record's signals under its IN shadow models, or its OUT ones."""

    size: Int[np.ndarray, " a"]
    mean: Float[np.ndarray, " a"]
    squares: Float[np.ndarray, " a"]


def online(
    signals: Shaped[Array | np.ndarray, "n *q"],
    shadow_signals: Shaped[Array | np.ndarray, "m n *q"],
    shadow_is_member: IsMember,
    *,
    variance: Variance = "fixed",
) -> Float[np.ndarray, " n"]:
    """Scores records by the log likelihood ratio of Gaussians fitted to IN and OUT shadows.

    log N(s; mean_in, var_in) - log N(s; mean_out, var_out), the means being each record's own.
    With "fixed", one variance serves all records on each side: the squared deviations from the
    records' own means, summed, over (scores - records), where no record counts for more than
    100 median ones; the paper's choice below 64 shadows.
    With "per_example" each record has its own unbiased variances, at least 1e-6 of the median
    one; a side with a single score takes the fixed one. The ratio is finite: infinite scores
    count as the extreme finite ones among target and shadows, those beyond 1e100 as 1e100.

    Args:
      signals: the target's score of each record; logit_confidence is close to Gaussian.
      shadow_signals: the same score under each shadow model.
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
      >>> is_member = np.array([[True], [True], [False], [False]])
      >>> online(np.array([3.5]), shadows, is_member).round(6)
      array([1.5])
    """

    def one_query(target, shadows, is_member):
        low, high = _finite_range(target, shadows)
        in_side, out_side = _moments(shadows, (is_member, ~is_member), low, high)
        both = (in_side.size > 0) & (out_side.size > 0)
        gap = (in_side.mean - out_side.mean)[both]
        var_in, var_out = _variances((in_side, out_side), gap, variance=variance)
        s = np.clip(target, low, high)
        return np.where(both, _log_ratio(s, in_side.mean, var_in, out_side.mean, var_out), 0.0)

    _check.one_of(("fixed", "per_example"), variance=variance)
    return _summed(one_query, signals, shadow_signals, shadow_is_member)


def offline(
    signals: Shaped[Array | np.ndarray, "n *q"],
    shadow_signals: Shaped[Array | np.ndarray, "m n *q"],
    shadow_is_member: IsMember,
    *,
    variance: Variance = "fixed",
) -> Float[np.ndarray, " n"]:
    """Scores records by a one-sided test against the Gaussian of their OUT shadows alone.

    log Phi((s - mean_out) / sd_out): the probability that a model without the record scores it
    lower. Needs no shadow trained on the audited records. Variances as in `online`, from the OUT
    side; where no record has two OUT shadows, half the mean square of s - mean_out sets the
    scale. Beyond 38 deviations all scores are 0.

    Args:
      signals: the target's score of each record; logit_confidence is close to Gaussian.
      shadow_signals: the same score under each shadow model.
      shadow_is_member: which records each shadow model was trained on; IN scores enter no moment.
      variance: "fixed" or "per_example".

    Returns:
      Log probabilities, at most 0, finite. A query without an OUT shadow counts log 1/2, the
      median of a non-member; see `covered_offline`.

    Raises:
      ValueError: for NaN, shapes that do not fit, membership other than 0 and 1, or an unknown
        variance.

    References:
      Carlini et al., Membership Inference Attacks From First Principles, 2022, section V-B.
    """
    from scipy import special

    def one_query(target, shadows, is_member):
        z, _, known = _standardised(target, shadows, is_member, variance=variance)
        return np.where(known, special.log_ndtr(z), np.log(0.5))

    _check.one_of(("fixed", "per_example"), variance=variance)
    return _summed(one_query, signals, shadow_signals, shadow_is_member)


def offline_density(
    signals: Shaped[Array | np.ndarray, "n *q"],
    shadow_signals: Shaped[Array | np.ndarray, "m n *q"],
    shadow_is_member: IsMember,
    *,
    variance: Variance = "fixed",
) -> Float[np.ndarray, " n"]:
    """Scores records by how unlikely their score is without them: -log N(s; mean_out, var_out).

    The form in the paper's published code. It is two-sided: a record that is fitted unusually
    badly looks like a member too, and with "per_example" a wide Gaussian alone scores high.
    Prefer `offline`.

    Args:
      signals: the target's score of each record; logit_confidence is close to Gaussian.
      shadow_signals: the same score under each shadow model.
      shadow_is_member: which records each shadow model was trained on; IN scores enter no moment.
      variance: "fixed" or "per_example".

    Returns:
      Negative log densities, nats, finite. A query without an OUT shadow counts the mean of a
      non-member, (1 + log(2 pi var)) / 2; see `covered_offline`.

    Raises:
      ValueError: for NaN, shapes that do not fit, membership other than 0 and 1, or an unknown
        variance.
    """

    def one_query(target, shadows, is_member):
        z, var_out, known = _standardised(target, shadows, is_member, variance=variance)
        return (np.log(2 * np.pi * var_out) + np.where(known, z**2, 1.0)) / 2

    _check.one_of(("fixed", "per_example"), variance=variance)
    return _summed(one_query, signals, shadow_signals, shadow_is_member)


def covered(shadow_is_member: IsMember) -> Bool[np.ndarray, " n"]:
    """Computes which records have both an IN and an OUT shadow model, as `online` needs.

    Args:
      shadow_is_member: which records each shadow model was trained on.

    Returns:
      True where LiRA has evidence; elsewhere its score is 0.

    Raises:
      ValueError: for membership other than 0 and 1.
    """
    return _shadows.have_in_and_out(_shadows.as_bool(shadow_is_member))


def covered_offline(shadow_is_member: IsMember) -> Bool[np.ndarray, " n"]:
    """Computes which records have an OUT shadow model, as the offline attacks need.

    Args:
      shadow_is_member: which records each shadow model was trained on.

    Returns:
      True where they have evidence; elsewhere the score is the median score of a non-member.

    Raises:
      ValueError: for membership other than 0 and 1.
    """
    return _shadows.have_out(_shadows.as_bool(shadow_is_member))


def _summed(
    one_query: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    signals: Shaped[Array | np.ndarray, "n *q"],
    shadow_signals: Shaped[Array | np.ndarray, "m n *q"],
    shadow_is_member: IsMember,
) -> Float[np.ndarray, " n"]:
    """Checks the arrays and adds up the queries."""
    target = _check.real_array("signals", signals)
    shadows = _check.real_array("shadow_signals", shadow_signals)
    is_member = _shadows.as_bool(shadow_is_member)
    _shadows.check_shapes(target, shadows, is_member)
    target = target.astype(np.float64)
    if target.ndim == 1:
        return one_query(target, shadows, is_member)
    queries = [one_query(target[:, i], shadows[..., i], is_member) for i in range(target.shape[1])]
    return np.sum(queries, axis=0) if queries else np.zeros(len(target))


def _standardised(
    target: Float[np.ndarray, " n"],
    shadows: Shaped[np.ndarray, "m n"],
    is_member: Bool[np.ndarray, "m n"],
    *,
    variance: Variance,
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """(s - mean_out) / sd_out, the variances, and whether there is an OUT shadow."""
    low, high = _finite_range(target, shadows)
    (out_side,) = _moments(shadows, (~is_member,), low, high)
    known = out_side.size > 0
    gap = np.clip(target, low, high) - out_side.mean
    (variances,) = _variances((out_side,), gap[known], variance=variance)
    return gap / np.sqrt(variances), variances, known


def _moments(
    shadows: Shaped[np.ndarray, "m n"],
    chosen: Sequence[Bool[np.ndarray, "m n"]],
    low: float,
    high: float,
) -> list[_Moments]:
    """The moments of each side, block by block, so that no float64 copy of all is made."""
    sides = [[] for _ in chosen]
    for rows in _shadows.blocks(shadows.shape[1]):
        block = _shadows.float64_block(shadows, rows, low, high)
        for side, mask in zip(sides, chosen, strict=True):
            side.append(_block(block, mask[:, rows]))
    return [_Moments(*map(np.concatenate, zip(*side, strict=True))) for side in sides]


def _block(shadows: Float[np.ndarray, "m a"], chosen: Bool[np.ndarray, "m a"]) -> _Moments:
    """Sums over the chosen scores of each record; in two passes, as squares of scores cancel."""
    size = chosen.sum(axis=0)
    mean = (shadows * chosen).sum(axis=0) / np.maximum(size, 1)
    deviation = (shadows - mean) * chosen
    return _Moments(size, mean, np.einsum("ma,ma->a", deviation, deviation))


def _variances(
    sides: Sequence[_Moments], gap: Float[np.ndarray, " b"], *, variance: Variance
) -> list[Float[np.ndarray, " n"]]:
    """The variance of each record's scores on each side, all positive."""
    pooled = [_pooled_variance(side) for side in sides if (side.size > 1).any()]
    # Where no record repeats on any side, the variance that ignores membership is left.
    pooled = pooled or [float(np.square(gap).mean()) / 2 if gap.size else 1.0]
    fixed = (pooled[0], pooled[-1])[: len(sides)]
    rounding = _ROUNDING * np.max([np.abs(side.mean) for side in sides], axis=0)
    lowest = np.maximum(rounding**2, _MIN_VARIANCE)
    values = _per_example_variances(sides, fixed) if variance == "per_example" else fixed
    return [np.maximum(value, lowest) for value in values]


def _pooled_variance(side: _Moments) -> float:
    """The pooled variance; one record with a wild score must not set it for all."""
    freedom = np.maximum(side.size - 1, 0)
    variances = side.squares / np.maximum(freedom, 1)
    median = float(np.median(variances[freedom > 0]))
    limit = _MAX_VARIANCE_RATIO * median if median > 0 else np.inf
    return float((np.minimum(variances, limit) * freedom).sum() / freedom.sum())


def _per_example_variances(
    sides: Sequence[_Moments], fixed: Sequence[float]
) -> list[Float[np.ndarray, " n"]]:
    """Each record's unbiased variances; all sides have one floor, so equal sides stay equal."""
    repeated = [side.size > 1 for side in sides]
    variances = [side.squares / np.maximum(side.size - 1, 1) for side in sides]
    known = np.concatenate([v[rows] for v, rows in zip(variances, repeated, strict=True)])
    floor = _MIN_VARIANCE_RATIO * np.median(known) if known.size else 0.0
    return [
        np.where(rows, np.maximum(values, floor), pooled)
        for values, rows, pooled in zip(variances, repeated, fixed, strict=True)
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


def _finite_range(
    target: Float[np.ndarray, " n"], shadows: Shaped[np.ndarray, "m n"]
) -> tuple[float, float]:
    """The smallest and largest finite number; (-1, 1) where there is none."""
    low, high = np.inf, -np.inf
    for row in (target, *shadows):
        values = row.astype(np.float64)
        finite = values[np.isfinite(values)]
        low, high = np.min(finite, initial=low), np.max(finite, initial=high)
    if low > high:
        return -1.0, 1.0
    low, high = np.clip([low, high], -_SCORE_LIMIT, _SCORE_LIMIT)
    return float(low), float(high)
