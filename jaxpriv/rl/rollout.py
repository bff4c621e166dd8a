"""Steps of an agent in many environments at once, for training and for evaluation.

Environments follow the protocol of gymnax 1.0: `reset(key, params) -> (observation, state)` and
`step(key, state, action, params) -> (observation, state, reward, terminated, truncated, info)`,
where an environment that is done is reset in the same step. In the shapes below `t` counts steps,
`e` environments, `m` the numbers of the memory and `a` actions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Shaped

from jaxpriv import _check
from jaxpriv._types import Params
from jaxpriv.rl import losses

__all__ = [
    "Agent",
    "Environment",
    "Episodes",
    "Respond",
    "Stream",
    "Transitions",
    "collect",
    "episodes",
    "start",
]

Respond = Callable[[PRNGKeyArray, Float[Array, " a"]], Float[Array, " a"]]
"""`respond(key, logits) -> logits`, a random answer in place of the policy of one step."""


@runtime_checkable
class Agent(Protocol):
    """An agent such as `models.ActorCritic`.

    Example:
      >>> from jaxpriv import models
      >>> models.ActorCritic(num_actions=3).initial_memory().shape
      (0,)
    """

    def initial_memory(self) -> Float[Array, " m"]:
        """Returns the memory at the start of an episode."""
        ...

    def apply(self, params: Any, memory: Any, observation: Any, /) -> Any:
        """Returns the memory after an observation, the logits of the actions and the value."""
        ...


@runtime_checkable
class Environment(Protocol):
    """An environment with the protocol of gymnax 1.0, such as `envs.MultiRoom`."""

    def reset(self, key: Any, params: Any) -> tuple[Any, Any]:
        """Returns the first observation and state."""
        ...

    def step(
        self, key: Any, state: Any, action: Any, params: Any
    ) -> tuple[Any, Any, Any, Any, Any, dict[Any, Any]]:
        """Returns observation, state, reward, terminated, truncated and info."""
        ...


class Stream(NamedTuple):
    """Environments between two steps.

    env_state: states, every leaf [e, ...].
    observation: observations of the states.
    memory: memory of the agent; the initial one where an episode starts.
    is_first: whether an episode starts.
    episode_return: undiscounted return of the episode so far.
    episode_length: number of its steps so far.
    """

    env_state: PyTree
    observation: Shaped[Array, "e ..."]
    memory: Float[Array, "e m"]
    is_first: Bool[Array, " e"]
    episode_return: Float[Array, " e"]
    episode_length: Int[Array, " e"]


class Transitions(NamedTuple):
    """Steps of an agent, every leaf [t, e, ...].

    memory: memory before the step.
    is_first: whether the step is the first of an episode.
    next_value: value of the observation after the step.
    terminated: whether the episode ended in a final state.
    done: whether the episode ended, also by a limit of its length.
    episode_return, episode_length: of the episode up to and including this step.
    """

    observation: Shaped[Array, "t e ..."]
    memory: Float[Array, "t e m"]
    is_first: Bool[Array, "t e"]
    action: Int[Array, "t e"]
    log_prob: Float[Array, "t e"]
    value: Float[Array, "t e"]
    next_value: Float[Array, "t e"]
    reward: Float[Array, "t e"]
    terminated: Bool[Array, "t e"]
    done: Bool[Array, "t e"]
    episode_return: Float[Array, "t e"]
    episode_length: Int[Array, "t e"]


class Episodes(NamedTuple):
    """First episodes of several environments; steps after the end of one are padding, 0.

    policies: action probabilities at each step, as an observer of the agent sees them.
    peer_policies: those of other parameters on the same observations.
    actions: actions taken.
    lengths: number of steps of each episode.
    returns: undiscounted return of each episode.
    """

    policies: Float[Array, "e t a"]
    peer_policies: Float[Array, "e t a"]
    actions: Int[Array, "e t"]
    lengths: Int[Array, " e"]
    returns: Float[Array, " e"]


def start(
    key: PRNGKeyArray, agent: Agent, env: Environment, env_params: PyTree, *, num_envs: int
) -> Stream:
    """Resets several environments.

    Args:
      key: PRNG key.
      agent: gives the initial memory.
      env: the environment.
      env_params: its parameters, the same for all.
      num_envs: number of environments.

    Returns:
      The environments before their first step.

    Example:
      >>> from jaxpriv import envs, models
      >>> env, agent = envs.MultiRoom(envs.PRESETS["N2-S4"]), models.ActorCritic(num_actions=7)
      >>> stream = start(jax.random.key(0), agent, env, env.default_params, num_envs=4)
      >>> stream.observation.shape
      (4, 7, 7, 3)
    """
    keys = jax.random.split(key, num_envs)
    observation, env_state = jax.vmap(env.reset, (0, None))(keys, env_params)
    memory = agent.initial_memory()
    return Stream(
        env_state=env_state,
        observation=observation,
        memory=jnp.broadcast_to(memory, (num_envs, *memory.shape)),
        is_first=jnp.ones(num_envs, bool),
        episode_return=jnp.zeros(num_envs),
        episode_length=jnp.zeros(num_envs, jnp.int32),
    )


def collect(
    key: PRNGKeyArray,
    agent: Agent,
    params: Params,
    env: Environment,
    env_params: PyTree,
    stream: Stream,
    *,
    steps: int,
    with_final_values: bool,
) -> tuple[Stream, Transitions]:
    """Lets an agent act in all environments.

    The memory of the agent is the initial one at the first step of each episode.

    Args:
      key: PRNG key.
      agent: the agent.
      params: its parameters.
      env: the environment.
      env_params: its parameters.
      stream: the environments before the first step.
      steps: number of steps in each environment.
      with_final_values: whether `next_value` at the end of an episode is the value of its final
        observation, for which the agent is evaluated twice in each step; otherwise it is 0.

    Returns:
      The environments after the last step, and the steps.

    Example:
      >>> from jaxpriv import envs, models
      >>> env, agent = envs.MultiRoom(envs.PRESETS["N2-S4"]), models.ActorCritic(num_actions=7)
      >>> key = jax.random.key(0)
      >>> stream = start(key, agent, env, env.default_params, num_envs=4)
      >>> params = agent.init(key, stream.memory[0], stream.observation[0])
      >>> stream, transitions = collect(
      ...     key, agent, params, env, env.default_params, stream, steps=5, with_final_values=False
      ... )
      >>> transitions.action.shape
      (5, 4)
    """
    act = jax.vmap(agent.apply, (None, 0, 0))

    def step(stream: Stream, key: PRNGKeyArray) -> tuple[Stream, Transitions]:
        taken = _take_step(key, agent, params, env, env_params, stream)
        if not with_final_values:
            return taken.stream, taken.transition
        final_value = act(params, taken.memory, taken.final_observation)[2]
        return taken.stream, taken.transition._replace(next_value=final_value)

    stream, transitions = jax.lax.scan(step, stream, jax.random.split(key, steps))
    last = act(params, stream.memory, stream.observation)[2]
    following = jnp.concatenate([transitions.value[1:], last[None]])
    next_value = jnp.where(transitions.done, transitions.next_value, following)
    return stream, transitions._replace(next_value=next_value)


class _Step(NamedTuple):
    """One step in all environments.

    policies: mean of the answers.
    memory: memory of the agent after the step, also where the episode ended.
    """

    stream: Stream
    transition: Transitions
    policies: Float[Array, "e a"]
    memory: Float[Array, "e m"]
    final_observation: Shaped[Array, "e ..."]


def _take_step(
    key: PRNGKeyArray,
    agent: Agent,
    params: Params,
    env: Environment,
    env_params: PyTree,
    stream: Stream,
    respond: Respond | None = None,
    queries: int = 1,
) -> _Step:
    """Draws an action in every environment and takes it; `next_value` is 0."""
    num_envs = len(stream.is_first)
    action_key, env_key, respond_key = jax.random.split(key, 3)
    memory, logits, value = jax.vmap(agent.apply, (None, 0, 0))(
        params, stream.memory, stream.observation
    )
    answers = logits[None]
    if respond is not None:
        answer_keys = jax.random.split(respond_key, (queries, num_envs))
        answers = jax.vmap(jax.vmap(respond), (0, None))(answer_keys, logits)
    action = jax.random.categorical(action_key, answers[0])
    observation, env_state, reward, terminated, truncated, info = jax.vmap(
        env.step, (0, 0, 0, None)
    )(jax.random.split(env_key, num_envs), stream.env_state, action, env_params)
    done, reward = terminated | truncated, reward.astype(jnp.float32)
    transition = Transitions(
        observation=stream.observation,
        memory=stream.memory,
        is_first=stream.is_first,
        action=action,
        log_prob=jax.vmap(losses.log_prob)(answers[0], action),
        value=value,
        next_value=jnp.zeros_like(value),
        reward=reward,
        terminated=terminated,
        done=done,
        episode_return=stream.episode_return + reward,
        episode_length=stream.episode_length + 1,
    )
    following = Stream(
        env_state=env_state,
        observation=observation,
        memory=jnp.where(done[:, None], agent.initial_memory(), memory),
        is_first=done,
        episode_return=jnp.where(done, 0.0, transition.episode_return),
        episode_length=jnp.where(done, 0, transition.episode_length),
    )
    policies = jax.nn.softmax(answers).mean(axis=0)
    return _Step(following, transition, policies, memory, info["final_observation"])


def episodes(
    key: PRNGKeyArray,
    agent: Agent,
    params: Params,
    env: Environment,
    env_params: PyTree,
    *,
    num_episodes: int,
    max_steps: int,
    peer: Agent | None = None,
    peer_params: Params = None,
    respond: Respond | None = None,
    queries: int = 1,
) -> Episodes:
    """Plays episodes and records the policies along them.

    Args:
      key: PRNG key.
      agent: the agent, whose actions are drawn from its policy.
      params: its parameters.
      env: the environment.
      env_params: its parameters.
      num_episodes: number of episodes, played in parallel.
      max_steps: number of steps after which an episode is cut off.
      peer: an agent that sees the same observations but does not act; None takes `agent`.
      peer_params: its parameters; None takes `params`.
      respond: defence of the agent's outputs, as of `defences.dirichlet`; its answer replaces the
        policy.
      queries: number of answers at each step, the first of which the agent acts on. `policies` are
        the mean of all of them, as an attacker who repeats the query computes it.

    Returns:
      The episodes.

    Raises:
      ValueError: if queries is not a positive whole number.

    Example:
      >>> from jaxpriv import envs, models
      >>> env, agent = envs.MultiRoom(envs.PRESETS["N2-S4"]), models.ActorCritic(num_actions=7)
      >>> key, observation = jax.random.key(0), jnp.zeros((7, 7, 3), jnp.uint8)
      >>> params = agent.init(key, agent.initial_memory(), observation)
      >>> played = episodes(
      ...     key, agent, params, env, env.default_params, num_episodes=4, max_steps=6
      ... )
      >>> played.policies.shape, played.lengths.tolist()  # an untrained agent
      ((4, 6, 7), [6, 6, 6, 6])
    """
    _check.positive_int(queries=queries)
    peer = agent if peer is None else peer
    peer_params = params if peer_params is None else peer_params
    start_key, run_key = jax.random.split(key)
    stream = start(start_key, agent, env, env_params, num_envs=num_episodes)
    peer_memory = jnp.broadcast_to(
        peer.initial_memory(), (num_episodes, *peer.initial_memory().shape)
    )

    def step(carry, key):
        stream, peer_memory, is_active = carry
        peer_memory, peer_logits, _ = jax.vmap(peer.apply, (None, 0, 0))(
            peer_params, peer_memory, stream.observation
        )
        taken = _take_step(key, agent, params, env, env_params, stream, respond, queries)
        mask = is_active[:, None]
        row = (
            jnp.where(mask, taken.policies, 0.0),
            jnp.where(mask, jax.nn.softmax(peer_logits), 0.0),
            jnp.where(is_active, taken.transition.action, 0),
            is_active,
            jnp.where(is_active, taken.transition.reward, 0.0),
        )
        return (taken.stream, peer_memory, is_active & ~taken.transition.done), row

    carry = stream, peer_memory, jnp.ones(num_episodes, bool)
    _, rows = jax.lax.scan(step, carry, jax.random.split(run_key, max_steps))
    policies, peer_policies, actions, was_active, rewards = rows
    return Episodes(
        policies=policies.swapaxes(0, 1),
        peer_policies=peer_policies.swapaxes(0, 1),
        actions=actions.swapaxes(0, 1),
        lengths=was_active.sum(0),
        returns=rewards.sum(0),
    )
