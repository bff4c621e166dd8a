"""Dirichlet outputs against moments, extreme concentrations and the accountant."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from jaxpriv import accounting
from jaxpriv.defences import base, dirichlet

LOGITS = jnp.array([2.0, -1.0, 0.5, 1.9])
P = 0.02 + (1 - 4 * 0.02) * special.softmax(np.asarray(LOGITS, np.float64))


def answers(k, count=4000, logits=LOGITS):
    keys = jax.random.split(jax.random.key(7), count)
    draw = jax.jit(jax.vmap(lambda key: dirichlet.noised_answer(key, logits, k=k, eta=0.02)))
    return np.asarray(draw(keys), np.float64)


@pytest.mark.parametrize("k", [1.0, 100.0])
def test_each_entry_has_its_beta_distribution(k):
    draws = np.exp(answers(k))
    np.testing.assert_allclose(draws.sum(axis=1), 1, atol=1e-5)
    for i in range(4):
        marginal = stats.beta(k * P[i], k * (1 - P[i]))
        assert stats.kstest(draws[:, i], marginal.cdf).pvalue > 1e-4
        wrong = stats.beta(1.3 * k * P[i], 1.3 * k * (1 - P[i]))
        assert i or stats.kstest(draws[:, i], wrong.cdf).pvalue < 1e-4


@pytest.mark.parametrize("k", [0.01, 0.1, 1.0, 1000.0])
def test_answers_are_finite_at_any_concentration(k):
    logits = jnp.array([60.0, 0.0, -60.0, 0.0])
    draws = answers(k, count=2000, logits=logits)
    assert np.isfinite(draws).all()
    np.testing.assert_allclose(special.logsumexp(draws, axis=1), 0, atol=1e-5)
    # log x has the mean digamma(k p) - digamma(k), also where x itself underflows.
    p = 0.02 + (1 - 4 * 0.02) * special.softmax(np.asarray(logits, np.float64))
    expected = special.digamma(k * p) - special.digamma(k)
    error = draws.std(axis=0) / np.sqrt(2000)
    assert (np.abs(draws.mean(axis=0) - expected) < 5 * error + 1e-4).all()


def test_flooring_keeps_the_floor_and_shrinks_distances():
    first, second = np.log([0.5, 0.3, 0.2]), np.log([0.45, 0.35, 0.2])
    a, b = (
        np.exp(dirichlet.floored_log_probabilities(jnp.asarray(x, jnp.float32), eta=0.1))
        for x in (first, second)
    )
    np.testing.assert_allclose(np.abs(a - b).sum(), 0.1 * (1 - 3 * 0.1), rtol=1e-4)
    lowest = dirichlet.floored_log_probabilities(jnp.array([90.0, 0.0, 0.0]), eta=0.1)
    np.testing.assert_allclose(np.exp(lowest), [0.8, 0.1, 0.1], rtol=1e-5)


def test_the_guarantee_is_that_of_the_floored_vectors():
    defence = base.from_text("dirichlet:k=10,eta=0.01,b=0.1,delta=1e-5,queries=4")
    mechanism = accounting.dirichlet.Dirichlet(
        concentration=10.0, floor=0.01, distance=0.1 * 0.9, num_classes=10
    )
    expected = accounting.dirichlet.epsilon(mechanism, delta=1e-5, queries=4)
    guarantee = defence.output_guarantee(10)
    assert guarantee.epsilon == expected
    assert (guarantee.queries, guarantee.distance, defence.guarantee) == (4, 0.1, None)


def test_too_many_classes_for_the_floor_are_refused():
    defence = base.from_text("dirichlet:k=10,eta=0.3,b=0.1,delta=1e-5")
    with pytest.raises(ValueError, match="eta below 1 / 4 for 4 classes"):
        defence.respond(jax.random.key(0), LOGITS)
    with pytest.raises(ValueError, match="eta below 1 / 4 for 4 classes"):
        defence.output_guarantee(4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlet:k=10", r"dirichlet:k=NUMBER,eta=NUMBER,b=NUMBER,delta=NUMBER,\[queries=NUMBER"),
        ("dirichlet:k=0,eta=0.1,b=0.1,delta=1e-5", "k > 0"),
        ("dirichlet:k=1,eta=0.1,b=3,delta=1e-5", "b of at most 2"),
        ("dirichlet:k=1,eta=0.1,b=0.1,delta=1e-5,queries=1.5", "whole number for queries"),
        ("dirichlet:k=1,eta=0.1,b=0.1,delta=1e-5,k=2", "got 'dirichlet"),
    ],
)
def test_impossible_settings_are_one_line(text, message):
    with pytest.raises(ValueError, match=message):
        base.from_text(text)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("eta", [0.003, 0.05])
def test_narrow_types_keep_the_floor_of_the_guarantee(dtype, eta):
    floored = dirichlet.floored_log_probabilities(jnp.array([100, 0, 0], dtype), eta=eta)
    smallest = np.exp(np.asarray(floored, np.float64)).min()
    assert smallest == pytest.approx(eta, rel=1e-5)  # bfloat16 fell 0.4 % below it


def test_no_logarithm_is_so_small_that_it_proves_a_concentration(monkeypatch):
    """Uniform numbers of 23 bits end at e^-16. Here every 32 bits are zero half of the time."""
    bits = jax.random.bits
    monkeypatch.setattr(jax.random, "bits", lambda *args: bits(*args) >> 31)
    draws = answers(1e-3, count=200)
    exponents = -draws * 1e-3 * P  # those of all but the largest entry, about
    assert exponents.max() > 4 * 32 * np.log(2)
