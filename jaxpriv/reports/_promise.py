"""Computes the guarantees of a training, for each unit and relation, from its event."""

import math
from typing import TYPE_CHECKING

from jaxpriv import accounting, identifiability
from jaxpriv._names import RELATIONS, Relation
from jaxpriv.defences import Defence
from jaxpriv.metrics import verdict
from jaxpriv.reports.findings import DefenceGuarantee, Guarantee, Promise
from jaxpriv.reports.settings import Unit
from jaxpriv.sensitivity import SampledPairs

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
    guarantees = [_guarantee(event, delta, each) for each in RELATIONS]
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


def class_guarantee(
    event: "DpEvent", *, num_classes: int, largest: int, delta: float, relation: Relation
) -> Promise:
    """Bounds epsilon, advantage and belief for classes, under both relations.

    Args:
      event: event of the complete training, for neighbours that differ in a class.
      num_classes: number of classes, empty ones included.
      largest: number of records of the largest class.
      delta: delta of both guarantees, in (0, 1).
      relation: relation of the stated guarantee.

    Returns:
      The promise, with reasons if it is vacuous.

    Raises:
      ValueError: as `accounting.epsilon`.
    """
    guarantees = tuple(
        _guarantee(event, delta, each, unit="class", size=largest) for each in RELATIONS
    )
    stated = next(g for g in guarantees if g.relation == relation)
    reasons = verdict.why_vacuous(
        epsilon=math.inf if stated.epsilon is None else stated.epsilon,
        delta=delta,
        num_examples=num_classes,
        advantage_bound=stated.advantage_bound,
        unit="class",
    )
    return Promise(unit="class", relation=relation, guarantees=guarantees, vacuous=reasons)


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


_LIKELY = 0.5
"""Probability of failure from which on a guarantee is vacuous."""


def of_defence(
    defence: Defence,
    *,
    num_classes: int | None,
    pairs: SampledPairs | None,
    num_members: int,
) -> DefenceGuarantee | None:
    """States the guarantee of a defence after training, which is no promise for a record.

    Args:
      defence: the defence.
      num_classes: number of classes of its outputs.
      pairs: sampled pairs of trainings; None without them.
      num_members: number of records of the training.

    Returns:
      The guarantee, with reasons if it is vacuous; None for a heuristic.
    """
    if defence.output_guarantee is not None and num_classes is not None:
        outputs = defence.output_guarantee(num_classes)
        is_bounded = math.isfinite(outputs.epsilon)
        return DefenceGuarantee(
            kind="outputs",
            epsilon=outputs.epsilon if is_bounded else None,
            unbounded=not is_bounded,
            delta=outputs.delta,
            queries=outputs.queries,
            distance=outputs.distance,
            vacuous=verdict.why_vacuous(epsilon=outputs.epsilon, delta=0.0)
            + _why_likely(outputs.delta, "delta"),
        )
    if pairs is None:
        return None
    assert defence.parameter_noise is not None
    assert defence.delta is not None
    sampled = accounting.random_dp.gaussian_module(
        sensitivity=pairs.sensitivity,
        noise_std=defence.parameter_noise,
        delta=defence.delta,
        num_pairs=len(pairs.distances),
    )
    return DefenceGuarantee(
        kind="sampled",
        epsilon=sampled.epsilon,
        unbounded=False,
        delta=sampled.delta,
        gamma=sampled.gamma,
        num_pairs=len(pairs.distances),
        sensitivity=pairs.sensitivity,
        are_disjoint=pairs.are_disjoint,
        vacuous=verdict.why_vacuous(
            epsilon=sampled.epsilon, delta=sampled.delta, num_examples=num_members
        )
        + _why_likely(sampled.gamma, "gamma"),
    )


def _why_likely(probability: float, name: str) -> tuple[str, ...]:
    """Returns the reason why a guarantee that fails with this probability is vacuous, if it is."""
    if probability < _LIKELY:
        return ()
    return (f"it may fail with probability {name} of {_LIKELY:g} or more",)


def _guarantee(
    event: "DpEvent", delta: float, relation: Relation, *, unit: Unit = "record", size: int = 1
) -> Guarantee:
    epsilon = accounting.epsilon(event, delta=delta, relation=relation)
    is_bounded = math.isfinite(epsilon)
    return Guarantee(
        unit=unit,
        size=size,
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
        epsilon = accounting.group_epsilon(
            event, size=size, delta=record.delta, relation=record.relation
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
