"""Guarantees of groups of records, derived from those of a record (group privacy)."""

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import special

from jaxpriv import _check
from jaxpriv._types import RELATIONS, Relation
from jaxpriv.accounting import _profiles

if TYPE_CHECKING:
    from dp_accounting import DpEvent

__all__ = ["GroupPrivacy", "group_epsilon", "group_privacy"]

_NUM_EPSILONS = 400
"""Number of record epsilons from which the smallest epsilon of a group is selected."""


class GroupPrivacy(NamedTuple):
    """Guarantee of a group.

    epsilon: nats.
    delta: promises nothing from 1 on.
    """

    epsilon: float
    delta: float


def group_privacy(epsilon: float, *, delta: float, size: int) -> GroupPrivacy:
    """Converts a guarantee of a record to one of a group of m records.

    (m epsilon, delta (e^(m epsilon) - 1) / (e^epsilon - 1)), under the relation of the record: m
    records are added or removed, or m are replaced.

    Args:
      epsilon: epsilon of a record, nats; >= 0.
      delta: delta of a record, in [0, 1].
      size: number m of records of the group.

    Returns:
      The guarantee of the group. Its delta is not limited to 1, so that it shows by how much the
      conversion fails.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Vadhan, The Complexity of Differential Privacy, 2017, Lemma 2.2.

    Example:
      >>> import jaxpriv as jp
      >>> group = jp.accounting.group_privacy(0.5, delta=1e-6, size=4)
      >>> group.epsilon, round(group.delta, 7)
      (2.0, 9.8e-06)
    """
    _check.non_negative(epsilon=epsilon)
    _check.closed_unit(delta=delta)
    _check.positive_int(size=size)
    epsilon = float(epsilon)
    if delta == 0:
        return GroupPrivacy(size * epsilon, 0.0)
    log_delta = math.log(delta) + float(_log_growth(np.array([epsilon]), size)[0])
    # math.exp overflows above 709.
    return GroupPrivacy(size * epsilon, math.exp(log_delta) if log_delta < 709 else math.inf)


def group_epsilon(event: "DpEvent", *, size: int, delta: float, relation: Relation) -> float:
    """Computes the smallest epsilon that group privacy gives for a group of up to m records.

    A mechanism that is (e, d)-DP for a record is (m e, d (e^(m e) - 1) / (e^e - 1))-DP for a
    group. The function selects e on a grid. A mechanism whose unit is the group itself needs no
    conversion, and its epsilon is usually far smaller.

    Args:
      event: event of the complete training, for neighbours that differ in a record.
      size: number m of records of the largest group.
      delta: delta of the guarantee of the group, in (0, 1).
      relation: `add_or_remove_one` or `replace_one`, for a record; m records of the group are
        added or removed, or replaced.

    Returns:
      epsilon in nats; infinite if the conversion gives no bound.

    Raises:
      ValueError: if an argument is out of range, or the event is of another kind.

    References:
      Vadhan, The Complexity of Differential Privacy, 2017, Lemma 2.2.

    Example:
      >>> import jaxpriv as jp
      >>> event = jp.accounting.poisson_event(noise_multiplier=5.0, sampling_prob=0.01, steps=1000)
      >>> target = dict(delta=1e-5, relation="add_or_remove_one")
      >>> [round(jp.accounting.group_epsilon(event, size=m, **target), 2) for m in (1, 4)]
      [0.21, 0.97]
    """
    _check.positive_int(size=size)
    _check.open_unit(delta=delta)
    _check.one_of(RELATIONS, relation=relation)
    steps = _profiles.count_steps(event)
    record_epsilon = _profiles.profile(steps, relation, delta=delta)(1).epsilon(delta)
    if size == 1 or math.isinf(record_epsilon):
        return record_epsilon
    # The best e is above the epsilon of a record, since its delta d must be smaller than `delta` by
    # the factor of the conversion, which is at least `size`.
    grid = np.linspace(record_epsilon, 6 * record_epsilon + 5, _NUM_EPSILONS)
    delta_at = _profiles.profile(steps, relation, epsilon=2 * record_epsilon)(1).delta
    deltas = np.array([delta_at(float(epsilon)) for epsilon in grid])
    with np.errstate(divide="ignore"):
        meets = np.log(deltas) + _log_growth(grid, size) <= math.log(delta)
    return float(size * grid[np.argmax(meets)]) if meets.any() else math.inf


def _log_growth(epsilons: np.ndarray, size: int) -> np.ndarray:
    """Returns ln((e^(m epsilon) - 1) / (e^epsilon - 1)) = ln(1 + e^epsilon + ...)."""
    return np.asarray(special.logsumexp(np.outer(epsilons, np.arange(size)), axis=1))
