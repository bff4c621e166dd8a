"""Every membership attack that the arrays at hand allow, and what each reveals.

In the shapes below `n` counts audited records, `m` shadow models, `c` classes and `k` records of a
population on which no model was trained.
"""

import warnings
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from jaxpriv import audit, metrics
from jaxpriv.attacks import blind, lira, quantile, rmia, shadow_classifier, threshold
from jaxpriv.data import Scores
from jaxpriv.metrics import scores as membership_scores
from jaxpriv.metrics import slices

_GAMMA, _A = 1.0, 0.3
_FPRS = (0.5, 0.1, 0.01)
_LEARNED = ("threshold", "shadow_classifier", "quantile", "lira", "rmia")
_DECIDED = ("threshold", "threshold_per_class", "shadow_classifier", "lira")
_DRAWN = ("lira", "rmia", "threshold")
_FEWEST = 10
"""Members or non-members in a part below which it says nothing of its own."""


class Outputs(NamedTuple):
    """What the target and the shadow models say of some records.

    x: inputs as rows.
    labels: true classes.
    logits: of the target.
    shadow_logits: of the shadow models.
    """

    x: Float[np.ndarray, "n d"]
    labels: Int[np.ndarray, " n"]
    logits: Float[np.ndarray, "n c"]
    shadow_logits: Float[np.ndarray, "m n c"]


def attacks_on_models(
    key: PRNGKeyArray,
    audited: Outputs,
    population: Outputs,
    *,
    is_member: Bool[np.ndarray, " n"],
    shadow_is_member: Bool[np.ndarray, "m n"],
    has_groups: bool,
    delta: float,
    attack_steps: int,
) -> dict[str, Any]:
    """Runs the attacks of a report on one target, and slices the strongest by kind of record.

    Args:
      key: consumed.
      audited: members and non-members of the target.
      population: disjoint from them and from all training data.
      is_member: the truth, a fair coin for each record; no attack sees it.
      shadow_is_member: which audited records each shadow model was trained on.
      has_groups: whether several records share a coin: then they are no canaries.
      delta: at which epsilon is bounded from below.
      attack_steps: of the attacks that train.

    Returns:
      `attacks`: measured, by name; `gap_baseline`; `slices` of LiRA; `leaks`, the attacks that
      beat chance, at 95 % for all together; `audit`, the lower bounds that LiRA's scores support,
      for one record added or removed.
    """
    found = _scored(key, audited, population, shadow_is_member, attack_steps)
    correct = audited.logits.argmax(-1) == audited.labels
    gap = _gap(correct, is_member)
    losses = -membership_scores.of_records(
        membership_scores.negative_loss, audited.logits, audited.labels
    )
    parts = {
        "class": audited.labels,
        "prediction": np.where(correct, "right", "wrong"),
        "loss decile": slices.percentile_bins(losses, num_bins=10),
    }
    return {
        "attacks": {
            name: measured(values, is_member, name=name, gap=gap) for name, values in found.items()
        },
        "gap_baseline": gap,
        "slices": {kind: sliced(found["lira"], is_member, by=by) for kind, by in parts.items()},
        "leaks": _leaks(found, is_member),
        "audit": None if has_groups else _audited(found["lira"], is_member, delta),
    }


