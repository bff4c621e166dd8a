"""Model inversion of all classes of a CNN at once, the same loop in PyTorch, and ART's MIFace.

Run:       python -m experiments run benchmarks/inversion --preset cpu
Time:      smoke 20 s, cpu 5 min, paper not run yet
Goal:      10 classes of 5,000 steps: at least 5 times faster than ART end to end on two cores
Peers:     ART 1.20 (MIFace, gradient descent) and a loop over compiled kernels in PyTorch (extra
           `bench`); those that are not installed are listed as missing
Ours:      two cores, 2026-11-29: ART takes 5.1 times as long as our gradient descent, and 4.0
           times in one batch; the loop in PyTorch takes 0.7 times as long as our enhanced attack

The CNN has random weights, the same for all; its last layer is scaled so that classes are
separable. `seconds` is the first call, with compilation; `seconds_again` the median of the others.
`difference` is the largest between the final losses of a method and those of the same algorithm of
jaxpriv. ART computes one label at a time by default; here it also gets all labels in one batch. Its
criterion for stopping is set so that all steps are done.
"""

import functools
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import common
from jaxpriv import models
from jaxpriv.attacks import inversion


@dataclass(frozen=True, kw_only=True)
class Settings:
    """repeats: number of calls after the first one. peers: whether to run PyTorch and ART."""

    classes: int = 10
    steps: int = 5000
    repeats: int = 2
    peers: bool = True


PRESETS = {
    "smoke": Settings(steps=5, repeats=1),
    "cpu": Settings(),
    "paper": Settings(repeats=5),
}
GOAL_RATIO = 5.0
PEERS = {"torch": "torch enhanced", "art": "ART gradient descent"}
"""Package -> the first method that needs it; ART also needs torch."""

LEARNING_RATE, PENALTY_WEIGHT = inversion.MNIST.learning_rate, inversion.MNIST.penalty_weight
_SHAPE = (28, 28, 1)
_LOGIT_SCALE = 10.0


def run(settings: Settings) -> dict[str, Any]:
    """Times every method; `rows` has a dict for each, `missing` the peers not installed."""
    model = models.CNN(num_classes=settings.classes)
    params = model.init(jax.random.key(0), jnp.zeros(_SHAPE))
    last = params["params"]["Dense_1"]
    kernel = _LOGIT_SCALE * jnp.asarray(last["kernel"])
    params["params"]["Dense_1"] = {"kernel": kernel, "bias": last["bias"]}
    rows, losses = [], {}
    for name, attack in _attacks(functools.partial(model.apply, params), settings).items():
        times, losses[name] = timed(attack, repeats=settings.repeats)
        rows.append(_row(f"jaxpriv {name}", times, 0.0))
    missing = [package for package in PEERS if not importlib.util.find_spec(package)]
    if settings.peers and "torch" not in missing:
        for name, (times, loss) in _peers(params, settings).items():
            same = "enhanced" if "enhanced" in name else "gradient descent"
            difference = float(np.abs(np.array(loss) - losses[same]).max())
            rows.append(_row(name, times, difference))
    return {"rows": rows, "missing": missing if settings.peers else [], "goal_ratio": GOAL_RATIO}


def _attacks(predict: Any, settings: Settings) -> dict[str, Callable[[], np.ndarray]]:
    """Returns the attacks of the library, which return the loss of the last iterate."""
    start, labels = jnp.zeros(_SHAPE), jnp.arange(settings.classes)
    options = inversion.Settings(
        steps=settings.steps,
        learning_rate=LEARNING_RATE,
        penalty=inversion.l1_norm,
        penalty_weight=PENALTY_WEIGHT,
    )

    def enhanced(label):
        return inversion.enhanced(predict, label, start, settings=options).losses[-1]

    def descent(label):
        result = inversion.gradient_descent(
            predict, label, start, steps=settings.steps, learning_rate=LEARNING_RATE
        )
        return result.losses[-1]

    compiled = {"enhanced": jax.vmap(enhanced), "gradient descent": jax.vmap(descent)}
    return {name: _blocking(jax.jit(attack), labels) for name, attack in compiled.items()}


def _blocking(attack: Any, labels: jax.Array) -> Callable[[], np.ndarray]:
    return lambda: np.asarray(attack(labels))


def timed(attack: Callable[[], np.ndarray], *, repeats: int) -> tuple[list[float], np.ndarray]:
    """Returns the seconds of the first call and of `repeats` further ones, and its result."""
    times, result = [], np.zeros(0)
    for _ in range(repeats + 1):
        started = time.perf_counter()
        result = attack()
        times.append(time.perf_counter() - started)
    return times, result


def _row(name: str, times: list[float], difference: float) -> dict[str, Any]:
    return {
        "method": name,
        "seconds": times[0],
        "seconds_again": float(np.median(times[1:])),
        "difference": difference,
    }


def _peers(params: Any, settings: Settings) -> dict[str, tuple[list[float], list[float]]]:
    """Runs the peers in a process of their own, so that torch and JAX do not share threads."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "weights.npz")
        weights = jax.tree_util.tree_leaves_with_path(params["params"])
        np.savez(path, **{"/".join(k.key for k in key): value for key, value in weights})
        words = [str(path), str(settings.classes), str(settings.steps), str(settings.repeats)]
        command = [sys.executable, "-m", "experiments.benchmarks.inversion_torch", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text, and names the peers that are missing."""
    ours = {row["method"]: row["seconds"] for row in record["rows"]}

    def ratio(row: dict[str, Any]) -> str:
        same = "enhanced" if "enhanced" in row["method"] else "gradient descent"
        return f"{row['seconds'] / ours[f'jaxpriv {same}']:.1f}"

    text = common.text_table(
        ("method", "s end to end", "s again", "times jaxpriv", "difference"),
        (
            (
                row["method"],
                f"{row['seconds']:.2f}",
                f"{row['seconds_again']:.2f}",
                ratio(row),
                f"{row['difference']:.1e}",
            )
            for row in record["rows"]
        ),
    )
    notes = [f"missing: {package} (extra `bench`)" for package in record["missing"]]
    return "\n".join([text, *notes])
