"""Model inversion: reconstructs an input of a class from a classifier and its gradients.

`gradient_descent` and `enhanced` minimise the loss of one label from one start, as one scan; the
caller vmaps over labels and restarts. `attacks` lists both, with the penalties of the paper, as a
table beside the membership suite. A reconstruction shows what the model associates with the
class, which need not be a training record: `metrics.image` measures how near it is to one.

In the shapes below `*x` are the axes of an input (images: h, w, c), `k` counts labels, `t` steps.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Integer, PRNGKeyArray, Shaped

from jaxpriv import _check, _convolutions, signals
from jaxpriv.attacks import _tables
from jaxpriv.attacks._tables import Attack

__all__ = [
    "FACES",
    "FACES_PROJECTED",
    "MNIST",
    "MNIST_PROJECTED",
    "EarlyStop",
    "Inversion",
    "Penalty",
    "Predict",
    "Run",
    "Settings",
    "Target",
    "applicable",
    "attacks",
    "bilateral_total_variation",
    "enhanced",
    "gradient_descent",
    "l1_norm",
    "missing",
]

Predict = Callable[[Float[Array, "*x"]], Float[Array, " c"]]
"""`predict(x) -> logits [c]` of one input; a function that JAX can differentiate."""

Penalty = Callable[[Float[Array, "*x"]], Float[Array, ""]]
"""`penalty(x) -> number` to be added to the loss, such as `l1_norm`."""

_BETA1, _BETA2, _TAU = 0.9, 0.999, 1e-8
"""Decay rates of Adam's moments, and the number added to the second moment."""


class Inversion(NamedTuple):
    """Result of an attack on one label.

    best: iterate with the lowest loss, which is the reconstruction.
    loss: its loss.
    confidence: probability of the label for it.
    step: number of steps after which it was reached; 0 is the start.
    last: iterate after the last step, which Algorithm 1 of Zhang et al. returns.
    losses: loss of the start and after each step; constant after an early stop.
    steps_done: number of steps; less than planned after an early stop.
    """

    best: Float[Array, "*x"]
    loss: Float[Array, ""]
    confidence: Float[Array, ""]
    step: Int[Array, ""]
    last: Float[Array, "*x"]
    losses: Float[Array, " t"]
    steps_done: Int[Array, ""]


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """Criteria that end an attack before the planned number of steps.

    patience: maximum number of steps without a new lowest loss; None: unlimited.
    max_loss: loss at or below which the attack ends; None: no such loss.

    Raises:
      ValueError: if patience is not a positive whole number, or both criteria are None.

    Example:
      >>> EarlyStop(patience=100).max_loss is None
      True
    """

    patience: int | None = None
    max_loss: float | None = None

    def __post_init__(self) -> None:
        if self.patience is not None:
            _check.positive_int(patience=self.patience)
        if self.patience is None and self.max_loss is None:
            raise ValueError("Expected patience or max_loss for an early stop, got neither.")


def l1_norm(x: Shaped[ArrayLike, "*x"]) -> Float[Array, ""]:
    """Computes the l1 norm of an input, sum |x|, which favours dark images of high contrast.

    Args:
      x: input; whole numbers and half precision are converted to float32.

    Returns:
      The norm.

    References:
      Zhang et al., Broadening Differential Privacy for Deep Learning Against Model Inversion
      Attacks, 2020, equation 4.

    Example:
      >>> float(l1_norm(jnp.array([0.5, -1.0])))
      1.5
    """
    return jnp.abs(_as_float(x)).sum()


