"""The differential-identifiability adversary: how certain can one become about a single record?

    pair of neighbouring data sets, trainer --play--> Repetitions --empirical_epsilons--> 3 values

The adversary has both data sets, D and D', sees every noisy gradient of a training on one of them
and updates its belief that it was D. One repetition is a whole training, a pure function of a key;
`play` runs many in one program. In the shapes below `r` counts repetitions, `k` steps, `b` rows of
a padded batch and `n` records of D.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxpriv import _check, _tree, accounting, identifiability, sampling, training
from jaxpriv._names import Relation
from jaxpriv._types import Batch, Example, Keys, Params
from jaxpriv.grads import ClippedGrad
from jaxpriv.metrics import intervals
from jaxpriv.training import _step

if TYPE_CHECKING:
    from dp_accounting import DpEvent

__all__ = [
    "EmpiricalEpsilons",
    "Frequency",
    "Noise",
    "Pair",
    "Repetitions",
    "Trainer",
    "advantage",
    "beliefs",
    "empirical_epsilons",
    "play",
    "realised_mu",
    "violations",
]

Noise = Literal["global", "local"]
"""Scale of the noise: global or local sensitivity."""


class Pair(NamedTuple):
    """Neighbouring data sets: D = shared + first, D' = shared + second, or shared alone.

    shared: the records that both have, stacked: leaves [n - 1, ...].
    first: the record of D that D' lacks.
    second: the record of D' in its place; None if D' has one record less.

    Example:
      >>> import numpy as np
      >>> Pair(shared=np.zeros((3, 2)), first=np.ones(2)).relation
      'add_or_remove_one'
    """

    shared: Batch
    first: Example
    second: Example | None = None

    @property
    def relation(self) -> Relation:
        """Neighbouring relation of the two data sets."""
        return "add_or_remove_one" if self.second is None else "replace_one"

    @property
    def num_records(self) -> int:
        """Number of records of D, which is taken to be public."""
        return 1 + len(jax.tree.leaves(self.shared)[0])


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A private training whose gradients the adversary sees.

    grad: clipped gradient with clip norm C.
    optimizer: any optax transformation of the noisy mean gradients.
    steps: number of steps, k.
    noise_multiplier: standard deviation of global noise divided by C; > 0.
    noise: "global" noise has standard deviation noise_multiplier * C. "local" noise is scaled by
      the distance of the two clipped sums divided by its largest possible value. It depends on the
      data and gives no guarantee: it is an instrument for auditing.
    sampling_prob: probability with which a batch contains a given record; 1 is the full batch. The
      adversary has the coins of the other records, and not that of the record in question.

    Example:
      >>> import optax
      >>> from jaxpriv import grads
      >>> grad = grads.clipped_grad(lambda w, x, key: (w - x) ** 2, clip_norm=1.0)
      >>> trainer = Trainer(
      ...     grad=grad, optimizer=optax.sgd(0.1), steps=30, noise_multiplier=5.7, noise="global",
      ...     sampling_prob=1.0,
      ... )
      >>> round(trainer.mu("replace_one"), 3)  # sqrt(30) * 2 / 5.7
      1.922
    """

    grad: ClippedGrad
    optimizer: optax.GradientTransformation
    steps: int
    noise_multiplier: float
    noise: Noise
    sampling_prob: float

    def __post_init__(self) -> None:
        _check.attributes(
            ("clip_norm", "sensitivity"), "grads.clipped_grad(loss, clip_norm=...)", grad=self.grad
        )
        _check.positive_int(steps=self.steps)
        _check.positive(noise_multiplier=self.noise_multiplier)
        _check.one_of(("global", "local"), noise=self.noise)
        _check.probability(sampling_prob=self.sampling_prob)
        if self.noise == "local" and self.sampling_prob < 1:
            raise ValueError(
                "Expected sampling_prob=1 for local noise, which is defined for the full batch."
            )

    def mu(self, relation: Relation) -> float:
        """Computes mu of the full-batch Gaussian mechanism, sqrt(k) * sensitivity / std.

        With global noise it is a guarantee for every pair. With local noise it is the realised mu
        of this pair alone, and no guarantee.
        """
        ratio = float(self.grad.sensitivity(relation)) / self.grad.clip_norm
        return self.steps**0.5 * ratio / self.noise_multiplier


class Repetitions(NamedTuple):
    """Repetitions of the experiment.

    in_d: whether D, and not D', was the training data.
    log_odds: log-odds of the adversary's belief in D, after each step.
    local_sensitivity: distance of the two clipped sums at each step.
    std: standard deviation of the noise of each step.
    evaluations: results of `evaluate` on the final parameters, stacked along r.
    """

    in_d: Bool[np.ndarray, " r"]
    log_odds: Float[np.ndarray, "r k"]
    local_sensitivity: Float[np.ndarray, "r k"]
    std: Float[np.ndarray, "r k"]
    evaluations: PyTree


