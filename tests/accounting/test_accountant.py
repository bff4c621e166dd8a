import functools
import itertools
import math
import subprocess
import sys
import warnings

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpriv import accounting, sampling
from jaxpriv.accounting import gaussian
from tests import oracles

ADD, REPLACE = "add_or_remove_one", "replace_one"
RELATIONS = (ADD, REPLACE)
ORACLE = {
    ADD: dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
    REPLACE: dp.NeighboringRelation.REPLACE_ONE,
}


def poisson(z, q, steps):
    return accounting.poisson_event(noise_multiplier=z, sampling_prob=q, steps=steps)


def truncated(n, q, capacity, z, steps):
    step = dp.dp_event.TruncatedSubsampledGaussianDpEvent(n, q, capacity, z)
    return dp.SelfComposedDpEvent(step, steps)


class Sampled:
    """A sampler without the number of records."""

    def __init__(self, q):
        self.q = q

    def event(self, *, noise_multiplier, steps):
        return poisson(noise_multiplier, self.q, steps)


@functools.cache
def spent(z, q, steps, delta, relation):
    return accounting.epsilon(poisson(z, q, steps), delta=delta, relation=relation)


@pytest.mark.parametrize(
    ("relation", "epsilons"),
    [
        (ADD, {100: 4.8793, 500: 13.4819, 1000: 21.7423}),
        (REPLACE, {100: 9.9114, 500: 30.9224, 600: 35.4788, 700: 39.9087, 1000: 52.6637}),
    ],
)
def test_class_dp_settings(relation, epsilons):
    for steps, epsilon in epsilons.items():
        result = accounting.epsilon(poisson(1.6, 0.2, steps), delta=1e-3, relation=relation)
        assert result == pytest.approx(epsilon, abs=1e-4)


@pytest.mark.parametrize(
    ("z", "epsilons"), [(1.0, (4.192, 8.260, 6.391)), (0.8, (6.854, 13.544, 10.412))]
)
def test_yang2023_table_2(z, epsilons):
    for (n, steps), epsilon in zip(
        ((10_000, 3907), (6400, 5000), (5000, 1954)), epsilons, strict=True
    ):
        result = accounting.epsilon(poisson(z, 128 / n, steps), delta=1e-4, relation=ADD)
        assert result == pytest.approx(epsilon, abs=6e-4)


def test_advantage_of_100_steps():
    event = poisson(1.6, 0.2, 100)
    assert accounting.advantage_bound(event, relation=ADD) == pytest.approx(0.485128, abs=2e-6)
    assert accounting.advantage_bound(event, relation=REPLACE) == pytest.approx(0.775972, abs=2e-6)
    assert accounting.delta(event, epsilon=0.0, relation=ADD) == accounting.advantage_bound(
        event, relation=ADD
    )


MIXED = dp.ComposedDpEvent(
    [
        dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0)), 50),
        dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.5)), 200),
        dp.SelfComposedDpEvent(dp.GaussianDpEvent(20.0), 4),
        dp.NoOpDpEvent(),
        dp.GaussianDpEvent(30.0),
    ]
)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    "event",
    oracles.slow_after(
        2,
        [
            pytest.param(truncated(1000, 0.05, 60, 2.5, 100), id="often truncated"),
            pytest.param(MIXED, id="mixed"),
            pytest.param(truncated(500, 0.1, 20, 2.0, 20), id="always truncated"),
            pytest.param(poisson(0.8, 0.3, 1), id="one step"),
            pytest.param(poisson(2.0, 0.99, 3), id="nearly all"),
        ],
    ),
)
def test_dp_accounting_agrees(event, relation):
    oracle = pld.PLDAccountant(ORACLE[relation]).compose(event)
    result = accounting.epsilon(event, delta=1e-5, relation=relation)
    assert result == pytest.approx(oracle.get_epsilon(1e-5), rel=1e-6)
    result = accounting.delta(event, epsilon=1.0, relation=relation)
    assert result == pytest.approx(oracle.get_delta(1.0), rel=2e-5)


