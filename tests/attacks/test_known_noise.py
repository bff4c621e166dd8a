"""Attackers who know the noise: densities of SciPy, the optimal test, and averages of answers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from jaxpriv import metrics
from jaxpriv.accounting import gaussian
from jaxpriv.attacks import known_noise
from jaxpriv.attacks.evidence import Evidence, defended
from jaxpriv.defences import dirichlet
from tests import oracles

K, ETA = 8.0, 0.02


def test_the_score_is_the_ratio_of_dirichlet_densities():
    rng = np.random.default_rng(0)
    logits, is_member = rng.normal(size=(4, 5, 3)), np.arange(4)[:, None] < [1, 2, 3, 2, 2]
    answers = rng.dirichlet(np.ones(3), size=(6, 5))
    scores = known_noise.dirichlet_answers(
        np.log(answers).mean(axis=0), logits, is_member, k=K, eta=ETA, queries=6
    )
    p = ETA + (1 - 3 * ETA) * special.softmax(logits, axis=-1)
    for i in range(5):
        likelihood = np.array(
            [
                np.prod([stats.dirichlet.pdf(x, K * p[m, i]) for x in answers[:, i]])
                for m in range(4)
            ]
        )
        sides = likelihood[is_member[:, i]].mean(), likelihood[~is_member[:, i]].mean()
        assert scores[i] == pytest.approx(np.log(sides[0] / sides[1]), rel=1e-4)


def test_records_without_both_sides_have_score_zero():
    logits = np.random.default_rng(0).normal(size=(2, 3, 3))
    is_member = np.array([[True, True, False], [False, True, False]])
    answers = special.log_softmax(logits[0], axis=-1)
    scores = known_noise.dirichlet_answers(answers, logits, is_member, k=K, eta=ETA, queries=1)
    assert scores[0] != 0
    assert scores[1:].tolist() == [0, 0]


def advantage(scores, is_member):
    return 2 * metrics.membership(scores, is_member).balanced_accuracy - 1


def test_averaging_recovers_what_one_answer_hides():
    """Members and others have two fixed outputs, whose test of m answers is known."""
    n, rng = 1500, np.random.default_rng(2)
    outputs = np.log(np.array([[0.6, 0.3, 0.1], [0.45, 0.45, 0.1]]))
    is_member = rng.random(n) < 0.5
    evidence = Evidence(logits=outputs[(~is_member).astype(int)], labels=np.zeros(n, int))
    shadow_logits = np.repeat(outputs[:, None], n, axis=1)
    shadow_is_member = np.repeat([[True], [False]], n, axis=1)

    def respond(key, logits):
        return dirichlet.noised_answer(key, logits, k=K, eta=ETA)

    found = []
    for queries in (1, 4, 16, 64):
        answers = defended(jax.random.key(queries), evidence, respond, queries=queries).logits
        scores = known_noise.dirichlet_answers(
            answers, shadow_logits, shadow_is_member, k=K, eta=ETA, queries=queries
        )
        found.append(advantage(scores, is_member))
        assert ((scores > 0) == is_member).mean() > 0.5 + found[-1] / 2 - 0.05
    p = ETA + (1 - 3 * ETA) * np.exp(outputs)
    draws = rng.dirichlet(K * p[0], 200_000), rng.dirichlet(K * p[1], 200_000)
    ratios = [((K * (p[0] - p[1])) * np.log(x)).sum(axis=1) for x in draws]
    threshold = (special.gammaln(K * p[0]) - special.gammaln(K * p[1])).sum()
    exact = (ratios[0] > threshold).mean() - (ratios[1] > threshold).mean()
    assert abs(found[0] - exact) < 0.08
    assert found == sorted(found)
    assert found[3] > 0.9 > 0.45 > found[0]


def test_labels_alone_reveal_more_when_repeated():
    rng = np.random.default_rng(3)
    logits = np.where(rng.random(400) < 0.5, 1.0, 0.2)[:, None] * [1.0, 0.0]
    is_member = logits[:, 0] == 1.0

    def answers(queries):
        keys = jax.random.split(jax.random.key(queries), (queries, 400))
        draw = jax.vmap(lambda key, x: dirichlet.noised_answer(key, x, k=2.0, eta=ETA))
        return np.stack([draw(k, jnp.asarray(logits, jnp.float32)) for k in keys])

    aucs = [
        metrics.membership(known_noise.label_votes(answers(q), np.zeros(400, int)), is_member).auc
        for q in (1, 32)
    ]
    assert aucs[1] > aucs[0] + 0.1


def test_known_noise_on_parameters_reaches_the_optimal_advantage():
    """Two neighbouring data sets with known parameters: the exact Gaussian advantage."""
    rng, sigma, mu = np.random.default_rng(1), 0.3, 1.5
    first, second = np.zeros(40), np.full(40, mu * sigma / np.sqrt(40))
    is_member = rng.random(2000) < 0.5
    shadow_params = {"w": jnp.asarray(np.stack([second, first]), jnp.float32)}
    noise = sigma * rng.normal(size=(2000, 40))
    scores = [
        known_noise.gaussian_parameters(
            {"w": (second if member else first) + z},
            shadow_params,
            np.array([[True], [False]]),
            sigma=sigma,
        )[0]
        for member, z in zip(is_member, noise, strict=True)
    ]
    guessed = np.array(scores) > 0
    error = 1 / np.sqrt(2000)
    achieved = guessed[is_member].mean() - guessed[~is_member].mean()
    assert abs(achieved - gaussian.advantage(mu)) < 4 * error
    assert achieved > 0.4


def test_wrong_shapes_are_refused():
    logits, is_member = np.zeros((2, 3, 4)), np.zeros((2, 3), bool)
    with pytest.raises(ValueError, match="eta below 1 / 4"):
        known_noise.dirichlet_answers(logits[0], logits, is_member, k=1.0, eta=0.3, queries=1)
    with pytest.raises(ValueError, match="2 shadow models"):
        known_noise.gaussian_parameters(np.zeros(2), np.zeros((3, 2)), is_member, sigma=1.0)
    with pytest.raises(ValueError, match="3 labels"):
        oracles.unhooked(known_noise.label_votes)(logits, np.zeros(2, int))


def test_parameters_in_float64_keep_their_digits():
    shadows = np.array([[1 + 1e-9], [1.0]])  # equal in float32
    score = known_noise.gaussian_parameters(
        shadows[0], shadows, np.array([[True], [False]]), sigma=1e-9
    )
    assert score == pytest.approx(0.5, rel=1e-5)


def test_parameters_and_answers_that_do_not_fit_are_refused():
    """They would broadcast, or give scores of NaN, or votes for class 0."""
    is_member = np.array([[True], [False]])
    for released, message in (
        (np.ones(3), r"Expected shadow_params \[2, 3\], got \[2, 1\]"),
        ({"w": np.ones(1)}, "of the structure of released"),
        (np.array([np.nan]), "released without NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            known_noise.gaussian_parameters(released, np.ones((2, 1)), is_member, sigma=1.0)
    answers = np.array([[-np.inf, 0.0]])
    with pytest.raises(ValueError, match="finite mean_log_probs"):
        known_noise.dirichlet_answers(
            answers, np.zeros((2, 1, 2)), is_member, k=1.0, eta=0.01, queries=1
        )
    with pytest.raises(ValueError, match="answers without NaN"):
        known_noise.label_votes(np.full((3, 2, 2), np.nan), np.array([0, 1]))
