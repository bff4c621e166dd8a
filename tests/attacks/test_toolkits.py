"""Formulas of public toolkits against their definitions, and where they agree with ours."""

import jax
import numpy as np
import pytest
from scipy import stats

from experiments.attacks import resampling, toolkits
from jaxpriv import metrics, signals
from jaxpriv.attacks import Evidence, lira, rmia

KEY = jax.random.key(0)
NUM_RECORDS, NUM_POPULATION, NUM_CLASSES = 60, 40, 3


def evidence(*, num_pairs=4, equal_population=False):
    """Complementary halves; with `equal_population` all models agree on population records."""
    rng = np.random.default_rng(0)
    half = rng.random((num_pairs, NUM_RECORDS)) < 0.5
    is_member = np.concatenate([half, ~half])
    labels = rng.integers(NUM_CLASSES, size=NUM_RECORDS)
    shadows = rng.normal(size=(len(is_member), NUM_RECORDS, NUM_CLASSES))
    shadows += 2 * rng.normal(size=(NUM_RECORDS, NUM_CLASSES))  # records differ
    shadows += is_member[..., None] * np.eye(NUM_CLASSES)[labels]
    others = rng.normal(size=(len(is_member) + 1, NUM_POPULATION, NUM_CLASSES))
    if equal_population:
        others[1:] = others[1]
    return Evidence(
        labels=labels,
        logits=rng.normal(size=(NUM_RECORDS, NUM_CLASSES)),
        shadow_logits=shadows,
        shadow_is_member=is_member,
        population=Evidence(
            labels=rng.integers(NUM_CLASSES, size=NUM_POPULATION),
            logits=others[0],
            shadow_logits=others[1:],
        ),
    )


def run(name, found):
    by_name = {attack.name: attack for attack in toolkits.attacks(steps=5)}
    return by_name[name].run(KEY, found)


def log_probs(found):
    return [
        signals.score_records(signals.negative_loss, logits, found.labels)
        for logits in (found.logits, found.shadow_logits)
    ]


@pytest.mark.filterwarnings("ignore::jaxpriv.attacks.rmia.TiesWarning")
def test_rmia_is_ours_where_the_population_has_one_probability():
    found = evidence(equal_population=True)
    ours = rmia.offline(
        *log_probs(found),
        found.shadow_is_member,
        population=rmia.Population(*log_probs(found.population)),
        gamma=1.0,
        a=0.3,
    )
    np.testing.assert_allclose(run("privacyguard_rmia", found), ours, atol=1e-9)


def test_rmia_keeps_the_upper_half_of_the_population():
    found = evidence()
    probs = np.exp(log_probs(found.population)[1])
    upper = toolkits.upper_mean(probs, np.zeros(probs.shape, bool))
    loop = [np.mean(sorted(column)[4:]) for column in probs.T]
    np.testing.assert_allclose(upper, loop, rtol=1e-6)
    assert (upper > probs.mean(axis=0)).all()
    of_records = toolkits.upper_mean(np.exp(log_probs(found)[1]), found.shadow_is_member)
    out = np.exp(log_probs(found)[1]).mean(axis=0, where=~found.shadow_is_member)
    np.testing.assert_allclose(of_records, out, rtol=1e-6)


def test_privacyguard_lira_divides_by_the_deviation_over_records():
    found = evidence()
    target, shadows = found.signal_arrays(signals.logit_confidence)
    expected = []
    for i, s in enumerate(target):
        inside = found.shadow_is_member[:, i]
        means = shadows[inside, i].mean(), shadows[~inside, i].mean()
        scale = np.std(target, ddof=1)
        expected.append(np.subtract(*stats.norm.logpdf(s, means, scale)))
    np.testing.assert_allclose(run("privacyguard_lira", found), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("num_pairs", [4, 32])
def test_leakpro_lira_takes_one_deviation_below_64_shadow_models(num_pairs):
    found = evidence(num_pairs=num_pairs)
    target, shadows = found.signal_arrays(signals.logit_confidence)
    is_member = found.shadow_is_member
    expected = []
    for i, s in enumerate(target):
        sides = []
        for side in (is_member, ~is_member):
            own = shadows[side[:, i], i]
            scale = own.std() if num_pairs == 32 else shadows[side].std()
            sides.append(stats.norm.logpdf(s, own.mean(), scale))
        expected.append(sides[0] - sides[1])
    np.testing.assert_allclose(run("leakpro_lira", found), expected, rtol=1e-4, atol=1e-5)
    if num_pairs == 4:  # the paper pools deviations from the mean of each record
        fixed = lira.online(target, shadows, is_member, variance="fixed")
        assert np.abs(fixed - expected).max() > 0.1


@pytest.mark.parametrize("name", ["leakpro_rmia", "privacy_meter_rmia"])
def test_shares_lie_in_the_unit_interval(name):
    for num_pairs in (1, 4):
        scores = run(name, evidence(num_pairs=num_pairs))
        assert scores.shape == (NUM_RECORDS,)
        assert 0 <= scores.min() < scores.max() <= 1


def test_shares_count_ratios_that_are_exceeded():
    ratio, reference = np.array([0.5, 2.0, 4.0]), np.array([1.0, 2.0, 4.0])
    loop = [np.mean(each / reference > 1.0) for each in ratio]
    np.testing.assert_allclose(toolkits.share_above(ratio, reference, gamma=1.0), loop)


def test_weighted_metrics_are_those_of_repeated_records():
    rng = np.random.default_rng(1)
    scores, is_member = rng.integers(30, size=400) / 10, rng.random(400) < 0.5
    weights = rng.integers(4, size=400)
    found = resampling.weighted_metrics(resampling.column(scores, is_member), weights)
    expected = metrics.membership(scores.repeat(weights), is_member.repeat(weights))
    assert found[0] == pytest.approx(expected.auc)
    assert found[1] == pytest.approx(expected.tpr_at_fpr["0.01"])


def test_intervals_resample_whole_units():
    """With ten copies of each record the interval is that of the distinct records."""
    rng = np.random.default_rng(2)
    scores, is_member = rng.normal(size=100), np.arange(100) % 2 == 0
    widths = []
    for copies, unit in ((1, np.arange(100)), (10, np.repeat(np.arange(100), 10))):
        columns = {"a": [resampling.column(scores.repeat(copies), is_member.repeat(copies))]}
        low, high = resampling.Table(columns, unit, resamples=200).mean("a", "auc")[1]
        widths.append(high - low)
    assert widths[1] == pytest.approx(widths[0], rel=1e-6)
    assert 0.1 < widths[0] < 0.4
