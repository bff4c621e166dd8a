"""The grid is pessimistic, fine enough, and bounded in memory."""

import math

import numpy as np
import pytest
from scipy import stats

from jaxpriv.accounting import _losses, _pld, gaussian
from tests import oracles

RELATIONS = ("add_or_remove_one", "replace_one")


def spent(z, q, steps, delta, relation, overflow=None):
    event = {_losses.Step(z, q, overflow): 1}
    return _pld.epsilon(
        _pld.discretise_for_delta(event, relation, max_compositions=steps, delta=delta)[1], delta
    )


def on_grid(z, q, steps, delta, relation, interval, monkeypatch):
    monkeypatch.setattr(_pld, "_interval", lambda *_: interval)
    losses = _pld.discretise({_losses.Step(z, q): 1}, relation, max_compositions=steps, epsilon=0.0)
    monkeypatch.undo()
    return _pld.epsilon(_pld.compose(losses, steps), delta)


@pytest.mark.parametrize("mu", oracles.slow_after(1, [0.05, 0.001, 2.0]))
@pytest.mark.parametrize("steps", [1, 10_000])
def test_gaussians_are_bounded_from_above_and_tightly(mu, steps):
    for delta in (1e-3, 1e-6, 1e-9):
        result = spent(math.sqrt(steps) / mu, 1.0, steps, delta, "add_or_remove_one")
        exact = gaussian.epsilon(delta, mu=mu)
        assert exact <= result <= exact * (1 + 5e-4)


@pytest.mark.parametrize(
    ("z", "q", "steps", "delta", "epsilon"),
    [
        (1000.0, 0.2, 1000, 1e-5, 0.0163070),
        (100.0, 0.001, 100_000, 1e-5, 0.00743),
        (0.3, 0.01, 100_000, 1e-5, 1958.1),
        (1000.0, 0.001, 100_000, 1e-5, 0.000464),
        (1.0, 1e-4, 1000, 1e-5, 0.011186),
    ],
)
def test_the_interval_adapts(z, q, steps, delta, epsilon):
    """The values are limits of fine grids; interval 1e-4 gives .016685, .0240, -, .0065, .0139."""
    assert spent(z, q, steps, delta, "add_or_remove_one") == pytest.approx(epsilon, rel=2e-3)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("z", "q", "steps"), oracles.slow_after(1, [(1.0, 1e-3, 100), (30.0, 0.9, 10_000)])
)
def test_a_finer_grid_is_lower_and_hardly_so(z, q, steps, relation, monkeypatch):
    for delta in (1e-3, 1e-6):
        event = {_losses.Step(z, q): 1}
        losses, composed = _pld.discretise_for_delta(
            event, relation, max_compositions=steps, delta=delta
        )
        usual = _pld.epsilon(composed, delta)
        interval = losses[0][0].pmf.interval
        finer = on_grid(z, q, steps, delta, relation, interval / 3, monkeypatch)
        coarser = on_grid(z, q, steps, delta, relation, interval * 100, monkeypatch)
        assert finer * (1 - 1e-7) <= usual <= finer * 1.002
        assert coarser >= usual


def test_one_step_of_sampling_is_the_exact_curve():
    """For removal, delta(e) = P[L > e] - e^(e) Q[L > e] at the x where the loss is e."""
    z, q, epsilon = 0.8, 0.3, 0.5
    event = {_losses.Step(z, q): 1}
    x = z**2 * math.log((math.exp(epsilon) - 1 + q) / q) + 0.5
    upper = (1 - q) * stats.norm.sf(x / z) + q * stats.norm.sf((x - 1) / z)
    exact = upper - math.exp(epsilon) * stats.norm.sf(x / z)
    losses = _pld.discretise(event, "add_or_remove_one", max_compositions=1, epsilon=epsilon)
    result = _pld.delta(_pld.compose(losses, 1), epsilon)
    assert exact <= result <= exact * (1 + 1e-6)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("step", [(1000.0, 1e-3), (0.3, 0.01), (0.02, 0.5), (1.0, 0.1, (300, 40))])
def test_mass_is_kept_and_delta_is_a_probability(step, relation):
    event = {_losses.Step(*step): 1}
    losses = _pld.discretise(event, relation, max_compositions=100_000, epsilon=0.0)
    for loss in (direction[0] for direction in losses):
        assert loss.pmf.probs.min() >= 0
        assert loss.pmf.probs.sum() + loss.pmf.infinity == pytest.approx(1.0, abs=1e-13)
    for pmf in _pld.compose(losses, 100_000):
        assert pmf.probs.sum() == pytest.approx(1.0, abs=1e-9)
        assert pmf.infinity >= 100_000 * 2.0**-52, "rounding is charged"
        assert _pld.delta([pmf], 0.0) <= 1


def test_epsilon_and_delta_undo_each_other():
    losses = _pld.discretise(
        {_losses.Step(1.0, 0.1): 1}, "replace_one", max_compositions=200, epsilon=0.0
    )
    composed = _pld.compose(losses, 200)
    for delta in (0.3, 1e-2, 1e-5, 1e-10):
        assert _pld.delta(composed, _pld.epsilon(composed, delta)) == pytest.approx(delta, rel=1e-4)
    assert _pld.epsilon(composed, 1e-18) == math.inf
    assert 0 < _pld.resolution(composed) < 1e-12


def test_quadrature_agrees_with_the_grid():
    for relation in RELATIONS:
        event = {_losses.Step(0.9, 0.2): 1}
        for direction in _pld.discretise(event, relation, max_compositions=1, epsilon=1.0):
            nodes, pmf, _ = direction[0]
            losses = (pmf.lower + np.arange(len(pmf.probs))) * pmf.interval
            mean = nodes.weights @ nodes.losses
            assert nodes.weights.sum() == pytest.approx(1.0)
            assert pmf.probs @ losses == pytest.approx(mean, rel=1e-6)
            assert pmf.probs @ losses**2 == pytest.approx(nodes.weights @ nodes.losses**2, rel=1e-6)


def test_losses_that_overflow_in_the_tail_bound_are_no_warning():
    sampled = spent(1e-5, 0.5, 10, 1e-5, "add_or_remove_one")
    full = gaussian.epsilon(1e-5, mu=math.sqrt(10) / 1e-5)
    assert 0.99 * full < sampled < full


def test_memory_is_estimated_before_it_is_taken():
    """A million steps at little noise fit on a coarse grid; a trillion are refused at once."""
    assert math.isfinite(spent(0.1, 0.2, 1_000_000, 1e-5, "add_or_remove_one"))
    with pytest.raises(ValueError, match=r"within 4 GiB, got one that needs 2.. GiB") as info:
        spent(1.0, 0.2, 10**12, 1e-3, "add_or_remove_one")
    assert "\n" not in str(info.value)


def test_the_pmf_of_a_truncated_step_mixes_by_the_chance_of_overflow():
    step = _losses.Step(1.0, 0.1, (300, 40))
    (share, moved), (rest, plain) = _losses.dominating_pairs(step, "add_or_remove_one")
    assert share == pytest.approx(stats.binom.sf(39, 299, 0.1), rel=1e-9)
    assert rest == 1 - share
    assert (moved.shift, moved.mirrored) == (2.0, True)
    assert plain == _losses.Pair(1.0, 0.1, False)
    stays = stats.binom.sf(40, 300, 0.1) * 40 / 300 / share
    assert moved.prob == pytest.approx(stays, rel=1e-9)
