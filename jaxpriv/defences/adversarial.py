"""Adversarial regularisation: a classifier that learns against a membership attack.

    k batches of members and of reference records --attacker steps--> attacker
    one batch of members --loss + weight * what the attacker gains--> classifier step

The attacker sees f(x) and y. Its gain is largest if it separates members from the reference
records D', which no step of the classifier uses. The defence is a heuristic without a guarantee. In
the shapes below `b` counts the rows of a padded batch, `r` reference records and `c` classes.

References:
  Nasr, Shokri and Houmansadr, Machine Learning with Membership Privacy using Adversarial
  Regularization, 2018, Algorithm 1.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import core
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxpriv import _check, _keys, _tree, models, training
from jaxpriv._types import Batch, Params, Sampler
from jaxpriv.defences._defence import Defence
from jaxpriv.training import Algorithm, _arguments, _step

__all__ = [
    "NEURAL_ATTACKER",
    "Attacker",
    "Game",
    "Info",
    "Predict",
    "State",
    "algorithm",
    "regularised_training",
]

Predict = Callable[[Params, Any, PRNGKeyArray], Float[Array, " c"]]
"""`predict(params, x, key) -> logits` of one example, in training."""

_STUCK = 1e-3
"""Spread of h over a batch below which the attacker distinguishes nothing."""


class Attacker(NamedTuple):
    """Network of the attacker, as pure functions.

    init: `init(key, prediction, label) -> params`.
    log_odds: `log_odds(params, prediction, label)`, ln(h / (1 - h)) of one example.

    Example:
      >>> constant = Attacker(lambda key, p, y: jnp.float32(0), lambda params, p, y: params)
      >>> float(constant.log_odds(jnp.float32(2), jnp.zeros(3), jnp.array(1)))
      2.0
    """

    init: Callable[[PRNGKeyArray, Float[Array, " c"], Int[Array, ""]], Params]
    log_odds: Callable[[Params, Float[Array, " c"], Int[Array, ""]], Float[Array, ""]]


NEURAL_ATTACKER = Attacker(models.MembershipNet().init, models.MembershipNet().apply)  # pyright: ignore[reportArgumentType]
"""The network of the paper, which the neural attack has too."""


@dataclass(frozen=True, kw_only=True)
class Game:
    """Rules of the game between classifier and attacker.

    weight: lambda, the weight of the attacker's gain in the classifier's loss; 0 is plain training.
    attacker_steps: k, number of steps of the attacker before each step of the classifier.
    gain: "log" as in the paper: the attacker maximises E log h + E log(1 - h), and the classifier
      minimises loss + weight * E log h. "squared" as in the code of the authors: the attacker
      minimises E (h - 1)^2 + E h^2, and the classifier loss + weight * (E h - 1/2).
    sees: what the attacker sees, "probabilities" as in the paper or "logits" as in the code.
    warmup_steps: number of first steps in which the classifier learns alone.
    learning_rate: learning rate of Adam for the attacker.

    Raises:
      ValueError: if an option is out of range.

    Example:
      >>> Game(weight=3.0, attacker_steps=5).gain
      'log'
    """

    weight: float
    attacker_steps: int
    gain: Literal["log", "squared"] = "log"
    sees: Literal["probabilities", "logits"] = "probabilities"
    warmup_steps: int = 0
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        _check.non_negative(weight=self.weight)
        _check.non_negative_int(warmup_steps=self.warmup_steps)
        _check.positive_int(attacker_steps=self.attacker_steps)
        _check.positive(learning_rate=self.learning_rate)
        _check.one_of(("log", "squared"), gain=self.gain)
        _check.one_of(("probabilities", "logits"), sees=self.sees)


class State(NamedTuple):
    """State of the game.

    params, opt_state, step: those of the classifier.
    attacker_params, attacker_opt_state: those of the attacker.
    """

    params: Params
    opt_state: PyTree
    step: Int[Array, ""]
    attacker_params: Params
    attacker_opt_state: PyTree


class Info(NamedTuple):
    """Diagnostics of a step. Not private.

    loss: mean loss of the classifier over its batch, before the step and without the gain.
    gain: E log h / 2 + E log(1 - h) / 2 of the attacker after its steps, on its last batch; -ln 2
      if it distinguishes nothing.
    attacker_accuracy: its accuracy at h = 1/2 there, the mean over members and reference records.
    attacker_is_stuck: whether h is the same for all of these records.
    batch_size: number of real rows of the classifier's batch.
    num_nonfinite: number of them whose loss is NaN or infinite.
    """

    loss: Float[Array, ""]
    gain: Float[Array, ""]
    attacker_accuracy: Float[Array, ""]
    attacker_is_stuck: Bool[Array, ""]
    batch_size: Int[Array, ""]
    num_nonfinite: Int[Array, ""]


def algorithm(
    predict: Predict,
    optimizer: optax.GradientTransformation,
    sampler: Sampler,
    *,
    reference: Batch,
    game: Game,
    attacker: Attacker = NEURAL_ATTACKER,
    attacker_key: PRNGKeyArray,
) -> Algorithm:
    """Makes adversarial regularisation as a training algorithm; the data are members (x, y).

    Each step draws k + 1 batches of members: one for each step of the attacker, and one for the
    classifier, which is the batch that plain training would draw. Reference records are drawn with
    replacement, as many as the batch has rows.

    Args:
      predict: `predict(params, x, key) -> logits [c]` of one example, in training.
      optimizer: optimiser of the classifier; weight decay and schedules belong here.
      sampler: sampler of records, such as `sampling.fixed_batch`.
      reference: D', pairs (x [r, ...], y [r]); they may be traced, so that each model of `fit_many`
        has its own.
      game: rules of the game. Weight 0 gives plain training, `training.sgd` itself.
      attacker: network of the attacker.
      attacker_key: key of the attacker's initial parameters.

    Returns:
      The algorithm; its event is the non-private one.

    Raises:
      ValueError: if an argument is of the wrong kind, or there are no reference records, or in
        `init`, if the label of one is not a class of the model.

    Example:
      >>> from jaxpriv import sampling
      >>> members = jnp.array([[1.0], [2.0]]), jnp.array([0, 1])
      >>> alg = algorithm(
      ...     lambda w, x, key: w * jnp.append(x, 0.0), optax.sgd(0.1), sampling.full_batch(2),
      ...     reference=members, game=Game(weight=1.0, attacker_steps=2),
      ...     attacker_key=jax.random.key(0))
      >>> indices, mask = alg.sampler.sample(jax.random.key(1))
      >>> batch = jax.tree.map(lambda leaf: leaf[indices], members)
      >>> state = alg.init(jnp.float32(0.5))
      >>> state, info = alg.update(jax.random.key(2), state, batch, mask)
      >>> int(info.batch_size), round(float(info.gain), 2)  # a new attacker distinguishes nothing
      (2, -0.69)
    """
    _arguments.check_optimizer(optimizer)
    _arguments.check_sampler(sampler)
    num_reference = _tree.num_rows(reference, name="reference")
    _check.positive_int(reference_records=num_reference)
    if game.weight == 0:
        return training.sgd(functools.partial(_example_loss, predict), optimizer, sampler)
    players = _Players(predict, optimizer, reference, game, attacker)

    def init(params: Params) -> State:
        params = jax.tree.map(jnp.asarray, params)
        x, y = jax.tree.map(lambda leaf: leaf[0], reference)
        logits = predict(params, x, attacker_key)
        _check_reference_labels(reference[1], num_classes=logits.shape[-1])
        prediction = _seen(game, logits)
        attacker_params = attacker.init(attacker_key, prediction, y)
        return State(
            params,
            optimizer.init(params),
            jnp.int32(0),
            attacker_params,
            players.attacker_optimizer.init(attacker_params),
        )

    def update(
        key: PRNGKeyArray, state: State, batch: Batch, mask: Bool[Array, " b"]
    ) -> tuple[State, Info]:
        attacker_key, classifier_key = jax.random.split(key)
        parts, masks = jax.tree.map(
            lambda leaf: leaf.reshape(game.attacker_steps + 1, -1, *leaf.shape[1:]), (batch, mask)
        )
        state, gain, accuracy, spread = _attack(players, attacker_key, state, parts, masks)
        own = jax.tree.map(lambda leaf: leaf[0], parts)
        state, losses = _learn(players, classifier_key, state, own, masks[0])
        count = masks[0].sum()
        value = jnp.where(masks[0], losses, 0).sum() / jnp.maximum(count, 1).astype(losses.dtype)
        num_nonfinite = (masks[0] & ~jnp.isfinite(losses)).sum()
        return state, Info(value, gain, accuracy, spread < _STUCK, count, num_nonfinite)

    draws = _Draws(sampler, game.attacker_steps + 1)
    return Algorithm(init, update, draws, _step.non_private_event)


def _check_reference_labels(labels: Any, *, num_classes: int) -> None:
    """Raises ValueError for labels that are not classes; those that are traced are not checked."""
    if not isinstance(labels, core.Tracer):
        _check.labels(labels, num_classes=num_classes, name="reference labels")


def regularised_training(
    *, weight: float, attacker_steps: int = 5, reference_share: float = 0.5
) -> Defence:
    """Trains the classifier against the attacker of Algorithm 1, with the logarithmic gain.

    The defence is a heuristic without a guarantee: it reduces the success of attackers that
    resemble its own. The adaptive attacker trains its shadow models with the defence. Reference
    records influence the training, so attacks are judged on records that are in no reference set.

    Args:
      weight: lambda, the weight of the attacker's gain; > 0.
      attacker_steps: k, number of steps of the attacker before each step of the classifier.
      reference_share: share of the units that reference records are taken from, in (0, 1).

    Returns:
      The defence.

    Raises:
      ValueError: if an argument is out of range.

    Example:
      >>> regularised_training(weight=3.0).title
      'adversarial regularisation, lambda 3, k 5'
    """
    _check.positive(weight=weight)
    _check.open_unit(reference_share=reference_share)
    game = Game(weight=weight, attacker_steps=attacker_steps)
    share = "" if reference_share == 0.5 else f", reference share {reference_share:g}"
    return Defence(
        name="adversarial",
        title=f"adversarial regularisation, lambda {weight:g}, k {attacker_steps}{share}",
        algorithm=functools.partial(algorithm, game=game),
        reference_share=reference_share,
    )


class _Players(NamedTuple):
    """What does not change during a game."""

    predict: Predict
    optimizer: optax.GradientTransformation
    reference: Batch
    game: Game
    attacker: Attacker

    @property
    def attacker_optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.game.learning_rate)


@dataclass(frozen=True)
class _Draws:
    """Sampler of several batches, one after the other; the first is that of the sampler itself."""

    base: Sampler
    count: int

    @property
    def num_examples(self) -> int:
        return self.base.num_examples

    @property
    def expected_batch_size(self) -> float:
        return self.base.expected_batch_size

    @property
    def capacity(self) -> int:
        return self.count * self.base.capacity

    def sample(self, key: PRNGKeyArray) -> tuple[Int[Array, " b"], Bool[Array, " b"]]:
        # fold_in(key, 1) would be one of the keys into which the sampler splits this one.
        attacker_keys = jax.random.split(_keys.named(key, "attacker"), self.count - 1)
        indices, masks = zip(*(self.base.sample(k) for k in (key, *attacker_keys)), strict=True)
        return jnp.concatenate(indices), jnp.concatenate(masks)

    def event(self, *, noise_multiplier: float, steps: int) -> Any:
        del noise_multiplier
        return _step.non_private_event(steps)


def _example_loss(
    predict: Predict, params: Params, record: Any, key: PRNGKeyArray
) -> Float[Array, ""]:
    x, y = record
    return optax.softmax_cross_entropy_with_integer_labels(predict(params, x, key), y)


def _seen(game: Game, logits: Float[Array, " c"]) -> Float[Array, " c"]:
    return logits if game.sees == "logits" else jax.nn.softmax(logits)


def _log_odds(
    players: _Players, params: Params, attacker_params: Params, batch: Batch, keys: Array
) -> Float[Array, " b"]:
    """Computes the attacker's log odds of membership for a batch."""

    def of_one(record: Any, key: PRNGKeyArray) -> Float[Array, ""]:
        x, y = record
        prediction = _seen(players.game, players.predict(params, x, key))
        return players.attacker.log_odds(attacker_params, prediction, y)

    return jax.vmap(of_one)(batch, keys)


