"""Trains with checkpoints and writes the result; the tests kill it on the way."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxpriv import grads, sampling, training


def loss(params, x, key):
    return jnp.sum((params["w"] - x) ** 2)


@functools.cache  # a second run in one process compiles nothing
def private(n):
    grad = grads.clipped_grad(loss, clip_norm=1.0)
    sampler = sampling.poisson(n, sampling_prob=0.1)
    return training.dpsgd(grad, optax.adam(0.01), sampler, noise_multiplier=2.0)


def main(kind, folder, out):
    """Trains one model ("fit") or several ("many") with checkpoints below the folder."""
    key = jax.random.key(1, impl="rbg")  # compiles in half the time
    x = jax.random.normal(jax.random.key(2), (400, 50))
    if kind == "fit":
        checkpoints = training.Checkpoints(directory=Path(folder) / "fit", seconds=0.0, keep=None)
        alg, start = private(400), {"w": jnp.zeros(50)}
        state, history = training.fit(key, alg, start, x, steps=120, checkpoints=checkpoints)
        result = {"w": state.params["w"], "norms": history.info.mean_norm, "step": state.step}
    else:
        checkpoints = training.Checkpoints(directory=Path(folder) / "many", keep=None)
        states, info = training.fit_many(
            jax.random.split(key, 8),
            lambda size, _: private(size),
            {"w": jnp.zeros((8, 50))},
            x,
            members=np.stack([np.random.default_rng(i).permutation(400)[:200] for i in range(8)]),
            steps=50,
            chunk=1,
            checkpoints=checkpoints,
        )
        result = {"w": states.params["w"], "norms": info.info.mean_norm}
    result = {name: np.asarray(value) for name, value in result.items()}
    np.savez(out, **result)
    return result
