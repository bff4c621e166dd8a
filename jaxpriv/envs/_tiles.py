"""Pictures of single cells, equal to Minigrid's in every pixel.

A tile is painted on a raster three times as fine, in coordinates from 0 to 1, and averaged.
"""

import functools
import math

import numpy as np

from jaxpriv.envs import grid

_FINENESS = 3
_RGB = {
    "red": (255, 0, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
    "purple": (112, 39, 195),
    "yellow": (255, 255, 0),
    "grey": (100, 100, 100),
}
_BLACK, _LINE = (0, 0, 0), (100, 100, 100)
_TRIANGLE = np.array([[0.12, 0.19], [0.87, 0.50], [0.12, 0.81]], np.float32)


class _Raster:
    """Picture in coordinates from 0 to 1."""

    def __init__(self, size: int) -> None:
        self.pixels = np.zeros((size, size, 3), np.uint8)
        centres = (np.arange(size) + 0.5) / size
        self.x, self.y = centres[None, :], centres[:, None]

    def fill(self, mask: np.ndarray, rgb: tuple[int, int, int]) -> None:
        self.pixels[mask] = rgb

    def rectangle(
        self, left: float, right: float, top: float, bottom: float, rgb: tuple[int, int, int]
    ) -> None:
        columns = (self.x >= left) & (self.x <= right)
        rows = (self.y >= top) & (self.y <= bottom)
        self.fill(columns & rows, rgb)


@functools.lru_cache(maxsize=1024)
def draw_tile(cell: int, direction: int | None, is_lit: bool, size: int) -> np.ndarray:
    """Draws a cell, the agent in it if a direction is given, and the light of the view.

    Returns an image [size, size, 3].
    """
    raster = _Raster(size * _FINENESS)
    raster.rectangle(0.0, 0.031, 0.0, 1.0, _LINE)
    raster.rectangle(0.0, 1.0, 0.0, 0.031, _LINE)
    if cell in (grid.WALL, grid.GOAL):
        raster.rectangle(0.0, 1.0, 0.0, 1.0, _colour_of(cell))
    elif cell & 15 == grid.DOOR:
        _draw_door(raster, _colour_of(cell), is_closed=cell >= grid.CLOSED)
    if direction is not None:
        raster.fill(_agent_mask(raster, direction), _RGB["red"])
    pixels = raster.pixels
    if is_lit:
        pixels = (pixels + 0.3 * (255 - pixels)).astype(np.uint8)
    blocks = pixels.reshape(size, _FINENESS, size, _FINENESS, 3)
    tile = blocks.mean(axis=3).mean(axis=1).astype(np.uint8)
    tile.flags.writeable = False  # the tile is cached
    return tile


def _colour_of(cell: int) -> tuple[int, int, int]:
    return _RGB[grid.COLOURS[cell >> 4 & 7]]


def _draw_door(raster: _Raster, rgb: tuple[int, int, int], *, is_closed: bool) -> None:
    if not is_closed:
        raster.rectangle(0.88, 1.0, 0.0, 1.0, rgb)
        raster.rectangle(0.92, 0.96, 0.04, 0.96, _BLACK)
        return
    for margin, colour in ((0.0, rgb), (0.04, _BLACK), (0.08, rgb), (0.12, _BLACK)):
        raster.rectangle(margin, 1 - margin, margin, 1 - margin, colour)
    x, y = raster.x - 0.75, raster.y - 0.5
    raster.fill(x * x + y * y <= 0.08 * 0.08, rgb)


def _agent_mask(raster: _Raster, direction: int) -> np.ndarray:
    """Computes by barycentric coordinates which pixels lie in the agent's triangle."""
    angle = -0.5 * math.pi * direction
    x, y = raster.x - 0.5, raster.y - 0.5
    x, y = (
        0.5 + x * math.cos(angle) - y * math.sin(angle),
        0.5 + y * math.cos(angle) + x * math.sin(angle),
    )
    corner, first, second = _TRIANGLE[0], _TRIANGLE[2] - _TRIANGLE[0], _TRIANGLE[1] - _TRIANGLE[0]
    offset = np.stack([x - corner[0], y - corner[1]], axis=-1)
    gram = np.array([[first @ first, first @ second], [first @ second, second @ second]])
    inner = np.stack([offset @ first, offset @ second])
    u, v = np.tensordot(np.linalg.inv(gram), inner, axes=1)
    return (u >= 0) & (v >= 0) & (u + v < 1)
