import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from jaxpriv import audit
from jaxpriv.accounting import gaussian
from jaxpriv.audit import bounds, independent_runs, one_run
from tests import oracles

DESIGNS = ("independent_runs", "one_run")
KEYS_BY_DESIGN = {
    "independent_runs": ("clopper_pearson", "gdp"),
    "one_run": ("one_run", "one_run_fdp"),
}
MODULES = {"independent_runs": independent_runs, "one_run": one_run}


def lower_bounds(scores, is_member, design, *, delta=1e-5, relation="add_or_remove_one"):
    return audit.lower_bounds(
        scores, is_member, design=design, delta=delta, relation=relation, confidence=0.95
    )


def draw(seed=0, size=400, mu=2.0):
    rng = np.random.default_rng(seed)
    is_member = rng.random(size) < 0.5
    return rng.normal(mu * is_member), is_member


@pytest.mark.parametrize("design", DESIGNS)
def test_the_design_chooses_the_family_and_the_other_is_none_with_its_reason(design):
    scores, is_member = draw()
    result = lower_bounds(scores, is_member, design)
    assumption_free, gaussian_key = KEYS_BY_DESIGN[design]
    module = MODULES[design]
    # Nine tenths of the error are for the declared orientation.
    assert getattr(result, assumption_free) == module.epsilon_of_scores(
        scores, is_member, delta=1e-5, confidence=1 - 0.9 * (1 - 0.95)
    )
    mu = module.mu_of_scores(scores, is_member, confidence=1 - 0.9 * (1 - 0.95))
    assert result.mu[gaussian_key] == mu > 0
    assert getattr(result, gaussian_key) == pytest.approx(gaussian.epsilon(1e-5, mu=mu))
    other_keys = set(bounds.KEYS) - set(KEYS_BY_DESIGN[design])
    assert set(result.not_applicable) == other_keys
    assert all(getattr(result, key) is None for key in other_keys)
    assert (result.confidence, result.delta, result.design) == (0.95, 1e-5, design)
    json.dumps(result._asdict(), allow_nan=False)


@pytest.mark.parametrize("design", DESIGNS)
def test_at_delta_0_a_gaussian_has_a_mu_but_no_epsilon(design):
    result = lower_bounds(*draw(), design, delta=0.0)
    assumption_free, gaussian_key = KEYS_BY_DESIGN[design]
    assert getattr(result, assumption_free) > 0
    assert getattr(result, gaussian_key) is None
    assert result.mu[gaussian_key] > 0
    assert "delta 0" in result.not_applicable[gaussian_key]


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_scores_that_prove_nothing_give_zeros(design, delta):
    is_member = np.arange(200) < 100
    for scores in (np.zeros(200), np.full(200, np.inf), np.where(np.arange(200) % 2, -1.0, 1.0)):
        result = lower_bounds(scores, is_member, design, delta=delta)
        assert [getattr(result, key) for key in KEYS_BY_DESIGN[design]] == [0, 0]


@pytest.mark.parametrize("design", DESIGNS)
def test_reversed_scores_pay_for_their_orientation(design):
    scores, is_member = draw()
    assumption_free, gaussian_key = KEYS_BY_DESIGN[design]
    right, wrong = lower_bounds(scores, is_member, design), lower_bounds(-scores, is_member, design)
    assert 0 < getattr(wrong, assumption_free) < getattr(right, assumption_free)
    assert 0 < wrong.mu[gaussian_key] < right.mu[gaussian_key]
    alone = MODULES[design].epsilon_of_scores(
        scores, is_member, delta=1e-5, confidence=1 - 0.1 * (1 - 0.95)
    )
    assert getattr(wrong, assumption_free) == alone


def test_a_true_positive_rate_of_at_most_delta_proves_nothing():
    result = lower_bounds(*draw(mu=4.0), "independent_runs", delta=0.999)
    assert result.clopper_pearson == 0


def test_one_run_states_where_delta_leaves_nothing_to_prove():
    """(0, delta)-DP allows to reveal all canaries with probability delta."""
    scores, is_member = draw(mu=4.0)
    result = lower_bounds(scores, is_member, "one_run", delta=0.1)
    assert result.one_run is None
    assert result.not_applicable["one_run"].startswith("at delta=0.1 ")
    assert lower_bounds(scores, is_member, "independent_runs", delta=0.1).clopper_pearson > 1
    assert lower_bounds(scores, is_member, "one_run", delta=1e-6).one_run > 0


