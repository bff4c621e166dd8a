"""Proximal policy optimisation as in RL-Starter-Files, as an algorithm for `fit` and `fit_many`.

    maps --env_params--> environments --collect--> transitions --advantages--> epochs of batches

The data of a training are the maps that the agent plays on, so `fit_many` trains many agents, each
on its own maps. In the shapes below `k` counts maps, `t` the steps of a rollout, `e` environments
and `n` = e t the frames of an update.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Shaped

from jaxpriv import _check, _tree, sampling, training
from jaxpriv._types import Params, Scalar
from jaxpriv.rl import losses, rollout
from jaxpriv.training import _step

__all__ = ["PUREJAXRL", "Hyperparameters", "Info", "Stages", "State", "algorithm"]


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """Hyper-parameters of PPO; the defaults are those of RL-Starter-Files.

    num_envs: number of environments.
    rollout_steps: number of steps in each environment between two updates.
    epochs: number of passes over the frames of an update.
    batch_size: number of frames of a batch; a multiple of `recurrence`.
    recurrence: number of steps through which gradients flow back; 1 for agents without memory.
    discount: gamma of the return.
    gae_lambda: lambda of the advantages.
    learning_rate, adam_eps: of Adam.
    entropy_weight, value_weight: weights of the entropy and of the value loss.
    max_grad_norm: largest norm of a gradient.
    clip: clipping of the probability ratio and of the value.
    shifts_starts: whether every second epoch starts its sequences `recurrence // 2` steps later,
      and leaves out those that would cross the end of a rollout.
    normalises_advantages: whether the advantages of a batch are standardised.
    bootstraps_truncated: whether the value of the final observation counts where an episode is cut
      off by the limit of its length; otherwise it counts as 0.
    anneal_over: number of updates over which the learning rate decreases linearly to 0, where it
      stays; None for a constant one.

    Raises:
      ValueError: if a number is out of range, or lengths do not divide.

    Example:
      >>> Hyperparameters(recurrence=4).frames  # of an update
      2048
    """

    num_envs: int = 16
    rollout_steps: int = 128
    epochs: int = 4
    batch_size: int = 256
    recurrence: int = 1
    discount: float = 0.99
    gae_lambda: float = 0.95
    learning_rate: float = 1e-3
    adam_eps: float = 1e-8
    entropy_weight: float = 0.01
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    clip: float = 0.2
    shifts_starts: bool = True
    normalises_advantages: bool = False
    bootstraps_truncated: bool = False
    anneal_over: int | None = None

    def __post_init__(self) -> None:
        _check.positive_int(
            num_envs=self.num_envs,
            rollout_steps=self.rollout_steps,
            epochs=self.epochs,
            batch_size=self.batch_size,
            recurrence=self.recurrence,
            anneal_over=1 if self.anneal_over is None else self.anneal_over,
        )
        _check.positive(
            learning_rate=self.learning_rate,
            adam_eps=self.adam_eps,
            max_grad_norm=self.max_grad_norm,
            clip=self.clip,
        )
        _check.non_negative(entropy_weight=self.entropy_weight, value_weight=self.value_weight)
        _check.closed_unit(discount=self.discount, gae_lambda=self.gae_lambda)
        for name, count in (
            ("rollout_steps", self.rollout_steps),
            ("batch_size", self.batch_size),
        ):
            if count % self.recurrence:
                raise ValueError(
                    f"Expected a multiple of recurrence={self.recurrence} as {name}, got {count}."
                )
        if self.frames % self.batch_size:
            raise ValueError(
                f"Expected a batch_size that divides the {self.frames} frames of an update, "
                f"got {self.batch_size}."
            )

    @property
    def frames(self) -> int:
        """Number of frames of an update."""
        return self.num_envs * self.rollout_steps


PUREJAXRL = Hyperparameters(
    value_weight=0.25, shifts_starts=False, normalises_advantages=True, adam_eps=1e-5
)
"""The choices of purejaxrl: standardised advantages, half the squared error of the value at weight
0.5, no shifted starts; its learning rate is annealed by `anneal_over`."""


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Stages of a training, such as a curriculum or maps one after the other.

    At the start of each stage the environments are reset, and at its end the parameters are stored
    as a snapshot. Updates beyond the total are in no snapshot.

    count: number of stages.
    updates: number of updates of each.

    Raises:
      ValueError: if a number is not positive.

    Example:
      >>> Stages(count=16, updates=6).total
      96
    """

    count: int
    updates: int

    def __post_init__(self) -> None:
        _check.positive_int(count=self.count, updates=self.updates)

    @property
    def total(self) -> int:
        """Number of updates of the training."""
        return self.count * self.updates


