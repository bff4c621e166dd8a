"""The models that the leaderboard attacks, and the evidence of their attackers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmarks import victims
from jaxpriv import data, models, sampling, training, units
from jaxpriv.attacks import Evidence, cross_target

_CHUNK = 6
"""Models between checkpoints."""


@dataclass(frozen=True, kw_only=True)
class VictimSettings:
    """pool, population: numbers of records. batch_size, steps: of the training of each model."""

    name: str
    pool: int
    population: int
    batch_size: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Settings:
    """num_shadows: for each of `num_targets` targets. widths: of the MLP. copies: of a query.

    attack_steps: of attacks that train a network. resamples: for the intervals of the ratios.
    """

    victims: tuple[VictimSettings, ...]
    num_shadows: int
    num_targets: int
    widths: tuple[int, ...]
    attack_steps: int
    copies: int
    resamples: int


def available_name(name: str) -> str:
    """Returns "mnist5k", the packaged digits, where the published files of MNIST are missing."""
    if name != "mnist":
        return name
    (listing,) = [entry for entry in data.available() if entry.name == "mnist"]
    return name if listing.sources else "mnist5k"


class Victim:
    """Trained models of one data set, and their outputs."""

    def __init__(self, sizes: VictimSettings, settings: Settings, folder: Path):
        self.name, self.settings, self.folder = sizes.name, settings, folder
        self.data_name = available_name(self.name)
        dataset = data.load(self.data_name)
        rng = np.random.default_rng(0)
        split = {"pool": sizes.pool, "population": sizes.population}
        if self.data_name == "mnist5k":
            split = {"pool": 4000, "population": 1000}
        parts = dataset.split(rng, sizes=split)
        self.pool, self.population = (_as_images(parts[name], self.name) for name in split)
        self.num_classes = dataset.num_classes
        self.batch_size, self.steps = sizes.batch_size, sizes.steps
        self.keys = dict(
            zip(("halves", "train", "attack"), jax.random.split(jax.random.key(1), 3), strict=True)
        )
        unit = units.of_records(len(self.pool), group=self.pool.group)
        self.is_member = units.halves(
            self.keys["halves"], unit, num_models=settings.num_shadows + 2
        )
        revealed = units.draw(rng, unit, sizes={"revealed": len(self.pool) // 5})["revealed"]
        self.revealed = np.isin(np.arange(len(self.pool)), revealed)
        self.module = self._module()
        self.params = self._train()
        self.logits, self.population_logits = (
            training.shadows.outputs(self.apply, self.params, jnp.asarray(part.x))
            for part in (self.pool, self.population)
        )

    def _module(self) -> nn.Module:
        if self.name == "mnist":
            return victims.VICTIMS["cnn"].module
        widths = self.settings.widths
        return models.MLP(widths=widths, num_classes=self.num_classes, activation=nn.tanh)

    def apply(self, params: Any, x: jax.Array) -> Any:
        """Returns the logits of one record."""
        return self.module.apply(params, x)

    def _train(self) -> Any:
        # A stored model belongs to the code of its loss, so it does not refer to this class.
        module, batch_size = self.module, self.batch_size

        def loss(params, example, key):
            del key
            x, y = example
            logits: Any = module.apply(params, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y)

        def make_alg(size: int, hyper: None) -> training.Algorithm:
            del hyper
            sampler = sampling.fixed_batch(size, batch_size=min(batch_size, size))
            return training.sgd(loss, optax.adam(1e-3), sampler)

        return training.shadows.train(
            self.keys["train"],
            make_alg,
            lambda key: self.module.init(key, jnp.asarray(self.pool.x[0])),
            (jnp.asarray(self.pool.x), jnp.asarray(self.pool.y)),
            is_member=self.is_member,
            steps=self.steps,
            chunk=_CHUNK,
            checkpoints=training.Checkpoints(directory=self.folder / "models"),
        )

    def accuracy(self, target: int) -> tuple[float, float]:
        """Returns a target's accuracy on its members and on the rest of the pool."""
        correct = self.logits[target].argmax(-1) == self.pool.y
        is_member = self.is_member[target]
        return float(correct[is_member].mean()), float(correct[~is_member].mean())

    def describe(self) -> dict[str, Any]:
        """Describes the data and the models for the record."""
        train, test = np.array([self.accuracy(t) for t in range(self.settings.num_targets)]).T
        return {
            "data": self.data_name,
            "source": Path(self.pool.source).name,
            "members": int(self.is_member[0].sum()),
            "records": len(self.pool),
            "population": len(self.population),
            "train_accuracy": float(train.mean()),
            "test_accuracy": float(test.mean()),
        }

    def evidence(self, target: int, *, pairs: int | None = None) -> Evidence:
        """Returns what an attacker of one target has; a fifth of the members are revealed.

        Args:
          target: number of the model.
          pairs: number of complementary pairs of shadow models; None for all of them.
        """
        # The second half of the models are the complements of the first, in the same order.
        shadows = cross_target.shadows_of(self.is_member, target)
        shadows = shadows.reshape(2, -1)[:, :pairs].ravel()
        params = jax.tree.map(lambda leaf: leaf[target], self.params)

        @jax.jit
        def logits(x):
            return jax.vmap(lambda record: self.apply(params, record))(x)

        def predict(key: jax.Array, x: np.ndarray) -> np.ndarray:
            del key
            # One shape for every batch, so that it compiles once.
            padded = np.zeros((1024, *x.shape[1:]), np.float32)
            padded[: len(x)] = x
            return np.asarray(logits(padded))[: len(x)]

        return Evidence(
            inputs=self.pool.x,
            labels=self.pool.y,
            logits=self.logits[target],
            shadow_logits=self.logits[shadows],
            shadow_is_member=self.is_member[shadows],
            unit_id=self.pool.group,
            population=Evidence(
                inputs=self.population.x,
                labels=self.population.y,
                logits=self.population_logits[target],
                shadow_logits=self.population_logits[shadows],
            ),
            revealed=self.revealed,
            revealed_is_member=self.is_member[target] & self.revealed,
            predict=predict,
        )

    @property
    def judged_unit(self) -> np.ndarray:
        """Returns the unit (household or record) of each judged record."""
        unit = np.arange(len(self.pool)) if self.pool.group is None else self.pool.group
        return unit[~self.revealed]

    def evaluated(self, scores: np.ndarray, target: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns scores and truth of the records whose membership was not revealed."""
        return scores[~self.revealed], self.is_member[target][~self.revealed]


def _as_images(dataset: data.Dataset, name: str) -> data.Dataset:
    if name != "mnist" or dataset.x.ndim == 4:
        return dataset
    return data.Dataset(
        x=dataset.x.reshape(-1, 28, 28, 1),
        y=dataset.y,
        name=dataset.name,
        num_classes=dataset.num_classes,
        source=dataset.source,
    )
