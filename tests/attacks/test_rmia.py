"""RMIA against loops over records and population, the published formulas, and edge cases."""

import math

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from jaxpriv import metrics
from jaxpriv.attacks import lira, rmia

pytestmark = pytest.mark.filterwarnings("ignore::jaxpriv.attacks.rmia.TiesWarning")

wild = st.one_of(
    st.floats(-8, 0), st.sampled_from([-np.inf, 0.0, -745.0, -1e30, -1.7e308, -1e-320])
)


def offline(*arrays, population, gamma, a=0.3):
    return rmia.offline(*arrays, population=population, gamma=gamma, a=a)


ATTACKS = [rmia.online, offline]


def slow(log_probs, shadow_log_probs, shadow_is_member, *, population, gamma, a=None):
    """The definition, one record and one population record at a time; online without a."""

    def prior(p, mask):
        out = p[~mask].mean()
        inner = out if mask.sum() == 0 else p[mask].mean()
        return (inner + out) / 2 if a is None else ((1 + a) * out + (1 - a)) / 2

    never = np.zeros(len(shadow_is_member), bool)
    scores = []
    for i, log_p in enumerate(log_probs):
        ratio_x = math.exp(log_p) / prior(np.exp(shadow_log_probs[:, i]), shadow_is_member[:, i])
        dominated = 0
        for j, log_q in enumerate(population.log_probs):
            p_z = prior(np.exp(population.shadow_log_probs[:, j]), never)
            dominated += ratio_x / (math.exp(log_q) / p_z) >= gamma
        scores.append(dominated / len(population.log_probs))
    return np.array(scores)