class Frequency(NamedTuple):
    """An observed value with its confidence interval."""

    value: float
    lower: float
    upper: float


class EmpiricalEpsilons(NamedTuple):
    """Three values of epsilon from the same repetitions; none is a guarantee.

    from_sensitivities: estimate; epsilon of a Gaussian mechanism with the mean realised mu. The
      sensitivities depend on earlier outputs, so that it is not a bound. It is that of full
      batches: Poisson batches reveal less, which it leaves out.
    from_belief: extreme; log-odds of the largest belief in the true data set. It grows with the
      number of repetitions and bounds epsilon on neither side.
    from_advantage: frequency; epsilon of a Gaussian mechanism with the observed advantage, and its
      confidence interval; infinite where the advantage is 1.
    """

    from_sensitivities: float
    from_belief: float
    from_advantage: Frequency


class _State(NamedTuple):
    """State of a repetition."""

    params: Params
    opt_state: PyTree
    step: Int[Array, ""]
    in_d: Bool[Array, ""]
    log_odds: Float[Array, ""]


class _Info(NamedTuple):
    """Diagnostics of a step; the first three are those of `Repetitions`."""

    log_odds: Float[Array, ""]
    local_sensitivity: Float[Array, ""]
    std: Float[Array, ""]
    batch_size: Int[Array, ""]
    num_nonfinite: Int[Array, ""]


def play(
    keys: Keys,
    trainer: Trainer,
    init: Callable[[PRNGKeyArray], Params],
    pair: Pair,
    *,
    evaluate: Callable[[Params], PyTree] = lambda params: (),
    chunk: int | None = None,
    strategy: Literal["auto", "vmap", "map"] = "auto",
    checkpoints: training.Checkpoints | None = None,
) -> Repetitions:
    """Trains on D or D' by a fair coin, and updates the adversary's belief at each step.

    With sums g over D and g' over D' and the noisy sum y, the log-odds of the full batch grow by
    <y - (g + g') / 2, g - g'> / std^2; no squared norms are subtracted, which would cancel. With
    Poisson batches both likelihoods are mixtures over the coin of the record in question.

    Args:
      keys: [r], one for each repetition; they must differ.
      trainer: the training.
      init: `init(key)`, the initial parameters.
      pair: D and D'.
      evaluate: `evaluate(params)` of the final parameters, such as a test accuracy.
      chunk: number of repetitions in one program, as for `training.fit_many`.
      strategy: as for `training.fit_many`; for models of a few parameters "vmap" is faster on a CPU
        too, with all repetitions in a chunk.
      checkpoints: folder of checkpoints, as for `training.fit_many`.

    Returns:
      The repetitions. The memory per repetition is that of its row of the result.

    Raises:
      ValueError: if keys are equal, or as for `training.fit_many`.

    References:
      Bernau et al., Quantifying Identifiability to Choose and Audit epsilon in Differentially
      Private Deep Learning, 2021, Algorithm 1. The printed means over n and n - 1 records are sums
      here, which is what the sensitivity is stated for.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from jaxpriv import grads
      >>> grad = grads.clipped_grad(lambda w, x, key: jnp.dot(w, x), clip_norm=1.0)
      >>> trainer = Trainer(
      ...     grad=grad, optimizer=optax.sgd(0.1), steps=4, noise_multiplier=1.0, noise="global",
      ...     sampling_prob=1.0,
      ... )
      >>> pair = Pair(shared=jnp.zeros((3, 2)), first=jnp.array([1.0, 0.0]))
      >>> keys = jax.random.split(jax.random.key(0), 200)
      >>> found = play(keys, trainer, lambda key: jnp.zeros(2), pair)
      >>> bool(abs(advantage(found, confidence=0.95).value - 0.68) < 0.2)  # 2 Phi(1) - 1
      True
    """
    _check_pair(pair)
    parts = jax.vmap(lambda key: jax.random.split(key, 3))(keys)
    init_keys, coin_keys, run_keys = (parts[:, i] for i in range(3))
    start = _Start(init_keys, jax.vmap(jax.random.bernoulli)(coin_keys))
    records = _stack(pair)
    num_rows = len(jax.tree.leaves(records)[0])
    states, info = training.fit_many(
        run_keys,
        functools.partial(_algorithm, trainer, init, pair.relation),
        start,
        records,
        members=np.tile(np.arange(num_rows), (len(run_keys), 1)),
        steps=trainer.steps,
        keep=lambda state: (state.in_d, evaluate(state.params)),
        chunk=chunk,
        strategy=strategy,
        checkpoints=checkpoints,
    )
    in_d, evaluations = jax.tree.map(np.asarray, states)
    log_odds, local_sensitivity, std = map(np.asarray, info.info[:3])
    return Repetitions(in_d, log_odds, local_sensitivity, std, evaluations)


