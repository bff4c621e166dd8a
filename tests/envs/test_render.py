"""Frames against Minigrid's pixels, GIF files, and the adapter for gymnasium's tools."""

import gymnasium.utils.env_checker
import gymnasium.wrappers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from jaxpriv.envs import multiroom, render
from tests.envs import minigrid_games


def state_of(env):
    """State of a Minigrid environment."""
    return multiroom.State(
        time=jnp.int32(env.step_count),
        cells=jnp.asarray(minigrid_games.packed(env)),
        position=jnp.asarray(env.agent_pos, jnp.int32),
        direction=jnp.int32(env.agent_dir),
        map_index=jnp.int32(0),
    )


@pytest.mark.parametrize("name", multiroom.PRESETS)
def test_frames_have_the_pixels_of_minigrid(name):
    env = minigrid_games.original(multiroom.PRESETS[name], render_mode="rgb_array")
    env.reset(seed=3)
    policy = minigrid_games.walking_policy(np.random.default_rng(3))
    for step in range(31):
        if step % 6 == 0:
            np.testing.assert_array_equal(render.draw_frame(state_of(env)), env.render())
        _, _, terminated, *_ = env.step(policy(env))
        if terminated:  # the agent on the goal
            np.testing.assert_array_equal(render.draw_frame(state_of(env)), env.render())
            break


@pytest.mark.parametrize("highlight", [True, False])
def test_frames_of_any_size_and_without_light_have_them_too(highlight):
    env = minigrid_games.original(multiroom.PRESETS["N6"])
    for seed in range(4):
        env.reset(seed=seed)
        expected = env.get_frame(highlight=highlight, tile_size=8 + seed)
        frame = render.draw_frame(state_of(env), tile_size=8 + seed, highlight=highlight)
        np.testing.assert_array_equal(frame, expected)


def rolled_out(num_steps):
    env = multiroom.MultiRoom(multiroom.PRESETS["N2-S4"])
    _, state = env.reset(jax.random.key(1), env.default_params)

    def step(state, action):
        new = env.step(jax.random.key(1), state, action, env.default_params)[1]
        return new, new

    return jax.lax.scan(step, state, jnp.arange(num_steps) % 3)[1]


def test_a_roll_out_is_written_as_an_animation(tmp_path):
    states = rolled_out(5)
    path = tmp_path / "game.gif"
    render.save_gif(path, states, tile_size=8, milliseconds=50)
    with Image.open(path) as image:
        assert image.size == (200, 200)
        assert image.n_frames == 5
        assert image.info["duration"] == 50
        assert image.info["loop"] == 0
        for time in range(5):
            image.seek(time)
            state = jax.tree.map(lambda leaf, time=time: leaf[time], states)
            expected = render.draw_frame(state, tile_size=8).astype(int)
            # A palette of 256 colours holds every colour of a frame.
            assert np.abs(np.asarray(image.convert("RGB")).astype(int) - expected).max() <= 2
    with pytest.raises(FileExistsError, match="exists already"):
        render.save_gif(str(path), states)


def test_wrong_arguments_of_pictures_are_refused(tmp_path):
    states = rolled_out(5)
    state = jax.tree.map(lambda leaf: leaf[0], states)
    with pytest.raises(ValueError, match="Expected tile_size >= 1"):
        render.draw_frame(state, tile_size=0)
    with pytest.raises(ValueError, match="Expected milliseconds >= 1"):
        render.save_gif(tmp_path / "a.gif", states, milliseconds=0)
    with pytest.raises(ValueError, match="Expected one state or more, got none"):
        render.save_gif(tmp_path / "b.gif", jax.tree.map(lambda leaf: leaf[:0], states))
    assert not list(tmp_path.iterdir())


def test_gymnasium_accepts_the_adapter():
    env = multiroom.MultiRoom(multiroom.PRESETS["N2-S4"])
    viewed = render.as_gymnasium(env, env.default_params, tile_size=8)
    with pytest.raises(ValueError, match="no state before its first reset"):
        viewed.render()
    gymnasium.utils.env_checker.check_env(viewed, skip_render_check=True)
    recorded = gymnasium.wrappers.RenderCollection(viewed)
    first, info = recorded.reset(seed=5)
    again, _ = recorded.reset(seed=5)
    np.testing.assert_array_equal(first, again)
    for _ in range(env.preset.max_steps):
        observation, reward, terminated, truncated, _ = recorded.step(0)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert observation.shape == (7, 7, 3)
    assert 0 <= info["map_index"] < 16
    frames = recorded.render()
    assert {frame.shape for frame in frames} == {(200, 200, 3)}