def bilateral_total_variation(
    x: Shaped[ArrayLike, "h w c"], *, radius: int, decay: float
) -> Float[Array, ""]:
    """Computes the bilateral total variation of an image.

    The sum over shifts by m = 0, ..., p rows and l = -p, ..., p columns with m + l >= 0 of
    decay^(|m| + |l|) ||x - S_x^l S_y^m x||_1, where p is the radius. The norm is over the pixels at
    which both images are defined, so shifts do not wrap round. (The paper prints the exponent
    m + l, which would give the shift (2, -2) the weight 1.)

    Args:
      x: image; channels are added up, and whole numbers and half precision converted to float32.
      radius: largest shift p, in pixels; less than h and w.
      decay: weight of a shift by one pixel (alpha), in (0, 1].

    Returns:
      The variation; 0 for a constant image.

    Raises:
      ValueError: if radius is not in 1, ..., min(h, w) - 1 or decay is not in (0, 1].

    References:
      Farsiu et al., Fast and Robust Multiframe Super Resolution, 2004; Zhang et al., Broadening
      Differential Privacy for Deep Learning Against Model Inversion Attacks, 2020, equation 5.

    Example:
      >>> edge = jnp.array([[0.0, 0.0, 1.0]] * 2)[:, :, None]
      >>> float(bilateral_total_variation(edge, radius=1, decay=0.5))
      1.5
    """
    _check.positive_int(radius=radius)
    _check.probability(decay=decay)
    x = _as_float(x)
    height, width = x.shape[:2]
    if radius >= min(height, width):
        raise ValueError(f"Expected radius < {min(height, width)}, got radius={radius}.")
    total = jnp.zeros((), x.dtype)
    for down in range(radius + 1):
        for right in range(-down, radius + 1):
            image = x[down:, max(right, 0) : width + min(right, 0)]
            shifted = x[: height - down, max(-right, 0) : width - max(right, 0)]
            total += decay ** (down + abs(right)) * jnp.abs(image - shifted).sum()
    return total


def _as_float(x: Shaped[ArrayLike, "*x"]) -> Float[Array, "*x"]:
    """Converts whole numbers, whose differences wrap round, and half precision to float32."""
    array = jnp.asarray(x)
    return array if array.dtype == jnp.float64 else array.astype(jnp.float32)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the enhanced attack.

    steps: number of steps (T).
    learning_rate: step size of Adam (eta).
    penalty: regulariser of the image, such as `l1_norm`.
    penalty_weight: its weight (lambda); 0 switches it off.
    loss: of the label, 1 - f_label(x) as in the paper, or -log f_label(x). The first has no
      gradient where the model is certain of another class, as it may be of a grey image.
    box: how entries stay in [0, 1]: by x = (tanh(w) + 1) / 2, or by projection after each step.

    Raises:
      ValueError: if a number is out of range, or loss or box is not one of these.

    Example:
      >>> Settings(steps=100, learning_rate=0.1, penalty=l1_norm, penalty_weight=0.01).steps
      100
    """

    steps: int
    learning_rate: float
    penalty: Penalty
    penalty_weight: float
    loss: Literal["one_minus_confidence", "cross_entropy"] = "one_minus_confidence"
    box: Literal["tanh", "projection"] = "tanh"

    def __post_init__(self) -> None:
        _check.positive_int(steps=self.steps)
        _check.positive(learning_rate=self.learning_rate)
        _check.non_negative(penalty_weight=self.penalty_weight)
        _check.one_of(("one_minus_confidence", "cross_entropy"), loss=self.loss)
        _check.one_of(("tanh", "projection"), box=self.box)


MNIST = Settings(steps=5000, learning_rate=0.1, penalty=l1_norm, penalty_weight=0.05)
"""Settings of Zhang et al. (2020) for MNIST: images whose background is black."""

_RADIUS = 2
"""Radius of the variation of faces, in pixels."""

FACES = Settings(
    steps=100,
    learning_rate=0.05,
    penalty=functools.partial(bilateral_total_variation, radius=_RADIUS, decay=0.9),
    penalty_weight=0.001,
)
"""Settings of Zhang et al. (2020) for faces, 60 pixels wide and 70 high."""


MNIST_PROJECTED = dataclasses.replace(
    MNIST,
    steps=500,
    learning_rate=0.05,
    penalty_weight=0.01,
    loss="cross_entropy",
    box="projection",
)
"""Settings of our own for MNIST, with another loss and box, see `FACES_PROJECTED`."""

FACES_PROJECTED = dataclasses.replace(
    FACES, penalty_weight=0.00001, loss="cross_entropy", box="projection"
)
"""Settings of our own, for models that are certain of another class at the start of the others.

