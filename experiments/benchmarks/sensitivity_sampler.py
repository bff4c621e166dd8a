"""Speed of the sensitivity sampler: pairs per second against a Python loop over trainings.

Run:       python -m experiments run benchmarks/sensitivity_sampler --preset cpu
Time:      smoke 20 s, cpu 1 min; paper unmeasured, for one GPU
Goal:      on a GPU, 1,000 trainings (500 pairs) of the small and of the Purchase-size model in one
           call, faster than the loop; on a CPU no slower than the loop
Ours:      two cores, 2026-11-29: small 76 pairs per second against 36 in the loop, large 1.9
           against 2.8: the goal is missed for the large model

The small model has 4,423 parameters, near the 5,300 of the paper's agents; the large one is the
Purchase MLP (600-1024-512-256-100). The loop compiles its step once and trains pair after pair;
`pairs_per_second` is without compilation, from the difference of two calls.
"""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import common
from jaxpriv import models, sampling, sensitivity, training


@dataclass(frozen=True, kw_only=True)
class Settings:
    """num_pairs: pairs of each model, of which the loop trains `loop_pairs`."""

    num_pairs: dict[str, int]
    loop_pairs: int
    num_records: int
    steps: int
    repeats: int


PRESETS = {
    "smoke": Settings(num_pairs={"small": 2}, loop_pairs=1, num_records=64, steps=2, repeats=1),
    "cpu": Settings(
        num_pairs={"small": 50, "large": 8}, loop_pairs=2, num_records=1000, steps=50, repeats=3
    ),
    "paper": Settings(
        num_pairs={"small": 500, "large": 500},
        loop_pairs=5,
        num_records=2000,
        steps=500,
        repeats=3,
    ),
}
MODULES = {
    "small": (models.MLP(widths=(64, 32), num_classes=7), 32, 7),
    "large": (
        models.MLP(widths=(1024, 512, 256), num_classes=100, activation=nn.tanh),
        600,
        100,
    ),
}


def run(settings: Settings) -> dict[str, Any]:
    """Times both ways on random records."""
    rows = []
    for name, num_pairs in settings.num_pairs.items():
        module, width, num_classes = MODULES[name]
        rng = np.random.default_rng(0)
        size = 4 * settings.num_records
        data = (
            jnp.asarray(rng.normal(size=(size, width)), jnp.float32),
            jnp.asarray(rng.integers(num_classes, size=size), jnp.int32),
        )
        params = module.init(jax.random.key(0), data[0][0])

        def loss(params, example, key, module=module):
            del key
            logits: Any = module.apply(params, example[0])
            return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])

        def make_alg(k, hyper, loss=loss):
            del hyper
            sampler = sampling.fixed_batch(k, batch_size=min(128, k))
            return training.sgd(loss, optax.adam(1e-3), sampler)

        calls = {
            "sample_pairs": _sampler(make_alg, params, data, num_pairs, settings),
            "one": _sampler(make_alg, params, data, 1, settings),
            "loop": _loop(make_alg, params, data, settings),
        }
        times = common.interleaved(calls, repeats=settings.repeats)
        # Each call of the sampler compiles its program; a difference of two does not contain it.
        a_pair = [
            (many - one) / (num_pairs - 1)
            for many, one in zip(times["sample_pairs"], times["one"], strict=True)
        ]
        rows.append(
            {
                "model": name,
                "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
                "pairs": num_pairs,
                "pairs_per_second": 1 / float(np.median(a_pair)),
                "pairs_per_second_of_loop": settings.loop_pairs / float(np.median(times["loop"])),
                "seconds_with_compilation": float(np.median(times["sample_pairs"])),
            }
        )
    return {"rows": rows}


def _sampler(make_alg, params, data, num_pairs, settings):
    """Returns a call that samples all pairs, including its compilation."""

    def call():
        return sensitivity.sample_pairs(
            jax.random.key(0),
            make_alg,
            params,
            data,
            num_pairs=num_pairs,
            num_records=settings.num_records,
            steps=settings.steps,
        )

    return call


def _loop(make_alg, params, data, settings):
    """Returns a call that trains the two models of a few pairs one after the other."""
    algorithm = make_alg(settings.num_records, None)
    rng = np.random.default_rng(1)

    def call():
        for i in range(settings.loop_pairs):
            rows = rng.choice(len(data[1]), settings.num_records + 1, replace=False)
            trained = []
            for members in (rows[:-1], np.append(rows[1:-1], rows[-1])):
                records = jax.tree.map(lambda leaf, m=members: leaf[m], data)
                state, _ = training.fit(
                    jax.random.key(i), algorithm, params, records, steps=settings.steps
                )
                trained.append(state.params)
            jax.block_until_ready(optax.tree.norm(optax.tree.sub(*trained)))

    return call


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    columns = ("model", "parameters", "pairs", "pairs per second", "loop", "s with compilation")
    rows = [
        (
            row["model"],
            f"{row['parameters']:,}",
            str(row["pairs"]),
            *(f"{row[name]:.3g}" for name in ("pairs_per_second", "pairs_per_second_of_loop")),
            f"{row['seconds_with_compilation']:.1f}",
        )
        for row in record["rows"]
    ]
    return common.text_table(columns, rows)
