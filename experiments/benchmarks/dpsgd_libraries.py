"""Price of a clipped gradient sum for models of other libraries, and for scanned layers.

Run:       python -m experiments run benchmarks/dpsgd_libraries --preset cpu
Time:      smoke 1 min, cpu 10 min on two cores; paper unmeasured, for one GPU
Peers:     each model's own plain step; the same models in flax.linen: benchmarks/dpsgd_step
Goals:     ghost against plain on two cores, microbatches chosen automatically: flax.nnx and
           Equinox within 5 % of flax.linen, scanned transformer 1.1; peak memory at most 2 times
           plain's, and 1.5 times where plain rematerialises. On one H100: 1.7.
"""

import importlib.util
from typing import Any

from experiments.benchmarks import dpsgd_step, problems, victims

MODELS = [name for name in problems.PROBLEMS if name not in victims.VICTIMS]
SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {"models": ["mlp_nnx"], "batch": 8, "repeats": 1, "seconds": 0.0},
    "cpu": {"models": MODELS, "batch": 256, "repeats": 7, "seconds": 0.2},
    "paper": {"models": MODELS, "batch": 256, "repeats": 7, "seconds": 0.5},
}
GOALS = {"transformer_scan": {"ghost auto": 1.1}}

table = dpsgd_step.table


def run(preset: str) -> dict[str, Any]:
    """Measures all models; those whose library is missing (Equinox, extra `bench`) are left out."""
    settings = SETTINGS[preset]
    rows = []
    for name in settings["models"]:
        if "equinox" not in name or importlib.util.find_spec("equinox"):
            rows += dpsgd_step.measure(name, preset, settings)
    return {"settings": settings, "rows": rows, "goals": GOALS, "gpu_goal": dpsgd_step.GPU_GOAL}
