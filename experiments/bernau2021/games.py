"""The game of the paper: its data, networks, neighbouring data sets and noise.

D is a sample of n records. The tables and figures name a cell by its task, the scale of its noise,
the neighbouring relation and rho_beta, the bound on the belief that sets the noise.
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

from jaxpriv import data, grads, models, sensitivity, training
from jaxpriv._names import Relation
from jaxpriv.audit import di

CLIP_NORM = 3.0
RHO_BETA = 0.9


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set of the paper.

    names: names of data sets, of which the first available one is used.
    num_records, num_candidates, num_test: number of records of D, of records outside it that may
      replace one, and of test records.
    rhos: bounds on the belief, rho_beta.
    learning_rate: of DP-Adam, as in the code of the authors.
    """

    names: tuple[str, ...]
    num_records: int
    delta: float
    rhos: tuple[float, ...] = (0.53, 0.75, 0.9, 0.99)
    learning_rate: float
    num_candidates: int = 2000
    num_test: int = 500


TASKS = {
    "mnist": Task(
        names=("mnist", "mnist5k"),
        num_records=100,
        delta=0.01,
        rhos=(0.52, 0.75, 0.9, 0.99),
        learning_rate=0.005,
    ),
    "purchases": Task(names=("purchases",), num_records=1000, delta=0.001, learning_rate=0.01),
    "adult": Task(names=("adult",), num_records=1000, delta=0.001, learning_rate=0.005),
}


class ConvNet(nn.Module):
    """The network for MNIST, with GroupNorm in place of BatchNorm, which mixes examples.

    The axes of GroupNorm are stated, since it takes the first of three to be that of a batch.
    """

    channels: int = 8

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = nn.Conv(self.channels, (3, 3), padding="VALID")(x)
            x = nn.relu(nn.GroupNorm(4, reduction_axes=(-3, -2, -1))(x))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        return nn.Dense(10)(x.reshape(*x.shape[:-3], -1))


class Records(NamedTuple):
    """Inputs and labels."""

    x: np.ndarray
    y: np.ndarray


class Game(NamedTuple):
    """A sample of a data set with its network.

    data_name: name of the data set in the catalogue.
    members: the records of D.
    candidates: records outside D that may replace one of it.
    test: records that are in no training set.
    """

    task: Task
    data_name: str
    members: Records
    candidates: Records
    test: Records
    module: nn.Module
    measure: Callable[[jax.Array, jax.Array], jax.Array]


class Evaluation(NamedTuple):
    """Evaluation of the parameters at the end of a training.

    accuracy: on test records.
    mi_true_positive_rate, mi_false_positive_rate: of the membership-inference adversary of Yeom et
      al., which calls a record a member if its loss is below the mean loss of the records of D.
    """

    accuracy: jax.Array
    mi_true_positive_rate: jax.Array
    mi_false_positive_rate: jax.Array


class Neighbour(NamedTuple):
    """A neighbour of D, and the dissimilarity of the record that differs."""

    dissimilarity: float
    pair: di.Pair


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """repetitions, steps: of a cell. num_records: number of records of D; None is the paper's.

    chunk: number of repetitions between two checkpoints.
    """

    repetitions: int
    steps: int = 30
    num_records: int | None = None
    chunk: int = 25


CPU = {
    "mnist": Schedule(repetitions=400),
    "purchases": Schedule(repetitions=1000),
    "adult": Schedule(repetitions=1000),
}
PAPER = {name: Schedule(repetitions=1000, chunk=100) for name in TASKS}


def available(name: str) -> str | None:
    """Returns the name of the data set that is used for a task; None if there is none."""
    listing = {entry.name: entry for entry in data.available()}
    return next((each for each in TASKS[name].names if listing[each].sources), None)


def split_available(schedules: dict[str, Schedule]) -> tuple[dict[str, Schedule], list[str]]:
    """Returns the schedules of the tasks whose data are available, and the other tasks."""
    usable = {name: each for name, each in schedules.items() if available(name)}
    return usable, [name for name in schedules if name not in usable]


