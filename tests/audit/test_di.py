"""The differential-identifiability adversary: densities by hand, known mechanisms, and ties."""

import itertools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from jaxpriv import accounting, grads, identifiability, sampling, training
from jaxpriv.audit import di

X = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
LABELS = (X[:, 0] > 0).astype(np.float32)
CLIP = 0.5


def logistic(params, example, key):
    x, y = example
    return jnp.logaddexp(0.0, jnp.dot(params, x)) - y * jnp.dot(params, x)


def linear(params, x, key):
    return jnp.dot(params, x)


def trainer(loss=logistic, **changes):
    given = {
        "grad": grads.clipped_grad(loss, clip_norm=CLIP),
        "optimizer": optax.sgd(0.3),
        "steps": 4,
        "noise_multiplier": 1.5,
        "noise": "global",
        "sampling_prob": 1.0,
    }
    return di.Trainer(**given | changes)


def pair(relation):
    first, second = ((X[i], LABELS[i]) for i in (7, 8))
    return di.Pair((X[:7], LABELS[:7]), first, second if relation == "replace_one" else None)


def initial(key):
    return jax.random.normal(key, (2,))


def clipped_sum(params, records):
    """Sum of clipped gradients of the logistic loss, in float64."""
    total = np.zeros(2)
    for x, y in records:
        gradient = (1 / (1 + math.exp(-params @ x)) - y) * x.astype(float)
        total += gradient * min(1, CLIP / np.linalg.norm(gradient))
    return total


@pytest.mark.parametrize(
    ("relation", "noise"), [("add_or_remove_one", "global"), ("replace_one", "local")]
)
def test_log_odds_are_those_of_the_densities(keys, relation, noise):
    """SGD reveals the noisy sums: they are the differences of the parameters of prefixes."""
    chosen, records = pair(relation), list(zip(X, LABELS, strict=True))
    runs = [
        di.play(keys(6), trainer(steps=k, noise=noise), initial, chosen, evaluate=lambda p: p)
        for k in (1, 2, 3)
    ]
    assert len(set(runs[-1].in_d)) == 2
    factor = 2 if relation == "replace_one" else 1
    for i in range(6):
        for before, after in itertools.pairwise(runs):
            params, new = (run.evaluations[i].astype(float) for run in (before, after))
            noisy = (params - new) * 8 / 0.3
            g = clipped_sum(params, records[:8])
            other = records[:7] + ([records[8]] if factor == 2 else [])
            h = clipped_sum(params, other)
            std = 1.5 * CLIP
            if noise == "local":
                std *= np.linalg.norm(g - h) / (factor * CLIP)
            step = after.log_odds.shape[1] - 1
            assert after.local_sensitivity[i, step] == pytest.approx(
                np.linalg.norm(g - h), rel=1e-4
            )
            assert after.std[i, step] == pytest.approx(std, rel=1e-4)
            densities = [stats.norm.logpdf(noisy, mean, std).sum() for mean in (g, h)]
            gain = after.log_odds[i, step] - after.log_odds[i, step - 1]
            assert gain == pytest.approx(densities[0] - densities[1], abs=2e-3)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_the_advantage_of_a_gaussian_mechanism_is_that_of_theory(keys, relation):
    """Constant gradients: the transcript is a Gaussian mechanism with mu = sqrt(k) / z."""
    game = trainer(linear, noise_multiplier=3.0)
    second = jnp.array([-1.0, 0.0]) if relation == "replace_one" else None
    chosen = di.Pair(jnp.zeros((3, 2)), jnp.array([1.0, 0.0]), second)
    found = di.play(keys(4000), game, lambda key: jnp.zeros(2), chosen, strategy="vmap", chunk=4000)
    mu = game.mu(relation)
    assert mu == pytest.approx(2 * (1 + (relation == "replace_one")) / 3)
    np.testing.assert_allclose(di.realised_mu(found), mu, rtol=1e-5)
    expected = accounting.gaussian.advantage(mu)
    tolerance = 4 * math.sqrt((1 - expected**2) / 4000)
    assert abs(di.advantage(found, confidence=0.95).value - expected) < tolerance
    # The log-odds are normal with mean mu^2 / 2 on the right side and standard deviation mu.
    signed = np.where(found.in_d, 1, -1) * found.log_odds[:, -1]
    assert stats.kstest(signed, "norm", (mu**2 / 2, mu)).pvalue > 1e-3
    assert stats.kstest(signed, "norm", (mu**2 / 2, 1.2 * mu)).pvalue < 1e-3
    seen = di.violations(found, rho=0.8, confidence=0.999)
    truth = identifiability.gaussian_violation_probability(0.8, mu=mu)
    assert seen.lower < truth < seen.upper