class State(NamedTuple):
    """State of PPO.

    params: parameters of the agent.
    opt_state: state of the optimiser.
    step: number of updates done.
    epoch: number of passes over the frames of an update done.
    stream: environments before their next step.
    snapshots: parameters at the end of each stage, every leaf [stages, ...]; 0 before.
    """

    params: Params
    opt_state: PyTree
    step: Int[Array, ""]
    epoch: Int[Array, ""]
    stream: rollout.Stream
    snapshots: Params


class Info(NamedTuple):
    """Diagnostics of an update.

    num_episodes: number of episodes that ended in it.
    mean_return, mean_length: means over these episodes; 0 without any.
    entropy: mean entropy of the policy over all batches, in nats.
    value: mean value over all batches.
    policy_loss, value_loss: mean losses over all batches.
    grad_norm: mean norm of the gradients before clipping.
    """

    num_episodes: Int[Array, ""]
    mean_return: Float[Array, ""]
    mean_length: Float[Array, ""]
    entropy: Float[Array, ""]
    value: Float[Array, ""]
    policy_loss: Float[Array, ""]
    value_loss: Float[Array, ""]
    grad_norm: Float[Array, ""]


class _Frames(NamedTuple):
    """What the losses of an update use, every leaf [n, ...], one environment after the other."""

    observation: Shaped[Array, "n ..."]
    is_first: Bool[Array, " n"]
    action: Int[Array, " n"]
    log_prob: Float[Array, " n"]
    value: Float[Array, " n"]
    advantage: Float[Array, " n"]


class _Learner(NamedTuple):
    """What changes from batch to batch.

    memory: memory before each frame; later batches start from what earlier ones computed.
    """

    params: Params
    opt_state: PyTree
    memory: Float[Array, "n m"]