@pytest.mark.parametrize("relation", RELATIONS)
def test_gaussians_alone_take_the_closed_form(relation):
    event = dp.ComposedDpEvent(
        [dp.SelfComposedDpEvent(dp.GaussianDpEvent(4.0), 9), dp.GaussianDpEvent(2.0)]
    )
    mu = math.sqrt(9 / 16 + 1 / 4) * (2 if relation == REPLACE else 1)
    assert accounting.epsilon(event, delta=1e-5, relation=relation) == pytest.approx(
        gaussian.epsilon(1e-5, mu=mu), rel=1e-12
    )
    assert accounting.delta(event, epsilon=1.0, relation=relation) == pytest.approx(
        gaussian.delta(1.0, mu=mu), rel=1e-12
    )
    full = sampling.full_batch(50).event(noise_multiplier=4.0, steps=16)
    assert accounting.epsilon(full, delta=1e-9, relation=relation) == pytest.approx(
        gaussian.epsilon(1e-9, mu=2.0 if relation == REPLACE else 1.0), rel=1e-12
    )
    assert accounting.poisson_event(
        noise_multiplier=4.0, sampling_prob=1.0, steps=16
    ) == dp.SelfComposedDpEvent(dp.GaussianDpEvent(4.0), 16)


def test_replace_one_of_a_single_release_is_refused_for_rdp():
    event = dp.GaussianDpEvent(1.6)
    result = accounting.epsilon(event, delta=1e-3, relation=REPLACE)
    assert result == pytest.approx(4.145447, abs=1e-6)
    with pytest.raises(ValueError, match="Expected method='pld' for replace_one"):
        accounting.epsilon(event, delta=1e-3, relation=REPLACE, method="rdp")


@pytest.mark.parametrize(
    "event",
    [
        dp.NonPrivateDpEvent(),
        dp.GaussianDpEvent(0.0),
        poisson(0.0, 0.1, 3),
        truncated(100, 0.1, 20, 0.0, 3),
        dp.ComposedDpEvent(
            [poisson(1.0, 0.1, 3), dp.SelfComposedDpEvent(dp.NonPrivateDpEvent(), 2)]
        ),
    ],
)
def test_without_noise_there_is_no_privacy(event):
    for relation in RELATIONS:
        assert accounting.epsilon(event, delta=1e-3, relation=relation) == math.inf
        assert accounting.delta(event, epsilon=5.0, relation=relation) == 1
        assert accounting.advantage_bound(event, relation=relation) == 1


@pytest.mark.parametrize(
    "event",
    [
        dp.NoOpDpEvent(),
        dp.PoissonSampledDpEvent(0.0, dp.GaussianDpEvent(1.0)),
        dp.ComposedDpEvent([]),
    ],
)
def test_nothing_released_spends_nothing(event):
    for method in ("pld", "rdp", "rdp_classic"):
        assert accounting.epsilon(event, delta=1e-3, relation=ADD, method=method) == 0
    assert accounting.advantage_bound(event, relation=ADD) == 0


def test_rdp_with_both_conversions():
    event = poisson(1.6, 0.2, 700)
    improved = accounting.epsilon(event, delta=1e-3, relation=ADD, method="rdp")
    classic = accounting.epsilon(event, delta=1e-3, relation=ADD, method="rdp_classic")
    assert improved == pytest.approx(18.776, abs=5e-4)
    assert classic == pytest.approx(20.163, abs=5e-4)
    assert spent(1.6, 0.2, 700, 1e-3, ADD) < improved


@pytest.mark.parametrize(
    ("z", "q", "steps"), [(1.6, 0.2, 700), (0.5, 0.01, 10), (30.0, 1e-3, 10_000), (5.0, 1.0, 20)]
)
def test_rdp_agrees_with_dp_accounting(z, q, steps):
    event = poisson(z, q, steps)
    orders = [*range(2, 65), *range(72, 129, 8), *range(160, 513, 32)]
    oracle = rdp.RdpAccountant(orders, ORACLE[ADD]).compose(event)
    for delta in (1e-2, 1e-6):
        result = accounting.epsilon(event, delta=delta, relation=ADD, method="rdp")
        assert result == pytest.approx(oracle.get_epsilon(delta), rel=1e-6, abs=1e-9)
        classic = accounting.epsilon(event, delta=delta, relation=ADD, method="rdp_classic")
        assert classic >= result >= accounting.epsilon(event, delta=delta, relation=ADD)


