"""Memory, ends of episodes and padding, shown by an agent that counts its steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxpriv.rl import rollout
from tests.rl.environments import Corridor, Counter, Cue


def collect(env, *, steps=12, num_envs=3, with_final_values=False):
    agent, key = Counter(), jax.random.key(0)
    stream = rollout.start(key, agent, env, None, num_envs=num_envs)
    return rollout.collect(
        key, agent, jnp.float32(0), env, None, stream,
        steps=steps, with_final_values=with_final_values,
    )  # fmt: skip


def test_the_memory_is_reset_at_the_end_of_an_episode():
    """The memory probe: it is the number of steps of this episode, never more."""
    stream, steps = collect(Corridor(length=5))
    expected = np.arange(12) % 5
    np.testing.assert_array_equal(steps.memory[:, :, 0], np.tile(expected[:, None], 3))
    np.testing.assert_array_equal(steps.is_first[:, 0], expected == 0)
    np.testing.assert_array_equal(steps.observation[:, 0, 1], expected)
    assert stream.memory[0, 0] == 2  # continues in the next rollout
    again = rollout.collect(
        jax.random.key(1), Counter(), jnp.float32(0), Corridor(length=5), None, stream,
        steps=4, with_final_values=False,
    )[1]  # fmt: skip
    np.testing.assert_array_equal(again.memory[:, 0, 0], [2, 3, 4, 0])


def test_ends_lengths_and_returns():
    _, steps = collect(Corridor(length=5))
    np.testing.assert_array_equal(np.flatnonzero(steps.done[:, 0]), [4, 9])
    np.testing.assert_array_equal(steps.episode_length[:6, 0], [1, 2, 3, 4, 5, 1])
    np.testing.assert_allclose(
        steps.episode_return[4], np.asarray(steps.reward)[:5].sum(axis=0), rtol=1e-6
    )
    np.testing.assert_array_equal(steps.terminated, steps.done)


def test_next_values_are_those_of_the_same_episode():
    """The value counts steps: next to 0, 1, 2 and 3 come 1, 2, 3 and, at the end, 0 or 4."""
    for with_final, last in ((False, 0), (True, 4)):
        _, steps = collect(Corridor(length=9, limit=4), with_final_values=with_final)
        assert not steps.terminated.any()
        np.testing.assert_array_equal(steps.value[:4, 0], [0, 1, 2, 3])
        np.testing.assert_array_equal(steps.next_value[:4, 0], [1, 2, 3, last])
    _, steps = collect(Corridor(length=20), steps=3)
    assert steps.next_value[-1, 0] == 3  # the value of what follows the rollout


def test_episodes_end_at_their_first_end_and_are_padded():
    env, agent, params = Corridor(length=5), Counter(), jnp.float32(0)
    played = rollout.episodes(
        jax.random.key(0), agent, params, env, None, num_episodes=3, max_steps=8
    )
    np.testing.assert_array_equal(played.lengths, 5)
    np.testing.assert_allclose(played.policies[:, :5], 0.5)
    np.testing.assert_array_equal(played.policies[:, 5:], 0)
    np.testing.assert_array_equal(played.actions[:, 5:], 0)
    np.testing.assert_allclose(played.returns, played.actions.sum(axis=1))
    short = rollout.episodes(
        jax.random.key(0), agent, params, env, None, num_episodes=3, max_steps=2
    )
    np.testing.assert_array_equal(short.lengths, 2)


class Peer(Counter):
    """Certain of action 0 where its memory is even."""

    def apply(self, params, memory, observation):
        decision = super().apply(params, memory, observation)
        return decision._replace(logits=jnp.where(memory[0] % 2 == 0, 1e3, 0.0) * jnp.eye(2)[0])


def test_a_peer_sees_the_same_observations_with_its_own_memory():
    played = rollout.episodes(
        jax.random.key(0), Counter(), jnp.float32(0), Corridor(length=4), None,
        num_episodes=2, max_steps=4, peer=Peer(), peer_params=jnp.float32(0),
    )  # fmt: skip
    np.testing.assert_allclose(played.policies[..., 0], 0.5)
    np.testing.assert_allclose(played.peer_policies[:, :, 0], [[1, 0.5, 1, 0.5]] * 2)


def test_a_defence_answers_in_place_of_the_policy():
    """The agent acts on the first answer to a step, and the policy is the mean of all answers."""

    def respond(key, logits):
        return logits + 1e3 * jnp.eye(2)[jax.random.bernoulli(key).astype(jnp.int32)]

    for queries in (1, 4):
        played = rollout.episodes(
            jax.random.key(0), Counter(), jnp.float32(0), Corridor(length=64), None,
            num_episodes=4, max_steps=64, respond=respond, queries=queries,
        )  # fmt: skip
        taken = np.take_along_axis(played.policies, played.actions[..., None], axis=2)[..., 0]
        assert taken.min() == 1 / queries
        counts = np.bincount(np.ravel(played.policies[..., 0] * queries).astype(int))
        expected = stats.binom.pmf(np.arange(queries + 1), queries, 0.5) * 256
        assert stats.chisquare(counts, expected).pvalue > 1e-4
    with pytest.raises(ValueError, match="queries"):
        rollout.episodes(
            jax.random.key(0), Counter(), jnp.float32(0), Corridor(), None,
            num_episodes=1, max_steps=1, queries=0,
        )  # fmt: skip


def test_cues_differ_between_episodes():
    _, steps = collect(Cue(), steps=30)
    cues = np.asarray(steps.observation)[..., 0][np.asarray(steps.is_first)]
    assert set(cues) == {-1.0, 1.0}


def test_the_noise_of_a_defence_is_not_that_of_the_environment():
    """JAX's fold_in(key, 1) is split(key)[1]: both drew the same numbers."""

    class Noisy(Corridor):
        def step(self, key, state, action, params):
            *parts, _, terminated, truncated, info = super().step(key, state, action, params)
            return (*parts, jax.random.uniform(key), terminated, truncated, info)

    def respond(key, logits):
        return jnp.zeros_like(logits).at[0].set(jax.random.uniform(key))

    played = rollout.episodes(
        jax.random.key(0), Counter(), jnp.float32(0), Noisy(length=1), None,
        num_episodes=50, max_steps=1, respond=respond,
    )  # fmt: skip
    first, last = played.policies[:, 0, 0], played.policies[:, 0, -1]
    drawn = np.log(first / last)
    assert np.abs(drawn - played.returns).min() > 1e-6
    assert stats.kstest(drawn, "uniform").pvalue > 1e-3
