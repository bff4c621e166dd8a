"""Pictures of states of MultiRoom, equal to Minigrid's in every pixel, and roll-outs as GIF."""

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt8

from jaxpriv import _check, _files
from jaxpriv.envs import _tiles, grid

if TYPE_CHECKING:
    import gymnasium

    from jaxpriv.envs import multiroom

__all__ = ["as_gymnasium", "draw_frame", "save_gif"]


@jax.jit
def _lit_cells(cells: jax.Array, position: jax.Array, direction: jax.Array) -> jax.Array:
    """Computes which cells of the grid the agent sees."""
    x, y = grid.view_positions(position, direction)
    seen = grid.visible(grid.window(cells, position, direction))
    is_in_grid = (x >= 0) & (x < grid.SIZE) & (y >= 0) & (y < grid.SIZE)
    # An index of SIZE is out of range, so that its update is dropped.
    x = jnp.where(seen & is_in_grid, x, grid.SIZE)
    return jnp.zeros((grid.SIZE, grid.SIZE), bool).at[x, y].set(True, mode="drop")


def draw_frame(
    state: "multiroom.State", *, tile_size: int = 32, highlight: bool = True
) -> UInt8[np.ndarray, "height width 3"]:
    """Draws the grid and the agent.

    Args:
      state: one state.
      tile_size: width and height of a cell, in pixels.
      highlight: whether cells that the agent sees are lighter.

    Returns:
      An RGB image.

    Raises:
      ValueError: if tile_size is not a positive whole number.

    Example:
      >>> import jax
      >>> from jaxpriv.envs import multiroom
      >>> env = multiroom.MultiRoom(multiroom.PRESETS["N2-S4"])
      >>> _, state = env.reset(jax.random.key(0), env.default_params)
      >>> draw_frame(state, tile_size=8).shape
      (200, 200, 3)
    """
    _check.positive_int(tile_size=tile_size)
    cells = np.asarray(state.cells)
    position = tuple(int(number) for number in state.position)
    is_lit = np.zeros(cells.shape, bool)
    if highlight:
        is_lit = np.asarray(_lit_cells(state.cells, state.position, state.direction))
    image = np.zeros((grid.SIZE, tile_size, grid.SIZE, tile_size, 3), np.uint8)
    for (x, y), cell in np.ndenumerate(cells):
        direction = int(state.direction) if (x, y) == position else None
        image[y, :, x] = _tiles.draw_tile(int(cell), direction, bool(is_lit[x, y]), tile_size)
    return image.reshape(grid.SIZE * tile_size, grid.SIZE * tile_size, 3)


def save_gif(
    path: str | os.PathLike[str],
    states: "multiroom.State",
    *,
    tile_size: int = 16,
    highlight: bool = True,
    milliseconds: int = 100,
) -> None:
    """Writes a roll-out as an animated GIF that repeats.

    Args:
      path: file to write; it must not exist.
      states: states with a leading axis of time.
      tile_size: width and height of a cell, in pixels.
      highlight: whether cells that the agent sees are lighter.
      milliseconds: duration of a frame.

    Raises:
      FileExistsError: if the file exists.
      ValueError: if there is no state, or a number is not a positive whole number.

    Example:
      >>> import jax, pathlib, tempfile
      >>> from jaxpriv.envs import multiroom
      >>> env = multiroom.MultiRoom(multiroom.PRESETS["N2-S4"])
      >>> _, states = jax.vmap(env.reset, (0, None))(
      ...     jax.random.split(jax.random.key(0), 3), env.default_params
      ... )
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "starts.gif"
      >>> save_gif(path, states, tile_size=4)
      >>> path.read_bytes()[:3]
      b'GIF'
    """
    from PIL import Image

    path = Path(path)
    _check.positive_int(milliseconds=milliseconds)
    if path.exists():
        raise FileExistsError(f"{path} exists already.")
    # Arrays move to the host once, not once for every frame.
    host = jax.tree.map(np.asarray, states)
    pictures = [
        Image.fromarray(draw_frame(_at_time(host, time), tile_size=tile_size, highlight=highlight))
        for time in range(len(host.cells))
    ]
    if not pictures:
        raise ValueError("Expected one state or more, got none.")
    data = io.BytesIO()
    pictures[0].save(
        data,
        format="GIF",
        save_all=True,
        append_images=pictures[1:],
        duration=milliseconds,
        loop=0,
    )
    _files.write_whole(path, data.getvalue())


def _at_time(states: "multiroom.State", time: int) -> "multiroom.State":
    return jax.tree.map(lambda leaf: leaf[time], states)


def as_gymnasium(
    env: "multiroom.MultiRoom", params: "multiroom.EnvParams", *, tile_size: int = 32
) -> "gymnasium.Env[np.ndarray, Any]":
    """Wraps an environment for tools of gymnasium, such as viewers and recorders.

    Args:
      env: environment; its autoreset is not used, since gymnasium's tools reset by themselves.
      params: parameters.
      tile_size: width and height of a cell in a frame, in pixels.

    Returns:
      A gymnasium environment with render mode `rgb_array`.

    Example:
      >>> from jaxpriv.envs import multiroom
      >>> env = multiroom.MultiRoom(multiroom.PRESETS["N2-S4"])
      >>> viewed = as_gymnasium(env, env.default_params)
      >>> observation, info = viewed.reset(seed=0)
      >>> viewed.render().shape
      (800, 800, 3)
    """
    from jaxpriv.envs import _gymnasium

    return _gymnasium.ViewedMultiRoom(env, params, tile_size)
