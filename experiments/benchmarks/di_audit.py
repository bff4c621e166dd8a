"""Repetitions of the identifiability game per second, against loops in JAX and in PyTorch.

Run:       python -m experiments run benchmarks/di_audit --preset cpu
Time:      smoke 15 s, cpu 4 min, paper not run yet
Goal:      two cores: 1,000 repetitions of purchases or adult in 8 minutes, of MNIST in 15; one
           H100: 1,000 of MNIST in 60 s; memory does not grow with the number of repetitions
Ours:      two cores, 2026-11-29: mnist 339 s, purchases 65 s, adult 6 s; a loop takes 1.1, 1.2 and
           2.4 times as long, Opacus 0.95, 143 and 8.7 times; 25 repetitions of purchases take
           0.60 GiB at most, and 200 take 0.60 GiB

Records are random, of the shapes of bernau2021: 100 images for MNIST, 1,000 rows for purchases and
adult; 30 steps of DP-Adam on full batches. `loop` plays one repetition after the other and calls a
compiled step from Python, without an adversary. `opacus` is a loop in PyTorch with the adversary
and Opacus's per-example gradients (`opacus_game`), where both are installed; otherwise null.
`seconds_1000` is the time for 1,000 repetitions at the measured rate.
"""

import functools
import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import common
from experiments.bernau2021 import games
from jaxpriv import grads, models
from jaxpriv.audit import di


@dataclass(frozen=True, kw_only=True)
class Settings:
    """repetitions: timed in one call. num_records: of D; None takes the paper's."""

    tasks: tuple[str, ...] = ("mnist", "purchases", "adult")
    repetitions: int
    repeats: int = 3
    steps: int = 30
    num_records: int | None = None


PRESETS = {
    "smoke": Settings(tasks=("adult",), repetitions=2, repeats=1, steps=2, num_records=20),
    "cpu": Settings(repetitions=64),  # enough that compilation does not hide the difference
    "paper": Settings(repetitions=200),
}
GOAL_SECONDS = {"mnist": 900, "purchases": 480, "adult": 480}
_SHAPES = {"mnist": (28, 28, 1), "purchases": (600,), "adult": (104,)}
_CLASSES = {"mnist": 10, "purchases": 100, "adult": 2}


def run(settings: Settings) -> dict[str, Any]:
    """Times both ways to repeat the game; `rows` has a dict for each task."""
    rows = []
    for name in settings.tasks:
        pair, module = _game(name, settings)
        trainer = di.Trainer(
            grad=grads.clipped_grad(
                functools.partial(games.loss, module), clip_norm=games.CLIP_NORM
            ),
            optimizer=optax.adam(games.TASKS[name].learning_rate),
            steps=settings.steps,
            noise_multiplier=10.0,
            noise="global",
            sampling_prob=1.0,
        )
        init = functools.partial(_init, module, pair.first[0])
        keys = jax.random.split(jax.random.key(0), settings.repetitions)
        play = functools.partial(di.play, trainer=trainer, init=init, pair=pair)
        times = common.interleaved(
            {
                "play": lambda k=keys, play=play: play(k),
                "one": lambda k=keys[:1], play=play: play(k),
                "loop": lambda k=keys[:1], t=trainer, i=init, p=pair: _loop(k, t, i, p),
            },
            repeats=settings.repeats,
        )
        # Each call of `play` compiles its program; the difference of two calls does not contain it.
        times["repetition"] = [
            (many - one) / (settings.repetitions - 1)
            for many, one in zip(times["play"], times["one"], strict=True)
        ]
        seconds = float(np.median(times["repetition"]))
        opacus = _opacus_seconds(name, settings)
        rows.append(
            {
                "task": name,
                "seconds_a_repetition": seconds,
                "seconds_1000": 1000 * seconds,
                "goal_seconds_1000": GOAL_SECONDS[name],
                "seconds_with_compilation": float(np.median(times["one"])),
                "play_over_loop": common.ratio(times, "repetition", "loop"),
                "opacus_over_play": None if opacus is None else opacus / seconds,
            }
        )
    return {"rows": rows}


def _game(name: str, settings: Settings) -> tuple[di.Pair, nn.Module]:
    rng = np.random.default_rng(0)
    count = (settings.num_records or games.TASKS[name].num_records) + 1
    x = rng.random((count, *_SHAPES[name]), np.float32)
    y = rng.integers(_CLASSES[name], size=count).astype(np.int32)
    pair = di.Pair((x[:-2], y[:-2]), (x[-2], jnp.asarray(y[-2])), (x[-1], jnp.asarray(y[-1])))
    widths = {"mnist": (), "purchases": (128,), "adult": (6, 6)}[name]
    module = games.ConvNet() if name == "mnist" else models.MLP(widths, _CLASSES[name])
    return pair, module


def _init(module: nn.Module, example: np.ndarray, key: jax.Array) -> Any:
    return module.init(key, jnp.asarray(example))


@functools.cache
def _step(trainer: di.Trainer) -> Any:
    """Compiles a training step for the loop, without the adversary."""

    @jax.jit
    def step(params, opt_state, batch, key):
        total = trainer.grad(params, batch, jnp.ones(len(batch[1]), bool), key).total
        leaves, structure = jax.tree.flatten(total)
        keys = jax.random.split(key, len(leaves))
        std = trainer.noise_multiplier * trainer.grad.clip_norm
        noisy = [
            (leaf + std * jax.random.normal(k, leaf.shape)) / len(batch[1])
            for leaf, k in zip(leaves, keys, strict=True)
        ]
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = trainer.optimizer.update(
                jax.tree.unflatten(structure, noisy), opt_state, params
            )
        return optax.apply_updates(params, updates), opt_state

    return step


def _loop(keys: jax.Array, trainer: di.Trainer, init: Any, pair: di.Pair) -> None:
    """Trains once for each key, with a call of the compiled step for every step."""
    step, batch = _step(trainer), jax.tree.map(jnp.asarray, pair.shared)
    for key in keys:
        params = init(key)
        opt_state = trainer.optimizer.init(params)
        for i in range(trainer.steps):
            params, opt_state = step(params, opt_state, batch, jax.random.fold_in(key, i))
        jax.block_until_ready(params)


def _opacus_seconds(name: str, settings: Settings) -> float | None:
    """Returns the seconds of a repetition in PyTorch; None where it or Opacus is missing."""
    if not (importlib.util.find_spec("opacus") and importlib.util.find_spec("torch")):
        return None
    count = settings.num_records or games.TASKS[name].num_records
    words = [name, str(count), str(settings.steps), str(settings.repeats)]
    command = [sys.executable, "-m", "experiments.benchmarks.opacus_game", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(np.median(json.loads(done.stdout.splitlines()[-1])))


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    return common.text_table(
        ("task", "s a repetition", "s for 1,000", "goal", "play / loop", "Opacus / play"),
        (
            (
                row["task"],
                f"{row['seconds_a_repetition']:.3f}",
                f"{row['seconds_1000']:.0f}",
                str(row["goal_seconds_1000"]),
                f"{row['play_over_loop']:.2f}",
                "" if row["opacus_over_play"] is None else f"{row['opacus_over_play']:.2f}",
            )
            for row in record["rows"]
        ),
    )