def _mean(values: Float[Array, " b"], mask: Bool[Array, " b"]) -> Float[Array, ""]:
    return jnp.where(mask, values, 0).sum() / jnp.maximum(mask.sum(), 1).astype(values.dtype)


def _attack(
    players: _Players, key: PRNGKeyArray, state: State, parts: Batch, masks: Bool[Array, "k1 b"]
) -> tuple[State, Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Makes the attacker's steps; returns its gain, accuracy and spread on the last batch.

    The first part of the batch is the classifier's, the others are the attacker's.
    """
    game = players.game
    rows = masks.shape[1]

    def odds(attacker_params: Params, members: Batch, key: PRNGKeyArray) -> tuple[Array, Array]:
        draw_key, in_key, out_key = jax.random.split(key, 3)
        num_reference = len(jax.tree.leaves(players.reference)[0])
        drawn = jax.random.randint(draw_key, (rows,), 0, num_reference)
        nonmembers = jax.tree.map(lambda leaf: jnp.asarray(leaf)[drawn], players.reference)
        of = functools.partial(_log_odds, players, state.params, attacker_params)
        return of(members, jax.random.split(in_key, rows)), of(
            nonmembers, jax.random.split(out_key, rows)
        )

    def loss(attacker_params: Params, members: Batch, mask: Array, key: PRNGKeyArray) -> Any:
        odds_in, odds_out = odds(attacker_params, members, key)
        if game.gain == "squared":
            errors = (
                _mean(jax.nn.sigmoid(-odds_in) ** 2, mask),
                jax.nn.sigmoid(odds_out) ** 2,
            )
        else:
            errors = (
                _mean(-jax.nn.log_sigmoid(odds_in), mask),
                -jax.nn.log_sigmoid(-odds_out),
            )
        return (errors[0] + errors[1].mean()) / 2

    def step(carry: Any, row: Any) -> tuple[Any, None]:
        params, opt_state = carry
        members, mask, step_key = row
        moved = _step.apply_gradient(
            players.attacker_optimizer,
            _step.initial_state(players.attacker_optimizer, params)._replace(opt_state=opt_state),
            jax.grad(loss)(params, members, mask, step_key),
        )
        return (moved.params, moved.opt_state), None

    keys = jax.random.split(key, game.attacker_steps + 1)
    later = jax.tree.map(lambda leaf: leaf[1:], (parts, masks))
    start = state.attacker_params, state.attacker_opt_state
    (params, opt_state), _ = jax.lax.scan(step, start, (*later, keys[1:]))
    if game.warmup_steps:
        waits = state.step < game.warmup_steps
        params, opt_state = optax.tree.where(waits, start, (params, opt_state))
    last, mask = jax.tree.map(lambda leaf: leaf[-1], later)
    odds_in, odds_out = odds(params, last, keys[0])
    gain = (_mean(jax.nn.log_sigmoid(odds_in), mask) + jax.nn.log_sigmoid(-odds_out).mean()) / 2
    right = _mean((odds_in > 0).astype(jnp.float32), mask)
    accuracy = (right + (odds_out <= 0).mean(dtype=jnp.float32)) / 2
    all_odds = jnp.concatenate([jnp.where(mask, odds_in, odds_out[0]), odds_out])
    chances = jax.nn.sigmoid(all_odds)
    new = state._replace(attacker_params=params, attacker_opt_state=opt_state)
    return new, gain, accuracy, chances.max() - chances.min()


def _learn(
    players: _Players, key: PRNGKeyArray, state: State, batch: Batch, mask: Bool[Array, " b"]
) -> tuple[State, Float[Array, " b"]]:
    """Makes the classifier's step; returns the losses of the examples, without the gain."""
    game, keys = players.game, jax.random.split(key, mask.shape[0])

    def losses_of(params: Params) -> Float[Array, " b"]:
        return jax.vmap(functools.partial(_example_loss, players.predict, params))(batch, keys)

    def plain(params: Params) -> tuple[Float[Array, ""], Float[Array, " b"]]:
        losses = losses_of(params)
        return _mean(losses, mask), losses

    def regularised(params: Params) -> tuple[Float[Array, ""], Float[Array, " b"]]:
        value, losses = plain(params)
        odds = _log_odds(players, params, state.attacker_params, batch, keys)
        if game.gain == "squared":
            return value + game.weight * (_mean(jax.nn.sigmoid(odds), mask) - 0.5), losses
        return value + game.weight * _mean(jax.nn.log_sigmoid(odds), mask), losses

    play = jax.grad(regularised, has_aux=True)
    if game.warmup_steps:
        grads, losses = jax.lax.cond(
            state.step < game.warmup_steps, jax.grad(plain, has_aux=True), play, state.params
        )
    else:
        grads, losses = play(state.params)
    return _step.apply_gradient(players.optimizer, state, grads), losses
