"""The forest attack finds what depends on membership, and nothing else."""

import numpy as np
import pytest

from jaxpriv import metrics
from jaxpriv.attacks import forest


def outputs(rng, is_member, lift):
    """Probabilities in three classes: members are surer of their label by `lift`."""
    labels = rng.integers(3, size=len(is_member))
    logits = rng.normal(size=(len(is_member), 3))
    logits[np.arange(len(labels)), labels] += 1 + lift * is_member
    p = np.exp(logits)
    return p / p.sum(axis=1, keepdims=True), labels


@pytest.mark.parametrize(("lift", "low", "high"), [(2.0, 0.7, 1.0), (0.0, 0.4, 0.6)])
def test_members_are_found_only_where_outputs_differ(lift, low, high):
    rng = np.random.default_rng(0)
    known, fresh = rng.random(600) < 0.3, rng.random(600) < 0.5
    fitted = forest.fit(rng, *outputs(rng, known, lift), known)
    scores = forest.apply(fitted, *outputs(rng, fresh, lift))
    assert np.isfinite(scores).all()
    assert low < metrics.membership(scores, fresh).auc < high


def test_equal_generators_give_equal_scores():
    is_member = np.arange(100) % 2 == 0
    p, labels = outputs(np.random.default_rng(1), is_member, 1.0)
    first, again = (
        forest.apply(forest.fit(np.random.default_rng(2), p, labels, is_member), p, labels)
        for _ in range(2)
    )
    assert (first == again).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_member": np.ones(20, bool)}, "Expected members and non-members, got 20 and 0"),
        ({"labels": np.full(20, 2)}, "label"),
        ({"probabilities": np.full((20, 2), np.nan)}, "Expected probabilities without NaN"),
    ],
)
def test_bad_input_is_one_line(change, message):
    good = {
        "probabilities": np.full((20, 2), 0.5),
        "labels": np.zeros(20, int),
        "is_member": np.arange(20) < 10,
    }
    with pytest.raises(ValueError, match=message):
        forest.fit(np.random.default_rng(0), **(good | change))
