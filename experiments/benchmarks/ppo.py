"""PPO end to end against torch-ac: seconds of a training, and learning curves on the same maps.

Run:       python -m experiments run benchmarks/ppo --preset cpu
Time:      smoke 20 s, cpu 7 min on two cores, paper not run yet
Goal:      204,800 frames at least 20 times faster than torch-ac on two cores, compilation apart
Peers:     torch-ac 1.4.0 on Minigrid 3.2.0 (extra `bench`); listed as missing if not installed
Ours:      the goal is missed (cpu, 2026-11-29): torch-ac takes 15.2 times as long without memory
           (52.6 s against 3.5 s) and 10.5 times with an LSTM (65.7 s, 6.2 s); curves agree in 9 of
           10 parts each, ours rise a little faster in the first fifth

Both train on Minigrid's maps of the seeds 1 to 16, with the network and hyper-parameters of
RL-Starter-Files. `seconds` is a training without compilation, `compile_seconds` the compilation;
`returns` are the mean returns of ten equal parts of the training, a row for each seed. Curves agree
if the mean over seeds of each lies within the range of the other's seeds, in `agreement`, the share
of the ten parts for which this holds.
"""

import functools
import importlib.util
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import common, figures
from jaxpriv import envs, models, rl


@dataclass(frozen=True, kw_only=True)
class Settings:
    """maps: preset of the environment. lstm_units: of each agent. seeds: number of trainings.

    peers: whether to run torch-ac.
    """

    maps: str = "N2-S4"
    max_steps: int = 200
    num_maps: int = 16
    updates: int = 100
    lstm_units: tuple[int, ...] = (0, 64)
    seeds: int = 3
    peers: bool = True


PRESETS = {
    "smoke": Settings(num_maps=2, updates=1, lstm_units=(0,), seeds=1, peers=False),
    "cpu": Settings(),
    "paper": Settings(seeds=10),
}
GOAL_RATIO = 20.0
PEERS = ("torch", "torch_ac", "minigrid")
NUM_PARTS = 10


def run(settings: Settings) -> dict[str, Any]:
    """Trains the agents of both libraries; `rows` has a dict for each library and agent."""
    missing = [package for package in PEERS if not importlib.util.find_spec(package)]
    rows = []
    for lstm_units in settings.lstm_units:
        rows.append({"library": "jaxpriv", "lstm_units": lstm_units, **_ours(settings, lstm_units)})
        if settings.peers and not missing:
            peer = _torch_ac(settings, lstm_units)
            agreement = _agreement(rows[-1]["returns"], peer["returns"])
            ratio = peer["seconds"] / rows[-1]["seconds"]
            row = {"library": "torch-ac", "lstm_units": lstm_units, **peer}
            rows.append({**row, "agreement": agreement, "times_jaxpriv": ratio})
    return {
        "rows": rows,
        "missing": missing if settings.peers else [],
        "frames": settings.updates * rl.Hyperparameters().frames,
        "goal_ratio": GOAL_RATIO,
    }


def _ours(settings: Settings, lstm_units: int) -> dict[str, Any]:
    preset = envs.PRESETS[settings.maps]
    draw = functools.partial(
        envs.from_minigrid_seed, num_rooms=preset.num_rooms, max_room_size=preset.max_room_size
    )
    maps = envs.stack([draw(seed) for seed in range(1, settings.num_maps + 1)])
    agent = models.ActorCritic(num_actions=len(envs.ACTIONS), lstm_units=lstm_units)
    alg = rl.ppo.algorithm(
        agent,
        envs.MultiRoom(preset),
        maps,
        env_params=lambda maps, stage: envs.EnvParams(
            max_steps_in_episode=settings.max_steps, maps=maps
        ),
        hyperparameters=rl.Hyperparameters(recurrence=4 if lstm_units else 1),
    )
    observation = jnp.zeros((envs.grid.VIEW, envs.grid.VIEW, 3), jnp.uint8)

    @jax.jit
    def train(key: jax.Array) -> Any:
        init_key, run_key = jax.random.split(key)
        params = agent.init(init_key, agent.initial_memory(), observation)
        mask = jnp.ones(settings.num_maps, bool)

        def step(state: Any, key: jax.Array) -> Any:
            return alg.update(key, state, maps, mask)

        keys = jax.random.split(run_key, settings.updates)
        return jax.lax.scan(step, alg.init(params), keys)[1]

    keys = jax.random.split(jax.random.key(0), settings.seeds)
    started = time.perf_counter()
    compiled = train.lower(keys[0]).compile()
    compile_seconds = time.perf_counter() - started
    seconds, returns = [], []
    for key in keys:
        started = time.perf_counter()
        info = jax.block_until_ready(compiled(key))
        seconds.append(time.perf_counter() - started)
        returns.append(_by_part(info.mean_return, info.num_episodes))
    return {
        "seconds": float(np.median(seconds)),
        "compile_seconds": compile_seconds,
        "returns": returns,
    }


