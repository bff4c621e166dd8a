"""Each model in turn as the target, the shadows as its shadows: m attacks from m models.

Complementary halves (`training.shadows.halves`) need care. Every record is then a member of
exactly m/2 models, so among the m - 1 shadows a member of the target has m/2 - 1 IN shadows and a
non-member m/2: the count alone gives membership away. So the target's complement is left out as
well, after which every record has m/2 - 1 of the m - 2 shadows on either side. In the shapes
below `m` counts models, `n` records and `q` queries of each (none or one axis).
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

Attack = Callable[[np.ndarray, np.ndarray, np.ndarray], Float[Array | np.ndarray, " n"]]
"""(scores [n, *q], shadow_scores [m, n, *q], shadow_is_member [m, n]) -> scores [n]."""


class MetricSummary(NamedTuple):
    """One metric over targets.

    mean, std, lowest, highest: over the targets; std with m - 1.
    interval: t-interval of the mean, whose independent units are complementary pairs, by their
      means, and single models without a complement; None for fewer than two units.
    """

    mean: float
    std: float
    lowest: float
    highest: float
    interval: tuple[float, float] | None


class TargetSummary(NamedTuple):
    """How an attack's success varies with the target.

    auc: area under the ROC curve.
    tpr_at_fpr: by the keys of `metrics.roc.LOW_FPRS`; None where some target has too few
      non-members.
    num_targets: number of targets.
    num_units: number of pairs and single models that the intervals count as independent.
    """

    auc: MetricSummary
    tpr_at_fpr: dict[str, MetricSummary | None]
    num_targets: int
    num_units: int
    confidence: float


def attack_each_model(
    attack: Attack, scores: Shaped[Array | np.ndarray, "m n *q"], is_member: IsMember
) -> Float[np.ndarray, "m n"]:
    """Attacks every model, with all shadows but its complement as shadows.

    The complement is result by its members, not by its place: the first unpaired model that holds
    what the target lacks, among the records that some models hold and some lack. Where models
    have no complement, only the target is left out; a warning is given if every record is in
    equally many models all the same, as the count of IN shadow models then reveals membership
    to attacks that use it.

    Args:
      attack: such as `lira.online`; sees the target's scores, the shadows' and their members.
      scores: the score of each record under each model.
      is_member: which records each model was trained on.

    Returns:
      The attack's score of each record for each target; higher = more likely a member.

    Raises:
      ValueError: for shapes that do not fit, membership other than 0 and 1, a model that is left
        without shadows, or an attack that returns another shape.
    """
    values, is_member = np.asarray(scores), _shadows.as_bool(is_member)
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
    """Lists the models that may serve as shadows of one: all but itself and its complement.

    Args:
      is_member: which records each model was trained on.
      target: the attacked model.

    Returns:
      Their rows, ascending.

    Raises:
      ValueError: for membership other than 0 and 1, or a target that is not there.
    """
    is_member = _shadows.as_bool(is_member)
    if target not in range(len(is_member)):
        raise ValueError(f"Expected a target in 0..{len(is_member) - 1}, got {target}.")
    left_out = (target, _partners(is_member)[target])
    return np.array([i for i in range(len(is_member)) if i not in left_out], np.int64)


def summarise(
    results: Float[np.ndarray, "m n"], is_member: IsMember, *, confidence: float
) -> TargetSummary:
    """Summarises the attacks on all targets: their AUC and TPR at low FPR.

    The two targets of a complementary pair are dependent: what one holds the other lacks, and
    they are attacked with the same shadows. So a pair enters the interval as one unit, by its
    mean. Units still share shadows and records: the interval is of the mean over targets like
    these on this pool, not over pools.

    Args:
      results: what `attack_each_model` returned.
      is_member: which records each model was trained on.
      confidence: coverage of each interval, in (0, 1).

    Returns:
      Mean, spread and interval of each metric.

    Raises:
      ValueError: if confidence is not in (0, 1), for fewer than two targets, shapes that do not
        fit, or what `metrics.membership` refuses.
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
    rates = {key: [each.tpr_at_fpr[key] for each in measured] for key in roc.LOW_FPRS}
    return TargetSummary(
        auc=summary([each.auc for each in measured]),
        tpr_at_fpr={
            key: None if None in result else summary(result) for key, result in rates.items()
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
    """Pairs each model with one complement, so that copies of a half lose one partner each."""
    drawn = is_member[:, is_member.any(axis=0) & ~is_member.all(axis=0)]
    partners: list[int | None] = [None] * len(is_member)
    if not drawn.size:
        return partners
    waiting: dict[bytes, list[int]] = {}
    for i, row in enumerate(drawn):
        lacking = waiting.get((~row).tobytes())
        if lacking:
            partner = lacking.pop(0)
            partners[i], partners[partner] = partner, i
        else:
            waiting.setdefault(row.tobytes(), []).append(i)
    return partners


def _warn_if_counts_leak(is_member: Bool[np.ndarray, "m n"], partners: list[int | None]) -> None:
    num_in = is_member.sum(axis=0)
    drawn = num_in[(num_in > 0) & (num_in < len(is_member))]
    if None in partners and drawn.size > 1 and (drawn == drawn[0]).all():
        warnings.warn(
            f"Every record is in {drawn[0]} of {len(is_member)} models, and some models have no "
            "complement to leave out: the number of IN shadow models reveals membership.",
            stacklevel=3,
        )


def _check_shapes(scores: np.ndarray, is_member: np.ndarray) -> None:
    if not (is_member.ndim == 2 and scores.shape[:2] == is_member.shape):
        raise ValueError(
            f"Expected scores and membership of shape [m, n], got {list(scores.shape)} "
            f"and {list(is_member.shape)}."
        )
