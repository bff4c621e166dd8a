"""Training algorithms: pure functions over any optax optimiser, each with its privacy event.

In the shapes below `b` counts the rows of a padded batch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxpriv import _check, _tree
from jaxpriv._types import Batch, Loss, Params, Sampler, Scalar
from jaxpriv.grads import ClippedGrad, microbatching
from jaxpriv.grads.microbatching import MicrobatchSize
from jaxpriv.training import _arguments

if TYPE_CHECKING:
    from dp_accounting import DpEvent


class State(NamedTuple):
    """State of SGD and DP-SGD.

    params: trainable leaves.
    opt_state: state of the optax optimiser.
    step: steps done.
    """

    params: Params
    opt_state: PyTree
    step: Int[Array, ""]


class SgdInfo(NamedTuple):
    """Diagnostics of an SGD step. Not private.

    loss: mean over the batch, before the step.
    batch_size: number of real rows.
    num_nonfinite: number of real rows whose loss is NaN or infinite.
    """

    loss: Float[Array, ""]
    batch_size: Int[Array, ""]
    num_nonfinite: Int[Array, ""]


class DpsgdInfo(NamedTuple):
    """Diagnostics of a DP-SGD step. Not private: do not publish them.

    mean_norm: mean norm of the per-example gradients before clipping, over the finite ones.
    clipped_share: share of the finite gradients with a norm above the clip norm.
    batch_size: number of real rows; 0 is legal.
    num_nonfinite: number of real rows whose gradient is NaN or infinite and counts as zero.
    """

    mean_norm: Float[Array, ""]
    clipped_share: Float[Array, ""]
    batch_size: Int[Array, ""]
    num_nonfinite: Int[Array, ""]


class Algorithm(NamedTuple):
    """A training algorithm.

    init: (params) -> state, which has at least `params` and `step`, as State has.
    update: (key, state, batch, mask) -> (state, Info).
    sampler: draws the batches that `event` assumes.
    event: (steps) -> their dp_accounting event.
    """

    init: Callable[[Params], Any]
    update: Callable[[PRNGKeyArray, Any, Batch, Bool[Array, " b"]], tuple[Any, Any]]
    sampler: Sampler
    event: Callable[[int], "DpEvent"]


def sgd(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    sampler: Sampler,
    *,
    microbatch_size: MicrobatchSize = None,
) -> Algorithm:
    """Follows the mean gradient of each batch. No privacy.

    Args:
      loss: `loss(params, example, key)`, a scalar for one example.
      optimizer: any optax transformation.
      sampler: any; the mean is over the rows that were drawn.
      microbatch_size: number of rows processed at a time, or "auto", as for `clipped_grad`.

    Returns:
      The algorithm; its event is the non-private one.

    Raises:
      ValueError: if an argument is of the wrong kind.
    """
    _arguments.check_optimizer(optimizer)
    _arguments.check_sampler(sampler)
    microbatching.check_size(microbatch_size)
    if not callable(loss):
        raise ValueError(
            f"Expected loss(params, example, key) as a function, got {type(loss).__name__}."
        )

    def total_loss(params, batch, mask, keys):
        losses = jax.vmap(loss, in_axes=(None, 0, 0))(params, batch, keys)
        if getattr(losses, "shape", None) != mask.shape:
            raise ValueError(
                "Expected loss(params, example, key) to return a scalar, "
                f"got {_one_example(losses)} for one example."
            )
        return jnp.where(mask, losses, 0).sum(), losses

    def update(key, state, batch, mask):
        keys, rows = jax.random.split(key, mask.shape[0]), mask.shape[0]
        size = rows if microbatch_size is None else microbatch_size
        if size == "auto":
            example = jax.tree.map(lambda x: x[0], batch)
            size = microbatching.suggested_size(
                loss, state.params, example, keys[0], batch_size=rows
            )

        def sum_rows(batch, mask, keys):
            grad = jax.grad(total_loss, has_aux=True)
            return grad(state.params, batch, mask, keys)

        grads, losses = microbatching.accumulate(sum_rows, batch, mask, keys, size=size)
        count = jnp.maximum(mask.sum(), 1)
        grads = jax.tree.map(lambda g: g / count.astype(g.dtype), grads)
        value = jnp.where(mask, losses, 0).sum() / count.astype(losses.dtype)
        info = SgdInfo(value, mask.sum(), (mask & ~jnp.isfinite(losses)).sum())
        return apply_gradient(optimizer, state, grads), info

    def event(steps: int) -> "DpEvent":
        import dp_accounting

        _check.positive_int(steps=steps)
        return dp_accounting.NonPrivateDpEvent()

    return Algorithm(_initialiser(optimizer), update, sampler, event)


def dpsgd(
    clipped_grad: ClippedGrad,
    optimizer: optax.GradientTransformation,
    sampler: Sampler,
    *,
    noise_multiplier: float,
) -> Algorithm:
    """Follows noisy sums of clipped per-example gradients (DP-SGD).

    g = (sum_i clip(g_i) + N(0, (z C)^2 I)) / expected batch size. The divisor is public if the
    number of records is, as is assumed; an empty batch is noised, applied and counted like any
    other. A step is the sampler's event with noise multiplier z, under either relation.

    Args:
      clipped_grad: from `grads.clipped_grad`; it has the clip norm C.
      optimizer: any optax transformation; it sees private gradients only.
      sampler: `sampling.poisson` or `sampling.full_batch`.
      noise_multiplier: z = standard deviation of the noise on the sum / C; 0 gives no privacy
        (epsilon is infinite).

    Returns:
      The algorithm.

    Raises:
      ValueError: if an argument is of the wrong kind, noise_multiplier is negative or not
        finite, or the sampler has no guarantee.

    References:
      Abadi et al., Deep Learning with Differential Privacy, 2016, Algorithm 1.
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
    sampler.event(noise_multiplier=noise_multiplier, steps=1)  # a sampler without guarantee raises
    std = noise_multiplier * clipped_grad.clip_norm

    def update(key, state, batch, mask):
        examples_key, noise_key = jax.random.split(key)
        total, norms = clipped_grad(state.params, batch, mask, examples_key)
        grads = noisy_mean(noise_key, total, std=std, divisor=sampler.expected_batch_size)
        return apply_gradient(optimizer, state, grads), dpsgd_info(
            norms, mask, clipped_grad.clip_norm
        )

    def event(steps: int) -> "DpEvent":
        _check.positive_int(steps=steps)
        return sampler.event(noise_multiplier=noise_multiplier, steps=steps)

    return Algorithm(_initialiser(optimizer), update, sampler, event)