def test_a_small_capacity_turns_epsilon_4_into_18():
    z = accounting.calibrate(Sampled(0.02), steps=1500, epsilon=4.0, delta=1e-5, relation=ADD)
    with pytest.warns(UserWarning, match="overflows capacity=400"):
        cut = sampling.poisson(20_000, sampling_prob=0.02, capacity=400)
    uncut = sampling.poisson(20_000, sampling_prob=0.02)
    result = {
        sampler.capacity: accounting.epsilon(
            sampler.event(noise_multiplier=z, steps=1500), delta=1e-5, relation=ADD
        )
        for sampler in (cut, uncut)
    }
    assert result[400] == pytest.approx(18.6, abs=0.1)
    assert result[uncut.capacity] == pytest.approx(4.0, abs=5e-3)
    with pytest.raises(ValueError, match="Expected method='pld' for truncated batches"):
        accounting.epsilon(
            cut.event(noise_multiplier=z, steps=1), delta=1e-5, relation=ADD, method="rdp"
        )


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("q", "steps", "epsilon"),
    oracles.slow_after(
        1, [(0.02, 1500, 4.0), (0.02, 1500, 0.01), (0.2, 50, 100.0), (1.0, 30, 2.0)]
    ),
)
def test_calibrated_noise_spends_the_budget_and_no_more(q, steps, epsilon, relation):
    z = accounting.calibrate(
        Sampled(q), steps=steps, epsilon=epsilon, delta=1e-5, relation=relation
    )
    assert isinstance(z, float)
    assert 0.999 * epsilon <= spent(z, q, steps, 1e-5, relation) <= epsilon


@pytest.mark.slow
def test_calibration_with_truncated_batches():
    sampler = sampling.poisson(1000, sampling_prob=0.2)
    z = accounting.calibrate(sampler, steps=500, epsilon=8.0, delta=9e-4, relation=REPLACE)
    event = sampler.event(noise_multiplier=z, steps=500)
    assert 7.992 <= accounting.epsilon(event, delta=9e-4, relation=REPLACE) <= 8.0
    plain = accounting.calibrate(Sampled(0.2), steps=500, epsilon=8.0, delta=1e-3, relation=REPLACE)
    assert plain == pytest.approx(4.276, abs=3e-3)
    with pytest.warns(UserWarning, match="overflows"):
        cut = sampling.poisson(1000, sampling_prob=0.2, capacity=200)
    more = accounting.calibrate(cut, steps=500, epsilon=8.0, delta=9e-4, relation=REPLACE)
    assert more > 1.5 * z
    event = cut.event(noise_multiplier=more, steps=500)
    assert 7.992 <= accounting.epsilon(event, delta=9e-4, relation=REPLACE) <= 8.0


def test_calibrate_event_takes_any_event():
    def make_event(z):
        return dp.ComposedDpEvent([dp.GaussianDpEvent(10 * z), poisson(z, 0.1, 20)])

    z = accounting.calibrate_event(make_event, epsilon=1.0, delta=1e-5, relation=ADD)
    result = accounting.epsilon(make_event(z), delta=1e-5, relation=ADD)
    assert 0.999 <= result <= 1.0


@pytest.mark.parametrize(
    ("make_event", "said"),
    [
        (
            lambda z: dp.ComposedDpEvent([dp.GaussianDpEvent(1.0), dp.GaussianDpEvent(z)]),
            r"No noise multiplier up to 1e\+07 meets epsilon=1.0",
        ),
        (
            lambda z: dp.PoissonSampledDpEvent(1e-9, dp.GaussianDpEvent(z)),
            "Every noise multiplier from 0.001 on meets epsilon=1.0",
        ),
    ],
    ids=["epsilon is always too large", "epsilon is always small enough"],
)
def test_a_budget_that_no_noise_or_all_noise_meets_is_refused(make_event, said):
    with pytest.raises(ValueError, match=said) as info:
        accounting.calibrate_event(make_event, epsilon=1.0, delta=1e-5, relation=ADD)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_curve_is_epsilon_at_each_count(relation):
    counts = [500, 0, 1, 100, 100]
    curve = accounting.epsilon_curve(poisson(1.6, 0.2, 1), counts, delta=1e-3, relation=relation)
    one_by_one = [spent(1.6, 0.2, t, 1e-3, relation) if t else 0.0 for t in counts]
    assert curve.dtype == np.float64
    np.testing.assert_allclose(curve, one_by_one, rtol=1e-4)
    full = accounting.epsilon_curve(
        dp.GaussianDpEvent(3.0), np.array([0, 9]), delta=1e-3, relation=ADD
    )
    np.testing.assert_allclose(full, [0.0, gaussian.epsilon(1e-3, mu=1.0)])
    assert accounting.epsilon_curve(poisson(1.0, 0.1, 1), [], delta=1e-3, relation=ADD).shape == (
        0,
    )


def test_max_steps_agrees_with_epsilon_where_the_grids_differ():
    q, delta, budget = 0.009506390765824982, 2.8155406293155635e-07, 2.7386232543547453
    make_event = functools.partial(poisson, 3.0887203627927993, q)
    steps = accounting.max_steps(
        make_event, epsilon=budget, delta=delta, relation=ADD, at_most=31_942
    )
    assert steps == 31_941