@functools.cache
def load(name: str, *, num_records: int | None = None) -> Game:
    """Draws the sample of a task, of another size than the paper's if one is given."""
    task, data_name = TASKS[name], available(name)
    if data_name is None:
        raise ValueError(f"Expected one of {', '.join(task.names)} to be available, got none.")
    dataset = data.load(data_name)
    sizes = np.cumsum((num_records or task.num_records, task.num_candidates, task.num_test))
    order = np.random.default_rng(0).permutation(len(dataset))
    x = dataset.x if name == "mnist" else dataset.x.reshape(len(dataset), -1)
    parts = (Records(x[rows], dataset.y[rows].astype(np.int32)) for rows in np.split(order, sizes))
    members, candidates, test, _ = parts
    widths = {"mnist": (), "purchases": (128,), "adult": (6, 6)}[name]
    module = ConvNet() if name == "mnist" else models.MLP(widths, dataset.num_classes)
    measure = {
        "mnist": sensitivity.negative_ssim,
        "purchases": sensitivity.hamming,
        "adult": sensitivity.manhattan,
    }[name]
    return Game(task, data_name, members, candidates, test, module, measure)


def neighbours(game: Game, relation: Relation, *, largest: int, smallest: int) -> list[Neighbour]:
    """Makes the neighbours of D with the most dissimilar records, then with the least dissimilar.

    Equation 9 of the paper for add-or-remove-one (unbounded), equation 11 for replace-one.
    """
    members, candidates = game.members, game.candidates
    counts = {"largest": largest, "smallest": smallest}
    seconds: list[Any] = [None] * (largest + smallest)
    if relation == "add_or_remove_one":
        ranking = sensitivity.removals(members.x, measure=game.measure, **counts)
    else:
        ranking = sensitivity.replacements(members.x, candidates.x, measure=game.measure, **counts)
        seconds = [(candidates.x[i], jnp.asarray(candidates.y[i])) for i in ranking.candidates]
    result = []
    for row, second, value in zip(ranking.records, seconds, ranking.dissimilarities, strict=True):
        is_shared = np.arange(len(members.x)) != row
        shared = members.x[is_shared], members.y[is_shared]
        first = members.x[row], jnp.asarray(members.y[row])
        result.append(Neighbour(float(value), di.Pair(shared, first, second)))
    return result


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


def play(
    name: str,
    noise: di.Noise,
    relation: Relation,
    *,
    rho: float = RHO_BETA,
    pair: di.Pair | None = None,
    label: str = "",
    schedule: Schedule,
) -> di.Repetitions:
    """Plays the repetitions of a cell, or reads those that were played before.

    The figures share the repetitions of Table 2. A sample of the size of the paper is resumable by
    its checkpoints below build/bernau2021, in a folder named by the arguments.

    Args:
      name: name of the task.
      noise: scale of the noise.
      relation: neighbouring relation.
      rho: bound on the belief, which sets the noise.
      pair: neighbouring data sets; by default those with the most dissimilar record.
      label: name of the pair in the folder of the checkpoints.
      schedule: numbers of repetitions, steps and records.
    """
    game = load(name, num_records=schedule.num_records)
    if pair is None:
        pair = neighbours(game, relation, largest=1, smallest=0)[0].pair
    count = schedule.repetitions
    checkpoints = None
    if schedule.num_records is None:
        parts = (name, noise, relation, f"{rho:g}", str(count), label)
        folder = Path("build") / "bernau2021" / "-".join(part for part in parts if part)
        checkpoints = training.Checkpoints(directory=folder)
    return di.play(
        jax.random.split(jax.random.key(2021), count),
        trainer(game, relation, noise=noise, steps=schedule.steps, rho=rho),
        lambda key: game.module.init(key, jnp.asarray(game.members.x[0])),
        pair,
        evaluate=functools.partial(evaluate, game),
        chunk=min(schedule.chunk, count),
        checkpoints=checkpoints,
    )


def evaluate(game: Game, params: Any) -> Evaluation:
    """Evaluates parameters on test records and on those of D."""

    def of(records: Records) -> tuple[jax.Array, jax.Array]:
        logits = jnp.asarray(game.module.apply(params, jnp.asarray(records.x)))
        labels = jnp.asarray(records.y)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses, logits.argmax(-1) == labels

    member_losses, _ = of(game.members)
    test_losses, is_right = of(game.test)
    threshold = member_losses.mean()
    return Evaluation(
        is_right.mean(dtype=jnp.float32),
        (member_losses < threshold).mean(dtype=jnp.float32),
        (test_losses < threshold).mean(dtype=jnp.float32),
    )


def loss(module: nn.Module, params: Any, record: Any, key: jax.Array) -> jax.Array:
    """Computes the cross-entropy of one record."""
    del key
    x, y = record
    logits = jnp.asarray(module.apply(params, x))
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)
