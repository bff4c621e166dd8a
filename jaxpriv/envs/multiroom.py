"""MultiRoom, an environment of rooms behind doors, equal to Minigrid's in every observation.

The agent starts in the first room of a chain and is to reach the goal in the last one. It turns,
moves and opens doors; its view is that of `grid.observe`. An episode ends at the goal, with reward
1 - 0.9 time / max_steps, or is truncated after max_steps steps. Floor maps are data: the
parameters carry a pool of maps, and a reset picks one of them.

Shapes: `n` counts floor maps.

References:
  Chevalier-Boisvert et al., Minigrid & Miniworld: Modular & Customizable Reinforcement Learning
  Environments for Goal-Oriented Tasks, 2023.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt8

from jaxpriv import _check
from jaxpriv.envs import _generation, _minigrid, grid, render

__all__ = [
    "ACTIONS",
    "PRESETS",
    "EnvParams",
    "FloorMaps",
    "MultiRoom",
    "Preset",
    "State",
    "from_minigrid_seed",
    "generate",
    "stack",
]

ACTIONS = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
"""Names of the actions, by index; pickup, drop and done have no effect in MultiRoom."""

_LEFT, _RIGHT, _FORWARD, _TOGGLE = 0, 1, 2, 5

_DEFAULT_SEEDS = range(1, 17)
"""Minigrid seeds of the maps of `default_params`."""


class FloorMaps(NamedTuple):
    """One floor map, or a pool of maps with a leading axis.

    cells: packed cells (see `grid`), with every door closed.
    position: start (x, y) of the agent.
    direction: direction of the agent at the start.
    goal: position (x, y) of the goal.
    """

    cells: UInt8[Array, "*n size size"]
    position: Int[Array, "*n 2"]
    direction: Int[Array, "*n"]
    goal: Int[Array, "*n 2"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Size of the maps and of an episode.

    num_rooms: number of rooms.
    max_room_size: largest width and height of a room, walls included.
    max_steps: steps after which an episode is truncated.
    """

    num_rooms: int
    max_room_size: int
    max_steps: int


PRESETS = {
    name: Preset(num_rooms=num_rooms, max_room_size=size, max_steps=20 * num_rooms)
    for name, num_rooms, size in (
        ("N2-S4", 2, 4),
        ("N2-S6", 2, 6),
        ("N3-S4", 3, 4),
        ("N4-S5", 4, 5),
        ("N4-S5-v0", 6, 5),
        ("N6", 6, 10),
    )
}
"""Presets by name, with Minigrid's number of steps, 20 per room.

MiniGrid-MultiRoom-N4-S5-v0 has six rooms in spite of its name, and so has N4-S5-v0 here; N4-S5 is
MiniGrid-MultiRoom-N4-S5-v1.
"""


def generate(key: PRNGKeyArray, *, num_rooms: int, max_room_size: int) -> FloorMaps:
    """Draws a floor map with the distribution of Minigrid's maps.

    Chains of rooms are drawn until one has `num_rooms` rooms, without a limit: more rooms than the
    grid has space for never end.

    Args:
      key: PRNG key.
      num_rooms: number of rooms.
      max_room_size: largest width and height of a room, walls included; 4 to 24.

    Returns:
      One floor map; `jax.vmap` over keys makes a pool.

    Raises:
      ValueError: if a size is out of range.

    Example:
      >>> import jax
      >>> key = jax.random.key(0)
      >>> generate(key, num_rooms=2, max_room_size=4).cells.shape
      (25, 25)
    """
    _check_sizes(num_rooms, max_room_size)
    rooms_key, cells_key, start_key = jax.random.split(key, 3)
    rooms = _generation.draw_rooms(rooms_key, num_rooms, max_room_size)
    cells = _generation.draw_cells(cells_key, rooms)
    position, direction, goal = _generation.draw_start_and_goal(start_key, rooms)
    cells = cells.at[goal[0], goal[1]].set(grid.GOAL)
    return FloorMaps(cells, position, direction, goal)


def from_minigrid_seed(seed: int, *, num_rooms: int, max_room_size: int) -> FloorMaps:
    """Draws the floor map that Minigrid draws at `env.reset(seed=seed)`, equal in every cell.

    Args:
      seed: seed of Minigrid's reset.
      num_rooms: number of rooms.
      max_room_size: largest width and height of a room, walls included; 4 to 24.

    Returns:
      One floor map.

    Raises:
      ValueError: if a size is out of range, or no such map is drawn in 20,000 trials.

    Example:
      >>> from_minigrid_seed(1, num_rooms=2, max_room_size=4).position.tolist()
      [11, 12]
    """
    _check_sizes(num_rooms, max_room_size)
    _check.non_negative_int(seed=seed)
    cells, position, direction, goal = _minigrid.draw_map(seed, num_rooms, max_room_size)
    return FloorMaps(
        jnp.asarray(cells),
        jnp.asarray(position, jnp.int32),
        jnp.asarray(direction, jnp.int32),
        jnp.asarray(goal, jnp.int32),
    )