def algorithm(
    agent: rollout.Agent,
    env: rollout.Environment,
    maps: PyTree,
    *,
    env_params: Callable[[PyTree, Int[Array, ""]], PyTree],
    hyperparameters: Hyperparameters,
    clip: Scalar | None = None,
    stages: Stages | None = None,
) -> training.Algorithm:
    """Makes PPO as a training algorithm, whose step is one update.

    An update lets the agent act for `rollout_steps` steps in `num_envs` environments, estimates
    advantages, and minimises policy loss - entropy_weight * entropy + value_weight * value loss in
    several epochs of batches. The state of the environments is the last update's; they are reset
    at the first one, and at the start of each stage.

    Args:
      agent: the agent, such as `models.ActorCritic`.
      env: the environment.
      maps: pytree with leading axis k like the maps of an agent; only its shapes are used.
      env_params: `env_params(maps, stage)`, the parameters of the environments on the maps of an
        agent [k, ...]; the stage is a traced number.
      hyperparameters: the hyper-parameters.
      clip: replaces that of the hyper-parameters; may be traced, and so differ between the agents
        of `fit_many`.
      stages: stages of the training; None for a single one without snapshots.

    Returns:
      The algorithm. Its data are maps, and its event is the non-private one.

    Raises:
      ValueError: if the maps have no leading axis.

    References:
      Schulman et al., Proximal Policy Optimization Algorithms, 2017; the details are those of
      torch-ac 1.4.0.

    Example:
      >>> from jaxpriv import models, training
      >>> class Bandit:  # one step with reward 1 for the action of the map
      ...     def reset(self, key, params):
      ...         return jnp.zeros(2), jnp.int32(0)
      ...     def step(self, key, state, action, params):
      ...         reward, done = (action == params).astype(jnp.float32), jnp.array(True)
      ...         info = {"final_observation": jnp.zeros(2)}
      ...         return jnp.zeros(2), state, reward, done, jnp.array(False), info
      >>> agent, maps = models.ActorCritic(num_actions=3, actor_widths=(8,)), jnp.array([2])
      >>> hyperparameters = Hyperparameters(num_envs=4, rollout_steps=8, batch_size=16)
      >>> alg = algorithm(
      ...     agent, Bandit(), maps, env_params=lambda maps, stage: maps[0],
      ...     hyperparameters=hyperparameters,
      ... )
      >>> params = agent.init(jax.random.key(0), agent.initial_memory(), jnp.zeros(2))
      >>> state, history = training.fit(jax.random.key(1), alg, params, maps, steps=30)
      >>> bool(history.info.mean_return[-5:].mean() > history.info.mean_return[:5].mean())
      True
    """
    num_maps = _num_maps(maps)
    setup = _Setup(
        agent=agent,
        env=env,
        env_params=env_params,
        settings=hyperparameters,
        clip=hyperparameters.clip if clip is None else clip,
        stages=stages,
        optimizer=optax.chain(
            optax.clip_by_global_norm(hyperparameters.max_grad_norm),
            optax.adam(_learning_rate(hyperparameters), eps=hyperparameters.adam_eps),
        ),
    )

    def init(params: Params) -> State:
        reset = functools.partial(_reset, setup)
        shapes = jax.eval_shape(reset, jax.random.key(0), maps, jnp.int32(0))
        count = 0 if stages is None else stages.count
        return State(
            params=jax.tree.map(jnp.asarray, params),
            opt_state=setup.optimizer.init(params),
            step=jnp.int32(0),
            epoch=jnp.int32(0),
            stream=_tree.zeros(shapes),
            snapshots=jax.tree.map(lambda p: jnp.zeros((count, *p.shape), p.dtype), params),
        )

    def update(
        key: PRNGKeyArray, state: State, maps: PyTree, mask: Bool[Array, " k"]
    ) -> tuple[State, Info]:
        del mask  # all maps of the agent are drawn
        return _update(setup, key, state, maps)

    return training.Algorithm(init, update, sampling.full_batch(num_maps), _step.non_private_event)


class _Setup(NamedTuple):
    """What does not change during a training."""

    agent: rollout.Agent
    env: rollout.Environment
    env_params: Callable[[PyTree, Int[Array, ""]], PyTree]
    settings: Hyperparameters
    clip: Scalar
    stages: Stages | None
    optimizer: optax.GradientTransformation


def _reset(setup: _Setup, key: PRNGKeyArray, maps: PyTree, stage: Int[Array, ""]) -> rollout.Stream:
    return rollout.start(
        key,
        setup.agent,
        setup.env,
        setup.env_params(maps, stage),
        num_envs=setup.settings.num_envs,
    )


def _update(setup: _Setup, key: PRNGKeyArray, state: State, maps: PyTree) -> tuple[State, Info]:
    settings = setup.settings
    reset_key, act_key, learn_key = jax.random.split(key, 3)
    updates = None if setup.stages is None else setup.stages.updates
    stage = jnp.int32(0) if updates is None else state.step // updates
    starts = state.step == 0 if updates is None else state.step % updates == 0
    stream = optax.tree.where(starts, _reset(setup, reset_key, maps, stage), state.stream)
    stream, transitions = rollout.collect(
        act_key,
        setup.agent,
        state.params,
        setup.env,
        setup.env_params(maps, stage),
        stream,
        steps=settings.rollout_steps,
        with_final_values=settings.bootstraps_truncated,
    )
    learner, diagnostics = _learn(setup, learn_key, state, transitions)
    return state._replace(
        params=learner.params,
        opt_state=learner.opt_state,
        step=state.step + 1,
        epoch=state.epoch + settings.epochs,
        stream=stream,
        snapshots=jax.tree.map(
            lambda stored, p: stored if updates is None else stored.at[stage].set(p),
            state.snapshots,
            learner.params,
        ),
    ), _info(transitions, diagnostics)


