"""Accuracy of attacks that decide, and the baseline that needs no attack.

In the shapes below `n` counts records.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Shaped

from jaxpriv import _check


class Accuracy(NamedTuple):
    """How well membership probabilities decide, on equally many members and non-members.

    expected: mean of h over members and of 1 - h over non-members, pooled: of a random guess
      that says member with probability h.
    at_half: of the guess that says member where h > 0.5.
    """

    expected: float
    at_half: float


def attack_accuracy(
    member_prob: Shaped[Array | np.ndarray, "..."], is_member: Shaped[Array | np.ndarray, "..."]
) -> Accuracy:
    """Measures an attack that gives each record a probability h of being a member.

    Sets of unequal size are refused: there the accuracy of calling everyone a member is not 1/2.
    Drop records of the larger set at random beforehand.

    Args:
      member_prob: [n] or [n, 1]; h, in [0, 1].
      is_member: [n] or [n, 1], bool or 0 and 1; half of them members.

    Returns:
      The expected accuracy and that at 0.5.

    Raises:
      ValueError: for h outside [0, 1], unequal sizes, NaN or unequal lengths.

    References:
      Nasr, Shokri and Houmansadr, Machine Learning with Membership Privacy using Adversarial
      Regularization, 2018, section 5.4.
    """
    members, nonmembers = _check.split_by_membership(member_prob, is_member)
    outside = [h for h in (*members[[0, -1]], *nonmembers[[0, -1]]) if not 0 <= h <= 1]
    if outside:
        raise ValueError(f"Expected every member_prob in [0, 1], got {outside[0]:g}.")
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

    (1 + train_accuracy - test_accuracy) / 2. It takes no model to reach, so a trained attack
    below it has not learned its task.

    Args:
      train_accuracy: the target's accuracy on members, in [0, 1].
      test_accuracy: its accuracy on non-members, in [0, 1].

    Returns:
      The gap attack's balanced accuracy; below 0.5 where the model does better on non-members.

    Raises:
      ValueError: if an accuracy is outside [0, 1].

    References:
      Yeom et al., Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting,
      2018, Adversary 1.
    """
    for name, value in (("train_accuracy", train_accuracy), ("test_accuracy", test_accuracy)):
        if not 0 <= value <= 1:
            raise ValueError(f"Expected 0 <= {name} <= 1, got {name}={value}.")
    return (1 + train_accuracy - test_accuracy) / 2