def attacks_on_scores(held: Scores, *, confidence: float) -> dict[str, Any]:
    """Runs what a file of scores allows.

    Args:
      held: scores, and whatever else the file has.
      confidence: of the intervals.

    Returns:
      `attacks`: membership metrics by name, those with shadow scores and those from logits;
      `gap_baseline` (None without logits); `slices` of the strongest evidence there is.
    """
    found: dict[str, np.ndarray] = {}
    gap, parts = None, {}
    if held.labels is not None:
        parts["class"] = held.labels
    if held.group is not None:
        parts["group"] = held.group
    if held.logits is not None and held.labels is not None:
        for name in ("negative_loss", "confidence", "modified_entropy", "margin", "correctness"):
            score = getattr(membership_scores, name)
            found[name] = membership_scores.of_records(score, held.logits, held.labels)
        found["entropy"] = np.asarray(jax.vmap(membership_scores.entropy)(held.logits))
        correct = found["correctness"] > 0
        gap = _gap(correct, held.is_member)
        parts["prediction"] = np.where(correct, "right", "wrong")
        parts["loss decile"] = slices.percentile_bins(-found["negative_loss"], num_bins=10)
    best = held.scores
    inside = held.shadow_is_member
    if inside is not None and not 0 < inside.mean() < 1:
        warnings.warn(
            "Expected IN and OUT shadows, got one kind: attacks by shadow scores are left out.",
            stacklevel=2,
        )
    elif held.shadow_scores is not None and inside is not None:
        arrays = held.scores, held.shadow_scores, inside
        best = found["lira"] = lira.online(*arrays)
        found["lira_per_example"] = lira.online(*arrays, variance="per_example")
        found["lira_offline"] = lira.offline(*arrays)
        # Of one target, a single threshold orders records as the scores do; classes do not.
        if held.labels is not None:
            present, labels = np.unique(held.labels, return_inverse=True)
            fitted = threshold.fit_per_class(*arrays[1:], labels, num_classes=len(present))
            found["threshold_per_class"] = threshold.apply_per_class(fitted, held.scores, labels)
    return {
        "attacks": {
            name: _flagged(
                metrics.membership(values, held.is_member, confidence=confidence)._asdict(),
                name,
                gap,
            )
            for name, values in found.items()
        },
        "gap_baseline": gap,
        "slices": {kind: sliced(best, held.is_member, by=by) for kind, by in parts.items()},
    }


def blind_attack(
    rng: np.random.Generator,
    x: Float[np.ndarray, "n d"],
    is_member: Bool[np.ndarray, " n"],
    *,
    group: Int[np.ndarray, " n"] | None,
) -> dict[str, Any]:
    """Attacks the inputs alone: whether members and non-members are alike to begin with.

    Args:
      rng: advanced.
      x: inputs as rows.
      is_member: the truth.
      group: the person or household of each record, where membership goes by them.

    Returns:
      Membership metrics; where the AUC's interval lies above 1/2, every other attack's success
      is in doubt.
    """
    found = blind.cross_validated(rng, x, is_member, group=group)
    return metrics.membership(found, is_member, confidence=0.95)._asdict()


def measured(
    scores: Float[np.ndarray, " n"], is_member: Bool[np.ndarray, " n"], *, name: str, gap: float
) -> dict[str, Any]:
    """Measures one attack: metrics, own threshold, flag and, for those drawn, the ROC curve.

    Args:
      scores: higher = more likely a member.
      is_member: the truth.
      name: of the attack; some decide at a score of 0.
      gap: balanced accuracy of calling correctly classified records members.

    Returns:
      `metrics.membership`'s numbers; `accuracy_at_zero`, None where the attack has no threshold
      of its own; `below_gap`; `roc`, None where it is not drawn.
    """
    values = np.asarray(scores, np.float64)
    decided, roc = values > 0, metrics.roc_curve(values, is_member)
    result = metrics.membership(values, is_member, confidence=0.95)._asdict()
    own = (decided[is_member].mean() + (~decided[~is_member]).mean()) / 2
    return {
        **_flagged(result, name, gap),
        "accuracy_at_zero": float(own) if name in _DECIDED else None,
        "roc": {"fpr": roc.fpr.tolist(), "tpr": roc.tpr.tolist()} if name in _DRAWN else None,
    }


def sliced(
    scores: Float[np.ndarray, " n"], is_member: Bool[np.ndarray, " n"], *, by: np.ndarray
) -> list[dict[str, Any]]:
    """Measures an attack in each part of the records.

    Args:
      scores: higher = more likely a member.
      is_member: the truth.
      by: the part of each record.

    Returns:
      value, counts, AUC with its interval and TPR at 1 % FPR of each part; None with a `reason`
      where a part has too little. The intervals hold together at 95 % (Bonferroni), so that the
      part that stands out most may be named. Of more than 100 parts, the largest.
    """
    values, sizes = np.unique(by, return_counts=True)
    shown = values[np.argsort(-sizes, kind="stable")[:100]]
    kept, confidence = np.isin(by, shown), 1 - 0.05 / max(len(shown), 1)
    rows = []
    for one in slices.by(scores[kept], is_member[kept], by=by[kept], confidence=confidence):
        few = min(one.num_members, one.num_nonmembers) < _FEWEST
        found = None if few else one.measured
        rows.append(
            {
                "value": one.value,
                "num_members": one.num_members,
                "num_nonmembers": one.num_nonmembers,
                "auc": None if found is None else found.auc,
                "auc_interval": None if found is None else found.auc_interval,
                "tpr_at_1_percent_fpr": None if found is None else found.tpr_at_fpr["0.01"],
                "confidence": confidence,
                "reason": one.reason or (f"fewer than {_FEWEST} on a side" if few else None),
            }
        )
    return rows