@pytest.mark.slow
def test_a_hundred_thousand_repetitions_reach_the_advantage_within_four_errors(keys):
    game = trainer(linear, noise_multiplier=2.0)
    chosen = di.Pair(jnp.zeros((3, 2)), jnp.array([1.0, 0.0]))
    found = di.play(
        keys(100_000), game, lambda key: jnp.zeros(2), chosen, strategy="vmap", chunk=10_000
    )
    expected = accounting.gaussian.advantage(1.0)
    assert abs(di.advantage(found, confidence=0.95).value - expected) < 0.012


def test_with_poisson_batches_the_advantage_is_that_of_the_loss_distribution(keys):
    """The adversary lacks one coin, so that its likelihoods are mixtures."""
    game = trainer(linear, noise_multiplier=0.6, sampling_prob=0.3, steps=5)
    chosen = di.Pair(jnp.zeros((6, 2)), jnp.array([1.0, 0.0]))
    found = di.play(keys(4000), game, lambda key: jnp.zeros(2), chosen, strategy="vmap", chunk=4000)
    event = sampling.poisson(7, sampling_prob=0.3).event(noise_multiplier=0.6, steps=5)
    expected = accounting.advantage_bound(event, relation="add_or_remove_one")
    naive = accounting.gaussian.advantage(math.sqrt(5) / 0.6)
    tolerance = 4 * math.sqrt((1 - expected**2) / 4000)
    assert naive - expected > 3 * tolerance
    assert abs(di.advantage(found, confidence=0.95).value - expected) < tolerance


def test_local_noise_makes_every_transcript_equally_informative(keys):
    game = trainer(noise="local", steps=6, noise_multiplier=4.0)
    for relation, factor in (("add_or_remove_one", 1), ("replace_one", 2)):
        found = di.play(keys(5), game, initial, pair(relation))
        expected = factor * math.sqrt(6) / 4
        np.testing.assert_allclose(di.realised_mu(found), expected, rtol=1e-5)
        assert game.mu(relation) == pytest.approx(expected)
        assert found.local_sensitivity.std() > 1e-3
    found = di.play(keys(5), trainer(steps=6, noise_multiplier=4.0), initial, pair("replace_one"))
    assert (di.realised_mu(found) < expected).all()


def test_initial_parameters_are_made_one_repetition_at_a_time(keys, monkeypatch):
    sizes = []

    def fit_many(run_keys, make_alg, start, *args, **options):
        sizes.extend(leaf.size for leaf in jax.tree.leaves(start))
        return training.fit_many(run_keys, make_alg, start, *args, **options)

    monkeypatch.setattr(di, "training", SimpleNamespace(**vars(training) | {"fit_many": fit_many}))
    di.play(keys(3), trainer(steps=1), initial, pair("add_or_remove_one"))
    assert max(sizes) == 3


