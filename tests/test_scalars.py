"""Scalars of narrow types count with their value: bounds are computed in float64."""

import subprocess
import sys

SCRIPT = """
import jax.numpy as jnp
import numpy as np

from jaxpriv import accounting, identifiability
from jaxpriv.accounting import dirichlet, gaussian, random_dp

event = accounting.poisson_event(noise_multiplier=1.0, sampling_prob=0.1, steps=3)
pld = {"relation": "replace_one"}


def pair_delta(epsilon, concentration, *entries):
    return dirichlet.delta_of_pair(
        epsilon, concentration=concentration, p=entries[:2], p_neighbour=entries[2:]
    )


calls = [
    (lambda epsilon, mu: gaussian.delta(epsilon, mu=mu), 5.0, 1.1),
    (lambda delta, mu: gaussian.epsilon(delta, mu=mu), 1e-3, 1.1),
    (lambda epsilon, delta: gaussian.mu(epsilon, delta=delta), 1.1, 1e-3),
    (gaussian.advantage, 1.1),
    (lambda rate, mu: gaussian.trade_off(float(rate), mu=mu), 0.1, 1.1),
    (lambda e, d, s: gaussian.noise_std(e, delta=d, sensitivity=s), 1.1, 1e-3, 3.3),
    (lambda e, d, s: gaussian.classical_noise_std(e, delta=d, sensitivity=s), 1.1, 1e-3, 3.3),
    (
        lambda s, std, d: random_dp.gaussian_module(
            sensitivity=s, noise_std=std, delta=d, num_pairs=500
        ),
        0.013,
        0.01,
        1e-3,
    ),
    (lambda e, d: accounting.group_privacy(e, delta=d, size=7), 1.1, 1e-3),
    (lambda d: accounting.epsilon(event, delta=d, **pld), 1e-3),
    (lambda d: accounting.group_epsilon(event, size=2, delta=d, **pld), 1e-3),
    (lambda e: accounting.delta(event, epsilon=e, **pld), 8.8),
    (
        lambda d: accounting.epsilon(
            event, delta=d, relation="add_or_remove_one", method="rdp_classic"
        ),
        1e-3,
    ),
    (pair_delta, 1.1, 3.3, 0.75, 0.125, 0.5, 0.375),
    (lambda e, d: identifiability.general_rho_alpha(e, delta=d), 2.2, 1e-2),
    (lambda e, order: identifiability.rdp_rho_alpha(e, order=order), 2.2, 3.3),
    (lambda e, f: identifiability.proposition_2_rho_alpha(e, false_positive_rate=f), 2.2, 0.1),
    (identifiability.mu_for_advantage, 0.3),
    (lambda e, prior: identifiability.rho_beta(e, prior=prior), 2.2, 0.1),
    (lambda rho, prior: identifiability.epsilon_of_rho_beta(rho, prior=prior), 0.9, 0.1),
    (lambda e, mu: identifiability.gaussian_loss_tail(e, mu=mu), 20.0, 1.1),
    (lambda rho, p: identifiability.mu_for_belief(rho, violation_probability=p), 0.9, 0.01),
    (lambda e: identifiability.loss_tail(event, epsilon=e, **pld), 2.2),
    (lambda p: identifiability.bayes_accuracy(lambda e: 0.25, prior=p), 0.3),
]
for kind in (np.float16, jnp.float32):
    for function, *values in calls:
        narrow = [kind(value) for value in values]
        found, exact = function(*narrow), function(*map(float, narrow))
        assert found == exact, (kind, values, found, exact)
"""


def test_narrow_scalars_count_with_their_value():
    """In the type of a scalar of float16, epsilon at mu 1 and delta 1e-5 is 4.375, below 4.3772.

    Annotations are checked in this process, and these scalars are no float.
    """
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
