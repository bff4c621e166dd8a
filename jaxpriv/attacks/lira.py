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

_LARGEST = 1e100
"""Scores beyond count as this. With _SMALLEST it keeps every ratio below 1e301."""

_SMALLEST = 1e-100
"""Smallest variance, where all scores of a side are zero or nearly so."""

_FLOOR = 1e-6
"""Smallest variance of one record, as a share of the median one."""

_WILD = 100.0
"""A record's variance beyond this many median ones counts as this in the fixed variance."""

_ROUNDING = 1e-10
"""Deviations below this share of a record's mean are rounding, not spread."""


class _Side(NamedTuple):
    """Moments of each record's scores under the shadows that hold it, or that do not."""

    size: Int[np.ndarray, " a"]
    mean: Float[np.ndarray, " a"]
    squares: Float[np.ndarray, " a"]


def online(
    scores: Shaped[Array | np.ndarray, "n *q"],
    shadow_scores: Shaped[Array | np.ndarray, "m n *q"],
    shadow_is_member: IsMember,
    *,
    variance: Literal["fixed", "per_example"] = "fixed",
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

    def one_query(target, shadows, inside):
        low, high = _finite_range(target, shadows)
        ins, outs = _moments(shadows, (inside, ~inside), low, high)
        both = (ins.size > 0) & (outs.size > 0)
        gap = (ins.mean - outs.mean)[both]
        var_in, var_out = _variances((ins, outs), gap, own=variance == "per_example")
        s = np.clip(target, low, high)
        return np.where(both, _log_ratio(s, ins.mean, var_in, outs.mean, var_out), 0.0)

    _check.one_of(("fixed", "per_example"), variance=variance)
    return _summed(one_query, scores, shadow_scores, shadow_is_member)


def offline(
    scores: Shaped[Array | np.ndarray, "n *q"],
    shadow_scores: Shaped[Array | np.ndarray, "m n *q"],
    shadow_is_member: IsMember,
    *,
    variance: Literal["fixed", "per_example"] = "fixed",
) -> Float[np.ndarray, " n"]:
    """Scores records by a one-sided test against the Gaussian of their OUT shadows alone.

    log Phi((s - mean_out) / sd_out): the probability that a model without the record scores it
    lower. Needs no shadow trained on the audited records. Variances as in `online`, from the OUT
    side; where no record has two OUT shadows, half the mean square of s - mean_out sets the
    scale. Beyond 38 deviations all scores are 0.

    Args:
      scores: the target's score of each record; logit_confidence is close to Gaussian.
      shadow_scores: the same score under each shadow model.
      shadow_is_member: which records each shadow model was trained on; IN scores enter no moment.
      variance: "fixed" or "per_example".

    Returns:
      Log probabilities, at most 0, finite. A query without an OUT shadow counts log 1/2, the
      median of a non-member; `covered_offline` tells where.

    Raises:
      ValueError: for NaN, shapes that do not fit, membership other than 0 and 1, or an unknown
        variance.

    References:
      Carlini et al., Membership Inference Attacks From First Principles, 2022, section V-B.
    """
    from scipy import special

    def one_query(target, shadows, inside):
        z, _, known = _standardised(target, shadows, inside, own=variance == "per_example")
        return np.where(known, special.log_ndtr(z), np.log(0.5))

    _check.one_of(("fixed", "per_example"), variance=variance)
    return _summed(one_query, scores, shadow_scores, shadow_is_member)


def offline_density(
    scores: Shaped[Array | np.ndarray, "n *q"],
    shadow_scores: Shaped[Array | np.ndarray, "m n *q"],
    shadow_is_member: IsMember,
    *,
    variance: Literal["fixed", "per_example"] = "fixed",
) -> Float[np.ndarray, " n"]:
    """Scores records by how unlikely their score is without them: -log N(s; mean_out, var_out).

    The form in the paper's published code. It is two-sided: a record that is fitted unusually
    badly looks like a member too, and with "per_example" a wide Gaussian alone scores high.
    Prefer `offline`.

    Args:
      scores: the target's score of each record; logit_confidence is close to Gaussian.
      shadow_scores: the same score under each shadow model.
      shadow_is_member: which records each shadow model was trained on; IN scores enter no moment.
      variance: "fixed" or "per_example".

    Returns:
      Negative log densities, nats, finite. A query without an OUT shadow counts the mean of a
      non-member, (1 + log(2 pi var)) / 2; `covered_offline` tells where.

    Raises:
      ValueError: for NaN, shapes that do not fit, membership other than 0 and 1, or an unknown
        variance.
    """

    def one_query(target, shadows, inside):
        z, var_out, known = _standardised(target, shadows, inside, own=variance == "per_example")
        return (np.log(2 * np.pi * var_out) + np.where(known, z**2, 1.0)) / 2

    _check.one_of(("fixed", "per_example"), variance=variance)
    return _summed(one_query, scores, shadow_scores, shadow_is_member)


def covered(shadow_is_member: IsMember) -> Bool[np.ndarray, " n"]:
    """Tells which records have both an IN and an OUT shadow model, as `online` needs.

    Args:
      shadow_is_member: which records each shadow model was trained on.

    Returns:
      True where LiRA has evidence; elsewhere its score is 0.

    Raises:
      ValueError: for membership other than 0 and 1.
    """
    inside = _shadows.as_bool(shadow_is_member)
    held = inside.sum(axis=0)
    return (held > 0) & (held < len(inside))


def covered_offline(shadow_is_member: IsMember) -> Bool[np.ndarray, " n"]:
    """Tells which records have an OUT shadow model, as the offline attacks need.

    Args:
      shadow_is_member: which records each shadow model was trained on.

    Returns:
      True where they have evidence; elsewhere their score is that of a middling non-member.

    Raises:
      ValueError: for membership other than 0 and 1.
    """
    inside = _shadows.as_bool(shadow_is_member)
    return inside.sum(axis=0) < len(inside)


def _summed(
    one_query: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    scores: Shaped[Array | np.ndarray, "n *q"],
    shadow_scores: Shaped[Array | np.ndarray, "m n *q"],
    shadow_is_member: IsMember,
) -> Float[np.ndarray, " n"]:
    """Checks the arrays and adds up the queries."""
    target = _check.real_array("scores", scores)
    shadows = _check.real_array("shadow_scores", shadow_scores)
    inside = _shadows.as_bool(shadow_is_member)
    _shadows.check_shapes(target, shadows, inside)
    target = target.astype(np.float64)
    if target.ndim == 1:
        return one_query(target, shadows, inside)
    queries = [one_query(target[:, i], shadows[..., i], inside) for i in range(target.shape[1])]
    return np.sum(queries, axis=0) if queries else np.zeros(len(target))


def _standardised(
    target: Float[np.ndarray, " n"],
    shadows: Shaped[np.ndarray, "m n"],
    inside: Bool[np.ndarray, "m n"],
    *,
    own: bool,
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """(s - mean_out) / sd_out, the variances, and whether there is an OUT shadow."""
    low, high = _finite_range(target, shadows)
    (outs,) = _moments(shadows, (~inside,), low, high)
    known = outs.size > 0
    gap = np.clip(target, low, high) - outs.mean
    (variances,) = _variances((outs,), gap[known], own=own)
    return gap / np.sqrt(variances), variances, known


def _moments(
    shadows: Shaped[np.ndarray, "m n"],
    chosen: Sequence[Bool[np.ndarray, "m n"]],
    low: float,
    high: float,
) -> list[_Side]:
    """The moments of each side, block by block, so that no float64 copy of all is made."""
    sides = [[] for _ in chosen]
    for rows in _shadows.blocks(shadows.shape[1]):
        block = _shadows.float64_block(shadows, rows, low, high)
        for side, mask in zip(sides, chosen, strict=True):
            side.append(_block(block, mask[:, rows]))
    return [_Side(*map(np.concatenate, zip(*side, strict=True))) for side in sides]


def _block(shadows: Float[np.ndarray, "m a"], chosen: Bool[np.ndarray, "m a"]) -> _Side:
    """Sums over the chosen scores of each record; in two passes, as squares of scores cancel."""
    size = chosen.sum(axis=0)
    mean = (shadows * chosen).sum(axis=0) / np.maximum(size, 1)
    deviation = (shadows - mean) * chosen
    return _Side(size, mean, np.einsum("ma,ma->a", deviation, deviation))


def _variances(
    sides: Sequence[_Side], gap: Float[np.ndarray, " b"], *, own: bool
) -> list[Float[np.ndarray, " n"]]:
    """The variance of each record's scores on each side, all positive."""
    known = [_fixed(side) for side in sides if (side.size > 1).any()]
    # Where no record repeats on any side, the variance that ignores membership is left.
    known = known or [float(np.square(gap).mean()) / 2 if gap.size else 1.0]
    fixed = (known[0], known[-1])[: len(sides)]
    rounding = _ROUNDING * np.max([np.abs(side.mean) for side in sides], axis=0)
    least = np.maximum(rounding**2, _SMALLEST)
    values = _own(sides, fixed) if own else fixed
    return [np.maximum(value, least) for value in values]


def _fixed(side: _Side) -> float:
    """The pooled variance; one record with a wild score must not set it for all."""
    freedom = np.maximum(side.size - 1, 0)
    own = side.squares / np.maximum(freedom, 1)
    median = float(np.median(own[freedom > 0]))
    most = _WILD * median if median > 0 else np.inf
    return float((np.minimum(own, most) * freedom).sum() / freedom.sum())


def _own(sides: Sequence[_Side], fixed: Sequence[float]) -> list[Float[np.ndarray, " n"]]:
    """Each record's unbiased variances; all sides have one floor, so equal sides stay equal."""
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
    low, high = np.clip([low, high], -_LARGEST, _LARGEST)
    return float(low), float(high)
