"""MultiRoom under gymnasium's protocol, one episode at a time, for tools that view it."""

from typing import Any, ClassVar

import gymnasium
import jax
import numpy as np

from jaxpriv.envs import grid, multiroom, render


class ViewedMultiRoom(gymnasium.Env[np.ndarray, Any]):
    """Environment of gymnasium whose frames are those of `render.draw_frame`."""

    metadata: ClassVar[dict[str, Any]] = {  # pyright: ignore[reportIncompatibleVariableOverride]
        "render_modes": ["rgb_array"],
        "render_fps": 10,
    }

    def __init__(
        self, env: multiroom.MultiRoom, params: multiroom.EnvParams, tile_size: int
    ) -> None:
        self._env = multiroom.MultiRoom(env.preset, autoreset=False)
        self._params, self._tile_size = params, tile_size
        self._key, self._state = jax.random.key(0), None  # autoreset is off: no key is used
        self.render_mode = "rgb_array"
        self.action_space = gymnasium.spaces.Discrete(env.num_actions)
        shape = (grid.VIEW, grid.VIEW, 3)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode on a map of the pool."""
        super().reset(seed=seed)
        key = jax.random.key(int(self.np_random.integers(2**31)))
        observation, self._state = self._env.reset(key, self._params)
        return np.asarray(observation), {"map_index": int(self._state.map_index)}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Makes one step."""
        observation, self._state, reward, terminated, truncated, _ = self._env.step(
            self._key, self._started(), int(action), self._params
        )
        return np.asarray(observation), float(reward), bool(terminated), bool(truncated), {}

    def render(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Draws the present state."""
        return render.draw_frame(self._started(), tile_size=self._tile_size)

    def _started(self) -> multiroom.State:
        if self._state is None:
            raise ValueError("The environment has no state before its first reset.")
        return self._state
