"""Cells of a grid, packed in one byte each, and the agent's view of them.

A cell is `object | colour << 4 | closed << 7` with Minigrid's indices of objects and colours.
Grids and views are indexed [x, y], with x to the right and y down. Directions are 0 right, 1 down,
2 left, 3 up. In a view of 7 x 7 cells the agent is at [3, 6] and looks up.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt8, UInt32

__all__ = [
    "CLOSED",
    "COLOURS",
    "DOOR",
    "EMPTY",
    "GOAL",
    "SIZE",
    "VIEW",
    "WALL",
    "is_door",
    "is_opaque",
    "observe",
    "pack",
    "step_ahead",
    "unpack",
    "view_positions",
    "visible",
    "window",
]

SIZE = 25
"""Width and height of a grid."""

VIEW = 7
"""Width and height of the agent's view."""

COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
"""Names of the colours, by index."""

EMPTY, WALL, DOOR, GOAL = 1, 2 | 5 << 4, 4, 8 | 1 << 4
"""Packed cells; a door still lacks its colour."""

CLOSED = 1 << 7
"""Bit of a closed door."""

_SHIFTS, _MASKS = np.array([0, 4, 7], np.uint8), np.array([15, 7, 1], np.uint8)
"""Position and mask of object, colour and state in a packed cell."""

_ROWS_PER_WORD = 4
"""Rows of a view whose bits are joined in one word of 32 bits."""

_VECTORS = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], np.int32)
"""Unit vector (x, y) of each direction."""


def pack(encoding: UInt8[Array | np.ndarray, "*b 3"]) -> UInt8[Array | np.ndarray, "*b"]:
    """Packs cells of three numbers (object, colour, state), as Minigrid encodes them.

    Args:
      encoding: object, colour and state; the state of a door is 0 if open, 1 if closed.

    Returns:
      Packed cells.

    Example:
      >>> import numpy as np
      >>> pack(np.array([[2, 5, 0], [8, 1, 0]], np.uint8)).tolist() == [WALL, GOAL]
      True
    """
    return encoding[..., 0] | encoding[..., 1] << 4 | encoding[..., 2] << 7


def unpack(cells: UInt8[Array | np.ndarray, "*b"]) -> UInt8[Array, "*b 3"]:
    """Unpacks cells into object, colour and state.

    Args:
      cells: packed cells.

    Returns:
      Three numbers per cell, as Minigrid encodes them; a cell that is not seen is 0, 0, 0.

    Example:
      >>> import jax.numpy as jnp
      >>> unpack(jnp.uint8(GOAL)).tolist()
      [8, 1, 0]
    """
    cells = jnp.asarray(cells)
    return cells[..., None] >> _SHIFTS & _MASKS


def is_door(cells: UInt8[Array, "*b"]) -> Bool[Array, "*b"]:
    """Returns where cells are doors.

    Args:
      cells: packed cells.

    Returns:
      True for a door, open or closed.

    Example:
      >>> import jax.numpy as jnp
      >>> is_door(jnp.array([WALL, DOOR | CLOSED], jnp.uint8)).tolist()
      [False, True]
    """
    return cells & 15 == DOOR


def is_opaque(cells: UInt8[Array, "*b"]) -> Bool[Array, "*b"]:
    """Returns where cells hide what is behind them and stop the agent.

    Args:
      cells: packed cells.

    Returns:
      True for a wall or a closed door.

    Example:
      >>> import jax.numpy as jnp
      >>> is_opaque(jnp.array([WALL, DOOR, DOOR | CLOSED, GOAL], jnp.uint8)).tolist()
      [True, False, True, False]
    """
    return (cells == WALL) | (cells >= CLOSED)


def step_ahead(position: Int[Array, "2"], direction: Int[Array, ""]) -> Int[Array, "2"]:
    """Returns the position in front of the agent.

    Args:
      position: position (x, y) of the agent.
      direction: direction of the agent.

    Returns:
      A position (x, y), which may lie outside the grid.

    Example:
      >>> import jax.numpy as jnp
      >>> step_ahead(jnp.array([4, 4]), jnp.array(1)).tolist()
      [4, 5]
    """
    return position + jnp.asarray(_VECTORS)[direction]


def view_positions(
    position: Int[Array, "2"], direction: Int[Array, ""]
) -> tuple[Int[Array, "7 7"], Int[Array, "7 7"]]:
    """Returns the positions in the grid of the cells of a view.

    Args:
      position: position (x, y) of the agent.
      direction: direction of the agent.

    Returns:
      x and y of each cell, which may lie outside the grid.

    Example:
      >>> import jax.numpy as jnp
      >>> x, y = view_positions(jnp.array([4, 4]), jnp.array(0))
      >>> int(x[3, 0]), int(y[3, 0])
      (10, 4)
    """
    ahead = jnp.asarray(_VECTORS)[direction]
    to_right = jnp.stack([-ahead[1], ahead[0]])
    forward = VIEW - 1 - jnp.arange(VIEW, dtype=position.dtype)
    sideways = jnp.arange(VIEW, dtype=position.dtype) - VIEW // 2
    x, y = (
        position[axis] + ahead[axis] * forward[None, :] + to_right[axis] * sideways[:, None]
        for axis in (0, 1)
    )
    return x, y


