"""ROC curves and their summaries, compared with scikit-learn and closed forms."""

import json
import math
import subprocess
import sys
import warnings

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sklearn_metrics

from jaxpriv import metrics
from jaxpriv.metrics import intervals, roc

rows = st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=60).filter(
    lambda drawn: len({member for _, member in drawn}) == 2
)
CALLS = [
    metrics.membership,
    metrics.roc_curve,
    lambda s, y: metrics.at_fpr(s, y, fpr=0.1),
    lambda s, y: metrics.at_threshold(s, y, threshold=0.5, confidence=0.9),
]


def arrays(drawn):
    return np.array([s for s, _ in drawn], float), np.array([member for _, member in drawn])


def noise(seed, members, nonmembers, shift=0.0):
    is_member = np.arange(members + nonmembers) < members
    return np.random.default_rng(seed).normal(size=is_member.size) + shift * is_member, is_member


@given(rows)
def test_the_curve_is_scikit_learns(drawn):
    scores, is_member = arrays(drawn)
    expected = sklearn_metrics.roc_curve(is_member, scores, drop_intermediate=False)
    for result, reference in zip(metrics.roc_curve(scores, is_member), expected, strict=True):
        np.testing.assert_allclose(result, reference, rtol=1e-12)


@given(rows)
def test_the_summary_is_scikit_learns(drawn):
    scores, is_member = arrays(drawn)
    result = metrics.membership(scores, is_member)
    assert result.auc == pytest.approx(sklearn_metrics.roc_auc_score(is_member, scores), abs=1e-12)
    best = max(
        sklearn_metrics.balanced_accuracy_score(is_member, scores > t) for t in [*scores, -math.inf]
    )
    assert result.balanced_accuracy == pytest.approx(best)
    assert result.advantage == pytest.approx(2 * best - 1)


@given(rows, st.randoms(use_true_random=False))
def test_the_order_of_rows_never_matters(drawn, random):
    plain = metrics.membership(*arrays(drawn))
    random.shuffle(drawn)
    assert metrics.membership(*arrays(drawn)) == plain


@given(rows)
def test_flipped_scores_give_the_complement(drawn):
    scores, is_member = arrays(drawn)
    flipped = metrics.membership(-scores, is_member).auc
    assert flipped == pytest.approx(1 - metrics.membership(scores, is_member).auc, abs=1e-12)


@given(rows, st.floats(0.001, 0.999))
def test_at_fpr_keeps_its_promise_and_no_other_threshold_beats_it(drawn, fpr):
    scores, is_member = arrays(drawn)
    point = metrics.at_fpr(scores, is_member, fpr=fpr)
    said = scores > point.threshold
    assert point.achieved_fpr == said[~is_member].mean() <= fpr
    assert point.tpr == said[is_member].mean()
    assert point.tpr_interval_at_threshold[0] <= point.tpr <= point.tpr_interval_at_threshold[1]
    curve = metrics.roc_curve(scores, is_member)
    assert point.tpr == curve.tpr[curve.fpr <= fpr].max()


@pytest.mark.parametrize("labels", [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 0, 1]])
@pytest.mark.parametrize("scores", [[9, 9, 5, 5], [3, 3, 3, 3], [-np.inf] * 4, [np.inf] * 4])
def test_ties_and_constants_give_one_half(scores, labels):
    scores, is_member = np.array(scores, float), np.array(labels)
    result = metrics.membership(scores, is_member)
    assert result.auc == 0.5
    assert result.balanced_accuracy == 0.5
    assert result.advantage == 0.0


def test_a_constant_is_one_step():
    curve = metrics.roc_curve(np.ones(5), np.array([1, 0, 0, 1, 1]))
    assert curve.fpr.tolist() == curve.tpr.tolist() == [0.0, 1.0]
    assert curve.thresholds.tolist() == [np.inf, 1.0]


