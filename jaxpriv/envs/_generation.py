"""Random floor maps under jit: Minigrid's rules as one loop, with JAX's random numbers.

Rooms are rows (x, y, width, height, door x, door y). Minigrid places a room by recursion, but a
room that was placed always ends the trials of the one before, so the rooms form a chain: it grows
by one room, or is thrown away after eight trials without success.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray, UInt8, UInt32

from jaxpriv.envs import grid

_MAX_TRIALS = 8


class _Chain(NamedTuple):
    """Chain of rooms that grows; `entry_wall` is that of its last room."""

    key: PRNGKeyArray
    rooms: Int[Array, "rooms 6"]
    length: Int[Array, ""]
    trials: Int[Array, ""]
    entry_wall: Int[Array, ""]


def draw_rooms(key: PRNGKeyArray, num_rooms: int, max_room_size: int) -> Int[Array, "rooms 6"]:
    """Draws chains of rooms until one has the wanted length."""
    zero = jnp.int32(0)
    chain = _Chain(key, jnp.zeros((num_rooms, 6), jnp.int32), zero, zero, zero)

    def extend(chain: _Chain) -> _Chain:
        key, trial_key = jax.random.split(chain.key)
        bits = jax.random.bits(trial_key, (5,))
        is_first = chain.length == 0
        wall, door = _draw_door(bits[:2], chain.rooms[chain.length - 1], chain.entry_wall, is_first)
        room = _draw_room(bits[2:], door, wall, is_first, max_room_size)
        fits = _fits(room, chain.rooms, chain.length)
        trials = jnp.where(fits, 0, chain.trials + 1)
        fails = ~fits & (is_first | (trials == _MAX_TRIALS))
        row = (jnp.arange(num_rooms) == chain.length) & fits
        return _Chain(
            key=key,
            rooms=jnp.where(row[:, None], room, chain.rooms),
            length=jnp.where(fails, 0, chain.length + fits.astype(jnp.int32)),
            trials=jnp.where(fails, 0, trials),
            entry_wall=jnp.where(fits, wall, chain.entry_wall),
        )

    return jax.lax.while_loop(lambda chain: chain.length < num_rooms, extend, chain).rooms


def _below(bits: UInt32[Array, "*n"], bound: Int[Array, "*n"] | int) -> Int[Array, "*n"]:
    """Maps 32 random bits to 0 ... bound - 1; a probability is wrong by at most 2^-32."""
    return (bits % jnp.asarray(bound).astype(jnp.uint32)).astype(jnp.int32)


def _draw_door(
    bits: UInt32[Array, "2"],
    room: Int[Array, "6"],
    entry_wall: Int[Array, ""],
    is_first: Bool[Array, ""],
) -> tuple[Int[Array, ""], Int[Array, "2"]]:
    """Draws a door in a wall of `room` other than its entry's; returns the next entry wall too.

    The first room has the west wall as its entry and a corner in place of the door.
    """
    exit_wall = _below(bits[0], 3)
    exit_wall = jnp.where(exit_wall >= entry_wall, exit_wall + 1, exit_wall)
    x, y, width, height = room[0], room[1], room[2], room[3]
    is_vertical = exit_wall % 2 == 0
    offset = 1 + _below(bits[1], jnp.where(is_vertical, height, width) - 2)
    door_x = x + jnp.where(is_vertical, jnp.where(exit_wall == 0, width - 1, 0), offset)
    door_y = y + jnp.where(is_vertical, offset, jnp.where(exit_wall == 1, height - 1, 0))
    corner = _below(bits, grid.SIZE - 2)
    door = jnp.where(is_first, corner, jnp.stack([door_x, door_y]))
    return jnp.where(is_first, 2, (exit_wall + 2) % 4), door


def _draw_room(
    bits: UInt32[Array, "3"],
    door: Int[Array, "2"],
    wall: Int[Array, ""],
    is_first: Bool[Array, ""],
    max_room_size: int,
) -> Int[Array, "6"]:
    """Draws size and position of a room whose `wall` (east, south, west, north) has the door."""
    size = 4 + _below(bits[:2], max_room_size - 3)
    along = jnp.where(wall % 2 == 0, size[1], size[0])
    offset = 2 - along + _below(bits[2], along - 2)
    shift_x = jnp.where(wall % 2 == 1, offset, jnp.where(wall == 0, 1 - size[0], 0))
    shift_y = jnp.where(wall % 2 == 0, offset, jnp.where(wall == 1, 1 - size[1], 0))
    shift = jnp.stack([shift_x, shift_y])
    return jnp.concatenate([door + jnp.where(is_first, 0, shift), size, door])


def _fits(
    room: Int[Array, "6"], rooms: Int[Array, "rooms 6"], length: Int[Array, ""]
) -> Bool[Array, ""]:
    """Whether a room lies in the grid, above its last row, and apart from the earlier rooms.

    The last room of the chain, which has the door, is not an earlier one.
    """
    start, end = room[:2], room[:2] + room[2:4]
    is_in_grid = (start >= 0).all() & (end[0] <= grid.SIZE) & (end[1] < grid.SIZE)
    is_apart = (end < rooms[:, :2]) | (rooms[:, :2] + rooms[:, 2:4] <= start)
    is_earlier = jnp.arange(len(rooms)) < length - 1
    return is_in_grid & (is_apart.any(axis=1) | ~is_earlier).all()


def draw_cells(key: PRNGKeyArray, rooms: Int[Array, "rooms 6"]) -> UInt8[Array, "size size"]:
    """Draws walls, and closed doors whose colours differ from that of the door before."""
    bits = jax.random.bits(key, (len(rooms),))
    x = jnp.arange(grid.SIZE)[:, None]
    y = jnp.arange(grid.SIZE)[None, :]
    cells = jnp.full((grid.SIZE, grid.SIZE), grid.EMPTY, jnp.uint8)
    colour = _below(bits[0], len(grid.COLOURS))
    for i, (left, top, width, height, door_x, door_y) in enumerate(rooms):
        right, bottom = left + width - 1, top + height - 1
        is_in_room = (x >= left) & (x <= right) & (y >= top) & (y <= bottom)
        is_edge = (x == left) | (x == right) | (y == top) | (y == bottom)
        cells = jnp.where(is_in_room & is_edge, np.uint8(grid.WALL), cells)
        if i > 0:
            door = (grid.DOOR | grid.CLOSED | colour << 4).astype(jnp.uint8)
            cells = jnp.where((x == door_x) & (y == door_y), door, cells)
            step = 1 + _below(bits[i], len(grid.COLOURS) - 1)
            colour = (colour + step) % len(grid.COLOURS)
    return cells


def draw_start_and_goal(
    key: PRNGKeyArray, rooms: Int[Array, "rooms 6"]
) -> tuple[Int[Array, "2"], Int[Array, ""], Int[Array, "2"]]:
    """Draws the agent's cell in the first room, its direction, and another cell in the last."""
    bits = jax.random.bits(key, (3,))
    first, last = rooms[0], rooms[-1]
    index = _below(bits[0], (first[2] - 2) * (first[3] - 2))
    area = (last[2] - 2) * (last[3] - 2)
    if len(rooms) == 1:  # the goal is not in the agent's cell
        goal_index = _below(bits[2], area - 1)
        goal_index = jnp.where(goal_index >= index, goal_index + 1, goal_index)
    else:
        goal_index = _below(bits[2], area)
    position = _interior_cell(first, index)
    return position, _below(bits[1], 4), _interior_cell(last, goal_index)


def _interior_cell(room: Int[Array, "6"], index: Int[Array, ""]) -> Int[Array, "2"]:
    width = room[2] - 2
    return room[:2] + 1 + jnp.stack([index % width, index // width])
