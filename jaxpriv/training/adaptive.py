"""DP-SGD whose clip norm follows a quantile of the gradient norms, privately.

In the shapes below `b` counts the rows of a padded batch.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from jaxpriv import _check
from jaxpriv._types import Params, Sampler
from jaxpriv.grads import ClippedGrad
from jaxpriv.grads.clipping import SMALLEST_CLIP_NORM
from jaxpriv.training import algorithms
from jaxpriv.training.algorithms import Algorithm

if TYPE_CHECKING:
    from dp_accounting import DpEvent


class AdaptiveState(NamedTuple):
    """State of adaptive DP-SGD.

    params: trainable leaves.
    opt_state: state of the optax optimiser.
    step: steps done.
    clip_norm: clip norm of the next step; differentially private like the parameters.
    """

    params: Params
    opt_state: PyTree
    step: Int[Array, ""]
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
    """Clips at a private estimate of a quantile of the gradient norms.

    Each step also releases how many norms lie below the clip norm C: sum_i (b_i - 1/2) with
    noise of standard deviation s_b, and moves C <- C exp(-rate (share - quantile)). Sum and
    count together are one Gaussian release of noise multiplier z when the sum gets
    z_sum = (z^-2 - (2 s_b)^-2)^(-1/2): the count's sensitivity is 1/2 when a record is added or
    removed, and 1 when one is replaced, as the sum's is C and 2 C. C never falls below a
    millionth of the first one.

    Args:
      clipped_grad: from `grads.clipped_grad`; its clip norm is the first one.
      optimizer: any optax transformation.
      sampler: `sampling.poisson` or `sampling.full_batch`.
      noise_multiplier: z of the whole step, which the accountant uses.
      count_noise: s_b, in records; above noise_multiplier / 2. A twentieth of the expected batch
        size is usual.
      target_quantile: share of the examples that should not be clipped, in (0, 1).
      rate: learning rate of the clip norm, on a logarithmic scale.

    Returns:
      The algorithm; its state has the clip norm.

    Raises:
      ValueError: if a setting is out of range or of the wrong kind, or count_noise is so small
        that no noise on the sum gives the noise multiplier.

    References:
      Andrew et al., Differentially Private Learning with Adaptive Clipping, 2021, Theorem 1 and
      Algorithm 1.
    """
    _check.positive(rate=rate)
    _check.open_unit(target_quantile=target_quantile)
    sum_noise = _sum_noise(noise_multiplier, count_noise)
    inner = algorithms.dpsgd(clipped_grad, optimizer, sampler, noise_multiplier=noise_multiplier)
    # Where gradients vanish, the clip norm would follow them until its square underflows.
    smallest = max(1e-6 * clipped_grad.clip_norm, SMALLEST_CLIP_NORM)

    def init(params):
        start = inner.init(params)
        clip_norm = jnp.float32(clipped_grad.clip_norm)
        return AdaptiveState(start.params, start.opt_state, start.step, clip_norm)

    def update(key, state, batch, mask):
        examples_key, noise_key, count_key = jax.random.split(key, 3)
        clipped = dataclasses.replace(clipped_grad, clip_norm=state.clip_norm)
        total, norms = clipped(state.params, batch, mask, examples_key)
        std = sum_noise * state.clip_norm
        grads = algorithms.noisy_mean(
            noise_key, total, std=std, divisor=sampler.expected_batch_size
        )
        plain = algorithms.State(state.params, state.opt_state, state.step)
        moved = algorithms.apply_gradient(optimizer, plain, grads)
        below = jnp.where(mask, jnp.where(norms <= state.clip_norm, 0.5, -0.5), 0.0).sum()
        noisy = below + count_noise * jax.random.normal(count_key)
        share = noisy / sampler.expected_batch_size + 0.5
        clip_norm = state.clip_norm * jnp.exp(-rate * (share - target_quantile))
        clip_norm = jnp.maximum(clip_norm, smallest)
        info = algorithms.dpsgd_info(norms, mask, state.clip_norm)
        return AdaptiveState(moved.params, moved.opt_state, moved.step, clip_norm), info

    def event(steps: int) -> "DpEvent":
        return inner.event(steps)

    return Algorithm(init, update, sampler, event)


def _sum_noise(noise_multiplier: float, count_noise: float) -> float:
    """Returns z_sum, with which sum and count together have noise multiplier z."""
    _check.positive(noise_multiplier=noise_multiplier, count_noise=count_noise)
    if count_noise <= noise_multiplier / 2:
        raise ValueError(
            f"Expected count_noise > noise_multiplier / 2, got count_noise={count_noise}, "
            f"noise_multiplier={noise_multiplier}."
        )
    return 1 / math.sqrt(noise_multiplier**-2 - (2 * count_noise) ** -2)
