"""Computes the guarantees of a training, for each unit and relation, from its event."""

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from jaxpriv import accounting, identifiability
from jaxpriv._names import RELATIONS, Relation
from jaxpriv.metrics import verdict
from jaxpriv.reports.findings import Guarantee, Promise
from jaxpriv.reports.settings import Unit

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def guarantee(
    event: "DpEvent",
    *,
    group_event: "DpEvent | None" = None,
    largest_group: int = 1,
    num_members: int,
    delta: float,
    relation: Relation,
) -> Promise:
    """Bounds epsilon, advantage and belief for records and, if they are the unit, for groups.

    Args:
      event: event of the complete training, for neighbours that differ in a record.
      group_event: event of the same training on up to `largest_group` further members; None if
        the unit is a record.
      largest_group: number of records of the largest group.
      num_members: number of records that the model is trained on.
      delta: delta of every guarantee, in (0, 1).
      relation: relation of the stated guarantee; guarantees are computed under both.

    Returns:
      The promise, with reasons if it is vacuous.

    Raises:
      ValueError: as `accounting.epsilon`.
    """
    guarantees = [_record_guarantee(event, delta, each) for each in RELATIONS]
    unit: Unit = "record"
    if group_event is not None:
        unit = "group"
        guarantees += [
            _group_guarantee(group_event, record, size=largest_group) for record in guarantees
        ]
    stated = next(g for g in guarantees if (g.unit, g.relation) == (unit, relation))
    reasons = verdict.why_vacuous(
        epsilon=math.inf if stated.epsilon is None else stated.epsilon,
        delta=delta,
        num_examples=num_members,
        advantage_bound=stated.advantage_bound,
    )
    return Promise(unit=unit, relation=relation, guarantees=tuple(guarantees), vacuous=reasons)


def claimed(*, epsilon: float, delta: float, relation: Relation, num_members: int) -> Promise:
    """States a guarantee that the user names, for records.

    Args:
      epsilon, delta: the claim.
      relation: its relation; nothing is known under the other.
      num_members: number of records that the model is trained on.

    Returns:
      The promise, with reasons if it is vacuous.
    """
    advantage = identifiability.general_rho_alpha(epsilon, delta=delta)
    stated = Guarantee(
        unit="record",
        size=1,
        relation=relation,
        epsilon=epsilon,
        unbounded=False,
        delta=delta,
        advantage_bound=advantage,
        rho_beta=identifiability.rho_beta(epsilon),
        violation_probability=None,
    )
    reasons = verdict.why_vacuous(
        epsilon=epsilon, delta=delta, num_examples=num_members, advantage_bound=advantage
    )
    return Promise(
        unit="record", relation=relation, guarantees=(stated,), vacuous=reasons, is_claim=True
    )


def group_epsilon(
    event: "DpEvent", *, size: int, delta: float, relation: Relation, record_epsilon: float
) -> float:
    """Bounds epsilon for neighbours that differ in a group of up to `size` records.

    A mechanism that is (e, d)-DP for a record is (size e, d (1 + exp(e) + ... +
    exp((size - 1) e)))-DP for a group. The function returns the smallest epsilon on a grid of e.

    Args:
      event: event of the complete training, for neighbours that differ in a record.
      size: number of records of the group; >= 1.
      delta: delta of the guarantee.
      relation: neighbouring relation.
      record_epsilon: epsilon of a record at this delta.

    Returns:
      epsilon in nats; infinite if the conversion gives no bound.

    References:
      Vadhan, The Complexity of Differential Privacy, 2017, Lemma 2.2.
    """
    if size == 1:
        return record_epsilon
    # The best e is above the epsilon of a record, since its delta d must be smaller than `delta` by
    # the factor of the conversion, which is at least `size`.
    grid = np.linspace(record_epsilon, 6 * record_epsilon + 5, 400)
    delta_at = accounting.delta_curve(event, epsilon=2 * record_epsilon, relation=relation)
    log_terms = special.logsumexp(np.outer(grid, np.arange(size)), axis=1)
    deltas = np.array([delta_at(float(epsilon)) for epsilon in grid])
    with np.errstate(divide="ignore"):
        meets = np.log(deltas) + log_terms <= math.log(delta)
    return float(size * grid[np.argmax(meets)]) if meets.any() else math.inf


def _record_guarantee(event: "DpEvent", delta: float, relation: Relation) -> Guarantee:
    epsilon = accounting.epsilon(event, delta=delta, relation=relation)
    is_bounded = math.isfinite(epsilon)
    return Guarantee(
        unit="record",
        size=1,
        relation=relation,
        epsilon=epsilon if is_bounded else None,
        unbounded=not is_bounded,
        delta=delta,
        advantage_bound=accounting.advantage_bound(event, relation=relation),
        rho_beta=identifiability.rho_beta(epsilon),
        violation_probability=(
            identifiability.loss_tail(event, epsilon=epsilon, relation=relation)
            if is_bounded
            else None
        ),
    )


def _group_guarantee(event: "DpEvent", record: Guarantee, *, size: int) -> Guarantee:
    epsilon = math.inf
    if record.epsilon is not None:
        epsilon = group_epsilon(
            event,
            size=size,
            delta=record.delta,
            relation=record.relation,
            record_epsilon=record.epsilon,
        )
    is_bounded = math.isfinite(epsilon)
    # The advantage is a total variation distance, so the triangle inequality bounds that of a
    # group by the sum along a chain of neighbours.
    advantage = min(
        1.0,
        size * record.advantage_bound,
        identifiability.general_rho_alpha(epsilon, delta=record.delta),
    )
    return Guarantee(
        unit="group",
        size=size,
        relation=record.relation,
        epsilon=epsilon if is_bounded else None,
        unbounded=not is_bounded,
        delta=record.delta,
        advantage_bound=advantage,
        rho_beta=identifiability.rho_beta(epsilon),
        violation_probability=None,
    )