def _check_sizes(num_rooms: int, max_room_size: int) -> None:
    _check.positive_int(num_rooms=num_rooms, max_room_size=max_room_size)
    if not 4 <= max_room_size < grid.SIZE:
        raise ValueError(
            f"Expected 4 <= max_room_size <= {grid.SIZE - 1}, got max_room_size={max_room_size}."
        )


def stack(maps: Sequence[FloorMaps]) -> FloorMaps:
    """Stacks single floor maps as a pool.

    Args:
      maps: floor maps without a leading axis, one or more.

    Returns:
      The maps with a leading axis.

    Raises:
      ValueError: if there is no map.

    Example:
      >>> maps = [from_minigrid_seed(s, num_rooms=2, max_room_size=4) for s in (1, 2, 3)]
      >>> stack(maps).cells.shape
      (3, 25, 25)
    """
    if not maps:
        raise ValueError("Expected one floor map or more, got none.")
    return FloorMaps(
        *(jnp.stack([jnp.asarray(leaf) for leaf in leaves]) for leaves in zip(*maps, strict=True))
    )


@struct.dataclass
class EnvParams(environment.EnvParams):
    """Parameters of an environment.

    max_steps_in_episode: steps after which an episode is truncated.
    maps: `FloorMaps`, a pool with a leading axis.
    """

    # Transformations put tracers, axes and batches in place of the leaves.
    # gymnax's default of one step would end every episode at once.
    max_steps_in_episode: Any = struct.field(kw_only=True)
    maps: Any = struct.field(kw_only=True)


@struct.dataclass
class State(environment.EnvState):
    """State of an episode.

    time: steps done.
    cells: packed cells, of which only doors change.
    position: position (x, y) of the agent.
    direction: direction of the agent.
    map_index: index of the floor map in the pool.
    """

    time: Any
    cells: Any
    position: Any
    direction: Any
    map_index: Any


