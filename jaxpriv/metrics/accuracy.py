"""Accuracy of attacks that decide, and the baseline that needs no attack.

In the shapes below `n` counts records.
"""

from typing import NamedTuple

from jaxpriv import _check
from jaxpriv._types import Column

__all__ = ["Accuracy", "attack_accuracy", "gap_baseline"]


class Accuracy(NamedTuple):
    """Accuracy of membership probabilities h, on equally many members and non-members.

    expected: mean of h over members and of 1 - h over non-members, pooled: the accuracy of a
      random guess that says member with probability h.
    at_half: accuracy of the guess that says member where h > 0.5.
    """

    expected: float
    at_half: float


def attack_accuracy(member_prob: Column, is_member: Column) -> Accuracy:
    """Measures an attack that gives each record a probability h of being a member.

    Sets of unequal size are refused, because calling every record a member would then have an
    accuracy other than 1/2. Drop records of the larger set at random beforehand.

    Args:
      member_prob: [n] or [n, 1]; h, in [0, 1].
      is_member: [n] or [n, 1], bool or 0 and 1; half of them members.

    Returns:
      The expected accuracy and the accuracy at the threshold 0.5.

    Raises:
      ValueError: for h outside [0, 1], sets of unequal size, NaN or unequal lengths.

    References:
      Nasr, Shokri and Houmansadr, Machine Learning with Membership Privacy using Adversarial
      Regularization, 2018, section 5.4.

    Example:
      >>> import numpy as np
      >>> import jaxpriv as jp
      >>> member_prob, is_member = np.array([0.9, 0.6, 0.7, 0.2]), np.array([1, 1, 0, 0])
      >>> accuracy = jp.metrics.attack_accuracy(member_prob, is_member)
      >>> round(accuracy.expected, 2), accuracy.at_half
      (0.65, 0.75)
    """
    members, nonmembers = _check.split_by_membership(member_prob, is_member)
    # Both are sorted, so their ends are the extreme values.
    invalid = [h for h in (*members[[0, -1]], *nonmembers[[0, -1]]) if not 0 <= h <= 1]
    if invalid:
        raise ValueError(f"Expected every member_prob in [0, 1], got {invalid[0]:g}.")
    if members.size != nonmembers.size:
        raise ValueError(
            "Expected equally many members and non-members, "
            f"got {members.size} and {nonmembers.size}."
        )
    return Accuracy(
        expected=float((members.mean() + (1 - nonmembers).mean()) / 2),
        at_half=float(((members > 0.5).mean() + (nonmembers <= 0.5).mean()) / 2),
    )


def gap_baseline(*, train_accuracy: float, test_accuracy: float) -> float:
    """Computes the balanced accuracy of calling correctly classified records members.

    (1 + train_accuracy - test_accuracy) / 2. This attack trains no model, so a trained attack
    below it has not learned its task.

    Args:
      train_accuracy: accuracy of the target model on members, in [0, 1].
      test_accuracy: accuracy of the target model on non-members, in [0, 1].

    Returns:
      The balanced accuracy of the attack; below 0.5 if the model is better on non-members.

    Raises:
      ValueError: if an accuracy is outside [0, 1].

    References:
      Yeom et al., Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting,
      2018, Adversary 1.

    Example:
      >>> import jaxpriv as jp
      >>> round(jp.metrics.gap_baseline(train_accuracy=1.0, test_accuracy=0.7), 2)
      0.65
    """
    _check.closed_unit(train_accuracy=train_accuracy, test_accuracy=test_accuracy)
    return (1 + train_accuracy - test_accuracy) / 2