The start is black, where a linear model is not certain, and the gradient does not vanish. The small
penalty on faces keeps features that are a few pixels wide, such as eyes.
"""


def gradient_descent(
    predict: Predict,
    label: Integer[ArrayLike, ""],
    start: Float[Array, "*x"],
    *,
    steps: int,
    learning_rate: float,
    bounds: tuple[float, float] | None = (0.0, 1.0),
    early_stop: EarlyStop | None = None,
) -> Inversion:
    """Inverts a model by gradient descent on 1 - f_label(x), without a regulariser.

    Args:
      predict: classifier of one input; f is the softmax of its logits.
      label: class to reconstruct.
      start: first iterate, projected to the bounds; zeros in the publication.
      steps: number of steps.
      learning_rate: step size.
      bounds: interval to which every entry is projected after each step; None: no projection.
      early_stop: criteria for stopping early; None: all steps are done.

    Returns:
      The iterate with the lowest loss, and the course of the optimisation. Where predict returns
      NaN at every iterate, it is the start, and its loss is infinite.

    Raises:
      ValueError: if a number is out of range or predict does not return logits [c].

    References:
      Fredrikson, Jha and Ristenpart, Model Inversion Attacks that Exploit Confidence Information
      and Basic Countermeasures, 2015, Algorithm 1 (without its processing step).

    Example:
      >>> predict = lambda x: jnp.stack([x.sum(), -x.sum()])
      >>> result = gradient_descent(predict, 0, jnp.zeros(2), steps=20, learning_rate=1.0)
      >>> result.best.tolist(), round(float(result.confidence), 2)
      ([1.0, 1.0], 0.98)
    """
    _check.positive_int(steps=steps)
    _check.positive(learning_rate=learning_rate)
    if bounds is not None and not bounds[0] < bounds[1]:
        raise ValueError(f"Expected bounds (low, high) with low < high, got {bounds}.")

    def projected(x):
        return x if bounds is None else x.clip(*bounds)

    def objective(x):
        log_p = _log_confidence(predict, label, x)
        return -jnp.expm1(log_p), jnp.exp(log_p)  # without cancellation where f is near 1

    def move(x, gradient, moments):
        return projected(x - learning_rate * gradient), moments

    return _minimise(objective, move, projected(start), (), steps=steps, early_stop=early_stop)


def enhanced(
    predict: Predict,
    label: Integer[ArrayLike, ""],
    start: Float[Array, "*x"],
    *,
    settings: Settings,
    early_stop: EarlyStop | None = None,
) -> Inversion:
    """Inverts a model by Adam on the loss of the label plus penalty_weight * penalty(x).

    The optimisation is over w with x = (tanh(w) + 1) / 2, which lies in [0, 1]; with the box
    "projection" over x itself. A step is that of Algorithm 1 of the paper, where g is the gradient:
    m = 0.9 m + 0.1 g, v = 0.999 v + 0.001 g^2, w = w - learning_rate * m / sqrt(v + 1e-8).
    Without bias correction the first steps are about 3 times as large as those of the usual Adam.

    Args:
      predict: classifier of one input in [0, 1]; f is the softmax of its logits.
      label: class to reconstruct.
      start: w at the start; zeros in the paper, an image of 0.5, or of 0 with the box "projection".
        Restarts differ in it.
      settings: steps, step size, penalty, loss and box, such as `MNIST` or `FACES`.
      early_stop: criteria for stopping early; None: all steps are done.

    Returns:
      The iterate with the lowest loss, and the course of the optimisation. Where predict returns
      NaN at every iterate, it is the start, and its loss is infinite.

    Raises:
      ValueError: if predict does not return logits [c].

    References:
      Zhang et al., Broadening Differential Privacy for Deep Learning Against Model Inversion
      Attacks, 2020, Algorithm 1.

    Example:
      Two classes, and two restarts of each.

      >>> predict = lambda x: 9 * jnp.stack([x[0] - x[1], x[1] - x[0]])
      >>> settings = Settings(steps=200, learning_rate=0.1, penalty=l1_norm, penalty_weight=0.05)
      >>> starts = jnp.stack([jnp.zeros(3), jnp.array([0.1, -0.2, 0.3])])
      >>> attack = lambda label, w: enhanced(predict, label, w, settings=settings)
      >>> results = jax.vmap(jax.vmap(attack, (None, 0)), (0, None))(jnp.arange(2), starts)
      >>> results.best[:, 0].round(1).tolist()
      [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """

    def unchanged(w):
        return w

    def squashed(w):
        return (jnp.tanh(w) + 1) / 2

    def projected(w):
        return w.clip(0, 1)

    if settings.box == "projection":
        image, settled = unchanged, projected
    else:
        image, settled = squashed, unchanged

    def objective(w):
        x = image(w)
        log_p = _log_confidence(predict, label, x)
        loss = -log_p if settings.loss == "cross_entropy" else -jnp.expm1(log_p)
        return loss + settings.penalty_weight * settings.penalty(x), jnp.exp(log_p)

    def move(w, g, moments):
        m, v = moments
        m = _BETA1 * m + (1 - _BETA1) * g
        v = _BETA2 * v + (1 - _BETA2) * g**2
        return settled(w - settings.learning_rate * m / jnp.sqrt(v + _TAU)), (m, v)

    start = settled(start)
    moments = (jnp.zeros_like(start), jnp.zeros_like(start))
    result = _minimise(objective, move, start, moments, steps=settings.steps, early_stop=early_stop)
    return result._replace(best=image(result.best), last=image(result.last))


def _log_confidence(
    predict: Predict, label: Integer[ArrayLike, ""], x: Float[Array, "*x"]
) -> Float[Array, ""]:
    """Computes log f_label(x)."""
    logits = predict(x)
    _num_classes(logits)
    return signals.negative_loss(logits, label)


def _num_classes(logits: Any) -> int:
    """Returns c for logits [c], or for their shape; raises ValueError for others."""
    if logits.ndim != 1 or logits.shape[0] < 2:
        raise ValueError(f"Expected logits [c] of one input, got shape {list(logits.shape)}.")
    return logits.shape[0]


class _State(NamedTuple):
    """State of the optimisation: the iterate, the best one, and what early stopping needs."""

    x: Float[Array, "*x"]
    moments: Any
    best: Float[Array, "*x"]
    best_loss: Float[Array, ""]
    best_confidence: Float[Array, ""]
    best_step: Int[Array, ""]
    steps_done: Int[Array, ""]
    stopped: Array


def _minimise(
    objective: Callable[[Array], tuple[Array, Array]],
    move: Callable[[Array, Array, Any], tuple[Array, Any]],
    start: Float[Array, "*x"],
    moments: Any,
    *,
    steps: int,
    early_stop: EarlyStop | None,
) -> Inversion:
    """Minimises `objective(x) -> (loss, confidence)` and returns the best iterate.

    The scan has steps + 1 iterations. Each evaluates its iterate, and all but the last move it.
    """

    def step(state: _State, number: Array) -> tuple[_State, Array]:
        (loss, confidence), gradient = jax.value_and_grad(objective, has_aux=True)(state.x)
        is_better = loss < state.best_loss
        best_step = jnp.where(is_better, state.steps_done, state.best_step)
        stopped = state.stopped
        if early_stop is not None and early_stop.patience is not None:
            stopped |= state.steps_done - best_step >= early_stop.patience
        if early_stop is not None and early_stop.max_loss is not None:
            stopped |= loss <= early_stop.max_loss
        is_moving = ~stopped & (number < steps)
        moved = move(state.x, gradient, state.moments)
        x, moments = jax.tree.map(
            lambda new, old: jnp.where(is_moving, new, old), moved, (state.x, state.moments)
        )
        new_state = _State(
            x=x,
            moments=moments,
            best=jnp.where(is_better, state.x, state.best),
            best_loss=jnp.where(is_better, loss, state.best_loss),
            best_confidence=jnp.where(is_better, confidence, state.best_confidence),
            best_step=best_step,
            steps_done=state.steps_done + is_moving.astype(jnp.int32),
            stopped=stopped,
        )
        return new_state, loss

    loss, confidence = jax.eval_shape(objective, start)
    zero = jnp.int32(0)
    first = _State(
        x=start,
        moments=moments,
        best=start,
        best_loss=jnp.full((), jnp.inf, loss.dtype),
        best_confidence=jnp.zeros((), confidence.dtype),
        best_step=zero,
        steps_done=zero,
        stopped=jnp.zeros((), bool),
    )
    end, losses = jax.lax.scan(_convolutions.for_loops(step), first, jnp.arange(steps + 1))
    return Inversion(
        best=end.best,
        loss=end.best_loss,
        confidence=end.best_confidence,
        step=end.best_step,
        last=end.x,
        losses=losses,
        steps_done=end.steps_done,
    )


@dataclass(frozen=True, kw_only=True)
class Target:
    """White-box access to a classifier.

    predict: classifier of one input in [0, 1], which JAX can differentiate; None without access.
    shape: shape of an input; (h, w, c) for images, of at least 3 x 3 pixels.

    Example:
      >>> Target(predict=lambda x: jnp.stack([x.sum(), -x.sum()]), shape=(28, 28, 1)).shape
      (28, 28, 1)
    """

    predict: Predict | None
    shape: tuple[int, ...]


Run = Callable[[PRNGKeyArray, Target, Integer[Array | np.ndarray, " k"]], Inversion]
"""`run(key, target, labels [k]) -> Inversion`, whose arrays have the leading axis k.

Raises ValueError for labels that are not classes of the target, or if its outputs are NaN.
"""


def attacks(
    *,
    restarts: int = 1,
    steps: int | None = None,
    learning_rate: float = 0.1,
    penalty_weight: float | None = None,
) -> tuple[Attack, ...]:
    """Lists the inversion attacks: the simplest, those of the paper, and two of our own.

    Args:
      restarts: number of starts for each label, of which the result with the lowest loss is
        returned. The first start is that of the publication; the others add Gaussian noise of
        standard deviation 0.1.
      steps: number of steps of every attack; None takes 5,000 for gradient descent and those of
        the settings for the others.
      learning_rate: step size of gradient descent.
      penalty_weight: weight of the penalty of all but gradient descent; None takes that of the
        settings, for images of 784 pixels (l1 norm) and 4,200 pixels (bilateral total variation).

    Returns:
      The table.

    Raises:
      ValueError: if a number is out of range.

    Example:
      >>> target = Target(predict=lambda x: jnp.stack([x.sum(), 2.0]), shape=(4,))
      >>> for attack in applicable(attacks(steps=50), target):
      ...     result = attack.run(jax.random.key(0), target, jnp.array([0]))
      ...     print(attack.name, (result.confidence[0] > 0.5).item())
      gradient_descent True
      enhanced_l1 True
      projected_l1 True
    """
    _check.positive_int(restarts=restarts)
    if steps is not None:
        _check.positive_int(steps=steps)
    if penalty_weight is not None:
        _check.non_negative(penalty_weight=penalty_weight)

    def baseline(predict, label, start):
        return gradient_descent(
            predict, label, start, steps=steps or MNIST.steps, learning_rate=learning_rate
        )

    def enhanced_with(paper: Settings):
        weight = paper.penalty_weight if penalty_weight is None else penalty_weight
        settings = dataclasses.replace(paper, steps=steps or paper.steps, penalty_weight=weight)
        return functools.partial(enhanced, settings=settings)

    fredrikson = "Fredrikson et al., Model Inversion Attacks that Exploit Confidence, 2015"
    zhang = "Zhang et al., Broadening Differential Privacy Against Model Inversion Attacks, 2020"
    return (
        Attack(
            name="gradient_descent",
            title="gradient descent",
            needs=("predict",),
            run=_from_starts(baseline, restarts),
            reference=fredrikson,
        ),
        Attack(
            name="enhanced_l1",
            title="enhanced, l1 norm",
            needs=("predict",),
            run=_from_starts(enhanced_with(MNIST), restarts),
            reference=zhang,
        ),
        Attack(
            name="enhanced_btv",
            title="enhanced, bilateral total variation",
            needs=("predict", "image"),
            run=_from_starts(enhanced_with(FACES), restarts),
            reference=zhang,
        ),
        Attack(
            name="projected_l1",
            title="cross-entropy, projected, l1 norm",
            needs=("predict",),
            run=_from_starts(enhanced_with(MNIST_PROJECTED), restarts),
            reference=f"{zhang}, with another loss and box",
        ),
        Attack(
            name="projected_btv",
            title="cross-entropy, projected, bilateral total variation",
            needs=("predict", "image"),
            run=_from_starts(enhanced_with(FACES_PROJECTED), restarts),
            reference=f"{zhang}, with another loss and box",
        ),
    )


def applicable(table: Iterable[Attack], target: Target) -> tuple[Attack, ...]:
    """Selects the attacks that the target admits.

    Args:
      table: attacks, as from `attacks()`.
      target: access to the attacked model.

    Returns:
      The attacks for which nothing is missing, in the order of the table.

    Example:
      >>> target = Target(predict=lambda x: x, shape=(10,))
      >>> [attack.name for attack in applicable(attacks(), target)]
      ['gradient_descent', 'enhanced_l1', 'projected_l1']
    """
    return tuple(attack for attack in table if not missing(attack, target))


def missing(attack: Attack, target: Target) -> str:
    """Describes what an attack needs and the target lacks.

    Args:
      attack: a row of the table.
      target: access to the attacked model.

    Returns:
      A phrase such as "needs inputs that are images"; empty if nothing is missing.

    Example:
      >>> missing(attacks()[-1], Target(predict=lambda x: x, shape=(10,)))
      'needs inputs that are images'
    """
    absent = {
        "predict": ("gradients of the target", target.predict is None),
        "image": ("inputs that are images", not _is_image(target.shape)),
    }
    return _tables.needs_phrase([absent[need][0] for need in attack.needs if absent[need][1]])


def _is_image(shape: tuple[int, ...]) -> bool:
    """Whether an input has rows, columns and channels, and shifts of the penalty fit into it."""
    return len(shape) == 3 and min(shape[:2]) > _RADIUS


_START_STD = 0.1


def _from_starts(attack: Callable[..., Inversion], restarts: int) -> Run:
    """Makes the run of an attack: all labels and starts at once, and the best start of each."""

    def run(
        key: PRNGKeyArray, target: Target, labels: Integer[Array | np.ndarray, " k"]
    ) -> Inversion:
        if target.predict is None:
            raise ValueError("Expected a target with predict, got none.")
        logits = jax.eval_shape(target.predict, jnp.zeros(target.shape))
        labels = _check.labels(labels, num_classes=_num_classes(logits))
        shape = (restarts, *target.shape)
        noise = _START_STD * jax.random.normal(key, shape)
        starts = noise.at[0].set(0.0)

        @jax.jit
        def invert(labels: Array, starts: Array) -> Inversion:
            from_start = functools.partial(attack, target.predict)
            all_starts = jax.vmap(jax.vmap(from_start, (None, 0)), (0, None))(labels, starts)
            best = all_starts.loss.argmin(axis=1)
            return jax.tree.map(lambda values: _rows(values, best), all_starts)

        result = invert(jnp.asarray(labels), starts)
        if not bool(jnp.isfinite(result.loss).all()):
            raise ValueError("Expected finite outputs of predict, got NaN at every iterate.")
        return result

    return run


def _rows(values: Array, index: Array) -> Array:
    """Selects `values[i, index[i]]` for every i."""
    return jax.vmap(lambda row, i: row[i])(values, index)