def _gap(correct: Bool[np.ndarray, " n"], is_member: Bool[np.ndarray, " n"]) -> float:
    train, test = (float(correct[side].mean()) for side in (is_member, ~is_member))
    return metrics.roc.gap_baseline(train, test)


def _leaks(found: dict[str, np.ndarray], is_member: Bool[np.ndarray, " n"]) -> list[str]:
    confidence = 1 - 0.05 / len(found)
    areas = {
        name: metrics.intervals.delong(np.asarray(values), is_member, confidence=confidence)
        for name, values in found.items()
    }
    return [name for name, area in areas.items() if area.lower > 0.5]


def _audited(
    scores: Float[np.ndarray, " n"], is_member: Bool[np.ndarray, " n"], delta: float
) -> dict[str, Any]:
    return audit.lower_bounds(
        scores,
        is_member,
        design="one_run",
        delta=delta,
        relation="add_or_remove_one",
        confidence=0.95,
    )._asdict()


def _flagged(result: dict[str, Any], name: str, gap: float | None) -> dict[str, Any]:
    """A learned attack that loses to the gap baseline did not learn membership."""
    learned = gap is not None and name.startswith(_LEARNED)
    return {**result, "below_gap": bool(learned and result["balanced_accuracy"] < gap)}


def _scored(
    key: PRNGKeyArray,
    audited: Outputs,
    population: Outputs,
    shadow_is_member: Bool[np.ndarray, "m n"],
    steps: int,
) -> dict[str, np.ndarray]:
    classifier_key, quantile_key = jax.random.split(key)
    labels, c = audited.labels, audited.logits.shape[-1]
    losses, theirs = (
        membership_scores.of_records(membership_scores.negative_loss, logits, labels)
        for logits in (audited.logits, audited.shadow_logits)
    )
    confidence, shadow_confidence = (
        membership_scores.of_records(membership_scores.logit_confidence, logits, labels)
        for logits in (audited.logits, audited.shadow_logits)
    )
    others = rmia.Population(
        *(
            membership_scores.of_records(membership_scores.negative_loss, logits, population.labels)
            for logits in (population.logits, population.shadow_logits)
        )
    )
    arrays = confidence, shadow_confidence, shadow_is_member
    log_probs = [np.asarray(jax.nn.log_softmax(x)) for x in (audited.logits, audited.shadow_logits)]
    classifier = shadow_classifier.fit(
        classifier_key, log_probs[1], labels, shadow_is_member, steps=steps
    )
    quantiles = quantile.fit(
        quantile_key,
        population.x,
        membership_scores.of_records(
            membership_scores.logit_confidence, population.logits, population.labels
        ),
        fprs=_FPRS,
        steps=steps,
    )
    per_class = threshold.fit_per_class(theirs, shadow_is_member, labels, num_classes=c)
    together = losses, theirs, shadow_is_member
    return {
        "lira": lira.online(*arrays),
        "lira_offline": lira.offline(*arrays),
        "rmia": rmia.online(*together, population=others, gamma=_GAMMA),
        "rmia_offline": rmia.offline(*together, population=others, gamma=_GAMMA, a=_A),
        "shadow_classifier": shadow_classifier.apply(classifier, log_probs[0], labels),
        "quantile": quantile.apply(quantiles, audited.x, confidence),
        "threshold": threshold.apply(threshold.fit(theirs, shadow_is_member), losses),
        "threshold_per_class": threshold.apply_per_class(per_class, losses, labels),
        "entropy": np.asarray(jax.vmap(membership_scores.entropy)(audited.logits)),
    }
