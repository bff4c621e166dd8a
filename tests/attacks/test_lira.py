"""LiRA against a slow loop, closed forms, the null, and scores that break naive Gaussians."""

import math

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import optimize, special, stats

from jaxpriv import metrics
from jaxpriv.attacks import lira

VARIANCES = ["shrunken", "fixed", "per_example"]
pytestmark = pytest.mark.filterwarnings("ignore:variance=.per_example. is estimated")

ATTACKS = [lira.online, lira.offline, lira.offline_density]
OFFLINE = [lira.offline, lira.offline_density]
wild = st.one_of(
    st.floats(-5, 5),
    st.sampled_from([0.1, np.inf, -np.inf, 1e30, -1e30, 1.7e308, -1.7e308, 5e-324, 1e-200]),
)


def slow_online(scores, shadow_scores, shadow_is_member, *, variance):
    """Algorithm 1, one record at a time; every record has two shadows on either side."""
    sides = [
        [shadow_scores[mask[:, i], i] for i in range(len(scores))]
        for mask in (shadow_is_member, ~shadow_is_member)
    ]
    likelihoods = []
    for side in sides:
        squares = sum(((signals - signals.mean()) ** 2).sum() for signals in side)
        pooled = squares / (sum(map(len, side)) - len(side))
        variances = [pooled if variance == "fixed" else signals.var(ddof=1) for signals in side]
        likelihoods.append(
            [
                stats.norm.logpdf(s, signals.mean(), math.sqrt(v))
                for s, signals, v in zip(scores, side, variances, strict=True)
            ]
        )
    return np.subtract(*likelihoods)


def slow_offline(attack, scores, shadow_scores, shadow_is_member, *, variance):
    """One record at a time; every record has two OUT shadows."""
    out_signals = [shadow_scores[~shadow_is_member[:, i], i] for i in range(len(scores))]
    squares = sum(((signals - signals.mean()) ** 2).sum() for signals in out_signals)
    pooled = squares / (sum(map(len, out_signals)) - len(out_signals))
    variances = [pooled if variance == "fixed" else signals.var(ddof=1) for signals in out_signals]
    score = {lira.offline: stats.norm.logcdf, lira.offline_density: stats.norm.logpdf}[attack]
    sign = 1 if attack is lira.offline else -1
    return [
        sign * score(s, signals.mean(), math.sqrt(v))
        for s, signals, v in zip(scores, out_signals, variances, strict=True)
    ]


