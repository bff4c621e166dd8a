"""LiRA, the likelihood ratio attack: each record is compared with its IN and OUT shadow models.

    shadow signals --blocks of records--> IN and OUT moments --variance--> predictive
    distributions of the target's signal (`_predictive`) --> log ratio

Any real-valued signal will do, such as the negative squared error of a regression model. If each
record has several signals (augmented copies, temperatures), signals and shadow signals have one
more axis. They are treated as independent given the record, as in the paper: each has its own
moments, and the log ratios are summed; `decorrelated` makes them uncorrelated first. In the shapes
below `m` counts shadow models, `n` records and `q` queries of each (none or one axis); `a` counts
the records of a block.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from jaxpriv import _check
from jaxpriv.attacks import _predictive, _shadows
from jaxpriv.attacks._shadows import IsMember

__all__ = [
    "MIN_SHADOWS",
    "VARIANCES",
    "Variance",
    "covered",
    "covered_offline",
    "decorrelated",
    "offline",
    "offline_density",
    "online",
]

MIN_SHADOWS = 16
"""Recommended number of shadow models: 8 estimate each of the two distributions of a record."""

Variance = Literal["shrunken", "fixed", "per_example"]
"""Variances of a side: shrunken towards a common one, pooled, or each record's own."""

VARIANCES: tuple[Variance, ...] = ("shrunken", "fixed", "per_example")

_MIN_EIGENVALUE = 1e-6
"""Eigenvalues of the correlations below this are rounding: a signal repeats others."""


def online(
    signals: Shaped[Array | np.ndarray, "n *q"],
    shadow_signals: Shaped[Array | np.ndarray, "m n *q"],
    shadow_is_member: IsMember,
    *,
    variance: Variance = "shrunken",
) -> Float[np.ndarray, " n"]:
    """Scores records by the log likelihood ratio of distributions fitted to IN and OUT shadows.

    With "shrunken", log t(s; in) - log t(s; out): each record's variance is shrunken towards the
    common one by empirical Bayes, and the predictive distribution of its next signal is Student's
    t. The others compute
    log N(s; mean_in, var_in) - log N(s; mean_out, var_out), with the means of each record.
    With "fixed", each side has one pooled variance: the sum of squared deviations from the
    records' means, divided by (signals - records), where the variance of a record is capped at
    100 times the median. This is the paper's choice below 64 shadow models.
    With "per_example", each record has unbiased variances of at least 1e-6 times the median; a
    side with a single signal uses the pooled one. A warning is issued if records have fewer than
    16 signals a side. The ratio is finite: infinite signals are replaced by the extreme finite ones
    among target and shadows, and all are clipped to 1e100.

    Args:
      signals: signal of each record under the target; `logit_confidence` is close to Gaussian.
      shadow_signals: the same signal under each shadow model.
      shadow_is_member: which records each shadow model was trained on.
      variance: "shrunken", "fixed" or "per_example".

    Returns:
      Log likelihood ratios in nats; > 0 favours membership. Records that are not `covered` have
      score 0, no evidence.

    Raises:
      ValueError: for NaN, shapes that do not fit, membership other than 0 and 1, or an unknown
        variance.

    References:
      Carlini et al., Membership Inference Attacks From First Principles, 2022, Algorithm 1, for
      "fixed" and "per_example"; Smyth, Linear Models and Empirical Bayes Methods, 2004, section
      6.2, for the prior of "shrunken".

    Example:
      >>> shadows = np.array([[3.0], [5.0], [0.0], [2.0]])
      >>> is_member = np.array([[True], [True], [False], [False]])
      >>> online(np.array([3.5]), shadows, is_member, variance="fixed").round(6)
      array([1.5])
      >>> online(np.array([3.5]), shadows, is_member).round(2)  # heavier tails: weaker evidence
      array([1.])
    """

    def one_query(target, shadows, is_member):
        low, high = _predictive.finite_range(target, shadows)
        in_side, out_side = _predictive.moments(shadows, (is_member, ~is_member), low, high)
        both = (in_side.size > 0) & (out_side.size > 0)
        difference = (in_side.mean - out_side.mean)[both]
        sides = _predictive.predictives((in_side, out_side), difference, variance=variance)
        return np.where(both, _predictive.log_ratio(np.clip(target, low, high), *sides), 0.0)

    _check.one_of(VARIANCES, variance=variance)
    return _summed(one_query, signals, shadow_signals, shadow_is_member)


def offline(
    signals: Shaped[Array | np.ndarray, "n *q"],
    shadow_signals: Shaped[Array | np.ndarray, "m n *q"],
    shadow_is_member: IsMember,
    *,
    variance: Variance = "shrunken",
) -> Float[np.ndarray, " n"]:
    """Scores records by a one-sided test against the distribution of their OUT shadows alone.

    log F((s - mean_out) / sd_out), the log probability that a model without the record gives a
    lower signal. F is Gaussian, or Student's t with "shrunken" variances. No shadow model needs to
    be trained on the audited records. Variances are those of `online` on the OUT side; if no record
    has two OUT shadows, half the mean square of s - mean_out sets the scale.

    Args:
      signals: signal of each record under the target; `logit_confidence` is close to Gaussian.
      shadow_signals: the same signal under each shadow model.
      shadow_is_member: which records each shadow model was trained on; IN signals are not used.
      variance: "shrunken", "fixed" or "per_example".

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
      >>> no_member = np.zeros((2, 2), bool)
      >>> scores = offline(np.array([3.0, 6.0]), shadows, no_member, variance="fixed")
      >>> np.exp(scores).round(3)  # 1.4 deviations above the mean, and at the mean
      array([0.921, 0.5  ])
    """

    def one_query(target, shadows, is_member):
        s, out_side, has_out = _out_predictive(target, shadows, is_member, variance=variance)
        return np.where(has_out, _predictive.log_cdf(s, out_side), np.log(0.5))

    _check.one_of(VARIANCES, variance=variance)
    return _summed(one_query, signals, shadow_signals, shadow_is_member)