@pytest.mark.slow
def test_max_steps_is_the_last_that_fits():
    make_event = functools.partial(poisson, 1.6, 0.2)
    max_steps = functools.partial(accounting.max_steps, make_event, delta=1e-3, relation=ADD)
    steps = max_steps(epsilon=3.0, at_most=10_000)
    assert spent(1.6, 0.2, steps, 1e-3, ADD) <= 3.0 < spent(1.6, 0.2, steps + 1, 1e-3, ADD)
    assert max_steps(epsilon=3.0, at_most=steps - 3) == steps - 3
    assert max_steps(epsilon=3.0, at_most=1) == 1
    assert max_steps(epsilon=0.01, at_most=10_000) == 0
    assert (
        accounting.max_steps(
            lambda t: sampling.full_batch(10).event(noise_multiplier=2.0, steps=t),
            epsilon=gaussian.epsilon(1e-5, mu=1.5) + 1e-9,
            delta=1e-5,
            relation=ADD,
            at_most=100,
        )
        == 9
    )


@pytest.mark.slow
@settings(max_examples=5)
@given(
    st.floats(-0.5, 2).map(lambda x: 10.0**x),
    st.floats(-4, -0.05).map(lambda x: 10.0**x),
    st.integers(1, 2000),
    st.sampled_from((1e-2, 1e-5, 1e-8)),
    st.sampled_from(RELATIONS),
)
def test_epsilon_moves_the_right_way(z, q, steps, delta, relation):
    epsilon = spent(z, q, steps, delta, relation)
    assert 0 <= epsilon < math.inf
    assert spent(1.05 * z, q, steps, delta, relation) <= epsilon
    assert spent(z, q, steps + 1 + steps // 10, delta, relation) >= epsilon
    assert spent(z, min(1.05 * q, 1.0), steps, delta, relation) >= epsilon
    assert spent(z, q, steps, 1.5 * delta, relation) <= epsilon
    if relation == ADD:
        assert spent(z, q, steps, delta, REPLACE) >= epsilon


def test_epsilon_vanishes_as_the_noise_grows():
    for relation in RELATIONS:
        falling = [spent(z, 0.2, 1, 1e-6, relation) for z in (1e2, 1e3, 1e4, 1e5, 1e6)]
        assert all(a > b or a == b == 0 for a, b in itertools.pairwise(falling))
        assert falling[1] < 1.2e-3
        assert falling[-1] == 0


def test_a_query_changes_nothing():
    event = poisson(1.1, 0.05, 40)
    before = repr(event)
    first = accounting.epsilon(event, delta=1e-5, relation=ADD)
    accounting.epsilon(event, delta=1e-2, relation=REPLACE)
    assert accounting.epsilon(event, delta=1e-5, relation=ADD) == first
    assert repr(event) == before


def test_delta_of_one_over_n_warns_the_caller_once():
    event = truncated(1000, 0.05, 100, 3.0, 2)
    calls = [
        lambda: accounting.epsilon(event, delta=1e-3, relation=ADD),
        lambda: accounting.epsilon_curve(event, [1, 2], delta=1e-3, relation=ADD),
        lambda: accounting.max_steps(
            lambda t: truncated(1000, 0.05, 100, 3.0, t),
            epsilon=1.0,
            delta=1e-3,
            relation=ADD,
            at_most=3,
        ),
        lambda: accounting.calibrate_event(
            lambda z: truncated(1000, 0.05, 100, z, 1), epsilon=1.0, delta=1e-3, relation=ADD
        ),
    ]
    for call in calls:
        with pytest.warns(UserWarning, match="is at least 1/n for n=1000") as caught:
            call()
        assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accounting.epsilon(event, delta=0.99e-3, relation=ADD)


@pytest.mark.parametrize(
    ("z", "steps", "delta", "exact", "excess"),
    [  # exact: of the Gaussian mechanism with mu = sqrt(steps) / z, in 60 digits
        (1.0, 1, 1e-15, 8.165579695504254, 1e-2),
        (20.0, 100, 1e-13, 3.611680854527377, 5.5e-3),
        (20.0, 100, 1e-10, 3.0994303302431963, 1e-4),
    ],
)
def test_near_the_resolution_epsilon_is_too_large_and_never_too_small(
    z, steps, delta, exact, excess
):
    result = accounting.epsilon(poisson(z, 1 - 1e-12, steps), delta=delta, relation=ADD)
    assert exact * (1 - 1e-9) <= result <= exact * (1 + excess)


def test_a_delta_below_float64_is_refused_and_rdp_serves_it():
    event = poisson(1.0, 0.1, 1000)
    assert math.isfinite(accounting.epsilon(event, delta=1e-12, relation=ADD))
    with pytest.raises(ValueError, match=r"Expected delta > .*, which float64 resolves"):
        accounting.epsilon(event, delta=1e-16, relation=ADD)
    assert accounting.epsilon(event, delta=1e-16, relation=ADD, method="rdp") < 50


def bad(name, **changes):
    arguments = {"event": poisson(1.0, 0.1, 2), "delta": 1e-3, "relation": ADD, **changes}
    return lambda: oracles.unhooked(getattr(accounting, name))(**arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (bad("epsilon", delta=0.0), "Expected 0 < delta < 1, got delta=0.0"),
        (bad("epsilon", delta=1.0), "Expected 0 < delta < 1"),
        (bad("epsilon", relation="unbounded"), "Expected relation to be one of add_or_remove_one"),
        (bad("epsilon", method="moments"), "Expected method to be one of pld, rdp, rdp_classic"),
        (bad("epsilon", event=dp.LaplaceDpEvent(1.0)), "got LaplaceDpEvent"),
        (bad("epsilon", event=dp.GaussianDpEvent(-1.0)), "Expected noise_multiplier >= 0"),
        (
            bad("epsilon", event=dp.PoissonSampledDpEvent(1.5, dp.GaussianDpEvent(1.0))),
            "Expected 0 < sampling_prob <= 1",
        ),
        (
            lambda: accounting.delta(poisson(1.0, 0.1, 2), epsilon=-1.0, relation=ADD),
            "Expected epsilon >= 0",
        ),
        (lambda: poisson(-1.0, 0.1, 2), "Expected noise_multiplier >= 0"),
        (lambda: poisson(1.0, 0.0, 2), "Expected 0 < sampling_prob <= 1"),
        (lambda: poisson(1.0, 0.1, 0), "Expected steps >= 1"),
        (
            lambda: accounting.calibrate(
                Sampled(0.1), steps=0, epsilon=1.0, delta=1e-3, relation=ADD
            ),
            "Expected steps >= 1",
        ),
        (
            lambda: accounting.calibrate(
                Sampled(0.1), steps=1, epsilon=math.inf, delta=1e-3, relation=ADD
            ),
            "Expected epsilon > 0",
        ),
        (
            lambda: accounting.calibrate(
                sampling.fixed_batch(10, batch_size=2),
                steps=1,
                epsilon=1.0,
                delta=1e-3,
                relation=ADD,
            ),
            "use sampling.poisson",
        ),
        (
            lambda: accounting.epsilon_curve(
                poisson(1.0, 0.1, 1), [3, -1], delta=1e-3, relation=ADD
            ),
            "Expected every count in steps >= 0, got -1",
        ),
        (
            lambda: accounting.max_steps(
                functools.partial(poisson, 1.0, 0.1),
                epsilon=1.0,
                delta=1e-3,
                relation=ADD,
                at_most=0,
            ),
            "Expected at_most >= 1",
        ),
    ],
)
def test_refuses_bad_input_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as info:
        call()
    assert "\n" not in str(info.value)