def _learn(
    setup: _Setup, key: PRNGKeyArray, state: State, transitions: rollout.Transitions
) -> tuple[_Learner, Any]:
    """Makes the steps on all batches of all epochs; returns their diagnostics too."""
    settings, frames = setup.settings, _frames(transitions, setup.settings)
    loss = functools.partial(
        _batch_loss, agent=setup.agent, settings=settings, clip=setup.clip, frames=frames
    )

    def learn_batch(learner: _Learner, batch: Any) -> tuple[_Learner, Any]:
        starts, weights = batch
        (_, (memory, info)), grads = jax.value_and_grad(loss, has_aux=True)(
            learner.params, memory=learner.memory, starts=starts, weights=weights
        )
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam: float ** int32
            moves, opt_state = setup.optimizer.update(grads, learner.opt_state, learner.params)
        params = optax.apply_updates(learner.params, moves)
        # A batch may be empty if every start crosses the end of a rollout.
        moved = optax.tree.where(weights.any(), _Learner(params, opt_state, memory), learner)
        return moved, (weights.any(), {**info, "grad_norm": optax.tree.norm(grads)})

    def learn_epoch(learner: _Learner, row: Any) -> tuple[_Learner, Any]:
        epoch_key, epoch = row
        return jax.lax.scan(learn_batch, learner, _draw_starts(epoch_key, epoch, settings))

    learner = _Learner(state.params, state.opt_state, _by_environment(transitions.memory))
    epochs = state.epoch + jnp.arange(settings.epochs, dtype=jnp.int32)
    rows = jax.random.split(key, settings.epochs), epochs
    return jax.lax.scan(learn_epoch, learner, rows)


def _num_maps(maps: PyTree) -> int:
    sizes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(maps)}
    if len(sizes) != 1 or () in sizes:
        raise ValueError(f"Expected maps with one leading axis, got {sorted(sizes)}.")
    return sizes.pop()[0]