class MultiRoom(environment.Environment[State, EnvParams]):
    """MultiRoom under gymnax's protocol of six values per step.

    preset: size of the maps of `default_params`; the rules do not depend on it.
    autoreset: whether `step` resets the environment where an episode ends. Without it, `step`
      returns the final observation and state.

    Example:
      >>> import jax
      >>> env = MultiRoom(PRESETS["N2-S4"])
      >>> key = jax.random.key(0)
      >>> observation, state = env.reset(key, env.default_params)
      >>> observation, state, reward, terminated, truncated, info = env.step(key, state, 2)
      >>> observation.shape
      (7, 7, 3)
    """

    def __init__(self, preset: Preset, *, autoreset: bool = True) -> None:
        _check_sizes(preset.num_rooms, preset.max_room_size)
        _check.positive_int(max_steps=preset.max_steps)
        self.preset, self.autoreset = preset, autoreset

    # Environments are static arguments of compiled functions: equal ones compile once.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MultiRoom):
            return NotImplemented
        return (self.preset, self.autoreset) == (other.preset, other.autoreset)

    def __hash__(self) -> int:
        return hash((self.preset, self.autoreset))

    @functools.cached_property
    def default_params(self) -> EnvParams:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Parameters with the maps of Minigrid's seeds 1 to 16."""
        sizes = {
            "num_rooms": self.preset.num_rooms,
            "max_room_size": self.preset.max_room_size,
        }
        with jax.ensure_compile_time_eval():  # the property may be read while a function is traced
            maps = stack([from_minigrid_seed(seed, **sizes) for seed in _DEFAULT_SEEDS])
        return EnvParams(max_steps_in_episode=self.preset.max_steps, maps=maps)

    def reset_env(
        self, key: PRNGKeyArray, params: EnvParams
    ) -> tuple[UInt8[Array, "7 7 3"], State]:
        """Starts an episode on a map of the pool, drawn uniformly."""
        state = self._start(key, params)
        return self.get_obs(state), state

    def _start(self, key: PRNGKeyArray, params: EnvParams) -> State:
        maps = params.maps
        index = jax.random.randint(key, (), 0, len(maps.cells), jnp.int32)
        return State(
            time=jnp.int32(0),
            cells=maps.cells[index],
            position=maps.position[index],
            direction=maps.direction[index],
            map_index=index,
        )

    def step_env(
        self,
        key: PRNGKeyArray,
        state: State,
        action: Int[Array, ""] | int | float,
        params: EnvParams,
    ) -> tuple[UInt8[Array, "7 7 3"], State, Float[Array, ""], Bool[Array, ""], dict[str, Any]]:
        """Makes one step, without a reset and without the limit of time."""
        state, reward, terminated = self._move(state, action, params)
        return self.get_obs(state), state, reward, terminated, {}

    def _move(
        self, state: State, action: Int[Array, ""] | int | float, params: EnvParams
    ) -> tuple[State, Float[Array, ""], Bool[Array, ""]]:
        action = jnp.asarray(action)
        turn = (action == _RIGHT).astype(jnp.int32) - (action == _LEFT).astype(jnp.int32)
        front = grid.step_ahead(state.position, state.direction)
        cell = state.cells[front[0], front[1]]
        toggles = (action == _TOGGLE) & grid.is_door(cell)
        new_cell = jnp.where(toggles, cell ^ np.uint8(grid.CLOSED), cell)
        new = State(
            time=state.time + 1,
            cells=state.cells.at[front[0], front[1]].set(new_cell),
            position=jnp.where((action == _FORWARD) & ~grid.is_opaque(cell), front, state.position),
            direction=(state.direction + turn) % 4,
            map_index=state.map_index,
        )
        terminated = (action == _FORWARD) & (cell == grid.GOAL)
        # One rounding of the exact fraction, so that the reward is Minigrid's to the last bit.
        max_steps = jnp.asarray(params.max_steps_in_episode, jnp.int32)
        left, total = 10 * max_steps - 9 * new.time, 10 * max_steps
        reward = left.astype(jnp.float32) / total.astype(jnp.float32)
        return new, jnp.where(terminated, reward, np.float32(0)), terminated

    @functools.partial(jax.jit, static_argnames=("self",))
    def step(
        self,
        key: PRNGKeyArray,
        state: State,
        action: Int[Array, ""] | int | float,
        params: EnvParams | None = None,
    ) -> tuple[
        UInt8[Array, "7 7 3"],
        State,
        Float[Array, ""],
        Bool[Array, ""],
        Bool[Array, ""],
        dict[str, Any],
    ]:
        """Makes one step and, with `autoreset`, starts a new episode where one ends.

        The observation is computed after the choice between the two states, which costs half of
        gymnax's own step wherever `final_observation` is not used.

        Args:
          key: PRNG key of the reset.
          state: state.
          action: index of `ACTIONS`; another number has no effect.
          params: parameters, `default_params` if None.

        Returns:
          Observation, state, reward, terminated, truncated and info, which has `terminated`,
          `truncated` and the `final_observation` of the step before a reset.
        """
        if params is None:
            params = self.default_params
        moved, reward, terminated = self._move(state, action, params)
        truncated = self.is_truncated(moved, params)
        new = moved
        if self.autoreset:
            is_done = terminated | truncated
            start = self._start(key, params)
            new = jax.tree.map(lambda a, b: jnp.where(is_done, a, b), start, moved)
        info = {
            "terminated": terminated,
            "truncated": truncated,
            "final_observation": self.get_obs(moved),
        }
        return self.get_obs(new), new, reward, terminated, truncated, info

    def get_obs(
        self, state: State, params: EnvParams | None = None, key: PRNGKeyArray | None = None
    ) -> UInt8[Array, "7 7 3"]:
        """Computes the observation of a state."""
        del params, key
        return grid.observe(state.cells, state.position, state.direction)

    def is_terminated(self, state: State, params: EnvParams) -> Bool[Array, ""]:
        """Whether the agent is at the goal."""
        del params
        return state.cells[state.position[0], state.position[1]] == grid.GOAL

    def render(self, state: State, params: EnvParams | None = None) -> UInt8[np.ndarray, "h w 3"]:
        """Draws a state, as gymnax's wrappers ask for it; see `render.draw_frame`."""
        del params
        return render.draw_frame(state)

    @property
    def name(self) -> str:
        """Name of the environment, without the size."""
        return "MultiRoom"

    @property
    def num_actions(self) -> int:
        """Number of actions."""
        return len(ACTIONS)

    def action_space(self, params: EnvParams | None = None) -> spaces.Discrete:
        """Space of the actions."""
        return spaces.Discrete(self.num_actions)

    def observation_space(self, params: EnvParams | None = None) -> spaces.Box:
        """Space of the observations."""
        return spaces.Box(0, 255, (grid.VIEW, grid.VIEW, 3), jnp.uint8)

    def state_space(self, params: EnvParams) -> spaces.Dict:
        """Space of the states."""
        last = grid.SIZE - 1
        return spaces.Dict(
            {
                "time": spaces.Discrete(params.max_steps_in_episode + 1),
                "cells": spaces.Box(0, 255, (grid.SIZE, grid.SIZE), jnp.uint8),
                "position": spaces.Box(0, last, (2,), jnp.int32),
                "direction": spaces.Discrete(4),
                "map_index": spaces.Discrete(len(params.maps.cells)),
            }
        )


def _register() -> None:
    """Registers the presets with gymnax, unless they are registered, as after a reload."""
    for name, preset in PRESETS.items():
        env_id = f"jaxpriv/MultiRoom-{name}"
        if env_id not in gymnax.registered_envs:
            gymnax.register(env_id, functools.partial(MultiRoom, preset))


_register()
