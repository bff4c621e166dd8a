"""The blind attack: silent on exchangeable records, loud on shifted ones."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxpriv import metrics
from jaxpriv.attacks import blind
from tests import oracles


def drawn(seed, n, *shape):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, *shape)), rng.random(n) < 0.5


def auc(x, is_member, *, seed=0, folds=3):
    scores = blind.score_records(np.random.default_rng(seed), x, is_member, folds=folds)
    assert np.isfinite(scores).all()
    return metrics.membership(scores, is_member).auc


@pytest.mark.parametrize("shape", [(3,), (6, 7), (400,)])
def test_exchangeable_records_reveal_nothing(shape):
    x, is_member = drawn(0, 600, *shape)
    assert abs(auc(x, is_member) - 0.5) < 4 * math.sqrt(1 / 12 * (4 / 600))


@pytest.mark.parametrize("gap", [0.5, 1.0, 4.0])
def test_a_shifted_mean_is_found_as_well_as_can_be(gap):
    x, is_member = drawn(1, 2000, 5)
    x[is_member, 2] += gap
    best = stats.norm.cdf(gap / math.sqrt(2))
    error = math.sqrt(best * (1 - best) / 1000)
    assert best - 0.03 - 4 * error < auc(x, is_member) < best + 4 * error


def test_a_changed_spread_is_found():
    x, is_member = drawn(2, 2000, 5)
    x[is_member, 2] *= 2
    # |N(0, 2)| against |N(0, 1)|: P[|2 Z| > |Z'|] = (2 / pi) arctan 2.
    assert auc(x, is_member) == pytest.approx(2 / math.pi * math.atan(2), abs=0.04)


def test_a_changed_correlation_is_found():
    x, is_member = drawn(3, 2000, 5)
    x[is_member, 1] = 0.8 * x[is_member, 0] + 0.6 * x[is_member, 1]
    assert auc(x, is_member) > 0.65


def test_one_brighter_pixel_in_many_is_found():
    x, is_member = drawn(4, 1500, 12, 12)
    x[is_member, 3, 4] += 2.0
    assert auc(x, is_member) > 0.85


def test_one_noisier_pixel_in_many_is_found():
    x, is_member = drawn(7, 1500, 12, 12)
    x[is_member, 3, 4] *= 4.0
    assert auc(x, is_member) > 0.62


def test_equal_generators_give_equal_scores():
    x, is_member = drawn(5, 300, 4)
    first, again, other = (
        blind.score_records(np.random.default_rng(seed), x, is_member) for seed in (0, 0, 1)
    )
    assert (first == again).all()
    assert not (first == other).all()


def test_no_record_is_scored_by_a_model_that_saw_it():
    """Unique columns would give every record away, if it were in the training folds."""
    is_member = np.arange(60) % 2 == 0
    assert auc(np.eye(60), is_member, folds=5) < 0.7


def test_inputs_that_never_vary_are_no_evidence():
    assert auc(np.ones((40, 3)), np.arange(40) % 2) == 0.5


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_small_floats_and_integers_of_membership_are_taken(dtype):
    x, is_member = drawn(6, 100, 3)
    small = jnp.asarray(x, dtype)
    exact = np.asarray(small).astype(np.float64)
    assert auc(small, jnp.asarray(is_member, jnp.int32)) == auc(exact, is_member)


BAD = {
    "nan": ({"x": np.full((6, 2), np.nan)}, "x without NaN, got 12 NaN"),
    "inf": ({"x": np.full((6, 2), np.inf)}, "finite x, got 12 infinite"),
    "one class": ({"is_member": np.ones(6, int)}, "2 <= folds <= members and non-members"),
    "numbers": ({"is_member": np.full(6, 2)}, "only 0 and 1 in is_member"),
    "folds": ({"folds": 1}, "2 <= folds <= members and non-members, got folds=1, 3 and 3"),
    "many folds": ({"folds": 4}, "2 <= folds <= members and non-members, got folds=4, 3 and 3"),
    "length": ({"is_member": np.arange(5) % 2}, "equal lengths"),
}


@pytest.mark.parametrize("case", BAD)
def test_refuses_in_one_line(case):
    change, message = BAD[case]
    good = {"x": np.zeros((6, 2)), "is_member": np.arange(6) % 2, "folds": 2}
    with pytest.raises(ValueError, match=rf"^Expected {message}[^\n]*\.$"):
        oracles.unhooked(blind.score_records)(np.random.default_rng(0), **(good | change))


def test_records_of_one_household_do_not_betray_each_other():
    """Membership goes by households that shop alike: nothing to find, unless folds cut them."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(150), 8)
    x = rng.normal(size=(150, 12))[group] + 0.3 * rng.normal(size=(1200, 12))
    is_member = (rng.random(150) < 0.5)[group]
    cut = blind.score_records(np.random.default_rng(1), x, is_member)
    scores = blind.score_records(np.random.default_rng(1), x, is_member, group=group)
    # 150 independent households: standard error 0.048.
    assert abs(metrics.membership(scores, is_member, confidence=0.95).auc - 0.5) < 0.15
    assert metrics.membership(cut, is_member, confidence=0.95).auc > 0.7
    with pytest.raises(ValueError, match="Expected at least 5 groups, got 1"):
        blind.score_records(np.random.default_rng(1), x, is_member, group=0 * group)


@pytest.mark.parametrize(("offset", "unit"), [(1.7e9, 0.1), (0.0, 1e39), (0.0, 1e-50)])
def test_numbers_that_float32_cannot_represent_are_found(offset, unit):
    """Members are the first of 200 entries in time: Unix seconds, and numbers of any size."""
    x = offset + unit * np.arange(200.0)[:, None]
    assert auc(x, np.arange(200) < 100) > 0.99


def test_a_new_category_does_not_get_a_score_of_rounding():
    """Six records have a category of their own, along which the training folds have no variance."""
    rng = np.random.default_rng(0)
    category = np.append(np.arange(20, 26), rng.integers(8, size=294))
    x = np.concatenate([np.eye(26)[category], np.eye(5)[rng.integers(5, size=300)]], axis=1)
    assert np.abs(blind.score_records(rng, x, rng.random(300) < 0.5)).max() < 10


def test_groups_on_one_side_of_a_training_fold_are_refused_in_one_line():
    group = np.repeat([0, 1, 2], [100, 60, 40])  # all members are one group
    with pytest.raises(ValueError, match=r"^Expected groups of members and of [^\n]*members\.$"):
        blind.score_records(
            np.random.default_rng(0), np.zeros((200, 2)), np.arange(200) < 100, folds=3, group=group
        )
