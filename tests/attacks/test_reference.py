"""Attacks R and P against slow loops, and their scales."""

import numpy as np
import pytest
from scipy import stats

from jaxpriv import metrics
from jaxpriv.attacks import reference


def slow_rank(s, values):
    """The normal score of one signal among k others, all different."""
    values, k = np.sort(values), len(values)
    z = stats.norm.ppf((np.arange(1, k + 1) - 0.5) / k)
    spread = np.std(values, ddof=1)
    if s < values[0]:
        return z[0] + (s - values[0]) / spread
    if s > values[-1]:
        return z[-1] + (s - values[-1]) / spread
    return np.interp(s, values, z)


def test_attack_r_is_the_slow_loop():
    rng = np.random.default_rng(0)
    is_member = rng.random((9, 200)) < 0.5
    is_member[:3] = False
    shadows, target = rng.normal(size=(9, 200)), 2 * rng.normal(size=200)
    scores = reference.attack_r(target, shadows, is_member)
    expected = [slow_rank(target[i], shadows[~is_member[:, i], i]) for i in range(200)]
    np.testing.assert_allclose(scores, expected, rtol=1e-9, atol=1e-12)


def test_attack_r_needs_no_in_signals_and_no_order_of_shadows():
    rng = np.random.default_rng(1)
    is_member = np.arange(8)[:, None] < np.full(50, 4)
    shadows, target = rng.normal(size=(8, 50)), rng.normal(size=50)
    other = np.where(is_member, 7.0, shadows)
    scores = reference.attack_r(np.clip(target, -3, 3), shadows, is_member)
    np.testing.assert_allclose(
        reference.attack_r(np.clip(target, -3, 3), other[::-1], is_member[::-1]), scores
    )


def test_equal_signals_take_the_middle_rank_and_no_shadow_is_no_evidence():
    never, always = np.zeros((4, 1), bool), np.ones((4, 1), bool)
    shadows = np.array([[1.0], [2.0], [2.0], [5.0]])
    assert reference.attack_r(np.array([2.0]), shadows, never) == pytest.approx(0.0)
    assert reference.attack_r(np.array([9.0]), np.full((4, 1), 9.0), never) == pytest.approx(0.0)
    assert reference.attack_r(np.array([2.0]), shadows, always) == 0
    infinite = np.array([np.inf, -np.inf, 0.0])
    scores = reference.attack_r(infinite, np.tile([[0.0], [1.0]], 3), np.zeros((2, 3), bool))
    assert np.isfinite(scores).all()


def test_members_are_found_and_exchangeable_records_are_not():
    rng = np.random.default_rng(2)
    level = 3 * rng.normal(size=4000)
    is_member = rng.random(4000) < 0.5
    never = np.zeros((16, 4000), bool)
    shadows = level + rng.normal(size=(16, 4000))
    target = level + rng.normal(size=4000)
    error = np.sqrt(1 / 12 * 2 / 2000)
    null = metrics.membership(reference.attack_r(target, shadows, never), is_member).auc
    assert abs(null - 0.5) < 4 * error
    moved = metrics.membership(reference.attack_r(target + is_member, shadows, never), is_member)
    assert moved.auc > 0.72  # a shift of one deviation, 0.76 if levels were given


def test_attack_p_is_the_share_of_the_population_below():
    rng = np.random.default_rng(3)
    target, population = rng.normal(size=50).round(1), rng.normal(size=30).round(1)
    expected = [(population < s).mean() for s in target]
    np.testing.assert_allclose(reference.attack_p(target, population), expected)


def test_the_scale_of_attack_p_is_the_false_positive_rate():
    rng = np.random.default_rng(4)
    scores = reference.attack_p(rng.normal(size=20_000), rng.normal(size=20_000))
    for fpr in (0.1, 0.01):
        assert (scores > 1 - fpr).mean() == pytest.approx(fpr, rel=4 * np.sqrt(2 / fpr / 20_000))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reference.attack_p(np.zeros(2), np.zeros(0)), "Expected a population"),
        (
            lambda: reference.attack_p(np.array([np.nan]), np.zeros(3)),
            "Expected signals without NaN",
        ),
        (
            lambda: reference.attack_r(
                np.array([np.nan]), np.zeros((2, 1)), np.zeros((2, 1), bool)
            ),
            "Expected signals without NaN",
        ),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(ValueError, match=message):
        call()
