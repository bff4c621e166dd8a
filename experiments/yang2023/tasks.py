"""Tasks of the paper that the library can train: recurrent and feed-forward classifiers.

The image classifiers read digits, the recurrent one row by row; the Purchase MLP has no recurrent
counterpart.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxpriv import data, models, sampling, training


class Network(NamedTuple):
    """A network, the shape of the inputs that it takes, and its learning rate of Adam."""

    module: nn.Module
    input_shape: tuple[int, ...]
    learning_rate: float


class Task(NamedTuple):
    """A data set of the catalogue, its networks by kind, and the sensitivities of the paper."""

    names: tuple[str, ...]
    networks: dict[str, Network]
    paper_sensitivity: dict[str, float]


TASKS = {
    "images": Task(
        names=("mnist", "mnist5k"),
        networks={
            "RNN": Network(models.RNN(num_classes=10, width=64), (28, 28), 0.003),
            "FFNN": Network(models.MLP(widths=(32,), num_classes=10), (784,), 0.003),
        },
        paper_sensitivity={"RNN": 0.013209, "FFNN": 0.013518},
    ),
    "purchases": Task(
        names=("purchases",),
        networks={
            "FFNN": Network(
                models.MLP(widths=(1024, 512, 256), num_classes=100, activation=nn.tanh),
                (600,),
                0.001,
            )
        },
        paper_sensitivity={},
    ),
}
"""Classifiers; the agents and translators of the paper have trainings of their own."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """num_records: records of a training. steps: of Adam, on batches of `batch_size` records."""

    num_records: int
    steps: int
    batch_size: int = 128


class Records(NamedTuple):
    """Inputs and labels in random order, and the name of the data set."""

    name: str
    x: np.ndarray
    y: np.ndarray


@functools.cache
def load(task: str) -> Records:
    """Loads the first available data set of a task."""
    listing = {entry.name: entry for entry in data.available()}
    name = next((n for n in TASKS[task].names if listing[n].sources), TASKS[task].names[-1])
    dataset = data.load(name)
    order = np.random.default_rng(0).permutation(len(dataset))
    return Records(name, dataset.x[order].astype(np.float32), dataset.y[order].astype(np.int32))


def inputs(records: Records, network: Network) -> tuple[jax.Array, jax.Array]:
    """Converts records to the inputs of a network, and labels."""
    return jnp.asarray(records.x.reshape(-1, *network.input_shape)), jnp.asarray(records.y)


def initial(network: Network) -> Any:
    """Returns the initial parameters, the same for all trainings of a network."""
    return network.module.init(jax.random.key(0), jnp.zeros(network.input_shape))


def loss_of(network: Network) -> Callable[..., jax.Array]:
    """Returns the cross-entropy of one example."""

    def loss(params: Any, example: Any, key: jax.Array) -> jax.Array:
        del key
        x, y = example
        logits: Any = network.module.apply(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y)

    return loss


def plain_algorithm(network: Network, schedule: Schedule) -> Callable[..., training.Algorithm]:
    """Returns `make_alg(k, hyper)` of a training without noise."""

    def make_alg(size: int, hyper: Any) -> training.Algorithm:
        del hyper
        sampler = sampling.fixed_batch(size, batch_size=min(schedule.batch_size, size))
        return training.sgd(loss_of(network), optax.adam(network.learning_rate), sampler)

    return make_alg
