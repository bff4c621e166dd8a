"""Price of a clipped gradient sum by the number of rows processed at a time.

Run:       python -m experiments run benchmarks/microbatches --preset cpu
Time:      smoke 1 min, cpu 7 min on two cores; paper unmeasured, for one GPU
Peers:     each model's own plain step on the whole batch
Goal:      with `microbatch_size="auto"` no more than 1.15 times the time of the best size
Ours:      1.00 to 1.12 on 15 of 16 models, 1.24 on the LSTM of 16 units and length 512 (cpu,
           2026-11-29)

A probe of the choice that `clipped_grad` makes by the activations of an example: it does not
measure, so its table of rates has to hold for models of every kind.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from experiments import common
from experiments.benchmarks import dpsgd_step, problems, victims
from jaxpriv import grads
from jaxpriv.grads import _microbatching

MODELS = problems.PROBLEMS | problems.RECURRENT


@dataclass(frozen=True, kw_only=True)
class Settings:
    """models: names in `MODELS`. sizes: numbers of rows; the batch is the largest.

    seconds: minimum time of a method in one of `repeats` rounds.
    """

    models: tuple[str, ...] = (
        "mlp",
        "cnn",
        "lstm",
        "transformer",
        "transformer_scan",
        "transformer_remat",
        *problems.RECURRENT,
    )
    sizes: tuple[int, ...] = (256, 128, 64, 32, 16)
    repeats: int = 5
    seconds: float


PRESETS = {
    "smoke": Settings(models=("gru_16x64",), sizes=(4, 2), repeats=1, seconds=0.0),
    "cpu": Settings(seconds=0.2),
    "paper": Settings(repeats=7, seconds=0.5),
}
GOAL = 1.15


def run(settings: Settings) -> dict[str, Any]:
    """Measures all models."""
    rows = [_measure(name, settings) for name in settings.models]
    return {"rows": rows, "goal": GOAL}


def _measure(name: str, settings: Settings) -> dict[str, Any]:
    """Times every size against plain; each alternates with plain alone."""
    loss, params, victim = MODELS[name]()
    batch = max(settings.sizes)
    data = victims.batch_of(victim, size=batch)
    args = params, data, jnp.ones(batch, bool), jax.random.key(2)

    def timed(function):
        program = jax.jit(function)
        return lambda: jax.block_until_ready(program(*args))

    plain, ratios = timed(dpsgd_step.plain(loss)), {}
    for size in settings.sizes:
        grad = grads.clipped_grad(loss, clip_norm=dpsgd_step.CLIP_NORM, microbatch_size=size)
        times = common.interleaved(
            {"plain": plain, "ghost": timed(grad)},
            repeats=settings.repeats,
            seconds=settings.seconds,
        )
        ratios[size] = common.ratio(times, "ghost", "plain")
    example = jax.tree.map(lambda x: x[0], data)
    chosen = _microbatching.suggested_size(loss, params, example, args[-1], batch_size=batch)
    return {
        "model": name,
        "ratios": ratios,
        "chosen": chosen,
        "over_best": ratios[chosen] / min(ratios.values()),
    }


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    sizes = list(record["rows"][0]["ratios"])
    return common.text_table(
        ("model", *(f"{size} rows" for size in sizes), "chosen", "time/best"),
        (
            (
                row["model"],
                *(f"{row['ratios'][size]:.2f}" for size in sizes),
                str(row["chosen"]),
                f"{row['over_best']:.2f}",
            )
            for row in record["rows"]
        ),
    )
