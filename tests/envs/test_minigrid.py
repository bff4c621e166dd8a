"""Differential tests: maps and games of the original Minigrid, replayed without a difference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxpriv.envs import _generation, grid, multiroom
from tests.envs import minigrid_games

PRESETS = multiroom.PRESETS
LONGEST = max(preset.max_steps for preset in PRESETS.values())


def floor_map(seed, preset):
    return multiroom.from_minigrid_seed(
        seed, num_rooms=preset.num_rooms, max_room_size=preset.max_room_size
    )


def check_maps(name, num_maps):
    preset = PRESETS[name]
    env = minigrid_games.original(preset)
    for seed in range(num_maps):
        env.reset(seed=seed)
        maps = floor_map(seed, preset)
        np.testing.assert_array_equal(maps.cells, minigrid_games.packed(env))
        assert tuple(maps.position.tolist()) == tuple(env.agent_pos)
        assert int(maps.direction) == env.agent_dir
        assert tuple(maps.goal.tolist()) == tuple(env.goal_pos)


@pytest.mark.parametrize("name", PRESETS)
def test_maps_equal_minigrid(name):
    check_maps(name, 35)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_two_thousand_maps_equal_minigrid(name):
    check_maps(name, 400)


def test_a_map_of_one_room_equals_minigrid():
    preset = multiroom.Preset(num_rooms=1, max_room_size=4, max_steps=20)
    env = minigrid_games.original(preset)
    for seed in range(10):
        env.reset(seed=seed)
        np.testing.assert_array_equal(floor_map(seed, preset).cells, minigrid_games.packed(env))


@functools.cache
def replay():
    """Compiled replay of games: maps [g, 1, ...] and actions [g, t] to all that a step returns."""
    env = multiroom.MultiRoom(PRESETS["N2-S4"], autoreset=False)
    key = jax.random.key(0)

    def one_game(maps, actions, max_steps):
        params = multiroom.EnvParams(max_steps_in_episode=max_steps, maps=maps)
        first, state = env.reset(key, params)

        def step(state, action):
            image, state, reward, terminated, truncated, _ = env.step(key, state, action, params)
            return state, (image, reward, terminated, truncated)

        _, (images, *rest) = jax.lax.scan(step, state, actions)
        return jnp.concatenate([first[None], images]), *rest

    return jax.jit(jax.vmap(one_game, (0, 0, None)))


def check_games(name, make_policy, num_games):
    """Replays games and compares every observation, reward and flag; returns the counts."""
    preset = PRESETS[name]
    env = minigrid_games.original(preset)
    rng = np.random.default_rng(7)
    policy = make_policy(rng)
    seeds = range(100, 100 + num_games)
    games = [minigrid_games.play(env, seed, policy) for seed in seeds]
    maps = multiroom.stack([floor_map(seed, preset) for seed in seeds])
    padded = np.full((num_games, LONGEST), 6, np.int32)
    for row, (actions, *_) in zip(padded, games, strict=True):
        row[: len(actions)] = actions
    pool = jax.tree.map(lambda leaf: leaf[:, None], maps)
    images, rewards, *flags = jax.tree.map(np.asarray, replay()(pool, padded, preset.max_steps))
    for i, (actions, *expected) in enumerate(games):
        n = len(actions)
        np.testing.assert_array_equal(images[i, : n + 1], expected[0])
        np.testing.assert_array_equal(rewards[i, :n], expected[1])
        np.testing.assert_array_equal(np.stack(flags, -1)[i, :n], expected[2])
    steps = sum(len(actions) for actions, *_ in games)
    goals = sum(bool(flags_of[-1, 0]) for *_, flags_of in games)
    return steps, goals


POLICIES = {
    "random": minigrid_games.random_policy,
    "walking": minigrid_games.walking_policy,
}


@pytest.mark.parametrize("name", PRESETS)
def test_games_equal_minigrid(name):
    counts = {p: check_games(name, make, 3) for p, make in POLICIES.items()}
    assert sum(steps for steps, _ in counts.values()) > 50
    assert counts["walking"][1] > 0


@pytest.mark.slow
def test_twenty_thousand_steps_equal_minigrid(capsys):
    counts = [check_games(name, make, 45) for name in PRESETS for make in POLICIES.values()]
    steps, goals = (sum(column) for column in zip(*counts, strict=True))
    with capsys.disabled():
        print(f"\n{steps} steps, {goals} goals, no difference")
    assert steps >= 20_000
    assert goals >= 200


def generated(preset, num_maps):
    generate = functools.partial(
        multiroom.generate, num_rooms=preset.num_rooms, max_room_size=preset.max_room_size
    )
    keys = jax.random.split(jax.random.key(11), num_maps)
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(generate))(keys))


def tables(maps):
    rows = [minigrid_games.features(*leaves) for leaves in zip(*maps, strict=True)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def smallest_p_value(first, second):
    """Smallest p-value of chi-square tests of equal distribution, times the number of tests."""
    p_values = []
    for name in first:
        values = np.union1d(first[name], second[name])
        counts = np.array([[(x[name] == v).sum() for v in values] for x in (first, second)])
        is_rare = counts.sum(axis=0) < 20
        counts = np.column_stack([counts[:, ~is_rare], counts[:, is_rare].sum(axis=1)])
        counts = counts[:, counts.sum(axis=0) > 0]
        p_values.append(stats.chi2_contingency(counts).pvalue if counts.shape[1] > 1 else 1.0)
    return min(p_values) * len(p_values)


FALSE_ALARM = 1e-4
"""Probability, by Bonferroni's bound, with which equal distributions fail a test."""


def minigrid_tables(preset, num_maps):
    maps = [floor_map(seed, preset) for seed in range(10_000, 10_000 + num_maps)]
    return tables(jax.tree.map(np.asarray, multiroom.stack(maps)))


def test_generated_maps_have_the_distribution_of_minigrid(monkeypatch):
    preset = PRESETS["N4-S5"]
    expected = minigrid_tables(preset, 800)
    assert smallest_p_value(tables(generated(preset, 800)), expected) > FALSE_ALARM
    monkeypatch.setattr(_generation, "_MAX_TRIALS", 1)
    assert smallest_p_value(tables(generated(preset, 800)), expected) < FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("name", ["N2-S6", "N4-S5", "N6"])
def test_five_thousand_maps_have_the_distribution_of_minigrid(name):
    preset = PRESETS[name]
    p_value = smallest_p_value(tables(generated(preset, 5000)), minigrid_tables(preset, 5000))
    assert p_value > FALSE_ALARM


def test_generated_maps_are_valid():
    for name in ("N2-S4", "N6"):
        preset = PRESETS[name]
        maps = generated(preset, 60)
        for cells, position, direction, goal in zip(*maps, strict=True):
            doors = cells[cells & 15 == grid.DOOR]
            assert len(doors) == preset.num_rooms - 1
            assert (doors >= grid.CLOSED).all()
            assert cells[tuple(position)] == grid.EMPTY
            assert cells[tuple(goal)] == grid.GOAL
            assert (cells == grid.GOAL).sum() == 1
            plan = minigrid_games.shortest_plan(cells, tuple(position), int(direction))
            assert plan.count(minigrid_games.TOGGLE) == preset.num_rooms - 1


def test_a_generated_room_alone_has_start_and_goal_apart():
    preset = multiroom.Preset(num_rooms=1, max_room_size=4, max_steps=20)
    maps = generated(preset, 300)
    assert (maps.position != maps.goal).any(axis=1).all()
    offsets = maps.goal - maps.position
    assert len(np.unique(offsets, axis=0)) == 8
