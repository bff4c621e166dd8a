"""Class-level DP: both relations, and the printed theorem beside the truth (Zhang et al., 2020)."""

import functools
import warnings

import numpy as np
import pytest

from jaxpriv import accounting, sampling


@functools.cache
def epsilons(z, q, steps, delta):
    sampler = sampling.by_class(np.arange(10), num_classes=10, sampling_prob=q)
    event = sampler.event(noise_multiplier=z, steps=steps)
    return accounting.epsilon_by_relation(event, delta=delta)


@pytest.mark.parametrize(
    ("steps", "add_or_remove", "replace"),
    [(100, 4.8793, 9.9114), (500, 13.4819, 30.9224), (1000, 21.7423, 52.6637)],
)
def test_epsilon_of_a_class_under_both_relations(steps, add_or_remove, replace):
    result = epsilons(1.6, 0.2, steps, 1e-3)
    assert result.add_or_remove_one == pytest.approx(add_or_remove, rel=5e-3)
    assert result.replace_one == pytest.approx(replace, rel=5e-3)


def test_each_relation_is_that_of_epsilon():
    event = accounting.poisson_event(noise_multiplier=2.0, sampling_prob=0.3, steps=5)
    for relation, value in accounting.epsilon_by_relation(event, delta=1e-3)._asdict().items():
        assert value == accounting.epsilon(event, delta=1e-3, relation=relation)


@pytest.mark.parametrize(
    ("q", "steps", "z", "printed", "true"),
    [(0.005, 100, 0.678614, 1.0, 1.6958), (0.01, 1000, 0.536492, 8.0, 12.2124)],
)
def test_the_printed_theorem_is_false(q, steps, z, printed, true):
    bound = accounting.zhang2020_printed_epsilon_no_guarantee(
        noise_multiplier=z, sampling_prob=q, steps=steps, delta=1e-5
    )
    assert bound == pytest.approx(printed, rel=1e-5)
    exact = epsilons(z, q, steps, 1e-5).replace_one
    assert exact == pytest.approx(true, rel=5e-3)
    assert bound < exact


def test_delta_is_compared_with_the_number_of_classes():
    """1e-3 is vacuous for 4,000 records, and not for ten classes."""
    sampler = sampling.by_class(np.arange(4000) % 10, num_classes=10, sampling_prob=1.0)
    target = {"steps": 2, "epsilon": 4.0, "relation": "add_or_remove_one"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", accounting.LargeDeltaWarning)
        accounting.calibrate(sampler, delta=1e-3, **target)
    with pytest.warns(accounting.LargeDeltaWarning, match="n=10"):
        accounting.calibrate(sampler, delta=0.2, **target)
