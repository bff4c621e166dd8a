"""Steps of DP-SGD with one fault each, and the probes that should show the faults.

    Step (its parts, one of them wrong) + Probe (data, canary, promise) --algorithm--> Algorithm

The network has an embedding and three dense layers, 1,131 parameters. A probe has few records, of
which the last is present or absent, so that an audit takes seconds.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax

from jaxpriv import audit, grads, sampling, training
from jaxpriv._names import Relation
from jaxpriv.audit import canaries
from jaxpriv.audit.canaries import Dirac, Tagged
from jaxpriv.audit.trainings import Exchange

if TYPE_CHECKING:
    from dp_accounting import DpEvent

NUM_CATEGORIES, WIDTH, NUM_CLASSES = 120, 8, 3
NUM_RECORDS, NUM_STEPS = 20, 10
CLIP_NORM, LEARNING_RATE, MU = 2.0, 0.1, 1.0
"""Clip norm, learning rate of SGD, and mu of the promise for a full batch."""

LEAVES = {
    "b1": (WIDTH,),
    "b2": (WIDTH,),
    "b3": (NUM_CLASSES,),
    "embedding": (NUM_CATEGORIES, WIDTH),
    "w1": (WIDTH, WIDTH),
    "w2": (WIDTH, WIDTH),
    "w3": (WIDTH, NUM_CLASSES),
}
"""Leaves of the parameters in the order in which they are flattened."""

OFFSETS = dict(
    zip(LEAVES, np.cumsum([0, *(math.prod(s) for s in LEAVES.values())])[:-1].tolist(), strict=True)
)
"""Position of the first entry of each leaf."""


def initial_params(key: jax.Array) -> dict[str, jax.Array]:
    """Draws the parameters of the network."""
    keys = jax.random.split(key, len(LEAVES))
    return {
        name: 0.3 * jax.random.normal(k, shape)
        for k, (name, shape) in zip(keys, LEAVES.items(), strict=True)
    }


def records(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws records: a category, numbers and a class; categories from 100 on do not occur."""
    rng = np.random.default_rng(0)
    return (
        rng.integers(100, size=count).astype(np.int32),
        rng.normal(size=(count, WIDTH)).astype(np.float32),
        rng.integers(NUM_CLASSES, size=count).astype(np.int32),
    )


def loss(params: Any, record: Any, key: jax.Array) -> jax.Array:
    """Computes the cross-entropy of one record."""
    del key
    return _cross_entropy(params, _first_layer(params, record), record[2])


def _first_layer(params: Any, record: Any) -> jax.Array:
    category, x, _ = record
    return (x + params["embedding"][category]) @ params["w1"] + params["b1"]


