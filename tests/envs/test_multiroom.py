"""Protocol of the environment: resets, ends of episodes, registration, transforms."""

import functools

import gymnax
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax import wrappers

from jaxpriv.envs import grid, multiroom
from tests.envs import minigrid_games

PRESET = multiroom.PRESETS["N2-S4"]


@functools.cache
def params():
    return multiroom.MultiRoom(PRESET).default_params


def one_map_params():
    pool = jax.tree.map(lambda leaf: leaf[1:2], params().maps)
    return params().replace(maps=pool)


def plan_of(maps):
    cells, position, direction, _ = jax.tree.map(lambda leaf: np.asarray(leaf[0]), maps)
    return minigrid_games.shortest_plan(cells, tuple(position), int(direction))


@pytest.mark.parametrize("name", multiroom.PRESETS)
def test_presets_are_registered_with_gymnax(name):
    env, params = gymnax.make(f"jaxpriv/MultiRoom-{name}")
    preset = multiroom.PRESETS[name]
    assert env.preset == preset
    assert params.max_steps_in_episode == 20 * preset.num_rooms
    assert params.maps.cells.shape == (16, 25, 25)
    doors = params.maps.cells & 15 == grid.DOOR
    assert (doors.sum(axis=(1, 2)) == preset.num_rooms - 1).all()


def test_a_second_import_registers_nothing_twice():
    before = list(gymnax.registered_envs)
    multiroom._register()
    assert gymnax.registered_envs == before


def test_the_end_at_the_goal_resets_and_hands_on_the_final_observation(keys):
    env, alone = multiroom.MultiRoom(PRESET), multiroom.MultiRoom(PRESET, autoreset=False)
    own = one_map_params()
    start, state = env.reset(keys(1)[0], own)
    stopped = state
    *before, last = plan_of(own.maps)
    for action in before:
        _, state, reward, terminated, truncated, _ = env.step(keys(1)[0], state, action, own)
        _, stopped, *_ = alone.step(keys(1)[0], stopped, action, own)
        assert not any(map(bool, (terminated, truncated, reward)))
    observation, new, reward, terminated, truncated, info = env.step(keys(1)[0], state, last, own)
    final, stopped, *_ = alone.step(keys(1)[0], stopped, last, own)
    assert terminated
    assert not truncated
    assert float(reward) == np.float32(1 - 0.9 * (len(before) + 1) / 40)
    np.testing.assert_array_equal(observation, start)
    np.testing.assert_array_equal(info["final_observation"], final)
    assert not np.array_equal(final, start)
    assert int(new.time) == 0
    assert int(stopped.time) == len(before) + 1
    assert bool(alone.is_terminated(stopped, own))
    assert not bool(alone.is_terminated(new, own))


def test_the_limit_of_time_truncates_and_both_flags_may_be_true(keys):
    env = multiroom.MultiRoom(PRESET)
    own = one_map_params()
    plan = plan_of(own.maps)
    for limit, expected in ((len(plan), (True, True)), (len(plan) - 1, (False, True))):
        short = own.replace(max_steps_in_episode=limit)
        _, state = env.reset(keys(1)[0], short)
        for action in plan[:limit]:
            assert int(state.time) < limit
            _, state, reward, *flags, info = env.step(keys(1)[0], state, action, short)
        assert tuple(map(bool, flags)) == expected
        assert (bool(info["terminated"]), bool(info["truncated"])) == expected
        assert float(reward) == (np.float32(0.1) if expected[0] else 0)
        assert int(state.time) == 0


def test_step_env_has_five_values_and_no_limit_of_time(keys):
    env = multiroom.MultiRoom(PRESET)
    short = one_map_params().replace(max_steps_in_episode=1)
    _, state = env.reset(keys(1)[0], short)
    _, state, reward, terminated, info = env.step_env(keys(1)[0], state, 0, short)
    assert (int(state.time), float(reward), bool(terminated), info) == (1, 0, False, {})
    assert bool(env.is_truncated(state, short))


def test_resets_pick_maps_uniformly(keys):
    env = multiroom.MultiRoom(PRESET)
    _, states = jax.jit(jax.vmap(env.reset, (0, None)))(keys(1600), params())
    counts = np.bincount(states.map_index, minlength=16)
    # Chi-square with 15 degrees of freedom exceeds 45 with a probability of 7e-5.
    assert ((counts - 100) ** 2 / 100).sum() < 45
    np.testing.assert_array_equal(states.cells, params().maps.cells[states.map_index])
    np.testing.assert_array_equal(states.position, params().maps.position[states.map_index])


