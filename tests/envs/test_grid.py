"""Packed cells and the agent's view, against Minigrid's own grid."""

import hypothesis
import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from minigrid.core.grid import Grid

from jaxpriv.envs import grid

DOORS = [grid.DOOR | colour << 4 | closed for colour in range(6) for closed in (0, grid.CLOSED)]
CELLS = st.sampled_from([grid.EMPTY, grid.WALL, grid.GOAL, *DOORS])


def decoded(cells):
    """Minigrid's grid of packed cells."""
    encoding = np.asarray(grid.unpack(cells))
    return Grid.decode(encoding)[0]


@hypothesis.given(arrays.arrays(np.uint8, (7, 7), elements=CELLS))
def test_unpacking_reverses_packing(cells):
    encoding = np.asarray(grid.unpack(cells))
    np.testing.assert_array_equal(grid.pack(encoding), cells)
    np.testing.assert_array_equal(decoded(cells).encode(), encoding)


def test_visible_cells_are_those_of_minigrid():
    rng = np.random.default_rng(0)
    codes = np.array([grid.EMPTY, grid.GOAL, grid.WALL, *DOORS], np.uint8)
    share = np.array([0.5, 0.05, 0.25, *[0.2 / 12] * 12])
    views = rng.choice(codes, (1500, 7, 7), p=share)
    seen = np.asarray(jax.jit(jax.vmap(grid.visible))(jnp.asarray(views)))
    for view, mask in zip(views, seen, strict=True):
        np.testing.assert_array_equal(mask, decoded(view).process_vis((3, 6)))
    assert 0.2 < seen.mean() < 0.8


def test_the_agent_sees_its_own_cell_and_walls_beyond_the_grid():
    cells = jnp.full((25, 25), grid.EMPTY, jnp.uint8)
    view = np.asarray(grid.observe(cells, jnp.array([0, 0]), jnp.array(2)))
    np.testing.assert_array_equal(view[3, 6], [1, 0, 0])
    np.testing.assert_array_equal(view[3, 5], [2, 5, 0])
    np.testing.assert_array_equal(view[3, 4], [0, 0, 0])


def test_positions_of_a_view_turn_with_the_agent():
    for direction, (dx, dy) in enumerate(((1, 0), (0, 1), (-1, 0), (0, -1))):
        x, y = grid.view_positions(jnp.array([10, 12]), jnp.array(direction))
        assert (int(x[3, 6]), int(y[3, 6])) == (10, 12)
        assert (int(x[3, 5]), int(y[3, 5])) == (10 + dx, 12 + dy)
        assert (int(x[4, 6]), int(y[4, 6])) == (10 - dy, 12 + dx)  # to the agent's right
        front = grid.step_ahead(jnp.array([10, 12]), jnp.array(direction))
        assert front.tolist() == [10 + dx, 12 + dy]
