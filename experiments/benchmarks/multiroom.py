"""Speed of MultiRoom: steps and generated maps per second, beside Minigrid and JAX peers.

Run:       python -m experiments run benchmarks/multiroom --preset cpu
Time:      smoke 20 s, cpu 25 s, paper not run yet
Goal:      at least 150 times Minigrid at every number of environments, 200 times at the best, and
           20,000 generated maps per second, on two cores
Ours:      two cores, 2026-11-29: 192, 307 and 323 times Minigrid with 16, 1,024 and 4,096 at once,
           4.5 times xminigrid's DoorKey; 44,000 (N6) to 961,000 (N2-S6) maps per second

Random actions, drawn before the clock starts. Environments of JAX run many at once in one scan
with automatic resets; Minigrid runs one, as its users run it. A row is skipped where a peer is not
installed. Peers without MultiRoom run a game of their own, which the row names: their views and
rules differ, so that the numbers compare the cost of a step of the library, not of the same game.
"""

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from experiments import common
from jaxpriv.envs import multiroom

ENV = "MiniGrid-MultiRoom-N4-S5-v1"
PRESET = multiroom.PRESETS["N4-S5"]
GOALS = {"times_minigrid": 150.0, "best_times_minigrid": 200.0, "maps_per_second": 20_000.0}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """num_envs: environments at once. steps: in all, in a call. maps: generated in a call.

    map_presets: presets of the generated maps.
    """

    num_envs: tuple[int, ...] = (16, 1024, 4096)
    steps: int = 400_000
    minigrid_steps: int = 5_000
    maps: int = 4096
    map_presets: tuple[str, ...] = ("N2-S6", "N4-S5", "N6")
    repeats: int = 5


PRESETS = {
    "smoke": Settings(
        num_envs=(16,), steps=320, minigrid_steps=50, maps=16, map_presets=("N2-S6",), repeats=1
    ),
    "cpu": Settings(),
    "paper": Settings(steps=40_000_000, maps=65_536),
}


def jaxpriv_steps(num_envs: int, num_steps: int) -> Callable[[], Any]:
    """Returns a function that makes steps of many environments with random actions."""
    env = multiroom.MultiRoom(PRESET)
    params = env.default_params
    step_all = jax.vmap(env.step, (0, 0, 0, None))

    @jax.jit
    def play(state: Any, actions: jax.Array, keys: jax.Array) -> Any:
        def step(state: Any, drawn: Any) -> Any:
            observation, state, reward, *_ = step_all(drawn[1], state, drawn[0], params)
            return state, (observation, reward)

        return jax.lax.scan(step, state, (actions, keys))

    key = jax.random.key(0)
    _, state = jax.vmap(env.reset, (0, None))(jax.random.split(key, num_envs), params)
    actions = jax.random.randint(key, (num_steps, num_envs), 0, env.num_actions)
    keys = jax.random.split(key, (num_steps, num_envs))
    return lambda: jax.block_until_ready(play(state, actions, keys))


def minigrid_steps(num_steps: int) -> Callable[[], Any]:
    """Returns a function that makes steps of one environment of Minigrid with random actions."""
    import gymnasium
    import minigrid  # noqa: F401 (registers its environments)

    env = gymnasium.make(ENV)
    actions = np.random.default_rng(0).integers(0, 7, num_steps).tolist()

    def play() -> None:
        env.reset(seed=0)
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return play


def navix_steps(num_envs: int, num_steps: int) -> Callable[[], Any]:
    """Returns a function that makes steps of navix's MultiRoom with random actions."""
    import navix

    env = navix.make("Navix-MultiRoom-N4-S5-v0")
    actions = jax.random.randint(jax.random.key(0), (num_steps, num_envs), 0, 7)

    @jax.jit
    def play(timesteps: Any, actions: jax.Array) -> Any:
        def step(timesteps: Any, actions: jax.Array) -> Any:
            timesteps = jax.vmap(env.step)(timesteps, actions)
            return timesteps, (timesteps.observation, timesteps.reward)

        return jax.lax.scan(step, timesteps, actions)

    timesteps = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), num_envs))
    return lambda: jax.block_until_ready(play(timesteps, actions))


