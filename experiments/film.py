"""Trains an agent on floor maps and writes a GIF of it.

Usage: python -m experiments.film OUT.gif [--maps N2-S6] [--lstm-units 8] [--updates 100]
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from jaxpriv import envs, models, rl, training


@dataclass(frozen=True, kw_only=True)
class Film:
    """Train an agent on one floor map or several, and film an episode."""

    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT.gif")]
    """GIF to write; it must not exist."""
    maps: str = "N2-S6"
    """Preset of the environment."""
    num_maps: int = 16
    """Number of maps; the film is on the first."""
    lstm_units: int = 0
    """Width of the LSTM; 0 for an agent without memory."""
    updates: int = 100
    """Number of updates of 2,048 frames."""
    max_steps: int = 200
    """Number of steps after which an episode is cut off."""
    seed: int = 0
    """Random seed."""


def film(settings: Film) -> float:
    """Writes the film; returns the mean return of the last update."""
    preset = envs.PRESETS[settings.maps]
    maps = envs.stack(
        [
            envs.from_minigrid_seed(
                seed, num_rooms=preset.num_rooms, max_room_size=preset.max_room_size
            )
            for seed in range(1, settings.num_maps + 1)
        ]
    )
    env = envs.MultiRoom(preset)
    agent = models.ActorCritic(num_actions=len(envs.ACTIONS), lstm_units=settings.lstm_units)

    def env_params(maps: envs.FloorMaps, stage: jax.Array) -> envs.EnvParams:
        del stage
        return envs.EnvParams(max_steps_in_episode=settings.max_steps, maps=maps)

    alg = rl.ppo.algorithm(
        agent,
        env,
        maps,
        env_params=env_params,
        hyperparameters=rl.Hyperparameters(recurrence=4 if settings.lstm_units else 1),
    )
    init_key, fit_key, play_key = jax.random.split(jax.random.key(settings.seed), 3)
    observation = jnp.zeros((envs.grid.VIEW, envs.grid.VIEW, 3), jnp.uint8)
    params = agent.init(init_key, agent.initial_memory(), observation)
    state, history = training.fit(fit_key, alg, params, maps, steps=settings.updates)
    first = env_params(jax.tree.map(lambda leaf: leaf[:1], maps), jnp.int32(0))
    states = _episode(play_key, agent, state.params, envs.MultiRoom(preset, autoreset=False), first)
    envs.render.save_gif(settings.out, states)
    return float(np.asarray(history.info.mean_return)[-1])


def _episode(
    key: jax.Array,
    agent: models.ActorCritic,
    params: object,
    env: envs.MultiRoom,
    env_params: envs.EnvParams,
) -> envs.State:
    """Plays one episode; returns its states with a leading axis of time."""
    observation, state = env.reset(key, env_params)
    memory, states, is_done = agent.initial_memory(), [state], False
    act = jax.jit(agent.apply)
    while not is_done:
        key, action_key, step_key = jax.random.split(key, 3)
        memory, logits, _ = act(params, memory, observation)
        action = jax.random.categorical(action_key, logits)
        observation, state, _, terminated, truncated, _ = env.step(
            step_key, state, action, env_params
        )
        states.append(state)
        is_done = bool(terminated) or bool(truncated)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


if __name__ == "__main__":
    command = tyro.cli(Film, description=__doc__)
    last = film(command)
    print(f"mean return of the last update {last:.3f}; written: {command.out}")
