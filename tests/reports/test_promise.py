"""Promises: what the accountant says, and the conversion from records to groups."""

import math

import numpy as np
import pytest

from jaxpriv import accounting, sampling
from jaxpriv.reports import _promise

SAMPLER = sampling.poisson(500, sampling_prob=0.1)
FULL_BATCH = sampling.full_batch(500)


def make(noise_multiplier=2.0, delta=1e-4, **options):
    event = FULL_BATCH.event(noise_multiplier=noise_multiplier, steps=4)
    given = {"num_members": 500, "relation": "add_or_remove_one"}
    return event, _promise.guarantee(event, delta=delta, **given | options)


def test_guarantees_are_those_of_the_accountant_under_both_relations():
    event, promise = make()
    assert [g.relation for g in promise.guarantees] == ["add_or_remove_one", "replace_one"]
    for one in promise.guarantees:
        assert one.epsilon == accounting.epsilon(event, delta=1e-4, relation=one.relation)
        assert one.advantage_bound == accounting.advantage_bound(event, relation=one.relation)
        assert one.rho_beta == pytest.approx(1 / (1 + math.exp(-one.epsilon)))
        assert 0 < one.violation_probability < 0.01
        assert (one.unit, one.size, one.unbounded) == ("record", 1, False)
    assert promise.stated() == promise.guarantees[0]
    assert promise.vacuous == ()


def test_no_noise_is_unbounded_and_vacuous():
    event = accounting.poisson_event(noise_multiplier=0.0, sampling_prob=1.0, steps=2)
    promise = _promise.guarantee(event, num_members=500, delta=1e-4, relation="replace_one")
    assert promise.stated().epsilon is None
    assert promise.stated().unbounded
    assert promise.stated().rho_beta == 1
    assert any("unbounded" in reason for reason in promise.vacuous)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"delta": 0.5}, "delta is at least 1/n"),
        ({"noise_multiplier": 0.5}, "epsilon is above 10"),
    ],
)
@pytest.mark.filterwarnings("ignore:delta=0.5 is at least 1/n")
def test_a_vacuous_guarantee_has_a_reason(changes, reason):
    _, promise = make(**changes)
    assert any(reason in phrase for phrase in promise.vacuous)


def test_groups_are_less_protected_than_records():
    event, promise = make(
        noise_multiplier=8.0,
        group_event=sampling.full_batch(503).event(noise_multiplier=8.0, steps=4),
        largest_group=3,
    )
    assert promise.unit == "group"
    assert [g.unit for g in promise.guarantees] == ["record", "record", "group", "group"]
    stated = promise.stated()
    assert (stated.unit, stated.size, stated.relation) == ("group", 3, "add_or_remove_one")
    record = promise.guarantees[0]
    assert record.epsilon == accounting.epsilon(event, delta=1e-4, relation="add_or_remove_one")
    assert 3 * record.epsilon <= stated.epsilon < 10 * record.epsilon
    assert record.advantage_bound < stated.advantage_bound <= 3 * record.advantage_bound
    assert stated.violation_probability is None


def test_a_group_too_large_for_the_conversion_is_unbounded():
    group_event = SAMPLER.event(noise_multiplier=2.0, steps=4)
    _, promise = make(group_event=group_event, largest_group=60)
    assert promise.stated().epsilon is None
    assert promise.stated().unbounded
    assert np.isfinite(promise.stated().advantage_bound)
    assert promise.vacuous


def test_classes_have_guarantees_of_their_own_under_both_relations():
    event = accounting.poisson_event(noise_multiplier=1.6, sampling_prob=0.2, steps=100)
    promise = _promise.class_guarantee(
        event, num_classes=40, largest=12, delta=1e-3, relation="replace_one"
    )
    assert promise.stated().epsilon == pytest.approx(9.9114, rel=5e-3)
    assert promise.of("add_or_remove_one").epsilon == pytest.approx(4.8793, rel=5e-3)
    assert {(g.unit, g.size) for g in promise.guarantees} == {("class", 12)}
    assert promise.vacuous == ()
    few = _promise.class_guarantee(
        event, num_classes=40, largest=12, delta=0.03, relation="add_or_remove_one"
    )
    assert any("1/n for n = 40 classes" in reason for reason in few.vacuous)