def window(
    cells: UInt8[Array, "size size"], position: Int[Array, "2"], direction: Int[Array, ""]
) -> UInt8[Array, "7 7"]:
    """Returns the cells in the agent's field of view, without occlusion.

    Args:
      cells: packed grid.
      position: position (x, y) of the agent.
      direction: direction of the agent.

    Returns:
      Packed cells, turned so that the agent at [3, 6] looks up; walls outside the grid.

    Example:
      >>> import jax.numpy as jnp
      >>> cells = jnp.full((25, 25), EMPTY, jnp.uint8).at[5, 4].set(GOAL)
      >>> int(window(cells, jnp.array([4, 4]), jnp.array(0))[3, 5]) == GOAL
      True
    """
    x, y = view_positions(position, direction)
    size = cells.shape[0]
    is_in_grid = (x >= 0) & (x < size) & (y >= 0) & (y < size)
    index = jnp.where(is_in_grid, x * size + y, 0)
    seen = cells.reshape(-1).at[index].get(mode="promise_in_bounds")
    return jnp.where(is_in_grid, seen, np.uint8(WALL))


def visible(view: UInt8[Array, "7 7"]) -> Bool[Array, "7 7"]:
    """Computes which cells of a view the agent sees.

    A cell that is seen and not opaque shows its neighbours to the left, to the right, and the
    three cells ahead. Walls and closed doors are opaque. Each row is a mask of bits: within a
    row, sight spreads by shifts through the cells that are not opaque.

    Args:
      view: packed cells of `window`.

    Returns:
      True where a cell is seen.

    Example:
      >>> import jax.numpy as jnp
      >>> view = jnp.full((7, 7), EMPTY, jnp.uint8).at[:, 5].set(WALL)
      >>> visible(view).sum(axis=0).tolist()
      [0, 0, 0, 0, 0, 7, 7]
    """
    column, row = np.indices((VIEW, VIEW)).astype(np.uint32)
    clear = jnp.where(is_opaque(view), np.uint32(0), 1 << column).sum(axis=0, dtype=jnp.uint32)
    entering = jnp.uint32(1 << VIEW // 2)
    rows = []
    for j in reversed(range(VIEW)):
        spread = _spread(entering & clear[j], clear[j])
        reach = (spread | spread << 1 | spread >> 1) & (2**VIEW - 1)
        rows.append(entering | reach)
        entering = reach
    # Rows are joined in two words by a sum, because XLA would evaluate all of them again for every
    # cell if no reduction stood in between.
    near, far = rows[:_ROWS_PER_WORD], rows[_ROWS_PER_WORD:]
    words = [
        jnp.stack([bits << VIEW * k for k, bits in enumerate(part)]).sum(dtype=jnp.uint32)
        for part in (near, far)
    ]
    steps = VIEW - 1 - row
    word = jnp.where(steps < _ROWS_PER_WORD, *words)
    return (word >> (VIEW * (steps % _ROWS_PER_WORD) + column)) & 1 == 1


def _spread(seeds: UInt32[Array, ""], clear: UInt32[Array, ""]) -> UInt32[Array, ""]:
    """Fills the runs of set bits of `clear` that contain a seed, by shifts of 1, 2 and 4."""
    left, right, to_left, to_right = seeds, seeds, clear, clear
    for shift in (1, 2, 4):
        left, to_left = left | to_left & left << shift, to_left & to_left << shift
        right, to_right = right | to_right & right >> shift, to_right & to_right >> shift
    return left | right


def observe(
    cells: UInt8[Array, "size size"], position: Int[Array, "2"], direction: Int[Array, ""]
) -> UInt8[Array, "7 7 3"]:
    """Computes the observation of an agent: the cells that it sees.

    Args:
      cells: packed grid.
      position: position (x, y) of the agent.
      direction: direction of the agent.

    Returns:
      Object, colour and state of each cell of the view; 0 where a cell is not seen. The agent's
      own cell is empty, as in Minigrid.

    Example:
      >>> import jax.numpy as jnp
      >>> cells = jnp.full((25, 25), EMPTY, jnp.uint8)
      >>> observe(cells, jnp.array([4, 4]), jnp.array(0))[3, 6].tolist()
      [1, 0, 0]
    """
    view = window(cells, position, direction)
    x, y = np.indices((VIEW, VIEW))
    is_agent = (x == VIEW // 2) & (y == VIEW - 1)
    seen = jnp.where(visible(view), view, np.uint8(0))
    return unpack(jnp.where(is_agent, np.uint8(EMPTY), seen))
