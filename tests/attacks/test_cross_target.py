"""Each model as the target: what is left out, that nothing leaks by counts, and the spread."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxpriv import metrics, units
from jaxpriv.attacks import cross_target, lira, rmia, threshold
from tests import oracles


def count_of_in_shadows(scores, shadow_scores, shadow_is_member):
    """The attack that looks at no score: fewer IN shadows, more likely a member."""
    return -shadow_is_member.sum(axis=0).astype(float)


def pool(keys, *, models=8, records=300, gap=0.0, seed=0):
    rng = np.random.default_rng(seed)
    is_member = units.halves(keys(1)[0], units.records(records), num_models=models)
    return rng.normal(size=is_member.shape) + gap * is_member, is_member


def aucs(results, is_member):
    return [metrics.membership(r, y).auc for r, y in zip(results, is_member, strict=True)]


def test_without_the_complement_counts_reveal_nothing_and_with_it_everything(keys):
    scores, is_member = pool(keys)
    results = cross_target.attack_each_model(count_of_in_shadows, scores, is_member)
    assert (results == -(8 / 2 - 1)).all()
    for target in range(8):
        shadows = np.arange(8) != target
        naive = count_of_in_shadows(scores[target], scores[shadows], is_member[shadows])
        assert metrics.membership(naive, is_member[target]).auc == 1.0


def fixed(*arrays):
    return lira.online(*arrays, variance="fixed")


def test_leaving_out_the_target_alone_biases_even_lira(keys):
    scores, is_member = pool(keys, models=4, records=4000)
    naive = [
        fixed(scores[i], np.delete(scores, i, 0), np.delete(is_member, i, 0)) for i in range(4)
    ]
    error = np.sqrt(1 / 12 * (2 / 2000))
    assert all(abs(auc - 0.5) > 4 * error for auc in aucs(naive, is_member))
    fair = cross_target.attack_each_model(fixed, scores, is_member)
    assert all(abs(auc - 0.5) < 4 * error for auc in aucs(fair, is_member))


def test_it_is_the_loop_over_targets_in_any_order_of_models(keys):
    scores, is_member = pool(keys, gap=1.0)
    results = cross_target.attack_each_model(lira.online, scores, is_member)
    assert results.shape == (8, 300)
    for target in range(8):
        shadows = [i for i in range(8) if i % 4 != target % 4]
        alone = lira.online(scores[target], scores[shadows], is_member[shadows])
        np.testing.assert_allclose(results[target], alone, rtol=1e-9)
    order = np.random.default_rng(1).permutation(8)
    shuffled = cross_target.attack_each_model(lira.online, scores[order], is_member[order])
    np.testing.assert_allclose(shuffled, results[order], rtol=1e-9)


def test_every_kind_of_attack_runs(keys):
    scores, is_member = pool(keys, gap=2.0)

    def by_threshold(target, shadows, shadow_is_member):
        return threshold.apply(threshold.fit(shadows, shadow_is_member), target)

    for attack in (lira.online, lira.offline, by_threshold):
        assert min(aucs(cross_target.attack_each_model(attack, scores, is_member), is_member)) > 0.8
    queries = np.stack([scores, scores], axis=-1)
    twice = cross_target.attack_each_model(
        lira.online, jnp.asarray(queries, jnp.float32), is_member
    )
    np.testing.assert_allclose(
        twice,
        2 * cross_target.attack_each_model(lira.online, scores, is_member),
        rtol=1e-3,
        atol=1e-4,
    )


@pytest.mark.filterwarnings("ignore::jaxpriv.attacks.rmia.TiesWarning")
def test_a_population_that_no_model_holds_travels_as_further_records(keys):
    scores, is_member = pool(keys, gap=2.0)
    log_probs = -np.logaddexp(
        0, -np.concatenate([scores, scores[:, :50] - 2 * is_member[:, :50]], 1)
    )
    wide = np.concatenate([is_member, np.zeros((8, 50), bool)], axis=1)

    def attack(target, shadows, shadow_is_member):
        population = rmia.Population(target[300:], shadows[:, 300:])
        scores_of_rmia = rmia.online(
            target[:300],
            shadows[:, :300],
            shadow_is_member[:, :300],
            population=population,
            gamma=1.0,
        )
        return np.append(scores_of_rmia, np.zeros(50))

    results = cross_target.attack_each_model(attack, log_probs, wide)[:, :300]
    assert min(aucs(results, is_member)) > 0.8
    counted = cross_target.attack_each_model(count_of_in_shadows, log_probs, wide)
    assert (counted[:, :300] == -3).all()


def test_copies_of_a_half_lose_one_partner_each(keys):
    scores, is_member = pool(keys, models=4)
    scores, is_member = np.tile(scores, (2, 1)), np.tile(is_member, (2, 1))
    assert (cross_target.attack_each_model(count_of_in_shadows, scores, is_member) == -3).all()


def test_independent_halves_lose_the_target_only():
    rng = np.random.default_rng(0)
    is_member = rng.random((5, 400)) < 0.5
    seen = []

    def attack(target, shadows, shadow_is_member):
        seen.append(shadow_is_member)
        return count_of_in_shadows(target, shadows, shadow_is_member)

    results = cross_target.attack_each_model(attack, rng.normal(size=is_member.shape), is_member)
    for target in range(5):
        assert (seen[target] == np.delete(is_member, target, 0)).all()
    error = np.sqrt(1 / 12 * (1 / 200 + 1 / 200))
    assert all(abs(auc - 0.5) < 4 * error for auc in aucs(results, is_member))


def test_balanced_designs_without_complements_are_told():
    rng = np.random.default_rng(0)
    is_member = rng.permuted(np.arange(6)[:, None] + np.zeros((6, 200)), axis=0) < 3
    scores = rng.normal(size=is_member.shape)
    with pytest.warns(UserWarning, match="Every record is in 3 of 6 models"):
        cross_target.attack_each_model(count_of_in_shadows, scores, is_member)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cross_target.attack_each_model(count_of_in_shadows, scores, rng.random((6, 200)) < 0.5)


def slow_spread(values, pairs, confidence):
    values = np.array(values)
    units = np.array([values[list(pair)].mean() for pair in pairs])
    interval = stats.t.interval(
        confidence, len(units) - 1, units.mean(), units.std(ddof=1) / np.sqrt(len(units))
    )
    return values.mean(), values.std(ddof=1), values.min(), values.max(), interval


def test_spread_is_scipys_over_pair_means(keys):
    scores, is_member = pool(keys, models=8, gap=1.0)
    results = cross_target.attack_each_model(lira.online, scores, is_member)
    summary = cross_target.summarise(results, is_member, confidence=0.9)
    assert (summary.num_targets, summary.num_units, summary.confidence) == (8, 4, 0.9)
    expected = slow_spread(aucs(results, is_member), [(i, i + 4) for i in range(4)], 0.9)
    for actual, wanted in zip(summary.auc, expected, strict=True):
        assert actual == pytest.approx(wanted)
    rates = [
        metrics.membership(r, y).tpr_at_fpr["0.01"] for r, y in zip(results, is_member, strict=True)
    ]
    assert summary.tpr_at_fpr["0.01"].mean == pytest.approx(np.mean(rates))
    assert summary.tpr_at_fpr["0.001"] is None


def test_models_without_complement_are_units_of_their_own():
    rng = np.random.default_rng(0)
    is_member = rng.random((5, 400)) < 0.5
    results = rng.normal(size=is_member.shape) + is_member
    summary = cross_target.summarise(results, is_member, confidence=0.95)
    assert summary.num_units == summary.num_targets == 5
    expected = slow_spread(aucs(results, is_member), [(i,) for i in range(5)], 0.95)
    assert summary.auc.interval == pytest.approx(expected[-1])


def test_one_pair_has_no_interval(keys):
    scores, is_member = pool(keys, models=2, gap=1.0)
    summary = cross_target.summarise(scores, is_member, confidence=0.95)
    assert summary.auc.interval is None
    assert summary.auc.lowest <= summary.auc.mean <= summary.auc.highest


@pytest.mark.slow
def test_the_interval_covers_the_mean_at_its_confidence():
    """Pairs whose two results are equal: as units of their own they would cover far less."""
    rng = np.random.default_rng(5)
    half = np.arange(40) < 20
    is_member = np.concatenate([np.tile(half, (4, 1)), np.tile(~half, (4, 1))])
    hits = 0
    for _ in range(150):
        noise = rng.normal(size=(4, 40))
        results = np.concatenate([noise + half, np.roll(noise + half, 20, axis=1)])
        lower, upper = cross_target.summarise(results, is_member, confidence=0.9).auc.interval
        hits += lower <= stats.norm.cdf(1 / np.sqrt(2)) <= upper
    # Eight units in place of four would cover 70 %.
    assert abs(hits / 150 - 0.9) < 3 * np.sqrt(0.9 * 0.1 / 150)


def test_refuses_in_one_line(keys):
    scores, is_member = pool(keys, models=4, records=10)
    with pytest.raises(
        ValueError, match=r"^Expected models beside target and complement, got 2\.$"
    ):
        cross_target.attack_each_model(lira.online, scores[[0, 2]], is_member[[0, 2]])
    each = oracles.unhooked(cross_target.attack_each_model)
    with pytest.raises(ValueError, match=r"^Expected attack scores of shape \[10\], got \[\]\.$"):
        each(lambda *arrays: np.float64(0.0), scores, is_member)
    with pytest.raises(ValueError, match=r"^Expected scores and membership of shape \[m, n\], got"):
        each(lira.online, scores[:, :9], is_member)
    with pytest.raises(ValueError, match="Expected only 0 and 1 in shadow_is_member"):
        each(lira.online, scores, is_member + 1)
    with pytest.raises(ValueError, match="Expected at least two targets, got 1"):
        cross_target.summarise(scores[:1], is_member[:1], confidence=0.95)
    with pytest.raises(ValueError, match="Expected 0 < confidence < 1"):
        cross_target.summarise(scores, is_member, confidence=1.0)


def test_shadows_are_all_but_the_target_and_its_complement():
    half = np.random.default_rng(0).random((3, 20)) < 0.5
    is_member = np.concatenate([half, ~half])
    assert cross_target.shadows_of(is_member, 1).tolist() == [0, 2, 3, 5]
    assert cross_target.shadows_of(half, 1).tolist() == [0, 2]
    with pytest.raises(ValueError, match=r"Expected a target in 0\.\.5, got 6"):
        cross_target.shadows_of(is_member, 6)