def offline_density(
    signals: Shaped[Array | np.ndarray, "n *q"],
    shadow_signals: Shaped[Array | np.ndarray, "m n *q"],
    shadow_is_member: IsMember,
    *,
    variance: Variance = "shrunken",
) -> Float[np.ndarray, " n"]:
    """Scores records by the negative log density of their OUT distribution.

    With "fixed" or "per_example", -log N(s; mean_out, var_out), as in the paper's published code.
    It is two-sided: an unusually badly fitted record also looks like a member, and with
    "per_example" a large variance alone gives a high score. Prefer `offline`.

    Args:
      signals: signal of each record under the target; `logit_confidence` is close to Gaussian.
      shadow_signals: the same signal under each shadow model.
      shadow_is_member: which records each shadow model was trained on; IN signals are not used.
      variance: "shrunken", "fixed" or "per_example".

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
      >>> no_member = np.zeros((2, 2), bool)
      >>> offline_density(np.array([3.0, 6.0]), shadows, no_member, variance="fixed").round(2)
      array([2.27, 1.27])
    """

    def one_query(target, shadows, is_member):
        s, out_side, has_out = _out_predictive(target, shadows, is_member, variance=variance)
        expected = (1 + np.log(2 * np.pi * out_side.variance)) / 2
        return np.where(has_out, -_predictive.log_density(s, out_side), expected)

    _check.one_of(VARIANCES, variance=variance)
    return _summed(one_query, signals, shadow_signals, shadow_is_member)


def decorrelated(
    signals: Shaped[Array | np.ndarray, "n q"],
    shadow_signals: Shaped[Array | np.ndarray, "m n q"],
    shadow_is_member: IsMember,
) -> tuple[Float[np.ndarray, "n p"], Float[np.ndarray, "m n p"]]:
    """Transforms several signals of each record so that they are uncorrelated.

    The covariance is that of the shadow signals around the mean of their record and side, pooled
    over records and sides; the results are its principal components in units of their deviation.
    Without it `online` and `offline` count correlated signals as independent evidence.

    Args:
      signals: signals of each record under the target. Infinite ones are replaced by the extreme
        finite ones of their query.
      shadow_signals: the same signals under each shadow model.
      shadow_is_member: which records each shadow model was trained on.

    Returns:
      Signals and shadow signals for `online` and `offline`; fewer than before if a signal is a
      linear function of others.

    Raises:
      ValueError: for NaN, shapes that do not fit, or membership other than 0 and 1.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> first, second = rng.normal(size=(2, 9, 200))
      >>> shadows = np.stack([first, first + second], axis=2)
      >>> is_member = np.arange(9)[:, None] < np.full(200, 5)
      >>> _, result = decorrelated(shadows[0], shadows, is_member)
      >>> bool(abs(np.corrcoef(result[..., 0].ravel(), result[..., 1].ravel())[0, 1]) < 0.05)
      True
    """
    target = _check.real_array("signals", signals).astype(np.float64)
    shadows = _check.real_array("shadow_signals", shadow_signals)
    is_member = _shadows.as_bool(shadow_is_member)
    _shadows.check_shapes(target, shadows, is_member)
    if target.ndim != 2:
        raise ValueError(f"Expected signals of shape [n, q], got {list(target.shape)}.")
    ranges = [
        _predictive.finite_range(target[:, i], shadows[..., i]) for i in range(target.shape[1])
    ]
    low, high = np.array(ranges).reshape(-1, 2).T
    target, shadows = np.clip(target, low, high), np.clip(shadows.astype(np.float64), low, high)
    covariance, freedom = np.zeros((target.shape[1],) * 2), 0
    for side in (is_member, ~is_member):
        size = side.sum(axis=0)
        mean = (shadows * side[..., None]).sum(axis=0) / np.maximum(size, 1)[:, None]
        deviation = (shadows - mean) * side[..., None]
        covariance += np.einsum("mnq,mnr->qr", deviation, deviation)
        freedom += int(np.maximum(size - 1, 0).sum())
    scale = np.sqrt(np.maximum(np.diag(covariance), _predictive.MIN_VARIANCE))
    values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
    distinct = values > _MIN_EIGENVALUE
    matrix = vectors[:, distinct] * np.sqrt(max(freedom, 1) / values[distinct]) / scale[:, None]
    return target @ matrix, shadows @ matrix


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


def _out_predictive(
    target: Float[np.ndarray, " n"],
    shadows: Shaped[np.ndarray, "m n"],
    is_member: Bool[np.ndarray, "m n"],
    *,
    variance: Variance,
) -> tuple[Float[np.ndarray, " n"], "_predictive.Predictive", Bool[np.ndarray, " n"]]:
    """Returns finite signals, their OUT distributions, and whether there is an OUT shadow."""
    low, high = _predictive.finite_range(target, shadows)
    (out_side,) = _predictive.moments(shadows, (~is_member,), low, high)
    has_out = out_side.size > 0
    s = np.clip(target, low, high)
    (predictive,) = _predictive.predictives(
        (out_side,), (s - out_side.mean)[has_out], variance=variance
    )
    return s, predictive, has_out
