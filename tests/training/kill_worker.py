"""Trains with checkpoints and writes what came out; the tests kill it on the way.

Usage: python kill_worker.py fit|many FOLDER OUT.npz
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxpriv import accounting, grads, sampling, training


def loss(params, x, key):
    return jnp.sum((params["w"] - x) ** 2)


def private(n):
    grad = grads.clipped_grad(loss, clip_norm=1.0)
    sampler = sampling.poisson(n, sampling_prob=0.1)
    return training.dpsgd(grad, optax.adam(0.01), sampler, noise_multiplier=2.0)


def main(kind, folder, out):
    key = jax.random.key(1)
    x = jax.random.normal(jax.random.key(2), (400, 50))
    if kind == "fit":
        kept = training.Checkpoints(directory=Path(folder) / "fit", seconds=0.0)
        alg, start = private(400), {"w": jnp.zeros(50)}
        state, history = training.fit(key, alg, start, x, steps=300, checkpoints=kept)
        spent = accounting.epsilon(
            alg.event(int(state.step)), delta=1e-5, relation="add_or_remove_one"
        )
        held = {"w": state.params["w"], "norms": history.info.mean_norm, "epsilon": spent}
    else:
        kept = training.Checkpoints(directory=Path(folder) / "many", keep=None)
        states, info = training.fit_many(
            jax.random.split(key, 12),
            lambda _: private(200),
            {"w": jnp.zeros((12, 50))},
            x,
            members=np.stack([np.random.default_rng(i).permutation(400)[:200] for i in range(12)]),
            steps=50,
            chunk=1,
            checkpoints=kept,
        )
        held = {"w": states.params["w"], "norms": info.info.mean_norm}
    np.savez(out, **{name: np.asarray(value) for name, value in held.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