def test_infinite_scores_rank_at_the_ends():
    scores = np.array([np.inf, 1.0, -np.inf, -1.0, -np.inf, np.inf])
    ranked = np.array([9.0, 1.0, -9.0, -1.0, -9.0, 9.0])
    is_member = np.array([1, 1, 1, 0, 0, 0])
    assert metrics.membership(scores, is_member) == metrics.membership(ranked, is_member)
    point = metrics.at_fpr(scores, is_member, fpr=0.01)
    assert (point.threshold, point.achieved_fpr, point.tpr) == (np.inf, 0.0, 0.0)


def test_an_outlier_counts_as_one_record():
    scores, is_member = noise(0, 50, 50)
    scores[0] = scores.max() + 1
    plain = metrics.membership(scores, is_member)
    scores[0] = 1e30
    assert metrics.membership(scores, is_member) == plain


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.int32])
@pytest.mark.parametrize("label_type", [bool, np.int8, np.uint8, np.int64, np.float32])
def test_every_type_converts_exactly(dtype, label_type):
    scores = (8 * noise(1, 30, 20, shift=0.5)[0]).astype(dtype)
    is_member = (np.arange(50) < 30).astype(label_type)
    exact = metrics.membership(scores.astype(np.float64), np.arange(50) < 30)
    assert metrics.membership(scores, is_member) == exact
    assert metrics.membership(jnp.asarray(scores), jnp.asarray(is_member)) == exact


def test_columns_are_squeezed():
    scores, is_member = noise(2, 30, 20)
    plain = metrics.membership(scores, is_member)
    assert metrics.membership(scores[:, None], is_member) == plain
    assert metrics.membership(scores, is_member[:, None]) == plain
    assert metrics.membership(scores[:, None], is_member[:, None]) == plain
    assert (plain.num_members, plain.num_nonmembers) == (30, 20)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("scores", "is_member", "message"),
    [
        ([1.0, np.nan], [0, 1], "Expected scores without NaN, got 1 NaN"),
        ([1.0, 2.0], [1, 1], "Expected members and non-members, got 2 and 0"),
        ([1.0, 2.0], [False, False], "Expected members and non-members, got 0 and 2"),
        ([1.0, 2.0], [1, 0, 1], "Expected equal lengths, got len.scores.=2, len.is_member.=3"),
        ([], [], "Expected at least one score"),
        ([1.0, 2.0], [-1, 1], "Expected only 0 and 1 in is_member, got -1"),
        ([1.0, 2.0], [0.5, 1], "Expected only 0 and 1 in is_member, got 0.5"),
        ([[1.0, 2.0]], [0, 1], r"Expected scores of shape \[n\] or \[n, 1\], got \[1, 2\]"),
        (1.0, [0, 1], r"Expected scores of shape \[n\] or \[n, 1\], got \[\]"),
        ([1j, 2.0], [0, 1], "Expected real numbers in scores, got complex128"),
        (["1", "2"], [0, 1], "Expected real numbers in scores, got <U1"),
    ],
)
def test_refuses_in_one_line(call, scores, is_member, message):
    with pytest.raises(ValueError, match=rf"^{message}[^\n]*\.$"):
        call(np.array(scores), np.array(is_member))


def test_refuses_nan_in_every_float_type():
    for dtype in (jnp.float16, jnp.bfloat16, jnp.float32):
        with pytest.raises(ValueError, match="without NaN"):
            metrics.membership(jnp.array([np.nan, 1.0], dtype), jnp.array([0, 1]))


@pytest.mark.parametrize("fpr", [0.0, 1.0, -0.1, math.nan])
def test_refuses_a_rate_outside_the_unit_interval(fpr):
    with pytest.raises(ValueError, match="Expected 0 < fpr < 1"):
        metrics.at_fpr(np.arange(2.0), np.array([0, 1]), fpr=fpr)
    with pytest.raises(ValueError, match="Expected 0 < confidence < 1"):
        metrics.membership(np.arange(2.0), np.array([0, 1]), confidence=1.5)