@pytest.mark.parametrize("noise", ["global", "local"])
def test_of_equal_data_sets_nothing_is_learnt(keys, noise):
    same = pair("replace_one")._replace(second=(X[7], LABELS[7]))
    found = di.play(keys(5), trainer(noise=noise), initial, same, evaluate=lambda p: p)
    assert (found.log_odds == 0).all()
    assert (di.beliefs(found) == 0.5).all()
    assert di.advantage(found, confidence=0.95).value == 0
    assert (di.realised_mu(found) == 0).all()
    assert di.empirical_epsilons(found, delta=0.01, confidence=0.95).from_belief == 0
    assert np.isfinite(found.evaluations).all()


def test_chunks_strategies_and_a_resumed_run_agree(keys, tmp_path, monkeypatch):
    arguments = (keys(6), trainer(), initial, pair("replace_one"))
    expected = di.play(*arguments)
    by_vmap = di.play(*arguments, strategy="vmap", chunk=4)
    folder = training.Checkpoints(directory=tmp_path)
    first = di.play(*arguments, chunk=2, checkpoints=folder)

    def unexpected(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr(training.Checkpoints, "save", unexpected)
    resumed = di.play(*arguments, chunk=2, checkpoints=folder)
    for found, tolerance in ((by_vmap, 1e-5), (first, 1e-5), (resumed, 0)):
        np.testing.assert_array_equal(found.in_d, expected.in_d)
        wanted = first if found is resumed else expected
        np.testing.assert_allclose(found.log_odds, wanted.log_odds, rtol=tolerance, atol=tolerance)


def test_three_epsilons_of_a_known_mechanism():
    """Log-odds drawn from theory: the estimate is exact and the interval contains the truth."""
    rng = np.random.default_rng(3)
    in_d, mu = rng.random(2000) < 0.5, 1.2
    log_odds = np.where(in_d, 1, -1) * rng.normal(mu**2 / 2, mu, 2000)
    ones = np.ones((2000, 1))
    found = di.Repetitions(in_d, log_odds[:, None], mu * ones, ones, ())
    audits = di.empirical_epsilons(found, delta=0.01, confidence=0.99)
    truth = accounting.gaussian.epsilon(0.01, mu=mu)
    assert audits.from_sensitivities == pytest.approx(truth)
    assert audits.from_advantage.lower < truth < audits.from_advantage.upper
    assert audits.from_belief == pytest.approx(
        np.log(di.beliefs(found).max() / (1 - di.beliefs(found).max()))
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_multiplier": 0.0}, "Expected noise_multiplier > 0"),
        ({"steps": 0}, "steps"),
        ({"noise": "local", "sampling_prob": 0.5}, "Expected sampling_prob=1 for local noise"),
    ],
)
def test_a_wrong_trainer_is_one_line(changes, message):
    with pytest.raises(ValueError, match=message) as error:
        trainer(**changes)
    assert "\n" not in str(error.value)


def test_a_pair_of_other_shapes_is_one_line(keys):
    wrong = di.Pair((X[:7], LABELS[:7]), (X[7:8], LABELS[7]))
    with pytest.raises(ValueError, match="Expected first as one record") as error:
        di.play(keys(2), trainer(), initial, wrong)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("position", ["first", "second"])
def test_a_record_without_a_finite_gradient_is_reported(keys, position):
    """It counts as zero, so that the adversary learns nothing of it."""
    ends = {"first": np.ones(2, np.float32), "second": -np.ones(2, np.float32)}
    ends[position] = np.full(2, np.nan, np.float32)
    with pytest.warns(UserWarning, match=r"^8 of 72 per-example gradients"):
        di.play(keys(2), trainer(linear), initial, di.Pair(X[:7], **ends))


def test_with_64_bit_types_enabled(keys):
    with jax.enable_x64(True):
        pair = di.Pair(shared=np.zeros((2, 2)), first=np.ones(2))
        found = di.play(keys(3), trainer(linear), lambda key: jnp.zeros(2), pair)
    assert found.log_odds.dtype == np.float64
    assert np.isfinite(found.log_odds).all()
