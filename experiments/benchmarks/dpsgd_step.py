"""Price of a clipped gradient sum, here and in other libraries, each against its plain step.

Run:       python -m experiments run benchmarks/dpsgd_step --preset cpu
Time:      smoke 1 min, cpu 16 to 40 min on two cores; paper unmeasured, for one GPU
Peers:     optax.contrib.dpsgd's aggregate, jax-privacy, Opacus with hooks and with ghost clipping
           (extra `bench`; those not installed are left out), on the four models of flax.linen
Goals:     ghost against plain on two cores, microbatches chosen automatically: mlp 1.08, cnn 1.25,
           lstm 1.2, transformer 0.95; the whole transformer 1.3; peak memory at most 2 times
           plain's. On one H100: 1.7.

Each method alternates with plain alone (A B A B), and a ratio is the median over rounds: in one
cycle over all methods, those that use much memory slow down whichever follows. Memory is the
growth during the second call of a process that runs one method alone (on a GPU: the allocator's
peak).
"""

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import common
from experiments.benchmarks import problems, victims
from jaxpriv import grads


@dataclass(frozen=True, kw_only=True)
class Settings:
    """seconds: minimum time of a method in one of `repeats` rounds.

    memory: measure the memory of every method, or of plain and ghost alone.
    """

    models: tuple[str, ...] = tuple(victims.VICTIMS)
    batch: int = 256
    repeats: int = 7
    seconds: float
    memory: bool = True


PRESETS = {
    "smoke": Settings(models=("mlp",), batch=8, repeats=1, seconds=0.0, memory=False),
    "cpu": Settings(seconds=0.2),
    "paper": Settings(seconds=0.5),
}
CLIP_NORM = 1.0
GOALS = {
    "mlp": {"ghost auto": 1.08},
    "cnn": {"ghost auto": 1.25},
    "lstm": {"ghost auto": 1.2},
    "transformer": {"ghost auto": 0.95, "ghost": 1.3},
}
GPU_GOAL = 1.7
_HERE = "experiments.benchmarks.dpsgd_step"


def methods(name: str, *, batch: int) -> dict[str, Callable[[], Any]]:
    """Returns the JAX methods on one model, compiled at their first call; each returns the sum."""
    functions, args = programs(name, batch=batch)

    def timed(function):
        program = jax.jit(function)
        return lambda: jax.block_until_ready(program(*args))

    return {label: timed(function) for label, function in functions.items()}