@pytest.mark.parametrize(
    ("nonmembers", "given", "coarse"),
    [
        (99, [], ()),
        (100, ["0.01"], ("0.01",)),
        (999, ["0.01"], ("0.01",)),
        (1000, ["0.01", "0.001"], ("0.001",)),
        (10_000, ["0.01", "0.001", "0.0001"], ("0.0001",)),
    ],
)
def test_low_rates_are_none_or_coarse_where_the_non_members_are_few(nonmembers, given, coarse):
    result = metrics.membership(*noise(3, 50, nonmembers, shift=1.0))
    assert list(result.tpr_at_fpr) == list(result.tpr_interval_at_threshold) == list(roc.LOW_FPRS)
    assert [key for key, value in result.tpr_at_fpr.items() if value is not None] == given
    assert [
        key for key, value in result.tpr_interval_at_threshold.items() if value is not None
    ] == given
    assert result.coarse == coarse


def test_membership_reads_the_curve_at_its_keys():
    scores, is_member = noise(4, 400, 2000, shift=2.0)
    result = metrics.membership(scores, is_member, confidence=0.8)
    for key in ("0.01", "0.001"):
        point = metrics.at_fpr(scores, is_member, fpr=float(key), confidence=0.8)
        assert result.tpr_at_fpr[key] == point.tpr
        assert result.tpr_interval_at_threshold[key] == point.tpr_interval_at_threshold
        hits = round(400 * point.tpr)
        assert point.tpr_interval_at_threshold == intervals.clopper_pearson(
            hits, 400, confidence=0.8
        )
    assert result.auc_interval == intervals.delong(scores, is_member, confidence=0.8)[1:]
    assert result.confidence == 0.8


@pytest.mark.parametrize(
    ("nonmembers", "fpr", "allowed"), [(100, 0.29, 29), (100, 0.07, 7), (3, 0.3, 0)]
)
def test_rates_that_round_badly_allow_the_right_count(nonmembers, fpr, allowed):
    scores = np.append(np.arange(float(nonmembers)), 1e9)
    point = metrics.at_fpr(scores, scores == 1e9, fpr=fpr)
    assert point.achieved_fpr == allowed / nonmembers
    assert point.resolvable == (allowed >= 1)
    assert point.coarse == (allowed < 10)


def test_noise_has_the_stated_optimism():
    stated = 0.63 * math.sqrt(1 / 400 + 1 / 400)
    advantages = [metrics.membership(*noise(s, 400, 400)).advantage for s in range(200)]
    error = np.std(advantages) / math.sqrt(200)
    # The discrete curve falls short of its limit by about 0.6 of one record.
    assert abs(np.mean(advantages) - stated) < 4 * error + 1 / 400


@given(rows, st.sampled_from([-5.0, -1.0, 0.0, 0.5, 4.0, np.inf, -np.inf]))
def test_a_fixed_threshold_has_scikit_learns_confusion_and_scipys_intervals(drawn, threshold):
    scores, is_member = arrays(drawn)
    rates = metrics.at_threshold(scores, is_member, threshold=threshold, confidence=0.9)
    table = sklearn_metrics.confusion_matrix(is_member, scores > threshold, labels=[False, True])
    (true_negatives, alarms), (misses, hits) = table.tolist()
    assert rates.tpr == hits / (hits + misses)
    assert rates.fpr == alarms / (alarms + true_negatives)
    for count, total, result in (
        (hits, hits + misses, rates.tpr_interval),
        (alarms, alarms + true_negatives, rates.fpr_interval),
    ):
        expected = stats.binomtest(count, total).proportion_ci(0.9, "exact")
        np.testing.assert_allclose(result, (expected.low, expected.high), rtol=1e-8, atol=1e-12)


def test_a_threshold_is_a_number():
    with pytest.raises(ValueError, match="Expected a number for threshold, got NaN"):
        metrics.at_threshold(np.arange(2.0), np.array([0, 1]), threshold=math.nan, confidence=0.9)


def test_the_auc_interval_covers_one_half_where_nothing_leaks():
    rng, hits = np.random.default_rng(20261128), 0
    for _ in range(1000):
        scores, is_member = rng.normal(size=300), rng.permutation(300) < 120
        lower, upper = intervals.delong(scores, is_member, confidence=0.95)[1:]
        hits += lower <= 0.5 <= upper
    assert 930 <= hits <= 970


