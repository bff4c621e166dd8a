"""LiRA, the likelihood ratio attack: each record is compared with its IN and OUT shadow models.

    shadow signals --blocks of records--> IN and OUT moments --> variances --> log ratio

If each record was queried several times (augmented copies), signals and shadow signals have one
more axis. Queries are treated as independent given the record, as in the paper: each has its own
moments, and the log ratios are summed. In the shapes below `m` counts shadow models, `n` records
and `q` queries of each (none or one axis); `a` counts the records of a block.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxpriv import _check
from jaxpriv.attacks import _shadows
from jaxpriv.attacks._shadows import IsMember

__all__ = [
    "MIN_SHADOWS",
    "Variance",
    "covered",
    "covered_offline",
    "offline",
    "offline_density",
    "online",
]

MIN_SHADOWS = 16
"""Recommended number of shadow models: 8 estimate each of the two distributions of a record."""

Variance = Literal["fixed", "per_example"]
"""One variance for all records on each side, or one for each record."""

_SCORE_LIMIT = 1e100
"""Signals are clipped to this magnitude. With _MIN_VARIANCE it keeps every ratio below 1e301."""

_MIN_VARIANCE = 1e-100
"""Smallest variance, for a side whose signals are all zero or nearly so."""

_MIN_VARIANCE_RATIO = 1e-6
"""Smallest variance of a record, relative to the median one."""

_MAX_VARIANCE_RATIO = 100.0
"""In the pooled variance, each record's variance is capped at this multiple of the median."""