def beliefs(repetitions: Repetitions) -> Float[np.ndarray, "r k"]:
    """Computes the adversary's belief in the data set that was used, after each step.

    Args:
      repetitions: result of `play`.

    Returns:
      Beliefs in (0, 1); 1/2 is guessing.

    Example:
      >>> log_odds = np.array([[0.0, 2.0], [0.0, 2.0]])
      >>> ones = np.ones((2, 2))
      >>> found = Repetitions(np.array([True, False]), log_odds, ones, ones, ())
      >>> beliefs(found).round(2).tolist()
      [[0.5, 0.88], [0.5, 0.12]]
    """
    from scipy import special

    sign = np.where(repetitions.in_d, 1.0, -1.0)[:, None]
    return special.expit(sign * np.asarray(repetitions.log_odds, np.float64))


def advantage(repetitions: Repetitions, *, confidence: float) -> Frequency:
    """Estimates the advantage of the adversary, 2 P[right guess] - 1.

    It guesses D if its belief in D exceeds 1/2; a belief of 1/2 is right half of the time.

    Args:
      repetitions: result of `play`.
      confidence: confidence level of the interval, in (0, 1).

    Returns:
      The advantage in [-1, 1], with the interval of Clopper and Pearson. Ties widen it: the lower
      bound takes the integer below the number of right guesses, and the upper bound that above.

    Example:
      >>> log_odds, ones = np.array([[3.0], [-2.0], [1.0], [0.0]]), np.ones((4, 1))
      >>> found = Repetitions(np.array([1, 0, 0, 1], bool), log_odds, ones, ones, ())
      >>> advantage(found, confidence=0.95).value  # two right, one wrong, one tie
      0.25
    """
    final = repetitions.log_odds[:, -1]
    right = np.where(final == 0, 0.5, (final > 0) == repetitions.in_d)
    total, count = right.sum(), len(right)
    lower, _ = intervals.clopper_pearson(int(np.floor(total)), count, confidence=confidence)
    _, upper = intervals.clopper_pearson(int(np.ceil(total)), count, confidence=confidence)
    return Frequency(*(float(2 * share - 1) for share in (total / count, lower, upper)))


def violations(repetitions: Repetitions, *, rho: float, confidence: float) -> Frequency:
    """Estimates the probability that the final belief in the true data set exceeds a bound.

    For a full batch it is `identifiability.gaussian_violation_probability` at the realised mu if
    that is equal for all transcripts, as for local noise. Under global noise the local
    sensitivities depend on earlier outputs, and the probability may be larger than at the largest
    mu; the bound is then `identifiability.violation_probability` of the event.

    Args:
      repetitions: result of `play`.
      rho: bound on the belief, in (1/2, 1).
      confidence: confidence level of the interval, in (0, 1).

    Returns:
      The share of the repetitions, with the interval of Clopper and Pearson.

    Example:
      >>> log_odds, ones = np.array([[3.0], [-2.0], [1.0], [0.0]]), np.ones((4, 1))
      >>> found = Repetitions(np.array([1, 0, 0, 1], bool), log_odds, ones, ones, ())
      >>> violations(found, rho=0.9, confidence=0.95).value
      0.25
    """
    _check.open_unit(rho=rho)
    exceeds = beliefs(repetitions)[:, -1] > rho
    lower, upper = intervals.clopper_pearson(
        int(exceeds.sum()), len(exceeds), confidence=confidence
    )
    return Frequency(float(exceeds.mean()), float(lower), float(upper))


def realised_mu(repetitions: Repetitions) -> Float[np.ndarray, " r"]:
    """Computes mu of each transcript, sqrt(sum of (local sensitivity / std)^2 over the steps).

    For local noise it equals sqrt(k) times the largest distance of the sums divided by the standard
    deviation of global noise, unless a local sensitivity is 0. For global noise it is at most that.

    Args:
      repetitions: result of `play`.

    Returns:
      mu of the full-batch Gaussian mechanism that is as informative as the transcript of full
      batches. That of Poisson batches is less informative.

    Example:
      >>> ones = np.ones((2, 4))
      >>> found = Repetitions(np.ones(2, bool), ones, ones, 2 * ones, ())
      >>> realised_mu(found).tolist()
      [1.0, 1.0]
    """
    distance, std = (
        np.asarray(x, np.float64) for x in (repetitions.local_sensitivity, repetitions.std)
    )
    ratio = np.divide(distance, std, out=np.zeros_like(distance), where=std > 0)
    return np.sqrt((ratio**2).sum(axis=1))