def test_actions_without_effect_change_only_the_time(keys):
    env = multiroom.MultiRoom(PRESET, autoreset=False)
    _, state = env.reset(keys(1)[0], params())
    for action in (3, 4, 6, 7, -1):
        _, new, *_ = env.step(keys(1)[0], state, action, params())
        changed = jax.tree.map(lambda a, b: bool((a != b).any()), new, state)
        assert changed == state.replace(
            time=True, cells=False, position=False, direction=False, map_index=False
        )


def test_vmap_equals_a_loop(keys):
    env = multiroom.MultiRoom(PRESET)
    _, states = jax.vmap(env.reset, (0, None))(keys(4), params())
    actions = jnp.array([0, 1, 2, 5])
    many = jax.vmap(env.step, (0, 0, 0, None))(keys(4), states, actions, params())
    for i in range(4):
        state = jax.tree.map(lambda leaf, i=i: leaf[i], states)
        alone = env.step(keys(4)[i], state, actions[i], params())
        expected = jax.tree.map(lambda leaf, i=i: leaf[i], many)
        jax.tree.map(np.testing.assert_array_equal, alone, expected)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_step_lowers_for(platform, keys):
    env = multiroom.MultiRoom(PRESET)
    _, state = env.reset(keys(1)[0], params())
    step = jax.jit(lambda key, state, action: env.step(key, state, action, params()))
    assert jax.export.export(step, platforms=[platform])(keys(1)[0], state, 2)


def test_equal_environments_share_a_compilation():
    first, second = multiroom.MultiRoom(PRESET), multiroom.MultiRoom(PRESET)
    assert first == second
    assert hash(first) == hash(second)
    assert first != multiroom.MultiRoom(PRESET, autoreset=False)
    assert first != "N2-S4"


def test_spaces_contain_what_the_environment_gives(keys):
    env = multiroom.MultiRoom(PRESET)
    observation, state = env.reset(keys(1)[0], params())
    assert env.observation_space(params()).contains(observation)
    assert observation.dtype == jnp.uint8
    assert env.action_space(params()).n == env.num_actions == len(multiroom.ACTIONS) == 7
    space = env.state_space(params())
    assert set(space.spaces) == set(vars(state))
    assert all(space.spaces[name].contains(leaf) for name, leaf in vars(state).items())


def test_gymnax_wrappers_take_the_environment(keys):
    env = wrappers.LogWrapper(multiroom.MultiRoom(PRESET))
    _, state = env.reset(keys(1)[0], params())
    with jax.numpy_dtype_promotion("standard"):  # the wrapper adds floats and flags
        *_, info = env.step(keys(1)[0], state, 2, params())
    assert float(info["returned_episode_returns"]) == 0


def test_parameters_may_be_left_to_the_default_while_traced(keys):
    env = multiroom.MultiRoom(multiroom.PRESETS["N3-S4"])
    observation, state = jax.jit(env.reset)(keys(1)[0])
    assert env.step(keys(1)[0], state, 2)[0].shape == observation.shape


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_rooms": 0, "max_room_size": 4}, "Expected num_rooms >= 1, got num_rooms=0."),
        ({"num_rooms": 2, "max_room_size": 3}, "Expected 4 <= max_room_size <= 24, got"),
        ({"num_rooms": 2, "max_room_size": 25}, "Expected 4 <= max_room_size <= 24, got"),
    ],
)
def test_sizes_out_of_range_are_refused(keys, sizes, message):
    with pytest.raises(ValueError, match=message):
        multiroom.generate(keys(1)[0], **sizes)
    with pytest.raises(ValueError, match=message):
        multiroom.from_minigrid_seed(0, **sizes)
    with pytest.raises(ValueError, match=message):
        multiroom.MultiRoom(multiroom.Preset(**sizes, max_steps=10))


def test_impossible_maps_and_empty_pools_are_refused(monkeypatch):
    monkeypatch.setattr("jaxpriv.envs._minigrid._MAX_CHAINS", 50)
    with pytest.raises(ValueError, match="No chain of 30 rooms of size up to 10"):
        multiroom.from_minigrid_seed(0, num_rooms=30, max_room_size=10)
    with pytest.raises(ValueError, match="Expected one floor map or more, got none"):
        multiroom.stack([])
    with pytest.raises(ValueError, match="Expected seed >= 0"):
        multiroom.from_minigrid_seed(-1, num_rooms=2, max_room_size=4)


def test_the_length_of_an_episode_has_no_default():
    """gymnax's default of 1 would end every episode after one step."""
    with pytest.raises(TypeError, match="max_steps_in_episode"):
        multiroom.EnvParams(maps=one_map_params().maps)
