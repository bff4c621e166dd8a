"""Accuracy of deciding attacks against their definitions, and the gap baseline."""

import math

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from jaxpriv import metrics


def test_attack_accuracy_is_the_pooled_mean_of_h_and_one_minus_h():
    h, is_member = np.array([0.9, 0.5, 0.2, 0.7]), np.array([1, 1, 0, 0])
    result = metrics.attack_accuracy(h, is_member)
    assert result.expected == pytest.approx((0.9 + 0.5 + 0.8 + 0.3) / 4)
    assert result.at_half == sklearn_metrics.accuracy_score(is_member, h > 0.5) == 0.5
    for constant in (0.0, 0.3, 0.5, 1.0):
        assert metrics.attack_accuracy(np.full(4, constant), is_member) == (0.5, 0.5)
    assert metrics.attack_accuracy(is_member, is_member) == (1.0, 1.0)
    order = np.array([2, 0, 3, 1])
    assert metrics.attack_accuracy(h[order, None], is_member[order]) == result


def test_attack_accuracy_is_how_often_a_random_guess_is_right():
    rng = np.random.default_rng(0)
    h, is_member = rng.random(100), np.arange(100) < 50
    right = (rng.random((4000, 100)) < h) == is_member
    error = math.sqrt((h * (1 - h)).sum()) / 100 / math.sqrt(4000)
    expected = metrics.attack_accuracy(h, is_member).expected
    assert abs(right.mean() - expected) < 4 * error
    assert abs(right[:, is_member].mean() - expected) > 4 * error


@pytest.mark.parametrize(
    ("h", "is_member", "message"),
    [
        ([0.5, 0.5, 0.1], [1, 1, 0], "Expected equally many members and non-members, got 2 and 1"),
        ([1.5, 0.5], [1, 0], r"Expected every member_prob in \[0, 1\], got 1.5"),
        ([0.5, -0.5], [1, 0], r"Expected every member_prob in \[0, 1\], got -0.5"),
        ([0.5, np.nan], [1, 0], "Expected scores without NaN"),
    ],
)
def test_attack_accuracy_refuses_in_one_line(h, is_member, message):
    with pytest.raises(ValueError, match=rf"^{message}[^\n]*\.$"):
        metrics.attack_accuracy(np.array(h), np.array(is_member))


def test_the_gap_baseline_is_the_balanced_accuracy_of_the_correctness_attack():
    rng = np.random.default_rng(1)
    is_member = np.arange(1000) < 600
    correct = rng.random(1000) < np.where(is_member, 0.95, 0.7)
    baseline = metrics.gap_baseline(
        train_accuracy=float(correct[is_member].mean()),
        test_accuracy=float(correct[~is_member].mean()),
    )
    assert baseline == pytest.approx(sklearn_metrics.balanced_accuracy_score(is_member, correct))
    assert baseline == pytest.approx(metrics.membership(correct, is_member).balanced_accuracy)
    assert metrics.gap_baseline(train_accuracy=0.8, test_accuracy=0.9) == pytest.approx(0.45)
    for train, test in ((1.1, 0.5), (0.5, -0.1), (math.nan, 0.5)):
        with pytest.raises(ValueError, match=r"^Expected 0 <= t\w+_accuracy <= 1, got"):
            metrics.gap_baseline(train_accuracy=train, test_accuracy=test)
