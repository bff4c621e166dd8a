"""Measures of attacks on translation models: by sentence, and by user with several sentences.

    scores of sentences --mean over a user's--> scores of users --measured--> accuracy, AUC, TPR

In the shapes below `n` counts sentences.
"""

import math
from typing import Any

import numpy as np

from jaxpriv import metrics, units
from jaxpriv.metrics import intervals

DECIDED = ("probability_vectors", "rank_histogram")
"""PVMIA and PRMIA, the attacks of the papers, which decide about a sentence."""

DECISIONS = (*DECIDED, "lira")
"""Attacks whose score is above 0 if they decide for membership; the others only rank."""

SENTENCES = (1, 4, 16)
"""Numbers of sentences of a user."""

_MIN_USERS = 2
"""Smallest number of users on a side of which anything is measured."""


def balanced_accuracy(right: np.ndarray, is_member: np.ndarray) -> list[float]:
    """Computes the mean of the rates on both sides with its 95 % interval.

    The distances of the ends of the two Clopper-Pearson intervals are added as errors are (MOVER).
    """
    sides = [right[is_member], right[~is_member]]
    first, second = (intervals.share(side, confidence=0.95) for side in sides)
    mean = (first.value + second.value) / 2
    below = math.hypot(first.value - first.lower, second.value - second.lower) / 2
    above = math.hypot(first.upper - first.value, second.upper - second.value) / 2
    return [mean, mean - below, mean + above]


def measured(scores: np.ndarray, is_member: np.ndarray, *, decides: bool) -> dict[str, Any]:
    """Measures an attack: AUC and TPR at two FPRs, and the accuracy of one that decides.

    Args:
      scores: scores of sentences or users, [n].
      is_member: whether each was in the training.
      decides: whether a score above 0 is a decision for membership.
    """
    result: dict[str, Any] = {"auc": list(intervals.delong(scores, is_member, confidence=0.95))}
    for percent in (1, 10):
        point = metrics.at_fpr(scores, is_member, fpr=percent / 100, confidence=0.95)
        result[f"tpr_at_{percent}_percent_fpr"] = [point.tpr, *point.tpr_interval_at_fpr]
        result["resolvable" if percent == 1 else "resolvable_at_10"] = point.resolvable
    if decides:
        result["accuracy"] = balanced_accuracy((scores > 0) == is_member, is_member)
    return result


def by_sentence(scores: dict[str, np.ndarray], is_member: np.ndarray) -> dict[str, Any]:
    """Measures every attack on sentences."""
    return {
        name: measured(values, is_member, decides=name in DECISIONS)
        for name, values in scores.items()
    }


def by_user(
    scores: dict[str, np.ndarray], is_member: np.ndarray, users: np.ndarray | None
) -> list[dict[str, Any]]:
    """Measures every attack on users with 1, 4 and 16 sentences, by the means of their scores.

    Args:
      scores: scores of the sentences by name of the attack, [n] each.
      is_member: whether each sentence was in the training.
      users: user of each sentence, of whom all or no sentences are members. None draws users that
        do not exist: m random members, or m random non-members.

    Returns:
      A dict for each number of sentences for which there are two users on each side. Users with
      fewer sentences are left out, and of those with more as many are drawn.

    References:
      Song and Shmatikov, Auditing Data Provenance in Text-Generation Models, 2019.
    """
    rows = []
    for count in SENTENCES:
        group = grouped(is_member, users, count=count)
        counted = group >= 0
        if not counted.any():
            continue
        unit = units.groups(group[counted])
        reduced = {
            name: units.canaries(unit, values[counted], is_member[counted])
            for name, values in scores.items()
        }
        truth = next(iter(reduced.values())).is_member
        num_members = int(truth.sum())
        if min(num_members, len(truth) - num_members) < _MIN_USERS:
            continue
        rows.append(
            {
                "sentences": count,
                "members": num_members,
                "nonmembers": len(truth) - num_members,
                "synthetic": users is None,
                "attacks": by_sentence(
                    {name: each.scores for name, each in reduced.items()}, truth
                ),
            }
        )
    return rows


def grouped(is_member: np.ndarray, users: np.ndarray | None, *, count: int) -> np.ndarray:
    """Assigns sentences to users with `count` sentences each; -1 leaves a sentence out.

    Args:
      is_member: whether each sentence was in the training, [n].
      users: user of each sentence; None draws users at random, on each side by itself.
      count: number of sentences of a user.

    Returns:
      Number of the user of each sentence, [n].
    """
    rng = np.random.default_rng(0)
    order = rng.permutation(len(is_member))
    result = np.full(len(is_member), -1)
    if users is None:
        for side in (False, True):
            rows = order[is_member[order] == side]
            rows = rows[: len(rows) // count * count]
            result[rows] = 2 * (np.arange(len(rows)) // count) + side
        return result
    for user in np.unique(users):
        rows = order[users[order] == user]
        if len(rows) >= count:
            result[rows[:count]] = user
    return result
