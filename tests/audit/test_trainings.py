"""Audits of whole trainings: a correct one passes, and each half of the audit can fail."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpriv import grads, sampling, training
from jaxpriv.audit import trainings

D, N, STEPS, Z, RATE = 30, 5, 4, 2.0, 0.5
EXCHANGE = trainings.Exchange(
    shared=np.ones((N - 1, D), np.float32),
    present=np.float32(10) * np.eye(D, dtype=np.float32)[0],
    absent=np.zeros(D, np.float32),
)


def loss(params, x, key):
    return jnp.dot(params, x)


def algorithm(noise_multiplier, *, clip_norm=1.0):
    return training.dpsgd(
        grads.clipped_grad(loss, clip_norm=clip_norm),
        optax.sgd(RATE),
        sampling.full_batch(N),
        noise_multiplier=noise_multiplier,
    )


def check(alg, noiseless, *, std=RATE * Z / N, relation="add_or_remove_one", exchange=EXCHANGE):
    return trainings.check_training(
        jax.random.key(4),
        alg,
        jnp.zeros(D),
        exchange=exchange,
        noiseless=noiseless,
        std=std,
        delta=0.05,
        relation=relation,
        steps=STEPS,
        runs=1500,
        level=0.01,
    )


def test_a_correct_training_passes_and_its_outcomes_are_gaussian():
    """The true mu is sqrt(k) / z, so that the difference of both means is mu deviations."""
    findings = check(algorithm(Z), algorithm(0.0))
    assert not findings.is_flagged
    assert findings.noise.std_ratio == pytest.approx(1, abs=0.3)
    scores, is_member = findings.outcomes
    gap = scores[is_member].mean() - scores[~is_member].mean()
    mu = gap / np.sqrt((scores[is_member].var() + scores[~is_member].var()) / 2)
    assert mu == pytest.approx(STEPS**0.5 / Z, abs=0.25)  # the standard error is 0.055
    assert 0.3 < findings.bounds.clopper_pearson < findings.promised


def test_too_little_noise_is_rejected_by_the_noise_itself():
    findings = check(algorithm(Z / 2), algorithm(0.0))
    assert findings.is_flagged
    assert "level noise" in findings.noise.rejected


def test_a_missing_clip_is_proved_by_the_bound_alone():
    """The noise is right and the promise is wrong."""
    unclipped = algorithm(Z / 10, clip_norm=10.0)
    unclipped = unclipped._replace(event=algorithm(Z).event)
    findings = check(unclipped, algorithm(0.0, clip_norm=10.0))
    assert not findings.noise.rejected
    assert findings.bounds.clopper_pearson > findings.promised
    assert findings.is_flagged


def test_replacing_a_record_needs_twice_the_promise():
    """The exchange for the opposite gradient stays below the replace-one promise, and above the
    other one."""
    opposite = EXCHANGE._replace(absent=-EXCHANGE.present)
    right = check(algorithm(Z), algorithm(0.0), relation="replace_one", exchange=opposite)
    assert not right.is_flagged
    wrong = check(algorithm(Z), algorithm(0.0), exchange=opposite)
    assert wrong.is_flagged
    assert not wrong.noise.rejected


def test_one_training_cannot_have_both_outcomes():
    with pytest.raises(ValueError, match="more trainings"):
        trainings.repeat(
            jax.random.key(0), algorithm(Z), jnp.zeros(D), EXCHANGE, jnp.sum, steps=1, runs=1
        )


def test_sampled_batches_do_not_hide_the_record():
    """Trainings of different batches differ by the shared records too."""
    shared = np.random.default_rng(0).normal(size=(39, D)).astype(np.float32)
    rows = trainings.Exchange(shared, EXCHANGE.present, EXCHANGE.absent)

    def sampled(noise_multiplier):
        grad = grads.clipped_grad(loss, clip_norm=1.0)
        sampler = sampling.poisson(40, sampling_prob=0.3)
        return training.dpsgd(grad, optax.sgd(1.0), sampler, noise_multiplier=noise_multiplier)

    data = trainings._rows(rows)
    found = trainings._direction(jax.random.key(0), sampled(0.0), jnp.zeros(D), data, 3)
    cosine = found[0] / np.linalg.norm(found)
    assert abs(cosine) == pytest.approx(1, abs=1e-3)
    # On average the record is in 0.3 * 3 batches, at a gradient of the clip norm.
    assert np.linalg.norm(found) == pytest.approx(0.9 / 12, rel=0.3)
