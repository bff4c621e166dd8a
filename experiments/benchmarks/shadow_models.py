"""Price of many models: a loop of single runs, map in one program, vmap side by side.

Run:       python -m experiments run benchmarks/shadow_models --preset cpu
Time:      smoke 20 s, cpu 2 min on two cores; paper unmeasured, for one H100
Goal:      on one H100, 64 of the Purchase MLPs in at most 6 times one; on two cores vmap may lose

The model is the Purchase MLP (600-1024-512-256-100), trained without privacy, batch 128.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import common
from experiments.benchmarks import victims
from jaxpriv import sampling, training
from jaxpriv.training import _scan


@dataclass(frozen=True, kw_only=True)
class Settings:
    """models: numbers of models; the first is one. records: of the pool. steps: of each model."""

    models: tuple[int, ...] = (1, 8, 64)
    records: int
    steps: int
    repeats: int = 3


PRESETS = {
    "smoke": Settings(models=(1, 2), records=200, steps=2, repeats=1),
    "cpu": Settings(records=2000, steps=10),
    "paper": Settings(records=20_000, steps=100),
}
GPU_GOAL = 6.0


def run(settings: Settings) -> dict[str, Any]:
    """Times every strategy at every number of models; `rows` has a dict for each."""
    victim = victims.VICTIMS["mlp"]
    data = victims.batch_of(victim, size=settings.records)
    half = settings.records // 2
    sampler = sampling.fixed_batch(half, batch_size=min(128, half))
    alg = training.sgd(victims.loss_of(victim), optax.adam(1e-3), sampler)
    rows, one = [], 0.0
    for count in settings.models:
        keys = jax.random.split(jax.random.key(0), count)
        params = jax.vmap(lambda k: victim.module.init(k, data[0][0]))(keys)
        pool = np.random.default_rng(0)
        members = np.stack([pool.permutation(settings.records)[:half] for _ in range(count)])
        inputs = (keys, alg, params, data, members, settings.steps)
        runs = {s: _runner(s, *inputs) for s in ("loop", "map", "vmap")}
        times = common.interleaved(runs, repeats=settings.repeats)
        for strategy, taken in times.items():
            seconds = float(np.median(taken))
            one = one or seconds
            rows.append(
                {
                    "models": count,
                    "strategy": strategy,
                    "seconds": seconds,
                    "times_one": seconds / one,
                }
            )
    return {"rows": rows, "gpu_goal": GPU_GOAL}


def _runner(strategy, keys, alg, params, data, members, steps):
    """Returns a function that trains all models and waits for them."""

    def one_by_one():
        for i in range(len(keys)):
            initial = jax.tree.map(lambda leaf, i=i: leaf[i], params)
            rows = jax.tree.map(lambda leaf, i=i: leaf[members[i]], data)
            jax.block_until_ready(training.fit(keys[i], alg, initial, rows, steps=steps)[0])

    def one(run):
        key, params, rows = run
        return _scan.scan_steps(alg, steps, key, alg.init(params), data, jnp.int32(steps), rows)

    if strategy == "loop":
        return one_by_one
    many = jax.vmap(one) if strategy == "vmap" else lambda runs: jax.lax.map(one, runs)
    program = jax.jit(many)
    runs = (keys, params, jnp.asarray(members))
    return lambda: jax.block_until_ready(program(runs))


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    return common.text_table(
        ("strategy", "models", "seconds", "times one"),
        (
            (r["strategy"], str(r["models"]), f"{r['seconds']:.2f}", f"{r['times_one']:.1f}")
            for r in record["rows"]
        ),
    )
