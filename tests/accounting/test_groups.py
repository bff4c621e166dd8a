"""Group privacy, against the exact guarantees of Gaussians."""

import math

import numpy as np
import pytest

from jaxpriv import accounting
from jaxpriv.accounting import gaussian

ADD, REPLACE = "add_or_remove_one", "replace_one"


@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_the_conversion_is_the_sum_along_a_chain_of_neighbours(size):
    """(e, d)-DP m times in a row: delta_m = d + e^e delta_(m-1)."""
    epsilon, delta = 0.3, 1e-9
    chained = 0.0
    for _ in range(size):
        chained = delta + math.exp(epsilon) * chained
    group = accounting.group_privacy(epsilon, delta=delta, size=size)
    assert group.epsilon == pytest.approx(size * epsilon)
    assert group.delta == pytest.approx(chained, rel=1e-9)


def test_the_conversion_at_its_limits():
    assert accounting.group_privacy(0.0, delta=1e-6, size=5).delta == pytest.approx(5e-6)
    assert accounting.group_privacy(2.0, delta=0.0, size=9) == (18.0, 0.0)
    assert accounting.group_privacy(8.0, delta=1e-5, size=3).delta > 1
    assert accounting.group_privacy(10.0, delta=1e-5, size=200) == (2000.0, math.inf)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_group_epsilon_bounds_the_exact_one_of_gaussians(size):
    """A group of k moves a full-batch sum by k clip norms: k mu in place of mu."""
    mu, delta = 0.5, 1e-5
    event = accounting.poisson_event(noise_multiplier=1 / mu, sampling_prob=1.0, steps=1)
    bound = accounting.group_epsilon(event, size=size, delta=delta, relation=ADD)
    exact = gaussian.epsilon(delta, mu=size * mu)
    assert exact < bound < 2 * exact
    record = bound / size
    group = accounting.group_privacy(record, delta=gaussian.delta(record, mu=mu), size=size)
    assert group.epsilon == pytest.approx(bound)
    assert 0.5 * delta < group.delta <= delta * (1 + 1e-9)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_group_epsilon_of_one_record_or_without_a_bound(relation):
    event = accounting.poisson_event(noise_multiplier=2.0, sampling_prob=0.1, steps=10)
    record = accounting.epsilon(event, delta=1e-5, relation=relation)
    assert accounting.group_epsilon(event, size=1, delta=1e-5, relation=relation) == record
    assert accounting.group_epsilon(event, size=500, delta=1e-5, relation=relation) == math.inf
    released = accounting.poisson_event(noise_multiplier=0.0, sampling_prob=1.0, steps=1)
    assert accounting.group_epsilon(released, size=2, delta=1e-5, relation=relation) == math.inf


@pytest.mark.parametrize(
    "call",
    [
        lambda: accounting.group_privacy(-1.0, delta=0.1, size=2),
        lambda: accounting.group_privacy(1.0, delta=1.1, size=2),
        lambda: accounting.group_privacy(1.0, delta=np.nan, size=2),
        lambda: accounting.group_privacy(1.0, delta=0.1, size=0),
    ],
)
def test_refuses_what_is_out_of_range(call):
    with pytest.raises(ValueError, match=r"^Expected "):
        call()