_ROUNDING = 1e-10
"""Deviations below this share of a record's mean are attributed to rounding."""


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

    log N(s; mean_in, var_in) - log N(s; mean_out, var_out), with the means of each record.
    With "fixed", each side has one pooled variance: the sum of squared deviations from the
    records' means, divided by (signals - records), where the variance of a record is capped at
    100 times the median. This is the paper's choice below 64 shadow models.
    With "per_example", each record has unbiased variances of at least 1e-6 times the median; a
    side with a single signal uses the pooled one. The ratio is finite: infinite signals are
    replaced by the extreme finite ones among target and shadows, and all are clipped to 1e100.

    Args:
      signals: signal of each record under the target; `logit_confidence` is close to Gaussian.
      shadow_signals: the same signal under each shadow model.
      shadow_is_member: which records each shadow model was trained on.
      variance: "fixed" or "per_example".

    Returns:
      Log likelihood ratios in nats; > 0 favours membership. Records that are not `covered` have
      score 0, no evidence.

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
        difference = (in_side.mean - out_side.mean)[both]
        var_in, var_out = _variances((in_side, out_side), difference, variance=variance)
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

    log Phi((s - mean_out) / sd_out), the log probability that a model without the record gives a
    lower signal. No shadow model needs to be trained on the audited records. Variances are those
    of `online` on the OUT side; if no record has two OUT shadows, half the mean square of
    s - mean_out sets the scale. Beyond 38 standard deviations all scores are 0.

    Args:
      signals: signal of each record under the target; `logit_confidence` is close to Gaussian.
      shadow_signals: the same signal under each shadow model.
      shadow_is_member: which records each shadow model was trained on; IN signals are not used.
      variance: "fixed" or "per_example".

    Returns:
      Finite log probabilities, at most 0. A query without an OUT shadow contributes log 1/2, the
      median of a non-member; see `covered_offline`.

    Raises:
      ValueError: for NaN, shapes that do not fit, membership other than 0 and 1, or an unknown
        variance.

    References:
      Carlini et al., Membership Inference Attacks From First Principles, 2022, section V-B.

    Example:
      >>> shadows = np.array([[0.0, 5.0], [2.0, 7.0]])
      >>> scores = offline(np.array([3.0, 6.0]), shadows, np.zeros((2, 2), bool))
      >>> np.exp(scores).round(3)  # 1.4 deviations above the mean, and at the mean
      array([0.921, 0.5  ])
    """
    from scipy import special

    def one_query(target, shadows, is_member):
        z, _, has_out = _standardised(target, shadows, is_member, variance=variance)
        return np.where(has_out, special.log_ndtr(z), np.log(0.5))

    _check.one_of(("fixed", "per_example"), variance=variance)
    return _summed(one_query, signals, shadow_signals, shadow_is_member)


def offline_density(
    signals: Shaped[Array | np.ndarray, "n *q"],
    shadow_signals: Shaped[Array | np.ndarray, "m n *q"],
    shadow_is_member: IsMember,
    *,
    variance: Variance = "fixed",
) -> Float[np.ndarray, " n"]:
    """Scores records by the negative log density of their OUT Gaussian.

    -log N(s; mean_out, var_out), as in the paper's published code. It is two-sided: an unusually
    badly fitted record also looks like a member, and with "per_example" a large variance alone
    gives a high score. Prefer `offline`.

    Args:
      signals: signal of each record under the target; `logit_confidence` is close to Gaussian.
      shadow_signals: the same signal under each shadow model.
      shadow_is_member: which records each shadow model was trained on; IN signals are not used.
      variance: "fixed" or "per_example".

    Returns:
      Finite negative log densities in nats. A query without an OUT shadow contributes the mean of
      a non-member, (1 + log(2 pi var)) / 2; see `covered_offline`.

    Raises:
      ValueError: for NaN, shapes that do not fit, membership other than 0 and 1, or an unknown
        variance.

    References:
      Carlini et al., Membership Inference Attacks From First Principles, 2022, published code.

    Example:
      >>> shadows = np.array([[0.0, 5.0], [2.0, 7.0]])
      >>> offline_density(np.array([3.0, 6.0]), shadows, np.zeros((2, 2), bool)).round(2)
      array([2.27, 1.27])
    """

    def one_query(target, shadows, is_member):
        z, var_out, has_out = _standardised(target, shadows, is_member, variance=variance)
        return (np.log(2 * np.pi * var_out) + np.where(has_out, z**2, 1.0)) / 2

    _check.one_of(("fixed", "per_example"), variance=variance)
    return _summed(one_query, signals, shadow_signals, shadow_is_member)


def covered(shadow_is_member: IsMember) -> Bool[np.ndarray, " n"]:
    """Computes which records have both an IN and an OUT shadow model, as `online` needs.

    Args:
      shadow_is_member: which records each shadow model was trained on.

    Returns:
      Whether the attack has evidence about each record; the score of the others is 0.

    Raises:
      ValueError: for membership other than 0 and 1.

    Example:
      >>> covered(np.array([[True, True, False], [False, True, False]]))
      array([ True, False, False])
    """
    return _shadows.have_in_and_out(_shadows.as_bool(shadow_is_member))


def covered_offline(shadow_is_member: IsMember) -> Bool[np.ndarray, " n"]:
    """Computes which records have an OUT shadow model, as the offline attacks need.

    Args:
      shadow_is_member: which records each shadow model was trained on.

    Returns:
      Whether the attack has evidence about each record; the others have the median score of a
      non-member.

    Raises:
      ValueError: for membership other than 0 and 1.

    Example:
      >>> covered_offline(np.array([[True, True, False], [False, True, False]]))
      array([ True, False,  True])
    """
    return _shadows.have_out(_shadows.as_bool(shadow_is_member))


def _summed(
    one_query: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    signals: Shaped[Array | np.ndarray, "n *q"],
    shadow_signals: Shaped[Array | np.ndarray, "m n *q"],
    shadow_is_member: IsMember,
) -> Float[np.ndarray, " n"]:
    """Checks the arrays and sums the scores of the queries."""
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
    """Returns (s - mean_out) / sd_out, the variances, and whether there is an OUT shadow."""
    low, high = _finite_range(target, shadows)
    (out_side,) = _moments(shadows, (~is_member,), low, high)
    has_out = out_side.size > 0
    difference = np.clip(target, low, high) - out_side.mean
    (variances,) = _variances((out_side,), difference[has_out], variance=variance)
    return difference / np.sqrt(variances), variances, has_out


def _moments(
    shadows: Shaped[np.ndarray, "m n"],
    chosen: Sequence[Bool[np.ndarray, "m n"]],
    low: float,
    high: float,
) -> list[_Moments]:
    """Computes the moments of each side block by block, without a float64 copy of all signals."""
    sides = [[] for _ in chosen]
    for rows in _shadows.blocks(shadows.shape[1]):
        block = _shadows.float64_block(shadows, rows, low, high)
        for side, mask in zip(sides, chosen, strict=True):
            side.append(_block(block, mask[:, rows]))
    return [_Moments(*map(np.concatenate, zip(*side, strict=True))) for side in sides]


def _block(shadows: Float[np.ndarray, "m a"], chosen: Bool[np.ndarray, "m a"]) -> _Moments:
    """Computes moments in two passes: E[s^2] - E[s]^2 would lose digits to cancellation."""
    size = chosen.sum(axis=0)
    mean = (shadows * chosen).sum(axis=0) / np.maximum(size, 1)
    deviation = (shadows - mean) * chosen
    return _Moments(size, mean, np.einsum("ma,ma->a", deviation, deviation))


def _variances(
    sides: Sequence[_Moments], difference: Float[np.ndarray, " b"], *, variance: Variance
) -> list[Float[np.ndarray, " n"]]:
    """Returns the positive variance of each record's signals on each side."""
    pooled = [_pooled_variance(side) for side in sides if (side.size > 1).any()]
    # If no record has two signals on a side, use half the mean squared difference: under no
    # membership effect, the difference of two signals has twice their variance.
    pooled = pooled or [float(np.square(difference).mean()) / 2 if difference.size else 1.0]
    fixed = (pooled[0], pooled[-1])[: len(sides)]
    rounding = _ROUNDING * np.max([np.abs(side.mean) for side in sides], axis=0)
    lowest = np.maximum(rounding**2, _MIN_VARIANCE)
    values = _per_example_variances(sides, fixed) if variance == "per_example" else fixed
    return [np.maximum(value, lowest) for value in values]


