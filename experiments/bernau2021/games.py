"""Data, networks and neighbouring data sets of the paper, and the noise that it sets.

The data sets are samples of n records. Of the neighbours the most dissimilar one is used:
equation 11 for replace-one (bounded), equation 9 for add-or-remove-one (unbounded).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxpriv import data, grads, models, sensitivity
from jaxpriv._names import Relation
from jaxpriv.audit import di

CLIP_NORM = 3.0
RHO_BETA = 0.9


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set of the paper.

    names: names of data sets, of which the first available one is used.
    num_records, num_candidates: sizes of D and of the records outside it that may replace one.
    learning_rate: of DP-Adam, as in the code of the authors.
    """

    names: tuple[str, ...]
    num_records: int
    delta: float
    learning_rate: float
    num_candidates: int = 2000


TASKS = {
    "mnist": Task(names=("mnist", "mnist5k"), num_records=100, delta=0.01, learning_rate=0.005),
    "purchases": Task(names=("purchases",), num_records=1000, delta=0.001, learning_rate=0.01),
    "adult": Task(names=("adult",), num_records=1000, delta=0.001, learning_rate=0.005),
}


class ConvNet(nn.Module):
    """The network for MNIST, with GroupNorm in place of BatchNorm, which mixes examples."""

    channels: int = 8

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = nn.relu(nn.GroupNorm(4)(nn.Conv(self.channels, (3, 3), padding="VALID")(x)))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        return nn.Dense(10)(x.reshape(-1))


class Game(NamedTuple):
    """A sample of a data set with its network.

    x, y: the records of D; test_x, test_y: records outside of it.
    data_name: name of the data set in the catalogue.
    """

    task: Task
    data_name: str
    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    module: nn.Module
    measure: Callable[[Any, Any], jax.Array]


def available(name: str) -> str | None:
    """Returns the name of the data set that is used for a task; None if there is none."""
    listing = {entry.name: entry for entry in data.available()}
    return next((each for each in TASKS[name].names if listing[each].sources), None)


def load(name: str, *, num_records: int | None = None) -> Game:
    """Draws the sample of a task, of another size than the paper's if one is given."""
    task, data_name = TASKS[name], available(name)
    if data_name is None:
        raise ValueError(f"Expected one of {', '.join(task.names)} to be available, got none.")
    dataset = data.load(data_name)
    count = num_records or task.num_records
    order = np.random.default_rng(0).permutation(len(dataset))
    members, candidates = order[:count], order[count : count + task.num_candidates]
    x = dataset.x if name == "mnist" else dataset.x.reshape(len(dataset), -1)
    widths = {"mnist": (), "purchases": (128,), "adult": (6, 6)}[name]
    module = ConvNet() if name == "mnist" else models.MLP(widths, dataset.num_classes)
    measure = {
        "mnist": sensitivity.negative_ssim,
        "purchases": sensitivity.hamming,
        "adult": sensitivity.manhattan,
    }[name]
    return Game(
        task, data_name, x[members], dataset.y[members], x[candidates], dataset.y[candidates],
        module, measure,
    )  # fmt: skip


def pair(game: Game, relation: Relation) -> di.Pair:
    """Makes the neighbouring data sets with the most dissimilar record."""
    if relation == "add_or_remove_one":
        ranking = sensitivity.removals(game.x, measure=game.measure, largest=1, smallest=0)
        second = None
    else:
        pairs = sensitivity.replacements(
            game.x, game.test_x, measure=game.measure, largest=1, smallest=0
        )
        ranking, candidate = pairs, int(pairs.candidates[0])
        second = game.test_x[candidate], jnp.asarray(game.test_y[candidate], jnp.int32)
    row = int(ranking.records[0])
    shared = np.arange(len(game.x)) != row
    return di.Pair(
        shared=(game.x[shared], game.y[shared].astype(np.int32)),
        first=(game.x[row], jnp.asarray(game.y[row], jnp.int32)),
        second=second,
    )


def trainer(
    game: Game, relation: Relation, *, noise: di.Noise, steps: int, rho: float = RHO_BETA
) -> di.Trainer:
    """Makes the training whose noise keeps the belief below rho, as the paper sets it."""
    mu = target_mu(rho, delta=game.task.delta)
    sensitivity_in_norms = 1 if relation == "add_or_remove_one" else 2
    return di.Trainer(
        grad=grads.clipped_grad(functools.partial(loss, game.module), clip_norm=CLIP_NORM),
        optimizer=optax.adam(game.task.learning_rate),
        steps=steps,
        noise_multiplier=steps**0.5 * sensitivity_in_norms / mu,
        noise=noise,
        sampling_prob=1.0,
    )


def target_mu(rho: float, *, delta: float) -> float:
    """Returns mu of the composed mechanism by RDP with its classic conversion.

    epsilon = mu^2 / 2 + mu (2 ln(1 / delta))^(1/2) at the best order, solved for mu.
    """
    epsilon, twice_log = math.log(rho / (1 - rho)), 2 * math.log(1 / delta)
    return math.sqrt(twice_log + 2 * epsilon) - math.sqrt(twice_log)


def init(game: Game) -> Callable[[jax.Array], Any]:
    """Returns the function that draws initial parameters."""
    return lambda key: game.module.init(key, jnp.asarray(game.x[0]))


def accuracy(game: Game) -> Callable[[Any], jax.Array]:
    """Returns the accuracy of parameters on the records outside D."""
    x, y = jnp.asarray(game.test_x[:500]), jnp.asarray(game.test_y[:500])

    def of(params: Any) -> jax.Array:
        logits = jax.lax.map(lambda row: game.module.apply(params, row), x)
        return (jnp.asarray(logits).argmax(-1) == y).mean(dtype=jnp.float32)

    return of


def folder(experiment: str) -> Path:
    """Returns the folder of the checkpoints of an experiment."""
    return Path("build") / "bernau2021" / experiment


def loss(module: nn.Module, params: Any, record: Any, key: jax.Array) -> jax.Array:
    """Computes the cross-entropy of one record."""
    del key
    x, y = record
    logits = jnp.asarray(module.apply(params, x))
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)
