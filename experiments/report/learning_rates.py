"""Learning rates of the presets of `jaxpriv report`, chosen on public and generated data.

Run:       python -m experiments run report/learning_rates --preset cpu
Time:      smoke 5 s, cpu not run yet, paper not run yet
Ours:      not run yet

Each preset network is trained as the report does by default: Adam, sampling probability 0.1, clip
norm 1, 600 steps without DP and 400 steps of DP-SGD. `accuracy` is measured on the other records of
the data set, and averaged over the seeds; `loss` is its cross-entropy. Series are the rows of
images of digits from top to bottom, tokens their grey values, and `motifs` are random sequences of
tokens, whose class is the motif of three tokens at a random place.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import common
from jaxpriv import accounting, data, grads, models, sampling, training


@dataclass(frozen=True, kw_only=True)
class Settings:
    """epsilons: guarantees of DP-SGD at `delta`; None is training without DP.

    num_members: records of a training set; the remaining ones are test records.
    """

    problems: tuple[str, ...]
    rates: tuple[float, ...] = (0.0005, 0.001, 0.002, 0.005, 0.01)
    epsilons: tuple[float | None, ...] = (None, 8.0, 2.0)
    delta: float = 1e-4
    num_members: int = 1000
    num_test: int = 700
    seeds: int = 1
    steps: int = 400
    plain_steps: int = 600


PROBLEMS = ("mlp digits", "mlp mnist5k", "rnn digits", "transformer motifs", "cnn mnist5k")
ALL_PROBLEMS = (*PROBLEMS, "cnn digits", "rnn mnist5k", "transformer digits")
PRESETS = {
    "smoke": Settings(
        problems=("mlp digits",), rates=(0.01,), epsilons=(None,), num_members=50, num_test=50,
        plain_steps=3,
    ),
    "cpu": Settings(problems=PROBLEMS),
    "paper": Settings(problems=ALL_PROBLEMS, seeds=5),
}  # fmt: skip
SAMPLING_PROB, CLIP_NORM, RELATION = 0.1, 1.0, "add_or_remove_one"
MOTIF_LENGTH, SEQUENCE_LENGTH, NUM_MOTIFS, VOCABULARY = 3, 24, 4, 16


class Problem(NamedTuple):
    """A network and the records that it classifies."""

    module: nn.Module
    x: np.ndarray
    y: np.ndarray


def run(settings: Settings) -> dict[str, Any]:
    """Trains each network at each rate and guarantee."""
    rows = []
    for name in settings.problems:
        problem = _problem(name)
        for epsilon in settings.epsilons:
            accuracies, losses = _train(problem, epsilon, settings)
            print(f"{name}, epsilon {epsilon}: {accuracies.mean(1).round(3)}", file=sys.stderr)
            for i, rate in enumerate(settings.rates):
                rows.append(
                    {
                        "problem": name,
                        "epsilon": epsilon,
                        "learning_rate": rate,
                        "accuracies": accuracies[i].tolist(),
                        "accuracy": float(accuracies[i].mean()),
                        "loss": float(losses[i].mean()),
                    }
                )
    return {"rows": rows}


def _problem(name: str) -> Problem:
    model, source = name.split()
    if source == "motifs":
        x, y = _motifs(np.random.default_rng(0), 3000)
    else:
        dataset = data.load(source)
        x, y = dataset.x.astype(np.float32), dataset.y
        x = x.reshape(len(x), *{"digits": (8, 8, 1), "mnist5k": (28, 28, 1)}[source])
    classes = int(y.max()) + 1
    if model == "mlp":
        return Problem(models.MLP((256,), classes), x.reshape(len(x), -1), y)
    if model == "cnn":
        return Problem(models.CNN(num_classes=classes), x, y)
    if model == "rnn":
        return Problem(models.RNN(num_classes=classes), x.reshape(x.shape[:3]), y)
    if source == "digits":
        x = np.rint(x.reshape(len(x), -1) * (VOCABULARY / x.max())).astype(np.int32)
    return Problem(models.Classifier(num_tokens=VOCABULARY + 1, num_classes=classes), x, y)


def _motifs(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    motifs = rng.integers(0, VOCABULARY, (NUM_MOTIFS, MOTIF_LENGTH))
    x = rng.integers(0, VOCABULARY, (n, SEQUENCE_LENGTH))
    y = rng.integers(0, NUM_MOTIFS, n)
    places = rng.integers(0, SEQUENCE_LENGTH - MOTIF_LENGTH + 1, n)
    x[np.arange(n)[:, None], places[:, None] + np.arange(MOTIF_LENGTH)] = motifs[y]
    return x.astype(np.int32), y


def _train(
    problem: Problem, epsilon: float | None, settings: Settings
) -> tuple[np.ndarray, np.ndarray]:
    """Returns accuracies and losses, [rates, seeds]."""
    module, x, y = problem
    n, num_models = settings.num_members, len(settings.rates) * settings.seeds
    order = np.random.default_rng(1).permutation(len(x))
    members, test = order[:n], order[n : n + settings.num_test]
    steps = settings.plain_steps if epsilon is None else settings.steps
    keys = jax.random.split(jax.random.key(0), num_models)
    finals, _ = training.fit_many(
        jax.random.split(jax.random.key(1), num_models),
        _make_alg(module, epsilon, steps, settings),
        jax.lax.map(lambda key: module.init(key, jnp.asarray(x[0])), keys),
        (jnp.asarray(x), jnp.asarray(y, jnp.int32)),
        members=np.tile(members, (num_models, 1)),
        steps=steps,
        hyper=jnp.repeat(jnp.asarray(settings.rates), settings.seeds),
        keep=lambda state: _evaluate(module, state.params, x[test], y[test]),
    )
    shape = len(settings.rates), settings.seeds
    accuracies, losses = (np.asarray(value).reshape(shape) for value in finals)
    return accuracies, losses


def _make_alg(
    module: nn.Module, epsilon: float | None, steps: int, settings: Settings
) -> Callable[[int, Any], training.Algorithm]:
    def loss(params: Any, record: Any, key: jax.Array) -> jax.Array:
        del key
        logits = jnp.asarray(module.apply(params, record[0]))
        return optax.softmax_cross_entropy_with_integer_labels(logits, record[1])

    def make_alg(n: int, rate: Any) -> training.Algorithm:
        sampler = sampling.poisson(n, sampling_prob=SAMPLING_PROB)
        if epsilon is None:
            return training.sgd(loss, optax.adam(rate), sampler)
        noise_multiplier = accounting.calibrate(
            sampler, steps=steps, epsilon=epsilon, delta=settings.delta, relation=RELATION
        )
        grad = grads.clipped_grad(loss, clip_norm=CLIP_NORM)
        return training.dpsgd(grad, optax.adam(rate), sampler, noise_multiplier=noise_multiplier)

    return make_alg


def _evaluate(module: nn.Module, params: Any, x: np.ndarray, y: np.ndarray) -> Any:
    logits = jnp.asarray(module.apply(params, jnp.asarray(x)))
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(y, jnp.int32))
    return (logits.argmax(-1) == jnp.asarray(y)).mean(dtype=jnp.float32), losses.mean()


def table(record: dict[str, Any]) -> str:
    """Formats a row for each problem and guarantee, with the accuracy at each rate."""
    rates = sorted({row["learning_rate"] for row in record["rows"]})
    lines: dict[tuple[str, float | None], list[str]] = {}
    for row in record["rows"]:
        cells = lines.setdefault((row["problem"], row["epsilon"]), [])
        cells.append(f"{row['accuracy']:.3f}")
    rows = [
        (f"{problem}, {'without DP' if epsilon is None else f'epsilon {epsilon:g}'}", *cells)
        for (problem, epsilon), cells in lines.items()
    ]
    return common.text_table(("accuracy at learning rate", *(f"{rate:g}" for rate in rates)), rows)