def empirical_epsilons(
    repetitions: Repetitions, *, delta: float, confidence: float
) -> EmpiricalEpsilons:
    """Computes the three empirical values of epsilon of the paper.

    Args:
      repetitions: result of `play`.
      delta: delta at which epsilon is stated, in (0, 1).
      confidence: confidence level of the interval of the last one, in (0, 1).

    Returns:
      The three values, each with its own meaning.

    References:
      Bernau et al., Quantifying Identifiability to Choose and Audit epsilon in Differentially
      Private Deep Learning, 2021, Section 5.3. The printed beta / (1 - beta) is its logarithm.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> in_d, ones = np.arange(1000) < 500, np.ones((1000, 1))
      >>> log_odds = rng.normal(np.where(in_d, 0.5, -0.5))[:, None]
      >>> repetitions = Repetitions(in_d, log_odds, ones, ones, ())
      >>> found = empirical_epsilons(repetitions, delta=0.01, confidence=0.95)
      >>> round(found.from_sensitivities, 1), bool(found.from_advantage.lower < 2.3)
      (2.3, True)
    """
    _check.open_unit(delta=delta)
    sign = np.where(repetitions.in_d, 1.0, -1.0)

    def of_mu(mu: float) -> float:
        return accounting.gaussian.epsilon(delta, mu=mu) if mu > 0 else 0.0

    def of_advantage(share: float) -> float:
        if share >= 1:
            return float("inf")
        return of_mu(identifiability.mu_for_advantage(share)) if share > 0 else 0.0

    observed = advantage(repetitions, confidence=confidence)
    return EmpiricalEpsilons(
        from_sensitivities=of_mu(float(realised_mu(repetitions).mean())),
        from_belief=float((sign * repetitions.log_odds[:, -1]).max()),
        from_advantage=Frequency(*map(of_advantage, observed)),
    )


class _Start(NamedTuple):
    """Key of the initial parameters of a repetition, so that few are in memory, and its coin."""

    init_key: PRNGKeyArray
    in_d: Bool[Array, ""]


@dataclass(frozen=True)
class _PairSampler:
    """Draws from the records of both data sets; the rows of the pair follow each batch."""

    shared: sampling.Poisson
    num_pair: int

    @property
    def num_examples(self) -> int:
        return self.shared.num_examples + self.num_pair

    @property
    def expected_batch_size(self) -> float:
        return self.shared.expected_batch_size

    @property
    def capacity(self) -> int:
        return self.shared.capacity + self.num_pair

    def sample(self, key: PRNGKeyArray) -> tuple[Int[Array, " b"], Bool[Array, " b"]]:
        indices, mask = self.shared.sample(key)
        pair = self.shared.num_examples + jnp.arange(self.num_pair, dtype=indices.dtype)
        return jnp.append(indices, pair), jnp.append(mask, jnp.ones(self.num_pair, bool))

    def event(self, *, noise_multiplier: float, steps: int) -> "DpEvent":
        raise ValueError("Expected no epsilon of an audit's training, which is not released.")