def test_the_summary_is_ready_for_json():
    result = metrics.membership(*noise(5, 120, 300, shift=1.0))
    read = json.loads(json.dumps(result._asdict(), allow_nan=False))
    assert read["auc"] == result.auc
    assert read["tpr_at_fpr"]["0.001"] is None
    assert read["coarse"] == ["0.01"]


def test_importing_is_light_and_measuring_is_silent():
    code = "import sys, jaxpriv.metrics; print({'scipy.stats', 'sklearn'} & set(sys.modules))"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "set()"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics.membership(np.array([np.inf, -np.inf, 1e308, -1e308]), np.array([0, 1, 1, 0]))


def draw_shifted(rng, auc, size):
    """Gaussian scores of members and non-members with this AUC."""
    shift = stats.norm.ppf(auc) * math.sqrt(2)
    is_member = np.arange(2 * size) < size
    return rng.normal(size=2 * size) + shift * is_member, is_member, shift


@pytest.mark.parametrize("draws", [40, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fpr", [0.1, 0.01, 0.001])
@pytest.mark.parametrize("auc", [0.5, 0.7, 0.95])
def test_the_interval_at_the_fpr_covers_the_tpr_of_the_population(auc, fpr, draws):
    rng, covered, lower_ends = np.random.default_rng(0), 0, []
    for _ in range(draws):
        scores, is_member, shift = draw_shifted(rng, auc, 1000)
        low, high = roc.at_fpr(scores, is_member, fpr=fpr).tpr_interval_at_fpr
        covered += low <= stats.norm.sf(stats.norm.isf(fpr) - shift) <= high
        lower_ends.append(low)
    # At 95 % coverage fewer have probability 1e-3.
    assert covered >= stats.binom.ppf(1e-3, draws, 0.95)
    if draws == 500:
        assert covered / draws >= 0.95
    # With 1,000 non-members no order statistic has an FPR below 0.1 % with enough confidence.
    assert (max(lower_ends) == 0) == (fpr == 0.001)


def test_the_interval_at_the_fpr_is_wider_than_the_one_at_the_threshold():
    scores, is_member, _ = draw_shifted(np.random.default_rng(1), 0.9, 1000)
    point = roc.at_fpr(scores, is_member, fpr=0.05)
    (low, high), (narrow_low, narrow_high) = (
        point.tpr_interval_at_fpr,
        point.tpr_interval_at_threshold,
    )
    assert low < narrow_low < narrow_high < high


def test_the_interval_at_the_fpr_follows_the_beta_law_of_order_statistics():
    scores, is_member, _ = draw_shifted(np.random.default_rng(2), 0.8, 300)
    members, nonmembers = np.sort(scores[is_member]), np.sort(scores[~is_member])
    error, fpr = 0.05 / 4, 0.1
    above = next(k for k in range(1, 301) if stats.beta.cdf(1 - fpr, k, 301 - k) <= error)
    below = [k for k in range(1, 301) if stats.beta.cdf(1 - fpr, k, 301 - k) >= 1 - error][-1]
    hits = [int((members > nonmembers[k - 1]).sum()) for k in (above, below)]
    expected = (
        stats.beta.ppf(error, hits[0], 301 - hits[0]),
        stats.beta.ppf(1 - error, hits[1] + 1, 300 - hits[1]),
    )
    found = roc.at_fpr(scores, is_member, fpr=fpr).tpr_interval_at_fpr
    assert found == pytest.approx(expected, rel=1e-9)


def test_too_few_nonmembers_leave_the_interval_at_the_fpr_open():
    scores, is_member = np.array([1.0, 2.0, 3.0, 0.5]), np.array([1, 1, 1, 0])
    low, high = roc.at_fpr(scores, is_member, fpr=0.1).tpr_interval_at_fpr
    assert (low, high) == (0.0, 1.0)
