"""Training algorithms: pure functions for any optax optimiser, each with its privacy event.

In the shapes below `b` counts the rows of a padded batch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxpriv import _check
from jaxpriv._types import Batch, Loss, Params, Sampler
from jaxpriv.grads import ClippedGrad, LengthBuckets, MicrobatchSize, _microbatching
from jaxpriv.training import _arguments, _step

if TYPE_CHECKING:
    from dp_accounting import DpEvent

__all__ = ["Algorithm", "AlgorithmState", "SgdInfo", "dpsgd", "sgd"]


class AlgorithmState(Protocol):
    """What the state of every algorithm has."""

    @property
    def params(self) -> Params:
        """Parameters that are evaluated and released."""
        ...

    @property
    def step(self) -> Int[Array, ""]:
        """Number of steps done."""
        ...


class SgdInfo(NamedTuple):
    """Diagnostics of an SGD step. Not private.

    loss: mean loss over the batch, before the step.
    batch_size: number of real rows.
    num_nonfinite: number of real rows whose loss is NaN or infinite.
    """

    loss: Float[Array, ""]
    batch_size: Int[Array, ""]
    num_nonfinite: Int[Array, ""]


class Algorithm(NamedTuple):
    """A training algorithm.

    init: `init(params) -> state`.
    update: `update(key, state, batch, mask) -> (state, info)`; a step.
    sampler: draws the batches; `event` assumes this sampler.
    event: `event(steps)`, the dp_accounting event of that many steps.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from jaxpriv import sampling, training
      >>> alg = training.sgd(
      ...     lambda w, x, key: jnp.dot(w, x), optax.sgd(0.5), sampling.full_batch(2)
      ... )
      >>> state = alg.init(jnp.zeros(2))
      >>> indices, mask = alg.sampler.sample(jax.random.key(0))
      >>> state, info = alg.update(jax.random.key(1), state, jnp.eye(2)[indices], mask)
      >>> int(state.step), state.params.tolist()
      (1, [-0.25, -0.25])
    """

    init: Callable[[Params], AlgorithmState]
    update: Callable[[PRNGKeyArray, Any, Batch, Bool[Array, " b"]], tuple[Any, Any]]
    sampler: Sampler
    event: Callable[[int], "DpEvent"]


def sgd(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    sampler: Sampler,
    *,
    microbatch_size: MicrobatchSize = None,
    buckets: LengthBuckets | None = None,
) -> Algorithm:
    """Minimises a loss by the mean gradient of each batch, without privacy.

    Args:
      loss: `loss(params, example, key)`, a scalar for one example.
      optimizer: any optax transformation.
      sampler: any sampler; the mean is taken over the rows that it draws.
      microbatch_size: number of rows processed at a time, or "auto", as for `clipped_grad`.
      buckets: widths to which rows of different lengths are cut, instead of microbatch_size.

    Returns:
      The algorithm; its event is the non-private one.

    Raises:
      ValueError: if an argument is of the wrong kind.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from jaxpriv import sampling
      >>> def loss(w, x, key):
      ...     return (w - x) ** 2
      >>> alg = sgd(loss, optax.sgd(0.5), sampling.full_batch(3))
      >>> x, mask = jnp.array([1.0, 2.0, 6.0]), jnp.ones(3, bool)
      >>> state, info = alg.update(jax.random.key(0), alg.init(jnp.float32(0)), x, mask)
      >>> float(state.params)  # the mean
      3.0
    """
    _arguments.check_optimizer(optimizer)
    _arguments.check_sampler(sampler)
    _microbatching.check_size(microbatch_size)
    _microbatching.check_buckets(buckets, microbatch_size)
    _check.takes("loss(params, example, key)", loss)

    def total_loss(params, batch, mask, keys):
        losses = jax.vmap(loss, in_axes=(None, 0, 0))(params, batch, keys)
        if getattr(losses, "shape", None) != mask.shape:
            raise ValueError(
                "Expected loss(params, example, key) to return a scalar, "
                f"got {_arguments.describe_losses(losses)} for one example."
            )
        return jnp.where(mask, losses, 0).sum(), losses

    def update(key, state, batch, mask):
        keys, rows = jax.random.split(key, mask.shape[0]), mask.shape[0]
        size = rows if microbatch_size is None else microbatch_size

        def sum_rows(batch, mask, keys):
            grad = jax.grad(total_loss, has_aux=True)
            return grad(state.params, batch, mask, keys)

        if size == "auto":
            example = jax.tree.map(lambda x: x[0], batch)
            size = _microbatching.suggested_size(
                loss, state.params, example, keys[0], batch_size=rows
            )

        if buckets is not None:
            grads, losses = _microbatching.accumulate_by_length(
                sum_rows, batch, mask, keys, buckets=buckets
            )
        else:
            grads, losses = _microbatching.accumulate(sum_rows, batch, mask, keys, size=size)
        count = jnp.maximum(mask.sum(), 1)
        grads = jax.tree.map(lambda g: g / count.astype(g.dtype), grads)
        value = jnp.where(mask, losses, 0).sum() / count.astype(losses.dtype)
        info = SgdInfo(value, mask.sum(), (mask & ~jnp.isfinite(losses)).sum())
        return _step.apply_gradient(optimizer, state, grads), info

    def init(params):
        return _step.initial_state(optimizer, params)

    return Algorithm(init, update, sampler, _step.non_private_event)


def dpsgd(
    clipped_grad: ClippedGrad,
    optimizer: optax.GradientTransformation,
    sampler: Sampler,
    *,
    noise_multiplier: float,
) -> Algorithm:
    """Minimises a loss by noisy sums of clipped per-example gradients (DP-SGD).

    g = (sum_i clip(g_i) + N(0, (z C)^2 I)) / expected batch size. The number of records is taken
    to be public, and so the divisor is; an empty batch is noised, applied and counted like any
    other. A step is the sampler's event with noise multiplier z, under either relation.

    Args:
      clipped_grad: result of `grads.clipped_grad`, with clip norm C.
      optimizer: any optax transformation; it receives private gradients only.
      sampler: `sampling.poisson` or `sampling.full_batch`.
      noise_multiplier: z, the standard deviation of the noise on the sum divided by C; 0 gives no
        privacy (epsilon is infinite).

    Returns:
      The algorithm.

    Raises:
      ValueError: if an argument is of the wrong kind, noise_multiplier is negative or not
        finite, or the sampler has no guarantee.

    References:
      Abadi et al., Deep Learning with Differential Privacy, 2016, Algorithm 1.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from jaxpriv import accounting, grads, sampling
      >>> grad = grads.clipped_grad(lambda w, x, key: jnp.sum((w - x) ** 2), clip_norm=1.0)
      >>> sampler = sampling.poisson(10_000, sampling_prob=0.01)
      >>> alg = dpsgd(grad, optax.adam(1e-3), sampler, noise_multiplier=1.0)
      >>> event = alg.event(steps=1000)
      >>> epsilon = accounting.epsilon(event, delta=1e-5, relation="add_or_remove_one")
      >>> round(epsilon, 1)
      1.8
    """
    _check.attributes(
        ("clip_norm", "sensitivity"),
        "grads.clipped_grad(loss, clip_norm=...)",
        clipped_grad=clipped_grad,
    )
    _arguments.check_optimizer(optimizer)
    _arguments.check_sampler(sampler)
    _check.non_negative(noise_multiplier=noise_multiplier)
    noise_multiplier = float(noise_multiplier)
    event_of_step = sampler.event(noise_multiplier=noise_multiplier, steps=1)
    std = noise_multiplier * clipped_grad.clip_norm

    def update(key, state, batch, mask):
        examples_key, noise_key = jax.random.split(key)
        total, norms = clipped_grad(state.params, batch, mask, examples_key)
        grads = _step.noisy_mean(noise_key, total, std=std, divisor=sampler.expected_batch_size)
        info = _step.dpsgd_info(norms, mask, clipped_grad.clip_norm)
        return _step.apply_gradient(optimizer, state, grads), info

    def event(steps: int) -> "DpEvent":
        _check.positive_int(steps=steps)
        return sampler.event(noise_multiplier=noise_multiplier, steps=steps)

    def init(params):
        return _step.initial_state(optimizer, params, event_of_step)

    return Algorithm(init, update, sampler, event)