def noisy_mean(key: PRNGKeyArray, total: PyTree, *, std: Scalar, divisor: float) -> PyTree:
    """Adds noise to a sum and divides it by a public constant, in this order.

    Args:
      key: PRNG key.
      total: a clipped sum.
      std: standard deviation of the noise on the sum.
      divisor: public constant, independent of the batch that was drawn.

    Returns:
      (total + N(0, std^2 I)) / divisor, float32 or wider.
    """
    noise = _tree.normal_like(key, total, std=std)
    return jax.tree.map(lambda t, n: (t + n) / divisor, total, noise)


def dpsgd_info(norms: Float[Array, " b"], mask: Bool[Array, " b"], clip_norm: Scalar) -> DpsgdInfo:
    """Summarises the gradient norms of one step.

    Args:
      norms: norms of the gradients before clipping; inf where a gradient is not finite.
      mask: which rows are real.
      clip_norm: C.

    Returns:
      The Info of a DP-SGD step.
    """
    is_finite = mask & jnp.isfinite(norms)

    def mean(values):
        count = jnp.maximum(is_finite.sum(), 1).astype(norms.dtype)
        return jnp.where(is_finite, values, 0).sum() / count

    return DpsgdInfo(
        mean_norm=mean(norms),
        clipped_share=mean((norms > clip_norm).astype(norms.dtype)),
        batch_size=mask.sum(),
        num_nonfinite=(mask & ~is_finite).sum(),
    )


def _one_example(losses: PyTree) -> str:
    """Describes the value of a loss for one example."""
    if not hasattr(losses, "shape"):
        return f"a {type(losses).__name__}"
    return f"shape {losses.shape[1:]}"


def _initialiser(optimizer: optax.GradientTransformation) -> Callable[[Params], State]:
    def init(params):
        params = jax.tree.map(jnp.asarray, params)
        return State(params, optimizer.init(params), jnp.int32(0))

    return init


def apply_gradient(optimizer: optax.GradientTransformation, state: State, grads: PyTree) -> State:
    """Takes one step of the optimiser.

    Args:
      optimizer: any optax transformation.
      state: the state before the step.
      grads: like the parameters, of any float type.

    Returns:
      The state after the step; parameters keep their types.
    """
    grads = jax.tree.map(lambda g, p: g.astype(p.dtype), grads, state.params)
    # optax's Adam family raises a float to an int32 power.
    with jax.numpy_dtype_promotion("standard"):
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = jax.tree.map(lambda p, u: p + u.astype(p.dtype), state.params, updates)
    return State(params, opt_state, state.step + 1)
