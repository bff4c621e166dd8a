"""DP-SGD with a clip norm that tracks a private quantile of the gradient norms.

In the shapes below `b` counts the rows of a padded batch.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree, UInt32

from jaxpriv import _check, _tree
from jaxpriv._types import Params, Sampler
from jaxpriv.grads import ClippedGrad
from jaxpriv.grads._per_example import SMALLEST_CLIP_NORM
from jaxpriv.training import _step, algorithms
from jaxpriv.training.algorithms import Algorithm

if TYPE_CHECKING:
    from dp_accounting import DpEvent

__all__ = ["AdaptiveState", "adaptive_dpsgd"]


class AdaptiveState(NamedTuple):
    """State of adaptive DP-SGD.

    params: trainable leaves.
    opt_state: state of the optax optimiser.
    step: number of steps done.
    event: as in `State`.
    clip_norm: clip norm of the next step; as private as the parameters.
    """

    params: Params
    opt_state: PyTree
    step: Int[Array, ""]
    event: UInt32[Array, ""]
    clip_norm: Float[Array, ""]


def adaptive_dpsgd(
    clipped_grad: ClippedGrad,
    optimizer: optax.GradientTransformation,
    sampler: Sampler,
    *,
    noise_multiplier: float,
    count_noise: float,
    target_quantile: float,
    rate: float = 0.2,
) -> Algorithm:
    """Runs DP-SGD with a clip norm that tracks a quantile of the gradient norms.

    Each step also releases the number of norms below the clip norm C, as sum_i (b_i - 1/2) with
    noise of standard deviation s_b, and updates C <- C exp(-rate (share - quantile)). Sum and
    count together are one Gaussian release of noise multiplier z if the noise multiplier of the
    sum is z_sum = (z^-2 - (2 s_b)^-2)^(-1/2): the count has sensitivity 1/2 when a record is
    added or removed and 1 when one is replaced, as the sum has C and 2 C. C stays above a
    millionth of its initial value.

    Args:
      clipped_grad: result of `grads.clipped_grad`; its clip norm is the initial one.
      optimizer: any optax transformation.
      sampler: `sampling.poisson` or `sampling.full_batch`.
      noise_multiplier: z of the step (sum and count), which the accountant uses.
      count_noise: s_b, in records; above noise_multiplier / 2. A twentieth of the expected batch
        size is usual.
      target_quantile: target share of examples that are not clipped, in (0, 1).
      rate: learning rate of the clip norm, on a logarithmic scale.

    Returns:
      The algorithm; `state.clip_norm` is the current clip norm.

    Raises:
      ValueError: if an argument is out of range or of the wrong kind, or count_noise is too small
        for the noise multiplier.

    References:
      Andrew et al., Differentially Private Learning with Adaptive Clipping, 2021, Theorem 1 and
      Algorithm 1.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from jaxpriv import grads, sampling
      >>> grad = grads.clipped_grad(lambda w, x, key: jnp.dot(w, x), clip_norm=1.0)
      >>> alg = adaptive_dpsgd(
      ...     grad,
      ...     optax.sgd(0.1),
      ...     sampling.full_batch(200),
      ...     noise_multiplier=1.0,
      ...     count_noise=10.0,
      ...     target_quantile=0.5,
      ... )
      >>> batch, mask = jnp.full((200, 2), 0.1), jnp.ones(200, bool)
      >>> state, info = alg.update(jax.random.key(0), alg.init(jnp.zeros(2)), batch, mask)
      >>> 0.8 < state.clip_norm < 1.0  # all norms are smaller, so the clip norm shrinks
      Array(True, dtype=bool)
    """
    _check.positive(rate=rate)
    _check.open_unit(target_quantile=target_quantile)
    sum_noise = _sum_noise(noise_multiplier, count_noise)
    inner = algorithms.dpsgd(clipped_grad, optimizer, sampler, noise_multiplier=noise_multiplier)
    # If all gradients vanish, the clip norm would shrink until its square underflows.
    smallest = max(1e-6 * clipped_grad.clip_norm, SMALLEST_CLIP_NORM)

    def init(params):
        start: Any = inner.init(params)
        return AdaptiveState(*start, clip_norm=jnp.float32(clipped_grad.clip_norm))

    def update(key, state, batch, mask):
        examples_key, noise_key, count_key = jax.random.split(key, 3)
        clipped = dataclasses.replace(clipped_grad, clip_norm=state.clip_norm)
        total, norms = clipped(state.params, batch, mask, examples_key)
        std = sum_noise * state.clip_norm
        grads = _step.noisy_mean(noise_key, total, std=std, divisor=sampler.expected_batch_size)
        updated = _step.apply_gradient(optimizer, state, grads)
        below = jnp.where(mask, jnp.where(norms <= state.clip_norm, 0.5, -0.5), 0.0).sum()
        noisy = below + _tree.normal_like(count_key, below, std=count_noise)
        share = noisy / sampler.expected_batch_size + 0.5
        clip_norm = state.clip_norm * jnp.exp(-rate * (share - target_quantile))
        clip_norm = jnp.maximum(clip_norm, smallest)
        info = _step.dpsgd_info(norms, mask, state.clip_norm)
        return updated._replace(clip_norm=clip_norm), info

    def event(steps: int) -> "DpEvent":
        return inner.event(steps)

    return Algorithm(init, update, sampler, event)


def _sum_noise(noise_multiplier: float, count_noise: float) -> float:
    """Returns z_sum such that sum and count together have noise multiplier z."""
    _check.positive(noise_multiplier=noise_multiplier, count_noise=count_noise)
    if count_noise <= noise_multiplier / 2:
        raise ValueError(
            f"Expected count_noise > noise_multiplier / 2, got count_noise={count_noise}, "
            f"noise_multiplier={noise_multiplier}."
        )
    return 1 / math.sqrt(noise_multiplier**-2 - (2 * count_noise) ** -2)
