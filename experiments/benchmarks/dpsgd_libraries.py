"""Price of a clipped gradient sum in every library, and for scanned layers, beside flax.linen.

Run:       python -m experiments run benchmarks/dpsgd_libraries --preset cpu
Time:      smoke 1 min, cpu 7 min on two cores; paper unmeasured, for one GPU
Peers:     each model's own plain step; peers in other frameworks: benchmarks/dpsgd_step
Goals:     ghost against plain on two cores, microbatches chosen automatically: mlp 1.08, cnn 1.25,
           lstm 1.2, transformer 0.95 (whole 1.3), flax.nnx and Equinox within 5 % of flax.linen,
           scanned transformer 1.1; memory at most 2 times plain's, and 1.5 times where plain
           rematerialises. On one H100: 1.7.

Memory is what the compiled program takes beside its inputs and outputs, as XLA plans it.
"""

import importlib.util
from typing import Any

import jax
import numpy as np

from experiments import common
from experiments.benchmarks import dpsgd_step, problems

SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {"models": ["mlp_nnx"], "batch": 8, "repeats": 1, "seconds": 0.0},
    "cpu": {"models": list(problems.PROBLEMS), "batch": 256, "repeats": 5, "seconds": 0.2},
    "paper": {"models": list(problems.PROBLEMS), "batch": 256, "repeats": 7, "seconds": 0.5},
}
METHODS = ("plain", "ghost", "ghost auto")
GOALS = {**dpsgd_step.GOALS, "transformer_scan": {"ghost auto": 1.1}}


def run(preset: str) -> dict[str, Any]:
    """Measures all models; those whose library is missing (Equinox, extra `bench`) are left out."""
    settings = SETTINGS[preset]
    rows = []
    for name in settings["models"]:
        if "equinox" not in name or importlib.util.find_spec("equinox"):
            rows += _measure(name, settings)
    return {"settings": settings, "rows": rows, "goals": GOALS, "gpu_goal": dpsgd_step.GPU_GOAL}


def _measure(name: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
    programs, args = dpsgd_step.programs(name, batch=settings["batch"])
    compiled = {label: jax.jit(programs[label]).lower(*args).compile() for label in METHODS}
    calls = {
        label: lambda program=program: jax.block_until_ready(program(*args))
        for label, program in compiled.items()
    }
    rows = []
    for label in METHODS:
        times = common.interleaved(
            {"plain": calls["plain"], label: calls[label]},
            repeats=settings["repeats"],
            seconds=settings["seconds"],
        )
        ratios = [a / b for a, b in zip(times[label], times["plain"], strict=True)]
        rows.append(
            {
                "model": name,
                "method": label,
                "ratio": float(np.median(ratios)),
                "ratios": ratios,
                "seconds": float(np.median(times[label])),
                "temporary_mb": _temporary_mb(compiled[label]),
            }
        )
    return rows


def _temporary_mb(program: Any) -> float:
    return program.memory_analysis().temp_size_in_bytes / 1e6


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    lines = [f"{'model':22}{'method':12}{'time/plain':>11}{'lowest':>8}{'highest':>8}{'MB':>9}"]
    for row in record["rows"]:
        lines.append(
            f"{row['model']:22}{row['method']:12}{row['ratio']:11.2f}{min(row['ratios']):8.2f}"
            f"{max(row['ratios']):8.2f}{row['temporary_mb']:9.0f}"
        )
    return "\n".join(lines)