def xminigrid_steps(num_envs: int, num_steps: int) -> Callable[[], Any]:
    """Returns a function that makes steps of xminigrid's DoorKey with random actions."""
    import xminigrid
    from xminigrid.wrappers import GymAutoResetWrapper

    env, params = xminigrid.make("MiniGrid-DoorKey-8x8")
    env = GymAutoResetWrapper(env)
    actions = jax.random.randint(jax.random.key(0), (num_steps, num_envs), 0, 6)

    @jax.jit
    def play(timesteps: Any, actions: jax.Array) -> Any:
        def step(timesteps: Any, actions: jax.Array) -> Any:
            timesteps = jax.vmap(env.step, (None, 0, 0))(params, timesteps, actions)
            return timesteps, (timesteps.observation, timesteps.reward)

        return jax.lax.scan(step, timesteps, actions)

    keys = jax.random.split(jax.random.key(0), num_envs)
    timesteps = jax.vmap(env.reset, (None, 0))(params, keys)
    return lambda: jax.block_until_ready(play(timesteps, actions))


PEERS = {
    "navix": ("navix MultiRoom-N4-S5", navix_steps),
    "xminigrid": ("xminigrid DoorKey-8x8", xminigrid_steps),
}


def generation(name: str, num_maps: int) -> Callable[[], Any]:
    """Returns a function that generates maps of a preset."""
    preset = multiroom.PRESETS[name]

    @jax.jit
    def generate(keys: jax.Array) -> multiroom.FloorMaps:
        sizes = {"num_rooms": preset.num_rooms, "max_room_size": preset.max_room_size}
        return jax.vmap(lambda key: multiroom.generate(key, **sizes))(keys)

    keys = jax.random.split(jax.random.key(0), num_maps)
    return lambda: jax.block_until_ready(generate(keys))


def run(settings: Settings) -> dict[str, Any]:
    """Times steps in turn with Minigrid, and the generation of maps; `rows` has a dict for each."""
    functions, work, first_calls = {}, {}, {}

    def add(name: str, function: Callable[[], Any], amount: int) -> None:
        started = time.perf_counter()
        function()
        functions[name], work[name] = function, amount
        first_calls[name] = time.perf_counter() - started

    add("minigrid", minigrid_steps(settings.minigrid_steps), settings.minigrid_steps)
    for num_envs in settings.num_envs:
        num_steps = max(1, settings.steps // num_envs)
        name = f"jaxpriv, {num_envs:,} environments"
        add(name, jaxpriv_steps(num_envs, num_steps), num_steps * num_envs)
    num_envs = min(1024, max(settings.num_envs))
    num_steps = max(1, settings.minigrid_steps * 4 // num_envs)
    for module, (title, make) in PEERS.items():
        if importlib.util.find_spec(module) is not None:
            name = f"{title}, {num_envs:,} environments"
            add(name, make(num_envs, num_steps), num_steps * num_envs)
    maps = {f"maps of {name}": name for name in settings.map_presets}
    for title, name in maps.items():
        add(title, generation(name, settings.maps), settings.maps)
    times = common.interleaved(functions, repeats=settings.repeats)
    rows = []
    for name, rounds in times.items():
        per_unit = {n: [t / work[n] for t in times[n]] for n in (name, "minigrid")}
        is_map = name in maps
        rows.append(
            {
                "name": name,
                "per_second": work[name] / float(np.median(rounds)),
                "unit": "maps" if is_map else "steps",
                "times_minigrid": None if is_map else common.ratio(per_unit, "minigrid", name),
                "first_call_seconds": first_calls[name],
            }
        )
    return {"rows": rows, "goals": GOALS}


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    return common.text_table(
        ("environment", "per second", "unit", "times Minigrid", "first call, s"),
        (
            (
                row["name"],
                f"{row['per_second']:,.0f}",
                row["unit"],
                "" if row["times_minigrid"] is None else f"{row['times_minigrid']:.0f}",
                f"{row['first_call_seconds']:.1f}",
            )
            for row in record["rows"]
        ),
    )
