"""Price of a clipped gradient sum in every library, and for scanned layers, beside flax.linen.

Run:       python -m experiments run benchmarks/dpsgd_libraries --preset cpu
Time:      smoke 1 min, cpu 3 to 7 min on two cores; paper unmeasured, for one GPU
Peers:     each model's own plain step; peers in other frameworks: benchmarks/dpsgd_step
Goals:     ghost against plain on two cores, microbatches chosen automatically: mlp 1.08, cnn 1.25,
           lstm 1.2, transformer 0.95 (whole 1.3), flax.nnx and Equinox within 5 % of flax.linen,
           scanned transformer 1.1; memory at most 2 times plain's, and 1.5 times where plain
           rematerialises. On one H100: 1.7.

Memory is what the compiled program takes beside its inputs and outputs, as XLA plans it.
"""

import importlib.util
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from experiments import common
from experiments.benchmarks import dpsgd_step, problems


@dataclass(frozen=True, kw_only=True)
class Settings:
    """models: names in `problems`. seconds: minimum time of a method in one of `repeats` rounds."""

    models: tuple[str, ...] = tuple(problems.PROBLEMS)
    batch: int = 256
    repeats: int
    seconds: float


PRESETS = {
    "smoke": Settings(models=("mlp_nnx",), batch=8, repeats=1, seconds=0.0),
    "cpu": Settings(repeats=5, seconds=0.2),
    "paper": Settings(repeats=7, seconds=0.5),
}
METHODS = ("plain", "ghost", "ghost auto")
GOALS = {**dpsgd_step.GOALS, "transformer_scan": {"ghost auto": 1.1}}


def run(settings: Settings) -> dict[str, Any]:
    """Measures all models but those whose library (Equinox, extra `bench`) is not installed."""
    rows = []
    for name in settings.models:
        if "equinox" not in name or importlib.util.find_spec("equinox"):
            rows += _measure(name, settings)
    return {"rows": rows, "goals": GOALS, "gpu_goal": dpsgd_step.GPU_GOAL}


def _measure(name: str, settings: Settings) -> list[dict[str, Any]]:
    programs, args = dpsgd_step.programs(name, batch=settings.batch)
    compiled = {label: jax.jit(programs[label]).lower(*args).compile() for label in METHODS}
    calls = {
        label: lambda program=program: jax.block_until_ready(program(*args))
        for label, program in compiled.items()
    }
    rows = []
    for label in METHODS:
        times = common.interleaved(
            {"plain": calls["plain"], label: calls[label]},
            repeats=settings.repeats,
            seconds=settings.seconds,
        )
        rows.append(
            {
                "model": name,
                "method": label,
                "ratio": common.ratio(times, label, "plain"),
                "ratios": [a / b for a, b in zip(times[label], times["plain"], strict=True)],
                "seconds": float(np.median(times[label])),
                "temporary_mb": _temporary_mb(compiled[label]),
            }
        )
    return rows


def _temporary_mb(program: Any) -> float:
    return program.memory_analysis().temp_size_in_bytes / 1e6


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    return common.text_table(
        ("model", "method", "time/plain", "lowest", "highest", "MB"),
        (
            (
                row["model"],
                row["method"],
                *(f"{x:.2f}" for x in (row["ratio"], min(row["ratios"]), max(row["ratios"]))),
                f"{row['temporary_mb']:.0f}",
            )
            for row in record["rows"]
        ),
    )