def trainings(seed, *, shadows, records, gap=1.0, spread=1.0):
    """A target and its shadows; every shadow holds a random half, in complementary pairs.

    Records differ in difficulty; being a member adds `gap` deviations.
    """
    rng = np.random.default_rng(seed)
    half = rng.permuted(np.tile(np.arange(records) % 2 == 0, (shadows // 2, 1)), axis=1)
    shadow_is_member = np.concatenate([half, ~half])
    is_member = rng.random(records) < 0.5
    level, deviation = 3 * rng.normal(size=records), spread * np.exp(rng.normal(size=records) / 4)
    draw = lambda hold: level + deviation * (rng.normal(size=hold.shape) + gap * hold)  # noqa: E731
    return draw(is_member), draw(shadow_is_member), shadow_is_member, is_member


@pytest.fixture
def unchecked():
    """As outside pytest, where shapes are checked by the library alone."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("variance", VARIANCES[1:])
@pytest.mark.parametrize("records", [1, 30, 5000])
def test_online_is_the_slow_loop(variance, records):
    scores, shadow_scores, shadow_is_member, _ = trainings(records, shadows=16, records=records)
    shadow_is_member[0], shadow_is_member[1], shadow_is_member[2], shadow_is_member[3] = (
        True,
        True,
        False,
        False,
    )
    slow = slow_online(scores, shadow_scores, shadow_is_member, variance=variance)
    result = lira.online(scores, shadow_scores, shadow_is_member, variance=variance)
    np.testing.assert_allclose(result, slow, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("attack", OFFLINE)
@pytest.mark.parametrize("variance", VARIANCES[1:])
@pytest.mark.parametrize("records", [1, 30, 5000])
def test_offline_is_the_slow_loop(attack, variance, records):
    scores, shadow_scores, shadow_is_member, _ = trainings(records, shadows=16, records=records)
    shadow_is_member[2], shadow_is_member[3] = False, False
    slow = slow_offline(attack, scores, shadow_scores, shadow_is_member, variance=variance)
    result = attack(scores, shadow_scores, shadow_is_member, variance=variance)
    np.testing.assert_allclose(result, slow, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("attack", OFFLINE)
@pytest.mark.parametrize("variance", VARIANCES)
def test_offline_does_not_look_at_in_scores(attack, variance):
    scores, shadow_scores, shadow_is_member, _ = trainings(6, shadows=8, records=30)
    plain = attack(scores, shadow_scores, shadow_is_member, variance=variance)
    other = np.where(
        shadow_is_member,
        np.random.default_rng(0).normal(size=shadow_is_member.shape),
        shadow_scores,
    )
    assert (attack(scores, other, shadow_is_member, variance=variance) == plain).all()
    order = np.argsort(shadow_is_member, axis=0, kind="stable")[:4]
    without = np.take_along_axis(shadow_scores, order, axis=0)
    never = np.zeros(without.shape, bool)
    np.testing.assert_allclose(attack(scores, without, never, variance=variance), plain, rtol=1e-9)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("variance", VARIANCES)
def test_queries_are_summed_each_with_its_own_moments(attack, variance):
    first, second = (trainings(seed, shadows=8, records=30) for seed in (1, 2))
    scores, shadow_scores = (np.stack([first[i], 5 * second[i]], axis=-1) for i in (0, 1))
    both = attack(scores, shadow_scores, first[2], variance=variance)
    alone = [
        attack(s, shadows, first[2], variance=variance)
        for s, shadows in ((first[0], first[1]), (5 * second[0], 5 * second[1]))
    ]
    np.testing.assert_allclose(both, np.sum(alone, axis=0), rtol=1e-12)
    assert attack(scores[..., :0], shadow_scores[..., :0], first[2]).tolist() == [0.0] * 30


def test_more_queries_find_more_members():
    *_, shadow_is_member, is_member = trainings(3, shadows=32, records=2000)
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2000, 4)) + is_member[:, None]
    shadow_scores = rng.normal(size=(32, 2000, 4)) + shadow_is_member[..., None]
    auc = [
        metrics.membership(
            lira.online(scores[:, :q], shadow_scores[..., :q], shadow_is_member), is_member
        ).auc
        for q in (1, 4)
    ]
    # Four queries are worth a gap of two deviations, Phi(2 / sqrt 2) = 0.921, less estimation.
    assert auc[0] == pytest.approx(stats.norm.cdf(1 / math.sqrt(2)), abs=0.03)
    assert auc[1] == pytest.approx(stats.norm.cdf(2 / math.sqrt(2)), abs=0.03)


@pytest.mark.parametrize("attack", ATTACKS)
def test_shrunken_is_the_default(attack):
    *given_arrays, _ = trainings(5, shadows=8, records=20)
    fixed = attack(*given_arrays, variance="shrunken")
    assert (attack(*given_arrays) == fixed).all()
    assert not np.allclose(fixed, attack(*given_arrays, variance="per_example"))


def test_two_gaussians_have_the_known_roc():
    scores, shadow_scores, shadow_is_member, is_member = trainings(
        7, shadows=256, records=4000, gap=1.0
    )
    optimum = stats.norm.cdf(1 / math.sqrt(2))
    error = math.sqrt(optimum * (1 - optimum) / 2000)
    result = metrics.membership(
        lira.online(scores, shadow_scores, shadow_is_member, variance="per_example"), is_member
    )
    assert abs(result.auc - optimum) < 3 * error
    assert result.tpr_at_fpr["0.01"] == pytest.approx(
        stats.norm.sf(stats.norm.isf(0.01) - 1), abs=0.03
    )
    # The records' own levels, three deviations wide, drown a global threshold.
    assert metrics.membership(scores, is_member).auc < optimum - 0.1
    alone = metrics.membership(
        lira.offline(scores, shadow_scores, shadow_is_member, variance="per_example"), is_member
    )
    assert abs(alone.auc - optimum) < 3 * error
    # A wrong gap is told apart: the check has power.
    assert abs(stats.norm.cdf(1.2 / math.sqrt(2)) - optimum) > 3 * error


@pytest.mark.parametrize("gap", [0.5, 2.0])
def test_unit_gaussians_have_auc_phi_of_half_root_two_mu(gap):
    """IN ~ N(mu, 1) and OUT ~ N(0, 1), 512 shadows: the ratio is linear in the score."""
    rng = np.random.default_rng(3)
    shadow_is_member, is_member = rng.random((512, 4000)) < 0.5, rng.random(4000) < 0.5
    scores, shadow_scores = (
        rng.normal(size=y.shape) + gap * y for y in (is_member, shadow_is_member)
    )
    optimum = stats.norm.cdf(gap / math.sqrt(2))
    for attack in (lira.online, lira.offline):
        result = metrics.membership(attack(scores, shadow_scores, shadow_is_member), is_member)
        assert result.auc_interval[0] < result.auc < result.auc_interval[1]
        error = (result.auc_interval[1] - result.auc_interval[0]) / (2 * 1.96)
        assert abs(result.auc - optimum) < 3 * error
    ratio = lira.online(scores, shadow_scores, shadow_is_member)
    exact = gap * scores - gap**2 / 2
    assert np.corrcoef(ratio, exact)[0, 1] > 0.98
    assert np.median(np.abs(ratio - exact)) < 0.2 * gap


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("shadows", [2, 4, 16, 64])
def test_exchangeable_scores_reveal_nothing(attack, variance, shadows):
    scores, shadow_scores, shadow_is_member, is_member = trainings(
        11, shadows=shadows, records=4000, gap=0.0
    )
    auc = metrics.membership(
        attack(scores, shadow_scores, shadow_is_member, variance=variance), is_member
    ).auc
    assert abs(auc - 0.5) < 4 * math.sqrt(1 / 12 * (1 / 2000 + 1 / 2000))


def check_null_coverage(attack, repetitions, room):
    """How often the 95 % interval of an attack on exchangeable records covers one half."""
    hits = 0
    for seed in range(repetitions):
        *arrays, is_member = trainings(seed, shadows=8, records=200, gap=0.0)
        lower, upper = metrics.membership(attack(*arrays), is_member).auc_interval
        hits += lower <= 0.5 <= upper
    assert 0.95 - room <= hits / repetitions <= 0.95 + room


@pytest.mark.parametrize("attack", [lira.online, lira.offline])
def test_the_interval_covers_one_half_where_nothing_leaks(attack):
    check_null_coverage(attack, 200, 3 * math.sqrt(0.95 * 0.05 / 200))


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_the_interval_covers_one_half_in_93_to_97_percent(attack):
    check_null_coverage(attack, 1000, 0.02)


@pytest.mark.parametrize("attack", [lira.online, lira.offline])
@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("shadows", [2, 4, 16])
def test_few_shadows_still_find_members(attack, variance, shadows):
    scores, shadow_scores, shadow_is_member, is_member = trainings(
        13, shadows=shadows, records=4000, gap=2.0
    )
    ratios = attack(scores, shadow_scores, shadow_is_member, variance=variance)
    assert metrics.membership(ratios, is_member).auc > 0.6


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("variance", VARIANCES)
def test_orders_of_shadows_and_records_do_not_matter(attack, variance):
    scores, shadow_scores, shadow_is_member, _ = trainings(17, shadows=8, records=40)
    plain = attack(scores, shadow_scores, shadow_is_member, variance=variance)
    rows, columns = np.random.default_rng(0).permutation(8), np.arange(40)[::-1]
    mixed = attack(
        scores[columns],
        shadow_scores[rows][:, columns],
        shadow_is_member[rows][:, columns],
        variance=variance,
    )
    np.testing.assert_allclose(mixed, plain[columns], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize(("scale", "shift"), [(2.0**-100, 0.0), (2.0**200, 0.0), (-1.0, 100.0)])
def test_units_do_not_matter(variance, scale, shift):
    scores, shadow_scores, shadow_is_member, _ = trainings(19, shadows=8, records=40)
    plain = lira.online(scores, shadow_scores, shadow_is_member, variance=variance)
    other = lira.online(
        scale * scores + shift, scale * shadow_scores + shift, shadow_is_member, variance=variance
    )
    np.testing.assert_allclose(other, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("variance", VARIANCES)
@given(st.data())
def test_no_score_is_ever_infinite_or_nan(attack, variance, data):
    m, n = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    shadow_scores = data.draw(npst.arrays(np.float64, (m, n), elements=wild))
    scores = data.draw(npst.arrays(np.float64, (n,), elements=wild))
    shadow_is_member = data.draw(npst.arrays(bool, (m, n)))
    ratios = attack(scores, shadow_scores, shadow_is_member, variance=variance)
    assert np.isfinite(ratios).all()
    if attack is lira.online:
        assert (ratios[~lira.covered(shadow_is_member)] == 0).all()
    if attack is lira.offline:
        assert (ratios[~lira.covered_offline(shadow_is_member)] == math.log(0.5)).all()


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("level", [0.0, 0.1, -7.3, 1e30, np.inf])
def test_identical_scores_are_no_evidence(variance, level):
    shadow_is_member = np.arange(7)[:, None] < np.array([3, 1, 6])
    ratios = lira.online(
        np.full(3, level), np.full((7, 3), level), shadow_is_member, variance=variance
    )
    np.testing.assert_allclose(ratios, 0, atol=1e-6)


def test_a_record_with_identical_scores_does_not_outshout_the_others():
    scores, shadow_scores, shadow_is_member, _ = trainings(23, shadows=16, records=100, gap=0.0)
    shadow_scores[:, 0] = scores[0]
    shadow_scores[shadow_is_member[:, 1], 1] = scores[1]
    ratios = lira.online(scores, shadow_scores, shadow_is_member, variance="per_example")
    assert ratios[0] == pytest.approx(0, abs=1e-6)
    assert abs(ratios[1]) < 20


def test_one_in_model_takes_the_fixed_variance():
    scores, shadow_scores, shadow_is_member, _ = trainings(29, shadows=8, records=50)
    shadow_is_member[:, 0] = np.arange(8) == 3
    result = lira.online(scores, shadow_scores, shadow_is_member, variance="per_example")[0]
    in_signals = [shadow_scores[shadow_is_member[:, i], i] for i in range(50)]
    fixed = sum(signals.var() * len(signals) for signals in in_signals) / (
        shadow_is_member.sum() - 50
    )
    out = shadow_scores[~shadow_is_member[:, 0], 0]
    slow = stats.norm.logpdf(scores[0], shadow_scores[3, 0], math.sqrt(fixed))
    assert result == pytest.approx(slow - stats.norm.logpdf(scores[0], out.mean(), out.std(ddof=1)))


def test_a_side_that_never_repeats_takes_the_variance_of_the_other():
    shadow_scores, shadow_is_member = (
        np.array([[4.0], [0.0], [2.0]]),
        np.array([[True], [False], [False]]),
    )
    ratio = lira.online(np.array([3.0]), shadow_scores, shadow_is_member, variance="fixed")
    assert ratio == pytest.approx(((3 - 1) ** 2 - (3 - 4) ** 2) / (2 * 2.0))


@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("variance", VARIANCES)
def test_one_complementary_pair_takes_the_variance_that_ignores_membership(variance, scale):
    shadow_scores, shadow_is_member = scale * np.array([[4.0], [0.0]]), np.array([[True], [False]])
    ratio = lira.online(scale * np.array([3.0]), shadow_scores, shadow_is_member, variance=variance)
    assert ratio == pytest.approx(((3 - 0) ** 2 - (3 - 4) ** 2) / (2 * np.var([4, 0], ddof=1)))


def test_records_without_both_sides_score_zero():
    shadow_is_member = np.array([[1, 0, 1, 0], [1, 0, 0, 1], [1, 0, 1, 1]])
    assert lira.covered(shadow_is_member).tolist() == [False, False, True, True]
    shadow_scores = np.random.default_rng(0).normal(size=(3, 4))
    ratios = lira.online(np.full(4, 5.0), shadow_scores, shadow_is_member)
    assert (ratios == 0).tolist() == [True, True, False, False]


@pytest.mark.parametrize("attack", OFFLINE)
def test_members_of_every_shadow_score_as_middling_non_members_offline(attack):
    scores, shadow_scores, shadow_is_member, _ = trainings(30, shadows=8, records=400, gap=0.0)
    shadow_is_member[:, :2], shadow_is_member[0, 2:] = True, False
    assert lira.covered_offline(shadow_is_member).tolist() == [False, False] + [True] * 398
    result = attack(scores, shadow_scores, shadow_is_member)
    assert result[0] == result[1]
    assert abs((result[2:] < result[0]).mean() - 0.5) < (0.1 if attack is lira.offline else 0.25)
    if attack is lira.offline_density:
        assert result[0] == pytest.approx(result[2:].mean(), abs=0.3)


def test_only_members_are_no_evidence():
    scores, shadow_scores, shadow_is_member, _ = trainings(32, shadows=4, records=9)
    always = np.ones_like(shadow_is_member)
    assert (lira.online(scores, shadow_scores, always) == 0).all()
    assert (lira.offline(scores, shadow_scores, always) == math.log(0.5)).all()
    assert len(set(lira.offline_density(scores, shadow_scores, always))) == 1


def test_one_out_shadow_each_ranks_by_the_difference():
    scores, shadow_scores = np.array([3.0, 1.0, 5.0]), np.array([[1.0, 1.0, 6.0]])
    never = np.zeros((1, 3), bool)
    scale = math.sqrt((2**2 + 0 + 1) / 3 / 2)
    np.testing.assert_allclose(
        lira.offline(scores, shadow_scores, never), stats.norm.logcdf(np.array([2, 0, -1]) / scale)
    )


def test_offline_tells_members_apart_far_beyond_where_probabilities_round_to_one():
    shadow_scores = np.repeat([[-1.0], [1.0]], 6, axis=1)
    scores = np.array([9.0, 12.0, 20.0, 30.0, 50.0, 1e30])
    never = np.zeros((2, 6), bool)
    result = lira.offline(scores, shadow_scores, never, variance="fixed")
    assert (np.diff(result) > 0).all()
    assert result[-1] == 0
    shrunken = lira.offline(scores, shadow_scores, never)
    assert (np.diff(shrunken) > 0).all()
    # Student's t with 5 degrees of freedom: 4 of the prior, and one of two signals.
    expected = stats.t.logcdf(scores[:3] / math.sqrt(2 * 1.5), 5)
    np.testing.assert_allclose(shrunken[:3], expected, rtol=1e-9)


def test_infinite_scores_count_as_the_extremes_seen():
    scores, shadow_scores, shadow_is_member, _ = trainings(31, shadows=8, records=20)
    low = min(scores.min(), shadow_scores.min())
    high = max(scores.max(), shadow_scores.max())
    clipped, wild_scores = shadow_scores.copy(), shadow_scores.copy()
    clipped[0, :3], wild_scores[0, :3] = [high, low, high], [np.inf, -np.inf, np.inf]
    np.testing.assert_allclose(
        lira.online(np.append(np.inf, scores[1:]), wild_scores, shadow_is_member),
        lira.online(np.append(high, scores[1:]), clipped, shadow_is_member),
        rtol=1e-9,
    )


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("target", [1.0, np.inf, 1.7e308])
def test_ratios_are_finite_and_signed_where_no_score_varies(variance, target):
    shadow_is_member = np.array([[True], [True], [False], [False]])
    for shadow_scores in (
        np.where(shadow_is_member, np.inf, -np.inf),
        np.where(shadow_is_member, 1e-160, 0.0),
    ):
        ratio = lira.online(np.array([target]), shadow_scores, shadow_is_member, variance=variance)
        assert np.isfinite(ratio).all()
        assert ratio >= 0
    one_side = np.array([[1.0], [-1.0], [0.0], [0.0]])
    ratio = lira.online(np.array([target]), one_side, shadow_is_member, variance=variance)
    assert 0 < ratio < np.inf
    separated = np.where(shadow_is_member, np.inf, -np.inf)
    assert lira.online(np.array([np.inf]), separated, shadow_is_member, variance=variance) > 1
    assert lira.online(np.array([-np.inf]), separated, shadow_is_member, variance=variance) < -1


def test_an_outlier_spoils_its_own_record_only():
    scores, shadow_scores, shadow_is_member, _ = trainings(37, shadows=16, records=50)
    plain = lira.online(scores, shadow_scores, shadow_is_member, variance="per_example")
    shadow_scores[2, 0] = 1e30
    result = lira.online(scores, shadow_scores, shadow_is_member, variance="per_example")
    np.testing.assert_allclose(result[1:], plain[1:], rtol=1e-9)
    assert np.isfinite(result[0])


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_jax_arrays_of_small_floats_are_taken_exactly(attack, dtype):
    scores, shadow_scores, shadow_is_member, _ = trainings(41, shadows=8, records=20)
    small, small_shadows = jnp.asarray(scores, dtype), jnp.asarray(shadow_scores, dtype)
    exact = attack(
        np.asarray(small).astype(np.float64),
        np.asarray(small_shadows).astype(np.float64),
        shadow_is_member,
    )
    assert (attack(small, small_shadows, jnp.asarray(shadow_is_member)) == exact).all()
    assert (attack(small, small_shadows, shadow_is_member.astype(np.uint8)) == exact).all()


def test_the_arguments_are_left_as_they_were():
    scores, shadow_scores, shadow_is_member, _ = trainings(43, shadows=4, records=10)
    scores[0], shadow_scores[0, 0] = np.inf, -np.inf
    copies = scores.copy(), shadow_scores.copy(), shadow_is_member.copy()
    lira.online(scores, shadow_scores, shadow_is_member)
    for array, copy in zip((scores, shadow_scores, shadow_is_member), copies, strict=True):
        assert (array == copy).all()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize(
    ("scores", "shadow_scores", "shadow_is_member"),
    [
        ((3,), (2, 4), (2, 4)),
        ((3,), (2, 3), (3, 3)),
        ((3,), (3,), (3,)),
        ((3, 1), (2, 3), (2, 3)),
        ((3, 2), (2, 3, 1), (2, 3)),
        ((3, 2, 2), (2, 3, 2, 2), (2, 3)),
        ((3, 2), (2, 3, 2), (2, 3, 2)),
    ],
)
def test_refuses_shapes_that_do_not_fit(attack, scores, shadow_scores, shadow_is_member):
    with pytest.raises(
        ValueError, match=r"^Expected shapes \[n\], \[m, n\] and \[m, n\], got .*\.$"
    ):
        attack(np.zeros(scores), np.zeros(shadow_scores), np.zeros(shadow_is_member, bool))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("attack", ATTACKS)
def test_refuses_an_unknown_variance(attack):
    with pytest.raises(
        ValueError, match="Expected variance to be one of shrunken, fixed, per_example"
    ):
        attack(np.zeros(1), np.zeros((2, 1)), np.eye(2, 1, dtype=bool), variance="global")


def test_refuses_nan_and_other_labels():
    zeros, shadow_is_member = np.zeros((2, 2)), np.eye(2, dtype=bool)
    with pytest.raises(ValueError, match="Expected signals without NaN, got 1 NaN"):
        lira.online(np.array([0.0, np.nan]), zeros, shadow_is_member)
    with pytest.raises(ValueError, match="Expected shadow_signals without NaN, got 4 NaN"):
        lira.online(np.zeros(2), zeros * np.nan, shadow_is_member)
    with pytest.raises(ValueError, match="Expected only 0 and 1 in shadow_is_member"):
        lira.online(np.zeros(2), zeros, np.array([[0, 1], [2, 0]]))


def test_one_wild_score_does_not_blind_the_fixed_variance():
    rng = np.random.default_rng(5)
    shadow_is_member, is_member = rng.random((8, 400)) < 0.5, rng.random(400) < 0.5
    shadows = rng.normal(2.0 * shadow_is_member)
    scores = rng.normal(2.0 * is_member)
    clean = metrics.membership(lira.online(scores, shadows, shadow_is_member), is_member).auc
    shadows[0, 0] = 1e4
    wild = metrics.membership(lira.online(scores, shadows, shadow_is_member), is_member).auc
    assert abs(wild - clean) < 0.005


def slow_prior(signals):
    """Degrees of freedom and variance that fit the log variances by moments (Smyth 2004)."""
    logs, halves = [], []
    for values in signals:
        half = (len(values) - 1) / 2
        logs.append(math.log(np.var(values, ddof=1)) - special.digamma(half) + math.log(half))
        halves.append(half)
    excess = np.var(logs, ddof=1) - np.mean([special.polygamma(1, half) for half in halves])
    if excess <= 0:
        return math.inf, math.exp(np.mean(logs))
    n0 = 2 * optimize.brentq(lambda x: special.polygamma(1, x) - excess, 1e-3, 1e6)
    return n0, math.exp(np.mean(logs) + special.digamma(n0 / 2) - math.log(n0 / 2))


@pytest.mark.parametrize("spread", [0.0, 0.8])
def test_shrunken_is_the_posterior_predictive_of_a_slow_loop(spread):
    rng = np.random.default_rng(5)
    is_member = np.arange(12)[:, None] < np.full(40, 6)
    deviations = np.exp(spread * rng.normal(size=40))
    shadows = 2.0 * is_member + deviations * rng.normal(size=(12, 40))
    target = rng.normal(size=40)
    result = lira.online(target, shadows, is_member, variance="shrunken")
    offline = lira.offline(target, shadows, is_member, variance="shrunken")
    for i in range(40):
        densities = []
        for side in (is_member[:, 0], ~is_member[:, 0]):
            n0, s0 = slow_prior([shadows[side, j] for j in range(40)])
            values = shadows[side, i]
            if math.isinf(n0):
                law = stats.norm(values.mean(), math.sqrt(s0 * (1 + 1 / 6)))
            else:
                squares = ((values - values.mean()) ** 2).sum()
                scale = math.sqrt((n0 * s0 + squares) / (n0 + 5) * (1 + 1 / 6))
                law = stats.t(n0 + 5, values.mean(), scale)
            densities.append(law)
        expected = densities[0].logpdf(target[i]) - densities[1].logpdf(target[i])
        assert result[i] == pytest.approx(expected, rel=1e-6, abs=1e-9)
        assert offline[i] == pytest.approx(densities[1].logcdf(target[i]), rel=1e-6)
    assert math.isfinite(n0) == (spread > 0)


def test_shrunken_variances_beat_the_others_where_records_differ():
    """Signals whose deviations differ threefold between records, with 4 shadow models a side."""
    rng = np.random.default_rng(6)
    n, shadow_is_member = 20_000, np.arange(8)[:, None] < np.full(20_000, 4)
    deviations = np.exp(0.6 * rng.normal(size=n))
    shadows = 2.0 * shadow_is_member + deviations * rng.normal(size=(8, n))
    is_member = rng.random(n) < 0.5
    target = 2.0 * is_member + deviations * rng.normal(size=n)
    results = {
        variance: metrics.membership(
            lira.online(target, shadows, shadow_is_member, variance=variance), is_member
        )
        for variance in lira.VARIANCES
    }
    best, *others = (results[variance] for variance in lira.VARIANCES)
    assert best.auc > max(other.auc for other in others) + 0.01
    assert best.tpr_at_fpr["0.01"] > 1.3 * max(other.tpr_at_fpr["0.01"] for other in others)


def test_few_signals_of_a_record_are_warned_of():
    scores, shadow_scores, shadow_is_member, _ = trainings(3, shadows=8, records=20)
    with pytest.warns(UserWarning, match="estimated from .* signals a side"):
        lira.online(scores, shadow_scores, shadow_is_member, variance="per_example")


def test_the_tail_of_the_t_distribution_is_finite_and_continuous():
    from jaxpriv.attacks import _predictive

    for freedom in (1.0, 5.0, 300.0, 1e6):
        z = -np.geomspace(1, 1e6, 400)
        side = _predictive.Predictive(np.zeros(400), np.ones(400), np.full(400, freedom))
        found = _predictive.log_cdf(z, side)
        assert np.isfinite(found).all()
        assert (np.diff(found) < 0).all()
        exact = stats.t.logcdf(z, freedom)
        usable = exact > -600
        np.testing.assert_allclose(found[usable], exact[usable], rtol=1e-6)


def test_decorrelated_signals_are_the_mahalanobis_transform():
    rng = np.random.default_rng(7)
    mixing = np.array([[2.0, 0.0], [1.5, 0.5]])
    is_member = np.arange(20)[:, None] < np.full(300, 10)
    shadows = rng.normal(size=(20, 300, 2)) @ mixing.T + 3.0 * is_member[..., None]
    target, result = lira.decorrelated(shadows[0], shadows, is_member)
    np.testing.assert_allclose(target, result[0])
    deviations = np.concatenate(
        [result[rows] - result[rows].mean(axis=0) for rows in (slice(10), slice(10, 20))]
    ).reshape(-1, 2)
    np.testing.assert_allclose(deviations.T @ deviations / (18 * 300), np.eye(2), atol=1e-6)


def test_a_repeated_signal_adds_nothing_once_decorrelated():
    scores, shadow_scores, shadow_is_member, _ = trainings(9, shadows=16, records=400)
    twice, shadows_twice = (np.stack([x, 3 * x], axis=-1) for x in (scores, shadow_scores))
    plain = lira.online(scores, shadow_scores, shadow_is_member, variance="fixed")
    doubled = lira.online(twice, shadows_twice, shadow_is_member, variance="fixed")
    np.testing.assert_allclose(doubled, 2 * plain, rtol=1e-9)
    mended = lira.online(
        *lira.decorrelated(twice, shadows_twice, shadow_is_member),
        shadow_is_member,
        variance="fixed",
    )
    np.testing.assert_allclose(mended, plain, rtol=1e-3, atol=1e-3)