def _learning_rate(settings: Hyperparameters) -> optax.ScalarOrSchedule:
    if settings.anneal_over is None:
        return settings.learning_rate
    rate, total = settings.learning_rate, settings.anneal_over
    batches = settings.epochs * settings.frames // settings.batch_size

    def schedule(count: Any) -> Float[Array, "..."]:
        return rate * jnp.maximum(0.0, 1.0 - (count // batches).astype(jnp.float32) / total)

    return schedule


def _by_environment(values: Shaped[Array, "t e ..."]) -> Shaped[Array, "n ..."]:
    """Joins the axes of steps and environments, one environment after the other."""
    steps, num_envs, *shape = values.shape
    return values.swapaxes(0, 1).reshape(num_envs * steps, *shape)


def _frames(transitions: rollout.Transitions, settings: Hyperparameters) -> _Frames:
    bootstraps = settings.bootstraps_truncated
    estimate = functools.partial(
        losses.advantages, discount=settings.discount, gae_lambda=settings.gae_lambda
    )
    advantage = jax.vmap(
        lambda r, v, w, terminated, done: estimate(r, v, w, terminated=terminated, done=done),
        in_axes=1,
        out_axes=1,
    )(
        transitions.reward,
        transitions.value,
        transitions.next_value,
        transitions.terminated if bootstraps else transitions.done,
        transitions.done,
    )
    return _Frames(
        *map(
            _by_environment,
            (
                transitions.observation,
                transitions.is_first,
                transitions.action,
                transitions.log_prob,
                transitions.value,
                advantage,
            ),
        )
    )


def _draw_starts(
    key: PRNGKeyArray, epoch: Int[Array, ""], settings: Hyperparameters
) -> tuple[Int[Array, "b s"], Bool[Array, "b s"]]:
    """Draws the first frames of the sequences of each batch, and which of them are used.

    In every second epoch the sequences start later and those that cross the end of a rollout come
    last and are left out, so that the last batch is smaller.
    """
    length = settings.recurrence
    starts = length * jax.random.permutation(key, settings.frames // length)
    is_shifted = (epoch % 2 == 1) & settings.shifts_starts
    crosses = (starts + length) % settings.rollout_steps == 0
    is_used = ~(is_shifted & crosses)
    order = jnp.argsort(~is_used, stable=True)
    starts = starts[order] + jnp.where(is_shifted, length // 2, 0)
    shape = (-1, settings.batch_size // length)
    return starts.reshape(shape), is_used[order].reshape(shape)


def _batch_loss(
    params: Params,
    *,
    agent: rollout.Agent,
    settings: Hyperparameters,
    clip: Scalar,
    frames: _Frames,
    memory: Float[Array, "n m"],
    starts: Int[Array, " s"],
    weights: Bool[Array, " s"],
) -> tuple[Float[Array, ""], tuple[Float[Array, "n m"], dict[str, Array]]]:
    """Computes the loss of a batch; returns the memories that it computed, and diagnostics."""
    num_used = jnp.maximum(weights.sum(), 1).astype(jnp.float32)

    def mean(values: Float[Array, " s"]) -> Float[Array, ""]:
        return jnp.where(weights, values, 0.0).sum() / num_used

    rows = starts[:, None] + jnp.arange(settings.recurrence, dtype=starts.dtype)
    batch = _tree.take(frames, rows)
    advantage = batch.advantage
    if settings.normalises_advantages:
        centre = mean(advantage.mean(1))
        deviation = jnp.sqrt(mean(((advantage - centre) ** 2).mean(1)))
        advantage = (advantage - centre) / (deviation + 1e-8)

    def step(memory: Float[Array, "s m"], row: Any) -> tuple[Float[Array, "s m"], Any]:
        frame, advantage = row
        memory = jnp.where(frame.is_first[:, None], agent.initial_memory(), memory)
        memory, logits, value = jax.vmap(agent.apply, (None, 0, 0))(
            params, memory, frame.observation
        )
        log_prob = jax.vmap(losses.log_prob)(logits, frame.action)
        policy_loss = jax.vmap(functools.partial(losses.policy_loss, clip=clip))
        value_loss = jax.vmap(functools.partial(losses.value_loss, clip=clip))
        info = {
            "entropy": mean(jax.vmap(losses.entropy)(logits)),
            "value": mean(value),
            "policy_loss": mean(policy_loss(log_prob, frame.log_prob, advantage)),
            "value_loss": mean(value_loss(value, frame.value, frame.value + frame.advantage)),
        }
        return memory, (memory, info)

    by_step = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), (batch, advantage))
    _, (memories, info) = jax.lax.scan(step, memory[starts], by_step)
    info = jax.tree.map(lambda leaf: leaf.mean(), info)
    total = (
        info["policy_loss"]
        - settings.entropy_weight * info["entropy"]
        + settings.value_weight * info["value_loss"]
    )
    if settings.recurrence > 1:
        after = jnp.where(weights[:, None], rows[:, 1:], len(memory))
        memory = memory.at[after].set(
            jax.lax.stop_gradient(memories[:-1].swapaxes(0, 1)), mode="drop"
        )
    return total, (memory, info)


def _info(transitions: rollout.Transitions, diagnostics: Any) -> Info:
    is_used, parts = diagnostics
    num_batches = is_used.sum().astype(jnp.float32)
    means = {name: jnp.where(is_used, x, 0.0).sum() / num_batches for name, x in parts.items()}
    done = transitions.done
    num_episodes = done.sum()
    divisor = jnp.maximum(num_episodes, 1).astype(jnp.float32)
    lengths = transitions.episode_length.astype(jnp.float32)
    return Info(
        num_episodes=num_episodes,
        mean_return=jnp.where(done, transitions.episode_return, 0.0).sum() / divisor,
        mean_length=jnp.where(done, lengths, 0.0).sum() / divisor,
        **means,
    )