def _torch_ac(settings: Settings, lstm_units: int) -> dict[str, Any]:
    """Trains the agents of torch-ac in processes of their own."""
    preset = envs.PRESETS[settings.maps]
    seconds, returns = [], []
    for seed in range(settings.seeds):
        numbers = (
            preset.num_rooms, preset.max_room_size, settings.max_steps, settings.num_maps,
            settings.updates, lstm_units, seed,
        )  # fmt: skip
        command = [sys.executable, "-m", "experiments.benchmarks.ppo_torch", *map(str, numbers)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        result = json.loads(done.stdout.splitlines()[-1])
        seconds.append(result["seconds"])
        returns.append(_by_part(result["returns"], result["num_episodes"]))
    return {"seconds": float(np.median(seconds)), "compile_seconds": 0.0, "returns": returns}


def _by_part(means: Any, counts: Any) -> list[float]:
    """Computes the mean return of all episodes of each part, from those of the updates."""
    means, counts = np.asarray(means, np.float64), np.asarray(counts)
    parts = np.array_split(np.arange(len(means)), min(NUM_PARTS, len(means)))
    return [float((means[p] * counts[p]).sum() / max(counts[p].sum(), 1)) for p in parts]


def _agreement(first: list[list[float]], second: list[list[float]]) -> float:
    """Computes the share of parts in which each mean lies in the range of the other's seeds."""
    a, b = np.asarray(first), np.asarray(second)

    def lies_within(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (x.mean(0) >= y.min(0) - 0.01) & (x.mean(0) <= y.max(0) + 0.01)

    return float((lies_within(a, b) & lies_within(b, a)).mean())


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws the learning curves with the range over seeds."""
    panels: dict[str, list[figures.Line]] = {}
    for row in record["rows"]:
        returns = np.asarray(row["returns"])
        parts = returns.shape[1]
        frames = [(i + 1) * record["frames"] / parts for i in range(parts)]
        ranges = list(zip(returns.min(0).tolist(), returns.max(0).tolist(), strict=True))
        title = f"{row['lstm_units']} LSTM units" if row["lstm_units"] else "feed-forward"
        line = figures.Line(row["library"], frames, returns.mean(0).tolist(), ranges)
        panels.setdefault(title, []).append(line)
    return {"returns": figures.lines(panels, x="frames", y="return")}


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text, and names the peers that are missing."""
    text = common.text_table(
        ("library and agent", "seconds", "to compile", "frames/s", "last return", "times jaxpriv"),
        (
            (
                f"{row['library']}, {row['lstm_units']} LSTM units",
                f"{row['seconds']:.1f}",
                f"{row['compile_seconds']:.1f}",
                f"{record['frames'] / row['seconds']:,.0f}",
                f"{np.mean(row['returns'], axis=0)[-1]:.3f}",
                f"{row['times_jaxpriv']:.1f}" if "times_jaxpriv" in row else "",
            )
            for row in record["rows"]
        ),
    )
    notes = [f"missing: {package} (extra `bench`)" for package in record["missing"]]
    return "\n".join([text, *notes])
