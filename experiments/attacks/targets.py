"""The models that the leaderboard attacks, and the evidence of their attackers."""

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


def available_name(name: str) -> str:
    """mnist needs its published files; without them its 5,000 digits stand in, by name."""
    if name != "mnist":
        return name
    (listing,) = [one for one in data.available() if one.name == "mnist"]
    return name if listing.sources else "mnist5k"


class Victim:
    """Trained models of one data set, and their outputs."""

    def __init__(self, name: str, sizes: dict[str, int], settings: dict[str, Any], folder: Path):
        self.name, self.settings, self.folder = name, settings, folder
        self.data_name = available_name(name)
        dataset = data.load(self.data_name)
        rng = np.random.default_rng(0)
        if self.data_name == "mnist5k":
            sizes = {**sizes, "pool": 4000, "population": 1000}
        wanted = {part: sizes[part] for part in ("pool", "population")}
        parts = dataset.split(rng, sizes=wanted)
        self.pool, self.population = (_shaped(parts[part], name) for part in wanted)
        self.num_classes = dataset.num_classes
        self.batch, self.steps = sizes["batch"], sizes["steps"]
        self.keys = dict(
            zip(("halves", "train", "attack"), jax.random.split(jax.random.key(1), 3), strict=True)
        )
        unit = units.of_records(len(self.pool), group=self.pool.group)
        self.is_member = units.halves(self.keys["halves"], unit, num_models=settings["shadows"] + 2)
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
        widths = self.settings["widths"]
        return models.MLP(widths=widths, num_classes=self.num_classes, activation=nn.tanh)

    def apply(self, params: Any, x: jax.Array) -> Any:
        """Logits of one record."""
        return self.module.apply(params, x)

    def _train(self) -> Any:
        def loss(params, example, key):
            del key
            x, y = example
            return optax.softmax_cross_entropy_with_integer_labels(self.apply(params, x), y)

        def make_alg(size: int, hyper: None) -> training.Algorithm:
            del hyper
            sampler = sampling.fixed_batch(size, batch_size=min(self.batch, size))
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
        """On the target's members and on the rest of the pool."""
        correct = self.logits[target].argmax(-1) == self.pool.y
        is_member = self.is_member[target]
        return float(correct[is_member].mean()), float(correct[~is_member].mean())

    def describe(self) -> dict[str, Any]:
        """Sizes and accuracies of the models, for the record."""
        train, test = np.array([self.accuracy(t) for t in range(self.settings["targets"])]).T
        return {
            "data": self.data_name,
            "source": Path(self.pool.source).name,
            "members": int(self.is_member[0].sum()),
            "records": len(self.pool),
            "population": len(self.population),
            "train_accuracy": float(train.mean()),
            "test_accuracy": float(test.mean()),
        }

    def evidence(self, target: int) -> Evidence:
        """Evidence of an attacker of one target, with the membership of a fifth revealed."""
        shadows = cross_target.shadows_of(self.is_member, target)
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

    def judged(self, scores: np.ndarray, target: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores and truth of the records whose membership was not revealed."""
        return scores[~self.revealed], self.is_member[target][~self.revealed]


def _shaped(dataset: data.Dataset, name: str) -> data.Dataset:
    if name != "mnist" or dataset.x.ndim == 4:
        return dataset
    return data.Dataset(
        x=dataset.x.reshape(-1, 28, 28, 1),
        y=dataset.y,
        name=dataset.name,
        num_classes=dataset.num_classes,
        source=dataset.source,
    )
