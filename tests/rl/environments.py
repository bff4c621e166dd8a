"""Small environments with gymnax's protocol, and an agent without a network."""

import jax
import jax.numpy as jnp

from jaxpriv.models.actor_critic import Decision


class Corridor:
    """Episodes of `length` steps, or of `limit` if that is less; the reward is the action.

    The observation is [episode's first observation?, steps done]; a final state ends the episode
    at `length` and the limit truncates it.
    """

    def __init__(self, length=5, limit=100):
        self.length, self.limit = length, limit

    def reset(self, key, params):
        del key, params
        return self._observe(jnp.int32(0)), jnp.int32(0)

    def step(self, key, state, action, params):
        del key, params
        moved = state + 1
        terminated, truncated = moved >= self.length, moved >= self.limit
        new = jnp.where(terminated | truncated, 0, moved)
        info = {"final_observation": self._observe(moved)}
        return (
            self._observe(new), new, action.astype(jnp.float32), terminated, truncated, info
        )  # fmt: skip

    def _observe(self, state):
        return jnp.stack([(state == 0).astype(jnp.int32), state]).astype(jnp.float32)


class Cue:
    """Shows 0 or 1 at the first step of an episode; the last action is to repeat it."""

    length = 3

    def reset(self, key, params):
        del params
        cue = jax.random.bernoulli(key).astype(jnp.int32)
        state = jnp.stack([jnp.int32(0), cue])
        return self._observe(state), state

    def step(self, key, state, action, params):
        moved = state.at[0].add(1)
        done = moved[0] >= self.length
        reward = jnp.where(done & (action == state[1]), 1.0, 0.0)
        observation, start = self.reset(key, params)
        new = jnp.where(done, start, moved)
        info = {"final_observation": self._observe(moved)}
        return (
            jnp.where(done, observation, self._observe(moved)),
            new, reward, done, jnp.array(False), info,
        )  # fmt: skip

    def _observe(self, state):
        sign = 2 * state[1] - 1
        cue = jnp.where(state[0] == 0, sign, 0)
        return jnp.stack([cue, jnp.int32(1)]).astype(jnp.float32)


class Counter:
    """Agent whose memory counts the steps since it was reset, and whose value is that count."""

    def initial_memory(self):
        return jnp.zeros(1)

    def apply(self, params, memory, observation):
        del observation
        return Decision(memory + 1, params * jnp.ones(2), memory[0])