def test_the_warning_points_at_the_caller():
    """Runs in a new process, since the type checks of the tests insert stack frames."""
    code = (
        "import warnings; from jaxpriv import accounting, sampling;"
        "s = sampling.poisson(1000, sampling_prob=0.05);"
        "k = {'delta': 1e-3, 'relation': 'replace_one'};"
        "w = warnings.catch_warnings(record=True, action='always'); c = w.__enter__();"
        "accounting.epsilon(s.event(noise_multiplier=1.0, steps=1), **k);"
        "accounting.calibrate(s, steps=1, epsilon=1.0, **k);"
        "print([x.filename for x in c])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == str(["<string>"] * 2)


def test_importing_it_is_cheap():
    code = (
        "import sys, jaxpriv.accounting;"
        "print({'dp_accounting', 'scipy.stats', 'scipy.signal', 'sklearn'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_a_delta_curve_is_delta_where_it_is_accurate_and_never_below(relation):
    event = accounting.poisson_event(noise_multiplier=1.0, sampling_prob=0.1, steps=50)
    curve = accounting.delta_curve(event, epsilon=1.0, relation=relation)
    for epsilon in (0.0, 0.5, 1.0, 3.0):
        exact = accounting.delta(event, epsilon=epsilon, relation=relation)
        assert curve(epsilon) >= exact * (1 - 1e-6)
        assert curve(epsilon) == pytest.approx(exact, rel=1e-2)