def _algorithm(
    trainer: Trainer,
    init_params: Callable[[PRNGKeyArray], Params],
    relation: Relation,
    num_rows: int,
    hyper: None,
) -> training.Algorithm:
    """Makes the training of one repetition; its batches end in the rows of the pair."""
    del hyper
    num_pair = 1 if relation == "add_or_remove_one" else 2
    num_shared, q = num_rows - num_pair, trainer.sampling_prob
    sampler = _PairSampler(_sampler(num_shared, q), num_pair)
    divisor = q * (num_shared + 1)
    global_std = trainer.noise_multiplier * trainer.grad.clip_norm
    sensitivity = float(trainer.grad.sensitivity(relation))

    def init(start):
        params = jax.tree.map(jnp.asarray, init_params(start.init_key))
        opt_state = trainer.optimizer.init(params)
        return _State(params, opt_state, jnp.int32(0), start.in_d, jnp.zeros((), float))

    def update(key, state, batch, mask):
        shared_key, pair_key, coin_key, noise_key = jax.random.split(key, 4)
        rows, is_real = jax.tree.map(lambda x: x[:-num_pair], (batch, mask))
        total, norms = trainer.grad(state.params, rows, is_real, shared_key)
        pair = jax.tree.map(lambda x: x[-num_pair:], batch)
        (first, second), pair_norms = _clipped_pair(
            trainer.grad, state.params, pair, pair_key, num_pair
        )
        difference = optax.tree.sub(first, second)
        distance = _norm(difference)
        std = jnp.asarray(global_std, distance.dtype)
        if trainer.noise == "local":
            std = std * distance / sensitivity
        coin = jax.random.bernoulli(coin_key, q)
        noise = _tree.normal_like(noise_key, total, std=1.0)
        noisy = jax.tree.map(
            lambda t, a, b, z: t + jnp.where(coin, jnp.where(state.in_d, a, b), 0) + std * z,
            total,
            first,
            second,
            noise,
        )
        released = optax.tree.sub(noisy, total)
        gain = _gain(released, first, second, std, sampling_prob=q)
        log_odds = state.log_odds + jnp.where(std > 0, gain, 0).astype(state.log_odds.dtype)
        grads = jax.tree.map(lambda g: g / divisor, noisy)
        new = _step.apply_gradient(trainer.optimizer, state, grads)
        info = _Info(
            log_odds,
            distance,
            std,
            is_real.sum() + num_pair,
            (is_real & ~jnp.isfinite(norms)).sum() + (~jnp.isfinite(pair_norms)).sum(),
        )
        return new._replace(log_odds=log_odds), info

    def event(steps: int) -> "DpEvent":
        return sampler.event(noise_multiplier=trainer.noise_multiplier, steps=steps)

    return training.Algorithm(init, update, sampler, event)


def _clipped_pair(
    grad: ClippedGrad, params: Params, pair: Batch, key: PRNGKeyArray, num_pair: int
) -> tuple[tuple[PyTree, PyTree], Float[Array, " p"]]:
    """Computes the clipped gradients of the two records, and the norms before clipping.

    A missing second one is zero, and has no norm.
    """

    def one(record):
        row = jax.tree.map(lambda x: x[None], record)
        return grad(params, row, jnp.ones(1, bool), key)

    if num_pair == 1:
        first, norms = one(jax.tree.map(lambda x: x[0], pair))
        return (first, jax.tree.map(jnp.zeros_like, first)), norms
    both, norms = jax.lax.map(one, pair)
    first, second = (jax.tree.map(lambda x, i=i: x[i], both) for i in range(2))
    return (first, second), norms[:, 0]


def _gain(
    released: PyTree,
    first: PyTree,
    second: PyTree,
    std: Float[Array, ""],
    *,
    sampling_prob: float,
) -> Float[Array, ""]:
    """Computes the log-likelihood ratio of D to D', given the noise and the rows of the pair."""
    if sampling_prob == 1:
        middle = jax.tree.map(lambda y, a, b: y - (a + b) / 2, released, first, second)
        return _dot(middle, optax.tree.sub(first, second)) / std**2

    def log_mixture(mean):
        exponent = (_dot(released, mean) - _dot(mean, mean) / 2) / std**2
        return jnp.logaddexp(jnp.log1p(-sampling_prob), jnp.log(sampling_prob) + exponent)

    return log_mixture(first) - log_mixture(second)


def _sampler(n: int, sampling_prob: float) -> sampling.Poisson:
    if sampling_prob == 1:
        return sampling.full_batch(n)
    return sampling.poisson(n, sampling_prob=sampling_prob)


def _dot(a: PyTree, b: PyTree) -> Float[Array, ""]:
    products = jax.tree.map(lambda x, y: jnp.vdot(x, y, precision=jax.lax.Precision.HIGHEST), a, b)
    return jnp.stack(jax.tree.leaves(products)).sum()


def _norm(tree: PyTree) -> Float[Array, ""]:
    return jnp.sqrt(_dot(tree, tree))


def _stack(pair: Pair) -> Batch:
    ends = [pair.first] if pair.second is None else [pair.first, pair.second]
    return jax.tree.map(
        lambda x, *rows: jnp.concatenate(
            [jnp.asarray(x), jnp.stack([jnp.asarray(r) for r in rows])]
        ),
        pair.shared,
        *ends,
    )


def _check_pair(pair: Pair) -> None:
    ends: list[tuple[str, Any]] = [("first", pair.first)]
    if pair.second is not None:
        ends.append(("second", pair.second))
    shapes = jax.tree.map(lambda x: np.shape(x)[1:], pair.shared)
    for name, record in ends:
        if jax.tree.map(np.shape, record) != shapes:
            raise ValueError(
                f"Expected {name} as one record like those of shared, of shapes {shapes}, "
                f"got {jax.tree.map(np.shape, record)}."
            )