def trainings(seed, *, shadows=16, records=60, num_population=40, gap=1.0):
    """Label probabilities by a logistic of difficulty, noise and membership."""
    rng = np.random.default_rng(seed)
    half = rng.permuted(np.tile(np.arange(records) % 2 == 0, (shadows // 2, 1)), axis=1)
    shadow_is_member, is_member = np.concatenate([half, ~half]), rng.random(records) < 0.5
    level, other_level = rng.normal(size=records), rng.normal(size=num_population)

    def draw(level, hold):
        return -np.logaddexp(0, -(level + gap * hold + rng.normal(size=hold.shape)))

    population = rmia.Population(
        draw(other_level, np.zeros(num_population)),
        draw(other_level, np.zeros((shadows, num_population))),
    )
    return (
        (draw(level, is_member), draw(level, shadow_is_member), shadow_is_member),
        population,
        is_member,
    )


@pytest.fixture
def unchecked():
    """As outside pytest, where shapes are checked by the library alone."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("gamma", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("a", [None, 0.0, 0.3, 1.0])
def test_the_share_is_that_of_the_loops(gamma, a):
    arrays, population, _ = trainings(1)
    given_a = {} if a is None else {"a": a}
    attack = rmia.online if a is None else rmia.offline
    result = attack(*arrays, population=population, gamma=gamma, **given_a)
    expected = slow(*arrays, population=population, gamma=gamma, a=a)
    assert 0.05 < expected.mean() < 0.95
    np.testing.assert_array_equal(result, expected)


def test_records_in_blocks_are_records_alone():
    arrays, population, _ = trainings(2, records=5000, shadows=4)
    full = rmia.online(*arrays, population=population, gamma=1.5)
    some = np.arange(0, 5000, 97)
    alone = rmia.online(*(x[..., some] for x in arrays), population=population, gamma=1.5)
    assert (full[some] == alone).all()


@pytest.mark.parametrize("attack", ATTACKS)
def test_members_are_found_and_exchangeable_records_are_not(attack):
    for gap, low, high in ((2.0, 0.75, 1.0), (0.0, 0.46, 0.54)):
        arrays, population, is_member = trainings(3, records=2000, num_population=500, gap=gap)
        auc = metrics.membership(attack(*arrays, population=population, gamma=1.0), is_member).auc
        assert low < auc < high


@pytest.mark.parametrize("attack", ATTACKS)
def test_it_ranks_by_the_relative_ratio_where_the_population_resolves(attack):
    arrays, population, _ = trainings(4, num_population=3)
    few = attack(*arrays, population=population, gamma=1.0)
    assert set(few) <= {0.0, 1 / 3, 2 / 3, 1.0}
    larger = attack(*arrays, population=population, gamma=4.0)
    assert (larger <= few).all()
    assert larger.mean() < few.mean()


def test_equal_ratios_are_dominated_at_gamma_one_only():
    half = np.full(3, math.log(0.5))
    shadows, shadow_is_member = np.tile(half, (4, 1)), np.eye(4, 3, dtype=bool)
    population = rmia.Population(half[:2], shadows[:, :2])
    for gamma, share in ((1.0, 1.0), (1.0001, 0.0), (0.9999, 1.0)):
        result = rmia.online(half, shadows, shadow_is_member, population=population, gamma=gamma)
        assert result.tolist() == [share] * 3


def test_offline_does_not_look_at_in_scores():
    arrays, population, _ = trainings(5)
    scores, shadows, shadow_is_member = arrays
    other = np.where(shadow_is_member, -3.0, shadows)
    plain = offline(*arrays, population=population, gamma=1.0)
    assert (
        offline(scores, other, shadow_is_member, population=population, gamma=1.0) == plain
    ).all()
    changed = rmia.online(scores, other, shadow_is_member, population=population, gamma=1.0)
    assert (changed != rmia.online(*arrays, population=population, gamma=1.0)).any()


def test_at_a_one_offline_on_records_that_no_shadow_holds_is_online_by_the_mean():
    (scores, shadows, shadow_is_member), population, _ = trainings(6)
    never = np.zeros_like(shadow_is_member)
    result = rmia.offline(scores, shadows, never, population=population, gamma=1.0, a=1.0)
    ratio = scores - np.log(np.exp(shadows).mean(axis=0))
    population_ratio = population.log_probs - np.log(
        np.exp(population.shadow_log_probs).mean(axis=0)
    )
    np.testing.assert_array_equal(result, (ratio[:, None] >= population_ratio).mean(axis=1))


def test_records_without_evidence_count_as_ratio_one():
    (scores, shadows, shadow_is_member), population, _ = trainings(7)
    shadow_is_member[:, 0], shadow_is_member[:, 1] = True, False
    population_ratio = population.log_probs - np.log(
        np.exp(population.shadow_log_probs).mean(axis=0)
    )
    result = rmia.online(scores, shadows, shadow_is_member, population=population, gamma=1.2)
    assert (result[:2] == (population_ratio <= -math.log(1.2)).mean()).all()
    assert (~lira.covered(shadow_is_member)[:2]).all()
    alone = rmia.offline(scores, shadows, shadow_is_member, population=population, gamma=1.2, a=1.0)
    assert alone[0] == result[0]


@pytest.mark.parametrize("attack", ATTACKS)
@given(st.data())
def test_no_log_probability_breaks_it(attack, data):
    m, n, k = (
        data.draw(st.integers(1, 5)),
        data.draw(st.integers(1, 4)),
        data.draw(st.integers(1, 4)),
    )
    draw = lambda *shape: data.draw(npst.arrays(np.float64, shape, elements=wild))  # noqa: E731
    shadow_is_member = data.draw(npst.arrays(bool, (m, n)))
    population = rmia.Population(draw(k), draw(m, k))
    result = attack(draw(n), draw(m, n), shadow_is_member, population=population, gamma=1.5)
    assert ((result >= 0) & (result <= 1)).all()


def test_records_impossible_under_every_model_count_as_ratio_one():
    never, shadows = np.full(1, -np.inf), np.full((2, 1), -np.inf)
    shadow_is_member = np.array([[True], [False]])
    for reference, share in (([-2.0, -1.0, -0.4], 2 / 3), ([-0.5, -0.4, 0.0], 1 / 3)):
        population = rmia.Population(np.array(reference), np.full((2, 3), -0.5))
        for attack in (rmia.online, lambda *x, **more: rmia.offline(*x, a=1.0, **more)):
            result = attack(never, shadows, shadow_is_member, population=population, gamma=1.0)
            assert result.tolist() == [share]


def test_tiny_probabilities_keep_their_ratios():
    """e^-2000 underflows in float64; ratios of such numbers do not."""
    arrays, population, _ = trainings(8)
    scores, shadows, shadow_is_member = arrays
    plain = rmia.online(*arrays, population=population, gamma=1.3)
    low = rmia.Population(population.log_probs - 2000, population.shadow_log_probs - 2000)
    moved = rmia.online(scores - 2000, shadows - 2000, shadow_is_member, population=low, gamma=1.3)
    np.testing.assert_allclose(moved, plain, atol=0.03)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_small_floats_are_taken_exactly(attack, dtype):
    (scores, shadows, shadow_is_member), population, _ = trainings(9)
    small = [jnp.asarray(x, dtype) for x in (scores, shadows, *population)]
    exact = [np.asarray(x).astype(np.float64) for x in small]
    result = [
        attack(x[0], x[1], shadow_is_member, population=rmia.Population(*x[2:]), gamma=1.0)
        for x in (small, exact)
    ]
    assert (result[0] == result[1]).all()


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_order_of_everything_is_free(attack):
    (scores, shadows, shadow_is_member), population, _ = trainings(10)
    plain = attack(scores, shadows, shadow_is_member, population=population, gamma=1.0)
    rng = np.random.default_rng(0)
    rows, columns, order = rng.permutation(16), rng.permutation(60), rng.permutation(40)
    mixed = attack(
        scores[columns],
        shadows[rows][:, columns],
        shadow_is_member[rows][:, columns],
        population=rmia.Population(
            population.log_probs[order], population.shadow_log_probs[rows][:, order]
        ),
        gamma=1.0,
    )
    np.testing.assert_allclose(mixed, plain[columns], atol=1e-12)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"log_probs": np.array([0.5, -1.0])},
            "Expected log_probs <= 0, log probabilities, got 0.5",
        ),
        ({"log_probs": np.array([np.nan, -1.0])}, "Expected log_probs without NaN, got 1 NaN"),
        ({"log_probs": np.zeros(3)}, r"Expected shapes \[n\], \[m, n\] and \[m, n\]"),
        ({"shadow_is_member": np.full((3, 2), 2)}, "Expected only 0 and 1 in shadow_is_member"),
        (
            {"reference": np.zeros(0), "reference_shadows": np.zeros((3, 0))},
            "Expected a population of shapes",
        ),
        (
            {"reference_shadows": np.zeros((2, 4))},
            r"Expected a population of shapes \[k\] and \[3, k\]",
        ),
        ({"reference_shadows": np.ones((3, 4))}, "Expected population.shadow_log_probs <= 0"),
        ({"gamma": 0.0}, "Expected gamma > 0, got gamma=0.0"),
        ({"log_probs": np.zeros((2, 1)), "shadows": np.zeros((3, 2, 1))}, r"Expected log_probs of"),
    ],
)
def test_refuses_in_one_line(attack, change, message):
    given_arrays = {
        "log_probs": np.zeros(2),
        "shadows": np.zeros((3, 2)),
        "shadow_is_member": np.eye(3, 2, dtype=bool),
        "reference": np.zeros(4),
        "reference_shadows": np.zeros((3, 4)),
        "gamma": 1.0,
        **change,
    }
    scores, shadows, shadow_is_member, reference, reference_shadows, gamma = given_arrays.values()
    population = rmia.Population(reference, reference_shadows)
    with pytest.raises(ValueError, match=rf"^{message}[^\n]*\.$"):
        attack(scores, shadows, shadow_is_member, population=population, gamma=gamma)


@pytest.mark.parametrize("a", [-0.1, 1.1, math.nan])
def test_offline_refuses_a_outside_the_unit_interval(a):
    arrays, population, _ = trainings(11)
    with pytest.raises(ValueError, match="Expected 0 <= a <= 1, got a="):
        rmia.offline(*arrays, population=population, gamma=1.0, a=a)


def models(rng, *, shadows=8, records=400, gap=1.5):
    """Margins of complementary shadow models that are larger on their members."""
    half = rng.random((shadows // 2, records)) < 0.5
    is_member = np.concatenate([half, ~half])
    level = 2 * rng.normal(size=records)
    return level + rng.normal(size=(shadows, records)) + gap * is_member, is_member


def test_the_ratio_ranks_as_the_score_and_has_no_ties():
    rng = np.random.default_rng(10)
    margins, is_member = models(rng)
    log_probs = -np.logaddexp(0, -margins)
    population_margins = 2 * rng.normal(size=300) + rng.normal(size=(8, 300))
    population = -np.logaddexp(0, -population_margins)
    ratio = rmia.online_ratio(log_probs[0], log_probs[1:], is_member[1:])
    score = rmia.online(
        log_probs[0],
        log_probs[1:],
        is_member[1:],
        population=rmia.Population(population[0], population[1:]),
        gamma=1.0,
    )
    order = np.argsort(ratio)
    assert (np.diff(score[order]) >= 0).all()
    assert len(np.unique(ratio)) == 400 > len(np.unique(score))
    offline_ratio = rmia.offline_ratio(log_probs[0], log_probs[1:], is_member[1:], a=0.4)
    out = np.array([np.exp(log_probs[1:, i])[~is_member[1:, i]].mean() for i in range(400)])
    expected = log_probs[0] - np.log((1.4 * out + 0.6) / 2)
    np.testing.assert_allclose(offline_ratio, expected, rtol=1e-9)


@pytest.mark.filterwarnings("default")
def test_many_records_with_the_highest_score_are_warned_of():
    rng = np.random.default_rng(11)
    log_probs, shadows = -rng.random(200), -1 - rng.random((4, 200))
    is_member = np.arange(4)[:, None] < np.full(200, 2)
    small = rmia.Population(-2 - rng.random(5), -1 - rng.random((4, 5)))
    with pytest.warns(rmia.TiesWarning, match="of 200 records share the highest RMIA score"):
        rmia.online(log_probs, shadows, is_member, population=small, gamma=1.0)


def test_tuning_takes_the_best_pair_on_shadows_in_the_place_of_the_target():
    rng = np.random.default_rng(12)
    margins, is_member = models(rng)

    def log_probs(temperature):
        return -np.logaddexp(0, -margins / temperature)

    temperatures, slopes = (0.5, 2.0), (0.0, 0.5, 1.0)
    tuned = rmia.tune(log_probs, is_member, temperatures=temperatures, slopes=slopes, trials=1)
    others = [1, 2, 3, 5, 6, 7]  # neither the target 0 nor its complement 4
    aucs = {}
    for temperature in temperatures:
        p = log_probs(temperature)
        for a in slopes:
            ratio = rmia.offline_ratio(p[0], p[others], is_member[others], a=a)
            aucs[temperature, a] = metrics.membership(ratio, is_member[0]).auc
    assert (tuned.temperature, tuned.a) == max(aucs, key=aucs.get)
    assert tuned.auc == pytest.approx(max(aucs.values()))
    online = rmia.tune(log_probs, is_member, temperatures=temperatures)
    assert online.a is None
    assert online.auc > 0.6


def test_tuning_needs_shadow_models_beside_the_pair():
    margins, is_member = models(np.random.default_rng(13), shadows=2)
    with pytest.raises(ValueError, match="two pairs of shadow models"):
        rmia.tune(lambda t: -np.logaddexp(0, -margins / t), is_member)
