"""Attacks each of m models as the target, with the other models as its shadows.

Complementary halves (`training.shadows.halves`) need care: every record is a member of exactly
m/2 models, so among the m - 1 shadows a member of the target has m/2 - 1 IN shadows and a
non-member m/2, and the count reveals membership. The target's complement is therefore left out,
after which every record has m/2 - 1 of the m - 2 shadows on either side. In the shapes below `m`
counts models, `n` records and `q` queries of each (none or one axis).
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxpriv import _check
from jaxpriv.attacks import _shadows
from jaxpriv.attacks._shadows import IsMember
from jaxpriv.metrics import roc

__all__ = [
    "MetricSummary",
    "ShadowAttack",
    "TargetSummary",
    "attack_each_model",
    "shadows_of",
    "summarise",
]

ShadowAttack = Callable[[np.ndarray, np.ndarray, np.ndarray], Float[Array | np.ndarray, " n"]]
"""`attack(signals [n, *q], shadow_signals [m, n, *q], shadow_is_member [m, n]) -> scores [n]`."""


class MetricSummary(NamedTuple):
    """One metric over the targets.

    mean, std, lowest, highest: statistics over the targets; std has divisor m - 1.
    interval: t-interval of the mean. Its independent units are the means of complementary pairs
      and models without a complement; None for fewer than two units.
    """

    mean: float
    std: float
    lowest: float
    highest: float
    interval: tuple[float, float] | None


class TargetSummary(NamedTuple):
    """Success of an attack over the targets.

    auc: area under the ROC curve.
    tpr_at_fpr: TPR by the keys of `metrics.roc.LOW_FPRS`; None if a target has too few
      non-members.
    num_targets: number of targets.
    num_units: number of independent units (pairs and single models) of the intervals.
    confidence: confidence level of the intervals.
    """

    auc: MetricSummary
    tpr_at_fpr: dict[str, MetricSummary | None]
    num_targets: int
    num_units: int
    confidence: float


def attack_each_model(
    attack: ShadowAttack, signals: Shaped[Array | np.ndarray, "m n *q"], is_member: IsMember
) -> Float[np.ndarray, "m n"]:
    """Attacks every model, with all models but its complement as shadows.

    Complements are recognised by their members, among the records that some but not all models
    were trained on. For a model without a complement only the target itself is left out, with a
    warning if every record is a member of equally many models: the number of IN shadow models
    then reveals membership to attacks that use it.

    Args:
      attack: an attack on shadow signals, such as `lira.online`.
      signals: signal of each record under each model.
      is_member: which records each model was trained on.

    Returns:
      The score of each record for each target; higher = more likely a member.

    Raises:
      ValueError: for shapes that do not fit, membership other than 0 and 1, a model that is left
        without shadows, or an attack that returns another shape.

    Example:
      >>> from jaxpriv.attacks import lira
      >>> rng = np.random.default_rng(0)
      >>> is_member = np.repeat(rng.random((4, 50)) < 0.5, 2, axis=0)
      >>> is_member[1::2] = ~is_member[1::2]  # complementary pairs
      >>> signals = rng.normal(size=(8, 50)) + 2.0 * is_member
      >>> scores = attack_each_model(lira.online, signals, is_member)
      >>> scores.shape, bool(scores[is_member].mean() > scores[~is_member].mean())
      ((8, 50), True)
    """
    values, is_member = np.asarray(signals), _shadows.as_bool(is_member)
    _check_shapes(values, is_member)
    partners = _partners(is_member)
    _warn_if_counts_leak(is_member, partners)
    results = []
    for target, partner in enumerate(partners):
        shadows = [i for i in range(len(values)) if i not in (target, partner)]
        if not shadows:
            raise ValueError(f"Expected models beside target and complement, got {len(values)}.")
        result = np.asarray(attack(values[target], values[shadows], is_member[shadows]))
        if result.shape != is_member[target].shape:
            raise ValueError(
                f"Expected attack scores of shape {list(is_member[target].shape)}, "
                f"got {list(result.shape)}."
            )
        results.append(result.astype(np.float64))
    return np.stack(results)


def shadows_of(is_member: IsMember, target: int) -> Int[np.ndarray, " k"]:
    """Lists the shadow models of a target: all models but the target and its complement.

    Args:
      is_member: which records each model was trained on.
      target: row of the attacked model.

    Returns:
      The rows of the shadow models, ascending.

    Raises:
      ValueError: for membership other than 0 and 1, or a target out of range.

    Example:
      >>> is_member = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 1]])
      >>> shadows_of(is_member, target=0)  # model 1 is the complement of model 0
      array([2, 3])
    """
    is_member = _shadows.as_bool(is_member)
    if target not in range(len(is_member)):
        raise ValueError(f"Expected a target in 0..{len(is_member) - 1}, got {target}.")
    left_out = (target, _partners(is_member)[target])
    return np.array([i for i in range(len(is_member)) if i not in left_out], np.int64)


def summarise(
    results: Float[np.ndarray, "m n"], is_member: IsMember, *, confidence: float
) -> TargetSummary:
    """Summarises AUC and TPR at low FPR over all targets.

    The two targets of a complementary pair are dependent, since they are attacked with the same
    shadows and each is trained on the records that the other is not. A pair is therefore one unit
    of the interval, with its mean. Units still share shadows and records, so the interval is for
    the mean over such targets on this pool, not over pools.

    Args:
      results: scores of `attack_each_model`.
      is_member: which records each model was trained on.
      confidence: confidence level of each interval, in (0, 1).

    Returns:
      Mean, spread and interval of each metric.

    Raises:
      ValueError: if confidence is not in (0, 1), for fewer than two targets, shapes that do not
        fit, or as for `metrics.membership`.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> is_member = rng.random((8, 2000)) < 0.5
      >>> scores = rng.normal(size=(8, 2000)) + 2.0 * is_member
      >>> summary = summarise(scores, is_member, confidence=0.95)
      >>> summary.num_units, round(summary.auc.mean, 2)  # Phi(sqrt 2) = 0.92
      (8, 0.92)
    """
    _check.open_unit(confidence=confidence)
    is_member = _shadows.as_bool(is_member)
    _check_shapes(results, is_member)
    if len(results) < 2:
        raise ValueError(f"Expected at least two targets, got {len(results)}.")
    partners = _partners(is_member)
    first = [i for i, partner in enumerate(partners) if partner is None or i < partner]
    units = [[i] if partners[i] is None else [i, partners[i]] for i in first]

    def summary(values):
        means = np.array([np.mean(np.array(values)[unit]) for unit in units])
        return _summary(np.array(values), means, confidence)

    measured = [
        roc.membership(scores, members, confidence=confidence)
        for scores, members in zip(results, is_member, strict=True)
    ]
    rates = {key: [metrics.tpr_at_fpr[key] for metrics in measured] for key in roc.LOW_FPRS}
    return TargetSummary(
        auc=summary([metrics.auc for metrics in measured]),
        tpr_at_fpr={
            key: None if None in values else summary(values) for key, values in rates.items()
        },
        num_targets=len(results),
        num_units=len(units),
        confidence=confidence,
    )


def _summary(
    values: Float[np.ndarray, " m"], units: Float[np.ndarray, " u"], confidence: float
) -> MetricSummary:
    from scipy import special

    interval = None
    if units.size > 1:
        quantile = special.stdtrit(units.size - 1, (1 + confidence) / 2)
        width = quantile * units.std(ddof=1) / np.sqrt(units.size)
        interval = (float(units.mean() - width), float(units.mean() + width))
    return MetricSummary(
        mean=float(values.mean()),
        std=float(values.std(ddof=1)),
        lowest=float(values.min()),
        highest=float(values.max()),
        interval=interval,
    )


def _partners(is_member: Bool[np.ndarray, "m n"]) -> list[int | None]:
    """Pairs each model with at most one complement, also if several models share a half."""
    varying = is_member[:, is_member.any(axis=0) & ~is_member.all(axis=0)]
    partners: list[int | None] = [None] * len(is_member)
    if not varying.size:
        return partners
    unpaired: dict[bytes, list[int]] = {}
    for i, row in enumerate(varying):
        complements = unpaired.get((~row).tobytes())
        if complements:
            partner = complements.pop(0)
            partners[i], partners[partner] = partner, i
        else:
            unpaired.setdefault(row.tobytes(), []).append(i)
    return partners


def _warn_if_counts_leak(is_member: Bool[np.ndarray, "m n"], partners: list[int | None]) -> None:
    num_in = is_member.sum(axis=0)
    varying = num_in[(num_in > 0) & (num_in < len(is_member))]
    if None in partners and varying.size > 1 and (varying == varying[0]).all():
        warnings.warn(
            f"Every record is in {varying[0]} of {len(is_member)} models, and some models have no "
            "complement to leave out: the number of IN shadow models reveals membership.",
            stacklevel=3,
        )


def _check_shapes(scores: np.ndarray, is_member: np.ndarray) -> None:
    if not (is_member.ndim == 2 and scores.shape[:2] == is_member.shape):
        raise ValueError(
            f"Expected scores and membership of shape [m, n], got {list(scores.shape)} "
            f"and {list(is_member.shape)}."
        )
