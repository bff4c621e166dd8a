"""Floor maps drawn as Minigrid 3 draws them: the same rules on the same stream of integers."""

from typing import NamedTuple

import numpy as np

from jaxpriv.envs import grid

_MAX_CHAINS = 20_000
"""Chains of rooms tried before the request is refused."""


class Room(NamedTuple):
    """Outer rectangle of a room and its entry door; x and y of the top left corner."""

    x: int
    y: int
    width: int
    height: int
    door_x: int
    door_y: int


def draw_map(
    seed: int, num_rooms: int, max_room_size: int
) -> tuple[np.ndarray, tuple[int, int], int, tuple[int, int]]:
    """Returns cells, position, direction and goal of the first map after seeding with `seed`."""
    rng = np.random.default_rng(seed)
    for _ in range(_MAX_CHAINS):
        rooms = _draw_chain(rng, num_rooms, max_room_size)
        if len(rooms) == num_rooms:
            break
    else:
        raise ValueError(
            f"No chain of {num_rooms} rooms of size up to {max_room_size} was placed in "
            f"{_MAX_CHAINS} trials."
        )
    cells = _draw_cells(rng, rooms)
    position = _draw_empty_cell(rng, cells, rooms[0])
    direction = int(rng.integers(0, 4))
    goal = position
    while goal == position:
        goal = _draw_empty_cell(rng, cells, rooms[-1])
    cells[goal] = grid.GOAL
    return cells, position, direction, goal


def _draw_chain(rng: np.random.Generator, num_rooms: int, max_room_size: int) -> list[Room]:
    """Draws rooms, each behind a door of the one before, until eight trials in a row fail."""
    rooms: list[Room] = []
    entry_wall, wall, door = 2, 2, (_draw_corner(rng), _draw_corner(rng))
    trials = 0
    while len(rooms) < num_rooms:
        if rooms:
            wall, door = _draw_exit(rng, rooms[-1], entry_wall)
            trials += 1
        room = _draw_room(rng, door, wall, max_room_size, is_first=not rooms)
        if _fits(room, rooms[:-1]):
            rooms.append(room)
            entry_wall, trials = wall, 0
        elif not rooms or trials == 8:
            break
    return rooms


def _draw_corner(rng: np.random.Generator) -> int:
    return int(rng.integers(0, grid.SIZE - 2))


def _draw_exit(
    rng: np.random.Generator, room: Room, entry_wall: int
) -> tuple[int, tuple[int, int]]:
    """Draws a door in another wall than the entry's; returns the next room's wall and the door."""
    walls = [wall for wall in range(4) if wall != entry_wall]
    exit_wall = walls[int(rng.integers(0, 3))]
    if exit_wall % 2 == 0:
        x = room.x + (room.width - 1 if exit_wall == 0 else 0)
        door = x, room.y + int(rng.integers(1, room.height - 1))
    else:
        x = room.x + int(rng.integers(1, room.width - 1))
        door = x, room.y + (room.height - 1 if exit_wall == 1 else 0)
    return (exit_wall + 2) % 4, door


def _draw_room(
    rng: np.random.Generator,
    door: tuple[int, int],
    wall: int,
    max_room_size: int,
    *,
    is_first: bool,
) -> Room:
    """Draws size and position of a room whose `wall` (east, south, west, north) has the door."""
    width, height = (int(rng.integers(4, max_room_size + 1)) for _ in range(2))
    x, y = door
    if not is_first and wall % 2 == 0:
        x = x - width + 1 if wall == 0 else x
        y = int(rng.integers(y - height + 2, y))
    elif not is_first:
        y = y - height + 1 if wall == 1 else y
        x = int(rng.integers(x - width + 2, x))
    return Room(x, y, width, height, *door)


def _fits(room: Room, earlier: list[Room]) -> bool:
    """Whether a room lies in the grid, above its last row, and apart from the earlier rooms."""
    if room.x < 0 or room.y < 0:
        return False
    if room.x + room.width > grid.SIZE or room.y + room.height >= grid.SIZE:
        return False
    return all(
        room.x + room.width < other.x
        or other.x + other.width <= room.x
        or room.y + room.height < other.y
        or other.y + other.height <= room.y
        for other in earlier
    )


def _draw_cells(rng: np.random.Generator, rooms: list[Room]) -> np.ndarray:
    cells = np.full((grid.SIZE, grid.SIZE), grid.EMPTY, np.uint8)
    colour = None
    for i, room in enumerate(rooms):
        right, bottom = room.x + room.width, room.y + room.height
        cells[room.x : right, [room.y, bottom - 1]] = grid.WALL
        cells[[room.x, right - 1], room.y : bottom] = grid.WALL
        if i > 0:
            names = [name for name in sorted(grid.COLOURS) if name != colour]
            colour = names[int(rng.integers(0, len(names)))]
            door = grid.DOOR | grid.COLOURS.index(colour) << 4 | grid.CLOSED
            cells[room.door_x, room.door_y] = door
    return cells


def _draw_empty_cell(rng: np.random.Generator, cells: np.ndarray, room: Room) -> tuple[int, int]:
    """Draws cells of a room's outer rectangle until one is empty."""
    while True:
        x = int(rng.integers(room.x, room.x + room.width))
        y = int(rng.integers(room.y, room.y + room.height))
        if cells[x, y] == grid.EMPTY:
            return x, y