def test_the_bounds_that_assume_a_gaussian_say_so():
    for design, key in (("independent_runs", "gdp"), ("one_run", "one_run_fdp")):
        result = lower_bounds(*draw(mu=2.0), design, delta=1e-5)
        assert list(result.assumptions) == [key]


def test_the_relation_is_reported_and_never_scales_a_bound():
    scores, is_member = draw()
    both = [lower_bounds(scores, is_member, "one_run", relation=r) for r in bounds.RELATIONS]
    assert both[0].one_run == both[1].one_run
    assert both[0].meaning != both[1].meaning
    assert "added or left out" in both[0].meaning
    assert "exchanged for another record" in both[1].meaning
    assert "does not hold for replace_one where it was added" in both[1].meaning


def test_perfect_separation_is_near_the_ceilings():
    is_member = np.arange(2000) < 1000
    scores = 1.0 * is_member
    result = lower_bounds(
        scores + np.linspace(0, 0.1, 2000), is_member, "independent_runs", delta=0.0
    )
    assert 0.85 * 5.60059 < result.clopper_pearson < 5.60059
    assert 0.9 * 5.359823 < result.mu["gdp"] < 5.359823
    result = lower_bounds(scores[500:1500], is_member[500:1500], "one_run", delta=0.0)
    assert 0.85 * 5.80907 < result.one_run < 5.80907


@given(
    npst.arrays(np.float64, st.integers(2, 40), elements=st.floats(allow_nan=False)),
    st.sampled_from(DESIGNS),
    st.sampled_from([0.0, 1e-300, 1e-5, 0.3, 0.999]),
    st.data(),
)
def test_no_bound_is_ever_negative_infinite_or_nan(scores, design, delta, data):
    is_member = data.draw(npst.arrays(bool, scores.shape))
    is_member[:2] = [True, False]
    is_member[2::4], is_member[3::4] = True, False
    result = lower_bounds(scores, is_member, design, delta=delta)
    for key in bounds.KEYS:
        value = getattr(result, key)
        assert (value is None) == (key in result.not_applicable)
        assert value is None or 0 <= value < math.inf


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64])
def test_scores_of_any_type_and_labels_of_0_and_1(dtype):
    scores, is_member = draw()
    scores = np.round(4 * scores).astype(dtype)
    result = lower_bounds(scores, is_member.astype(np.uint8), "one_run")
    assert result == lower_bounds(scores.astype(np.float64), is_member, "one_run")


ONE_CLASS = np.ones(50)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: lower_bounds(np.arange(50.0), ONE_CLASS, "one_run"),
            "Expected members and non-members, got 50 and 0.",
        ),
        (
            lambda: lower_bounds(np.arange(50.0), 0 * ONE_CLASS, "independent_runs"),
            "Expected members and non-members, got 0 and 50.",
        ),
        (
            lambda: lower_bounds(np.ones(1), np.ones(1), "one_run"),
            "Expected members and non-members, got 1 and 0.",
        ),
        (
            lambda: lower_bounds(np.arange(90.0), np.arange(90) < 80, "one_run"),
            "Expected fair coins, got 80 members of 90 canaries; without coins",
        ),
        (
            lambda: lower_bounds(np.arange(3.0), np.array([0, 1, 2]), "one_run"),
            "Expected only 0 and 1 in is_member, got 2.",
        ),
        (lambda: lower_bounds(np.array([np.nan, 1]), np.arange(2), "one_run"), "without NaN"),
        (lambda: lower_bounds(np.arange(3.0), np.arange(2), "one_run"), "Expected equal lengths"),
        (lambda: lower_bounds(*draw(), "one_run", delta=1.0), "Expected 0 <= delta < 1"),
        (lambda: lower_bounds(*draw(), "one_run", delta=-0.1), "Expected 0 <= delta < 1"),
        (
            lambda: oracles.unhooked(audit.lower_bounds)(
                *draw(), design="two", delta=0.0, relation="replace_one", confidence=0.95
            ),
            "Expected design to be one of independent_runs, one_run, got 'two'.",
        ),
        (
            lambda: oracles.unhooked(audit.lower_bounds)(
                *draw(), design="one_run", delta=0.0, relation="swap", confidence=0.95
            ),
            "Expected relation to be one of add_or_remove_one, replace_one, got 'swap'.",
        ),
        (
            lambda: audit.lower_bounds(
                *draw(), design="one_run", delta=0.0, relation="replace_one", confidence=1.0
            ),
            "Expected 0 < confidence < 1, got confidence=1.0.",
        ),
    ],
)
def test_refuses_bad_input_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as info:
        call()
    assert "\n" not in str(info.value)