def _pooled_variance(side: _Moments) -> float:
    """Computes the pooled variance; the cap limits the influence of a single record."""
    freedom = np.maximum(side.size - 1, 0)
    variances = side.squares / np.maximum(freedom, 1)
    median = float(np.median(variances[freedom > 0]))
    limit = _MAX_VARIANCE_RATIO * median if median > 0 else np.inf
    return float((np.minimum(variances, limit) * freedom).sum() / freedom.sum())


def _per_example_variances(
    sides: Sequence[_Moments], fixed: Sequence[float]
) -> list[Float[np.ndarray, " n"]]:
    """Returns unbiased variances; both sides share one floor, so equal sides remain equal."""
    repeated = [side.size > 1 for side in sides]
    variances = [side.squares / np.maximum(side.size - 1, 1) for side in sides]
    estimated = np.concatenate([v[rows] for v, rows in zip(variances, repeated, strict=True)])
    floor = _MIN_VARIANCE_RATIO * np.median(estimated) if estimated.size else 0.0
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
    """Computes log N(s; mean_in, var_in) - log N(s; mean_out, var_out), always finite."""
    z_in, z_out = (s - mean_in) / np.sqrt(var_in), (s - mean_out) / np.sqrt(var_out)
    # The product form of z_out^2 - z_in^2 loses fewer digits where the two are close.
    return (np.log(var_out) - np.log(var_in) + (z_out - z_in) * (z_out + z_in)) / 2


def _finite_range(
    target: Float[np.ndarray, " n"], shadows: Shaped[np.ndarray, "m n"]
) -> tuple[float, float]:
    """Returns the smallest and largest finite number, or (-1, 1) if there is none."""
    low, high = np.inf, -np.inf
    for row in (target, *shadows):
        values = row.astype(np.float64)
        finite = values[np.isfinite(values)]
        low, high = np.min(finite, initial=low), np.max(finite, initial=high)
    if low > high:
        return -1.0, 1.0
    low, high = np.clip([low, high], -_SCORE_LIMIT, _SCORE_LIMIT)
    return float(low), float(high)
