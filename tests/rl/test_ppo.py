"""PPO: batches and losses against loops, and its contract as a training algorithm."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpriv import models, training
from jaxpriv.rl import Hyperparameters, Stages, losses, ppo, rollout
from tests import oracles
from tests.rl.environments import Corridor, Cue

KEY = jax.random.key(0)
AGENT = models.ActorCritic(num_actions=2, actor_widths=(4,), critic_widths=(4,), lstm_units=2)
SMALL = Hyperparameters(num_envs=3, rollout_steps=8, batch_size=8, recurrence=4, epochs=2)
MAPS = jnp.arange(2)


def algorithm(hyperparameters=SMALL, env=None, **options):
    return ppo.algorithm(
        AGENT, env or Cue(), MAPS,
        env_params=lambda maps, stage: maps, hyperparameters=hyperparameters, **options,
    )  # fmt: skip


def initial(key=KEY):
    return AGENT.init(key, AGENT.initial_memory(), jnp.zeros(2))


@pytest.mark.parametrize("epoch", [0, 1])
def test_starts_of_sequences(epoch):
    """Every second epoch they come 2 steps later, without those that leave the rollout."""
    starts, used = ppo._draw_starts(KEY, jnp.int32(epoch), SMALL)
    assert starts.shape == used.shape == (3, 2)
    expected = [0, 4, 8, 12, 16, 20] if epoch == 0 else [2, 10, 18]
    assert sorted(np.asarray(starts)[np.asarray(used)]) == expected
    assert np.asarray(used).ravel().tolist() == [True] * len(expected) + [False] * (
        6 - len(expected)
    )
    other, _ = ppo._draw_starts(jax.random.key(5), jnp.int32(epoch), SMALL)
    assert (other != starts).any()
    plain = dataclasses.replace(SMALL, shifts_starts=False)
    starts, used = ppo._draw_starts(KEY, jnp.int32(epoch), plain)
    assert used.all()
    assert sorted(np.asarray(starts).ravel()) == [0, 4, 8, 12, 16, 20]


def some_frames():
    """Frames of a rollout of 3 environments, one after the other, and their memories."""
    stream = rollout.start(KEY, AGENT, Cue(), None, num_envs=3)
    _, steps = oracles.quick_jit(
        lambda params, stream: rollout.collect(
            KEY, AGENT, params, Cue(), None, stream, steps=8, with_final_values=False
        )
    )(initial(), stream)
    return ppo._frames(steps, SMALL), ppo._by_environment(steps.memory)


def slow_loss(params, frames, memory, starts, settings, advantages):
    """One sequence and one step after the other; returns the loss and the new memories."""
    memory, total, count = [memory[i] for i in range(len(memory))], 0.0, 0
    for start in starts:
        state = memory[start]
        for row in range(start, start + settings.recurrence):
            if frames.is_first[row]:
                state = jnp.zeros_like(state)
            state, logits, value = AGENT.apply(params, state, frames.observation[row])
            policy = losses.policy_loss(
                losses.log_prob(logits, frames.action[row]),
                frames.log_prob[row],
                advantages[row],
                clip=settings.clip,
            )
            target = frames.value[row] + frames.advantage[row]
            error = losses.value_loss(value, frames.value[row], target, clip=settings.clip)
            total += policy - settings.entropy_weight * losses.entropy(logits)
            total += settings.value_weight * error
            count += 1
            if row + 1 < start + settings.recurrence:
                memory[row + 1] = jax.lax.stop_gradient(state)
    return total / count, jnp.stack(memory)


@pytest.mark.parametrize("normalises", [False, True])
def test_the_loss_of_a_batch_equals_loops(normalises):
    """With the gradient through four steps, and a batch that is not full."""
    settings = dataclasses.replace(SMALL, normalises_advantages=normalises)
    frames, memory = some_frames()
    memory = memory + 0.1  # later batches start from other memories than the rollout's
    params = initial(jax.random.key(7))
    starts, used = jnp.array([2, 10, 18, 0]), jnp.array([True, True, True, False])
    rows = np.concatenate([np.arange(start, start + 4) for start in (2, 10, 18)])
    advantages = frames.advantage
    if normalises:
        chosen = np.asarray(advantages, np.float64)[rows]
        advantages = (advantages - chosen.mean()) / (chosen.std() + 1e-8)

    def fast(params):
        return ppo._batch_loss(
            params, agent=AGENT, settings=settings, clip=settings.clip, frames=frames,
            memory=memory, starts=starts, weights=used,
        )  # fmt: skip

    def slow(params):
        return slow_loss(params, frames, memory, (2, 10, 18), settings, advantages)

    (found, (new_memory, _)), gradient = oracles.quick_jit(jax.value_and_grad(fast, has_aux=True))(
        params
    )
    (expected, expected_memory), expected_gradient = jax.value_and_grad(slow, has_aux=True)(params)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(new_memory, expected_memory, atol=1e-6)
    assert not np.allclose(new_memory, memory)
    assert oracles.largest_difference(gradient, expected_gradient) < 1e-4


def test_an_update_does_what_its_parts_do():
    alg = algorithm()
    state, info = oracles.quick_jit(alg.update)(KEY, alg.init(initial()), MAPS, jnp.ones(2, bool))
    assert state.step == 1
    assert state.epoch == 2
    assert info.num_episodes == 6  # 8 steps of episodes of 3 steps, 3 environments
    assert info.mean_length == 3
    assert 0 <= info.mean_return <= 1
    assert info.entropy <= np.log(2) + 1e-6
    assert info.grad_norm > 0
    assert not np.allclose(state.params["params"]["actor_0"]["kernel"], 0)
    oracles.assert_lowers(alg.update, KEY, state, MAPS, jnp.ones(2, bool))


def test_many_agents_equal_single_ones(keys):
    """Each with its own key, initial parameters and clip."""
    params = jax.vmap(initial)(keys(2))
    clips = jnp.array([0.2, 0.01])
    states, info = training.fit_many(
        keys(2),
        lambda k, clip: algorithm(clip=clip),
        params,
        jnp.arange(4),
        members=np.array([[0, 1], [2, 3]]),
        steps=3,
        hyper=clips,
    )
    assert info.info.entropy.shape == (2, 3)
    one = jax.tree.map(lambda leaf: leaf[1], params)
    small = dataclasses.replace(SMALL, clip=0.01)
    state, history = training.fit(keys(2)[1], algorithm(small), one, jnp.array([2, 3]), steps=3)
    np.testing.assert_allclose(history.info.entropy, info.info.entropy[1], rtol=1e-5)
    for many, single in zip(*map(jax.tree.leaves, (states.params, state.params)), strict=True):
        np.testing.assert_allclose(many[1], single, rtol=1e-4, atol=1e-6)


def test_stages_restart_the_environments_and_store_parameters():
    seen = []

    def env_params(maps, stage):
        seen.append(stage)
        return maps[stage]

    alg = ppo.algorithm(
        AGENT, Corridor(length=50), MAPS, env_params=env_params, hyperparameters=SMALL,
        stages=Stages(count=2, updates=2),
    )  # fmt: skip
    update, state = oracles.quick_jit(alg.update), alg.init(initial())
    times, params = [], []
    for _ in range(4):
        state, _ = update(KEY, state, MAPS, jnp.ones(2, bool))
        times.append(int(state.stream.env_state[0]))
        params.append(state.params)
    assert times == [8, 16, 8, 16]  # steps since the environments were reset
    for i, end in enumerate((1, 3)):
        stored = jax.tree.map(lambda leaf, i=i: leaf[i], state.snapshots)
        assert jax.tree.all(jax.tree.map(jnp.array_equal, stored, params[end]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recurrence": 3}, "multiple of recurrence=3 as rollout_steps"),
        ({"recurrence": 8, "batch_size": 4}, "multiple of recurrence=8 as batch_size"),
        ({"batch_size": 20}, "divides the 24 frames"),
        ({"clip": 0.0}, "clip > 0"),
        ({"discount": 1.5}, "0 <= discount <= 1"),
        ({"anneal_over": 0}, "anneal_over >= 1"),
    ],
)
def test_wrong_numbers_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **options)


def test_maps_need_one_leading_axis():
    with pytest.raises(ValueError, match="maps with one leading axis"):
        ppo.algorithm(
            AGENT, Cue(), (jnp.zeros(2), jnp.zeros(3)),
            env_params=lambda maps, stage: maps, hyperparameters=SMALL,
        )  # fmt: skip


def test_the_learning_rate_decreases_by_updates():
    rate = ppo._learning_rate(dataclasses.replace(SMALL, anneal_over=10, learning_rate=0.5))
    counts = jnp.array([0, 5, 6, 12])  # six batches an update
    np.testing.assert_allclose(rate(counts), [0.5, 0.5, 0.45, 0.4], rtol=1e-6)


def test_the_learning_rate_is_not_negative_after_its_last_update():
    """Gradient ascent would undo what was learnt."""
    rate = ppo._learning_rate(dataclasses.replace(SMALL, anneal_over=10, learning_rate=0.5))
    np.testing.assert_array_equal(rate(jnp.array([60, 90, 600])), 0.0)