def programs(name: str, *, batch: int) -> tuple[dict[str, Callable[..., Any]], tuple[Any, ...]]:
    """Returns the JAX methods on one model, `(params, data, mask, key) -> sum`, and arguments."""
    loss, params, victim = problems.PROBLEMS[name]()
    data = victims.batch_of(victim, size=batch)
    mask, key = jnp.ones(batch, bool), jax.random.key(2)

    ghost = grads.clipped_grad(loss, clip_norm=CLIP_NORM)
    auto = grads.clipped_grad(loss, clip_norm=CLIP_NORM, microbatch_size="auto")
    result: dict[str, Callable[..., Any]] = {
        "plain": plain(loss),
        "ghost": lambda *args: ghost(*args).total,
        "ghost auto": lambda *args: auto(*args).total,
    }
    if name in victims.VICTIMS:
        explicit = grads.explicit_clipped_grad(loss, clip_norm=CLIP_NORM)
        pieces = grads.explicit_clipped_grad(
            loss, clip_norm=CLIP_NORM, microbatch_size=max(batch // 8, 1)
        )
        result["vmap"] = lambda *args: explicit(*args).total
        result["microbatch"] = lambda *args: pieces(*args).total
        result["optax"] = _optax(loss)
        if importlib.util.find_spec("jax_privacy"):
            result["jax-privacy"] = _jax_privacy(loss)

    return result, (params, data, mask, key)


def plain(loss):
    """Returns the gradient of the mean loss, `(params, data, mask, key) -> gradient`."""

    def gradient(params, data, mask, key):
        del mask

        def mean(params):
            return jax.vmap(loss, (None, 0, None))(params, data, key).mean()

        return jax.grad(mean)(params)

    return gradient


def _optax(loss):
    from optax import contrib

    def total(params, data, mask, key):
        per_example = jax.vmap(jax.grad(loss), (None, 0, None))(params, data, key)
        aggregate = contrib.differentially_private_aggregate(CLIP_NORM, 0.0, key=jax.random.key(0))
        mean, _ = aggregate.update(per_example, aggregate.init(params))
        return jax.tree.map(lambda g: g * len(mask), mean)

    return total


def _jax_privacy(loss):
    import jax_privacy

    def on_batch(params, data, key):
        return jax.vmap(loss, (None, 0, None))(params, data, key).mean()

    clipped = jax_privacy.clipped_grad(on_batch, l2_clip_norm=CLIP_NORM, batch_argnums=1)
    return lambda params, data, mask, key: clipped(params, data, key)


def difference(total: Any, expected: Any) -> float:
    """Returns the largest difference of two sums, relative to the largest entry."""
    pairs = list(zip(jax.tree.leaves(total), jax.tree.leaves(expected), strict=True))
    scale = max(float(np.abs(e).max()) for _, e in pairs)
    return max(float(np.abs(np.asarray(t) - np.asarray(e)).max()) for t, e in pairs) / scale


def run(settings: Settings) -> dict[str, Any]:
    """Measures all models and methods; `rows` has a dict for each."""
    rows = []
    for name in settings.models:
        rows += measure(name, settings)
        rows += _torch_rows(name, settings)
    return {"rows": rows, "goals": GOALS, "gpu_goal": GPU_GOAL}


def measure(name: str, settings: Settings) -> list[dict[str, Any]]:
    """Measures the JAX methods on one model, each alternating with plain alone."""
    compared = methods(name, batch=settings.batch)
    exact = compared.get("vmap", compared["ghost"])()
    rows = []
    for label, function in compared.items():
        times = common.interleaved(
            {"plain": compared["plain"], label: function},
            repeats=settings.repeats,
            seconds=settings.seconds,
        )
        has_memory = settings.memory or label in ("plain", "ghost")
        rows.append(
            {
                "model": name,
                "method": label,
                "ratio": common.ratio(times, label, "plain"),
                "ratios": [a / b for a, b in zip(times[label], times["plain"], strict=True)],
                "seconds": float(np.median(times[label])),
                "difference": None if label == "plain" else difference(function(), exact),
                "peak_mb": _memory(_HERE, name, label, settings.batch) if has_memory else None,
            }
        )
        print(f"{name} {label}: {rows[-1]['ratio']:.2f}", file=sys.stderr, flush=True)
    return rows


def _memory(module: str, name: str, label: str, batch: int) -> float:
    return common.growth_mb_of_process(module, name, label, str(batch))


def _torch_rows(name: str, settings: Settings) -> list[dict[str, Any]]:
    """Opacus in a process of its own, so that torch and JAX do not share threads."""
    if not (importlib.util.find_spec("opacus") and importlib.util.find_spec("torch")):
        return []
    module = "experiments.benchmarks.opacus_step"
    words = [sys.executable, "-m", module, name]
    words += [str(x) for x in (settings.batch, settings.repeats, settings.seconds)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout.splitlines()[-1])
    for row in rows:
        method = row["method"].removeprefix("opacus-")
        row["peak_mb"] = _memory(module, name, method, settings.batch)
    return rows


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text; memory also as a multiple of the framework's plain step."""
    rows = record["rows"]
    plain = {(r["model"], r["method"]): r["peak_mb"] for r in rows if r["method"].endswith("plain")}

    def cells(row: dict[str, Any]) -> tuple[str, ...]:
        base = plain[row["model"], "opacus-plain" if "opacus" in row["method"] else "plain"]
        peak, difference = row["peak_mb"], row["difference"]
        return (
            row["model"],
            row["method"],
            f"{row['ratio']:.2f}",
            "" if peak is None else f"{peak:.0f}",
            "" if peak is None else f"{peak / max(base, 1.0):.1f}",
            "" if difference is None else f"{difference:.1e}",
        )

    columns = ("model", "method", "time/plain", "MB", "MB/plain", "difference")
    return common.text_table(columns, map(cells, rows))


def _peak_of(name: str, label: str, batch: int) -> float:
    """Returns the MB by which this process grows in a call."""
    device = jax.devices()[0]
    function = methods(name, batch=batch)[label]
    if device.platform == "cpu":
        return common.growth_mb(function)
    function()
    stats = device.memory_stats()
    return 0.0 if stats is None else stats["peak_bytes_in_use"] / 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", nargs=3, required=True)
    of, by, rows_of_batch = parser.parse_args().memory
    print(json.dumps(_peak_of(of, by, int(rows_of_batch))))