def _cross_entropy(params: Any, hidden: jax.Array, label: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(jax.nn.relu(hidden) @ params["w2"] + params["b2"])
    logits = hidden @ params["w3"] + params["b3"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Data, a canary and a promise.

    title: what the canary is.
    dirac: gradients of the Dirac canaries that the rows name.
    shared, present, absent: tags of the other rows, and of the last one if its coin includes it or
      leaves it out.
    outlier: whether the last row is an ordinary record with an input of 1e3.
    sampling_prob: of the sampler; 1 is the full batch.
    steps, noise_multiplier: of a training; by default mu of a full batch is `MU`.
    delta, relation: of the promise.
    """

    title: str
    dirac: Dirac | None = None
    shared: int = canaries.ORDINARY
    present: int = 0
    absent: int = canaries.ABSENT
    outlier: bool = False
    sampling_prob: float = 1.0
    steps: int = NUM_STEPS
    noise_multiplier: float = NUM_STEPS**0.5 / MU
    delta: float = 0.05
    relation: Relation = "add_or_remove_one"

    def exchange(self) -> Exchange:
        """Makes the neighbouring data sets."""
        category, x, y = records(NUM_RECORDS)
        if self.outlier:
            x[-1] = 1e3
        last = category[-1], x[-1], y[-1]
        tags = np.full(NUM_RECORDS - 1, self.shared, np.int32)
        shared = Tagged((category[:-1], x[:-1], y[:-1]), tags)
        present, absent = (
            Tagged(last, np.asarray(tag, np.int32)) for tag in (self.present, self.absent)
        )
        return Exchange(shared, present, absent)

    def sampler(self) -> sampling.Poisson:
        """Makes the sampler, whose batches never overflow."""
        if self.sampling_prob == 1:
            return sampling.full_batch(NUM_RECORDS)
        return sampling.poisson(NUM_RECORDS, sampling_prob=self.sampling_prob, capacity=NUM_RECORDS)

    def std(self) -> float:
        """Returns the standard deviation of the noise in each step of the parameters."""
        divisor = NUM_RECORDS * self.sampling_prob
        return LEARNING_RATE * self.noise_multiplier * CLIP_NORM / divisor


def _dirac(*rows: tuple[float, list[int]]) -> Dirac:
    scales, positions = zip(*rows, strict=True)
    return Dirac(jnp.array(positions, jnp.int32), jnp.array(scales, jnp.float32))


_ENTRY = OFFSETS["w3"]
_LARGE = 50 * CLIP_NORM
PROBES = {
    "large gradient": Probe(title="a gradient of 50 C", dirac=_dirac((_LARGE, [_ENTRY]))),
    "all layers": Probe(
        title="a gradient of 50 C in every layer", dirac=_dirac((_LARGE, list(OFFSETS.values())))
    ),
    "embedding": Probe(
        title="a gradient of 50 C in the embedding",
        dirac=_dirac((_LARGE, [OFFSETS["embedding"]])),
    ),
    "against the others": Probe(
        title="a gradient of 50 C against those of the other records",
        dirac=_dirac((_LARGE, [_ENTRY]), (-CLIP_NORM, [_ENTRY])),
        shared=1,
    ),
    "outlier": Probe(title="an input of 1,000", present=canaries.ORDINARY, outlier=True),
    "exchange": Probe(
        title="a gradient of 50 C, exchanged for the opposite one",
        dirac=_dirac((_LARGE, [_ENTRY]), (-_LARGE, [_ENTRY])),
        absent=1,
        relation="replace_one",
    ),
    "half of the batches": Probe(
        title="a gradient of 50 C, in a batch with probability 1/2",
        dirac=_dirac((_LARGE, [_ENTRY])),
        sampling_prob=0.5,
        steps=2,
        noise_multiplier=0.2,
        delta=0.8,
    ),
}


class Draw(NamedTuple):
    """What a step draws its noise from."""

    key: jax.Array
    step: jax.Array
    std: float
    total: Any
    memory: Any
    batch: Tagged


class State(NamedTuple):
    """Parameters, number of steps, and what faults remember: a gradient and a noise."""

    params: Any
    step: jax.Array
    momentum: Any
    noise: Any


class Info(NamedTuple):
    """Diagnostics of a step."""

    batch_size: jax.Array
    num_nonfinite: jax.Array


@dataclass(frozen=True, kw_only=True)
class Step:
    """Parts of a step of DP-SGD.

    gradients: (loss, params, batch, mask) -> per-example gradients.
    total: (gradients, mask, momentum) -> (clipped sum, momentum).
    noise: draw -> noise on the sum.
    divisor: (expected batch size, mask) -> divisor.
    mask: (key, step, mask) -> mask of the rows that are used.
    draws_all: whether the sampler draws all rows, from which `mask` selects a batch.
    claimed: neighbouring relation by which epsilon was computed; None is that of the probe.
    """

    gradients: Callable[..., Any]
    total: Callable[..., Any]
    noise: Callable[[Draw], Any]
    divisor: Callable[..., Any]
    mask: Callable[..., Any] = lambda key, step, mask: mask
    draws_all: bool = False
    claimed: Relation | None = None


def algorithm(step: Step, probe: Probe, *, noise_multiplier: float) -> training.Algorithm:
    """Makes the training algorithm of a step, with the event that it claims."""
    sampler = probe.sampler()
    tagged_loss = canaries.loss_with_canaries(loss, canaries=probe.dirac)
    std = noise_multiplier * CLIP_NORM

    def init(params: Any) -> State:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return State(params, jnp.int32(0), zeros, zeros)

    def update(key: jax.Array, state: State, batch: Tagged, mask: jax.Array) -> tuple[State, Info]:
        mask_key, noise_key = jax.random.split(key)
        mask = step.mask(mask_key, state.step, mask & (batch.tag != canaries.ABSENT))
        gradients = step.gradients(tagged_loss, state.params, batch, mask)
        total, momentum = step.total(gradients, mask, state.momentum)
        noise = step.noise(Draw(noise_key, state.step, std, total, state.noise, batch))
        divisor = step.divisor(sampler.expected_batch_size, mask)
        params = jax.tree.map(
            lambda p, t, n: p - LEARNING_RATE * (t + n) / divisor, state.params, total, noise
        )
        return State(params, state.step + 1, momentum, noise), Info(mask.sum(), jnp.int32(0))

    def event(steps: int) -> "DpEvent":
        return sampler.event(noise_multiplier=noise_multiplier, steps=steps)

    drawn = sampling.full_batch(NUM_RECORDS) if step.draws_all else sampler
    return training.Algorithm(init, update, drawn, event)


def library_algorithm(probe: Probe, *, noise_multiplier: float) -> training.Algorithm:
    """Makes the algorithm of the library itself, on the same rows."""
    grad = grads.clipped_grad(
        canaries.loss_with_canaries(loss, canaries=probe.dirac), clip_norm=CLIP_NORM
    )
    optimizer = optax.sgd(LEARNING_RATE)
    return training.dpsgd(grad, optimizer, probe.sampler(), noise_multiplier=noise_multiplier)


def check(
    key: jax.Array,
    probe: Probe,
    make: Callable[..., training.Algorithm],
    *,
    claimed: Relation | None = None,
    runs: int,
    level: float,
) -> audit.TrainingFindings:
    """Audits `make(noise_multiplier=...)` on the data of a probe.

    Args:
      key: PRNG key.
      probe: data, canary and promise.
      make: makes the algorithm on these data.
      claimed: relation by which its epsilon was computed; None is that of the probe.
      runs: number of trainings.
      level: probability with which a correct algorithm may be flagged.

    Returns:
      The findings.
    """
    return audit.check_training(
        key,
        make(noise_multiplier=probe.noise_multiplier),
        initial_params(key),
        exchange=probe.exchange(),
        noiseless=make(noise_multiplier=0.0),
        std=probe.std(),
        delta=probe.delta,
        relation=claimed or probe.relation,
        steps=probe.steps,
        runs=runs,
        level=level,
    )


def _per_example(tagged_loss: Any, params: Any, batch: Tagged, mask: jax.Array) -> Any:
    del mask
    gradient = jax.grad(lambda p, row: tagged_loss(p, row, jax.random.key(0)))
    return jax.vmap(gradient, in_axes=(None, 0))(params, batch)


def _norms(gradients: Any, names: tuple[str, ...] = tuple(LEAVES)) -> jax.Array:
    squares = [jnp.sum(gradients[n].reshape(len(gradients[n]), -1) ** 2, axis=1) for n in names]
    return jnp.sqrt(jnp.stack(squares).sum(axis=0))


def _weighted(weights: jax.Array, gradients: Any) -> Any:
    return jax.tree.map(lambda g: jnp.tensordot(weights, g, 1), gradients)


def _factors(norms: jax.Array, mask: jax.Array) -> jax.Array:
    return jnp.where(mask, jnp.minimum(1, CLIP_NORM / jnp.maximum(norms, 1e-12)), 0)


def _clipped_sum(gradients: Any, mask: jax.Array, momentum: Any) -> tuple[Any, Any]:
    return _weighted(_factors(_norms(gradients), mask), gradients), momentum


def _gaussian(draw: Draw) -> Any:
    return _normal(draw.key, draw.total, draw.std)


def _normal(key: jax.Array, tree: Any, std: Any) -> Any:
    flat, unravel = jax.flatten_util.ravel_pytree(tree)
    return unravel(std * jax.random.normal(key, flat.shape))


CORRECT = Step(
    gradients=_per_example,
    total=_clipped_sum,
    noise=_gaussian,
    divisor=lambda expected, mask: expected,
)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, with the probe that should show it."""

    title: str
    step: Step
    probe: str = "large gradient"


def _with_noise(noise: Callable[[Draw], Any]) -> Step:
    return dataclasses.replace(CORRECT, noise=noise)


def _with_total(total: Callable[..., Any]) -> Step:
    return dataclasses.replace(CORRECT, total=total)


def _unclipped(gradients: Any, mask: jax.Array, momentum: Any) -> tuple[Any, Any]:
    return _weighted(mask.astype(jnp.float32), gradients), momentum


def _clip_tree(tree: Any, limit: float) -> Any:
    factor = jnp.minimum(1, limit / jnp.maximum(optax.tree.norm(tree), 1e-12))
    return jax.tree.map(lambda x: factor * x, tree)


def _clip_mean(gradients: Any, mask: jax.Array, momentum: Any) -> tuple[Any, Any]:
    total, _ = _unclipped(gradients, mask, momentum)
    count = jnp.maximum(mask.sum(), 1).astype(jnp.float32)
    mean = _clip_tree(jax.tree.map(lambda t: t / count, total), CLIP_NORM)
    return jax.tree.map(lambda m: m * count, mean), momentum


def _clip_layers(gradients: Any, mask: jax.Array, momentum: Any) -> tuple[Any, Any]:
    factors = {name: _factors(_norms(gradients, (name,)), mask) for name in LEAVES}
    return {n: jnp.tensordot(factors[n], gradients[n], 1) for n in LEAVES}, momentum


def _norm_without_embedding(gradients: Any, mask: jax.Array, momentum: Any) -> tuple[Any, Any]:
    names = tuple(name for name in LEAVES if name != "embedding")
    return _weighted(_factors(_norms(gradients, names), mask), gradients), momentum


def _clip_momentum(gradients: Any, mask: jax.Array, momentum: Any) -> tuple[Any, Any]:
    total, _ = _unclipped(gradients, mask, momentum)
    momentum = jax.tree.map(lambda m, t: 0.9 * m + t, momentum, total)
    return _clip_tree(momentum, CLIP_NORM), momentum


def _batch_norm(tagged_loss: Any, params: Any, batch: Tagged, mask: jax.Array) -> Any:
    """Computes gradients with the first layer normalised by the statistics of the batch."""
    del tagged_loss
    count = jnp.maximum(mask.sum(), 1).astype(jnp.float32)

    def losses(params: Any) -> jax.Array:
        hidden = jax.vmap(lambda record: _first_layer(params, record))(batch.record)
        weights = mask.astype(jnp.float32)[:, None] / count
        mean = (weights * hidden).sum(axis=0)
        variance = (weights * (hidden - mean) ** 2).sum(axis=0)
        normal = (hidden - mean) * jax.lax.rsqrt(variance + 1e-5)
        return jax.vmap(lambda h, y: _cross_entropy(params, h, y))(normal, batch.record[2])

    return jax.jacrev(losses)(params)


def _cut(key: jax.Array, step: jax.Array, mask: jax.Array) -> jax.Array:
    """Keeps a random subset of at most 19 rows, so that a record displaces another one."""
    del step
    order = jnp.argsort(jnp.where(mask, jax.random.uniform(key, mask.shape), 2.0))
    rank = jnp.argsort(order)
    return mask & (rank < NUM_RECORDS - 1)


def _one_key_for_equal_shapes(draw: Draw) -> Any:
    return jax.tree.map(lambda x: draw.std * jax.random.normal(draw.key, x.shape), draw.total)


def _missing_on_a_row(draw: Draw) -> Any:
    noise = _gaussian(draw)
    return {**noise, "w1": noise["w1"].at[0].set(0)}


def _correlated(draw: Draw, rho: float = 0.3) -> Any:
    fresh = _gaussian(draw)
    first = draw.step == 0
    return jax.tree.map(
        lambda f, m: jnp.where(first, f, rho * m + math.sqrt(1 - rho**2) * f), fresh, draw.memory
    )


def _only_on_used_rows(draw: Draw) -> Any:
    noise = _gaussian(draw)
    used = jnp.zeros(NUM_CATEGORIES, bool).at[draw.batch.record[0]].set(True)
    return {**noise, "embedding": jnp.where(used[:, None], noise["embedding"], 0)}


def _repeated_after(draw: Draw, period: int) -> Any:
    """Draws noise whose key begins again after `period` steps, whatever the key of the step."""
    key = jax.random.fold_in(jax.random.key(0), draw.step % period)
    return _normal(key, draw.total, draw.std)


FAULTS = {
    "no_clipping": Fault(title="no clipping", step=_with_total(_unclipped)),
    "mean_clipped": Fault(
        title="the mean of the batch clipped, and no example", step=_with_total(_clip_mean)
    ),
    "layers_clipped": Fault(
        title="each layer clipped to C, accounted as if all were",
        step=_with_total(_clip_layers),
        probe="all layers",
    ),
    "layer_missing_in_norm": Fault(
        title="a layer left out of the norm",
        step=_with_total(_norm_without_embedding),
        probe="embedding",
    ),
    "clip_after_momentum": Fault(
        title="clipping after momentum",
        step=_with_total(_clip_momentum),
        probe="against the others",
    ),
    "batch_norm": Fault(
        title="BatchNorm across examples",
        step=dataclasses.replace(CORRECT, gradients=_batch_norm),
        probe="outlier",
    ),
    "std_without_clip_norm": Fault(
        title="standard deviation z in place of z C",
        step=_with_noise(lambda d: _normal(d.key, d.total, d.std / CLIP_NORM)),
    ),
    "std_divided_twice": Fault(
        title="noise divided twice by the batch size",
        step=_with_noise(lambda d: _normal(d.key, d.total, d.std / NUM_RECORDS)),
    ),
    "microbatch_std": Fault(
        title="standard deviation z C / sqrt(m) with m microbatches",
        step=_with_noise(lambda d: _normal(d.key, d.total, d.std / math.sqrt(2))),
    ),
    "same_key": Fault(
        title="the same key in each step",
        step=_with_noise(functools.partial(_repeated_after, period=1)),
    ),
    "frozen_after_resume": Fault(
        title="keys that begin again after a resume",
        step=_with_noise(functools.partial(_repeated_after, period=NUM_STEPS // 2)),
    ),
    "one_key_for_leaves": Fault(
        title="one key for leaves of equal shape", step=_with_noise(_one_key_for_equal_shapes)
    ),
    "noise_missing": Fault(
        title="noise missing on a row of a matrix", step=_with_noise(_missing_on_a_row)
    ),
    "noise_correlated": Fault(
        title="noise correlated between steps (rho 0.3)", step=_with_noise(_correlated)
    ),
    "embedding_rows": Fault(
        title="no noise on embedding rows that no example uses",
        step=_with_noise(_only_on_used_rows),
    ),
    "realised_divisor": Fault(
        title="division by the realised batch size",
        step=dataclasses.replace(
            CORRECT,
            divisor=lambda expected, mask: jnp.maximum(mask.sum(), 1).astype(jnp.float32),
        ),
        probe="half of the batches",
    ),
    "fixed_order": Fault(
        title="batches in a fixed order, accounted as Poisson",
        step=dataclasses.replace(
            CORRECT,
            mask=lambda key, step, mask: mask & ((jnp.arange(NUM_RECORDS) + step) % 2 == 1),
            draws_all=True,
        ),
        probe="half of the batches",
    ),
    "truncation_uncharged": Fault(
        title="batches cut to a capacity, not accounted for",
        step=dataclasses.replace(CORRECT, mask=_cut),
        probe="against the others",
    ),
    "wrong_relation": Fault(
        title="add-or-remove accounted, replace-one promised",
        step=dataclasses.replace(CORRECT, claimed="add_or_remove_one"),
        probe="exchange",
    ),
}
