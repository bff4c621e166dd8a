"""Membership scores of one example from its logits; `jax.vmap` them over a batch.

A higher score means more likely a member. In the shapes below `c` counts classes.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Integer


def negative_loss(
    logits: Float[Array | np.ndarray, " c"], label: Integer[ArrayLike, ""]
) -> Float[Array, ""]:
    """Scores an example by its negative cross-entropy, log p_label.

    Computed as log sigmoid(logit_confidence), which still tells examples apart where p_label
    rounds to 1.

    Args:
      logits: the model's outputs before the softmax; float16 and bfloat16 are raised to float32.
      label: the true class, in 0..c-1.

    Returns:
      log p_label, nats, at most 0; -inf where the logit of the label is -inf.

    References:
      Yeom et al., Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting, 2018.
    """
    return jax.nn.log_sigmoid(logit_confidence(logits, label))


def logit_confidence(
    logits: Float[Array | np.ndarray, " c"], label: Integer[ArrayLike, ""]
) -> Float[Array, ""]:
    """Scores an example by its logit-scaled confidence, log(p_label / (1 - p_label)).

    That is z_label - log sum_{j != label} exp z_j: no probability is formed that could round to
    0 or 1, and the score is close to Gaussian over trainings, as LiRA assumes.

    Args:
      logits: the model's outputs before the softmax; float16 and bfloat16 are raised to float32.
      label: the true class, in 0..c-1.

    Returns:
      The log odds of the label; +-inf only where every competing logit, or the label's, is -inf
      or too far below for the float type.

    References:
      Carlini et al., Membership Inference Attacks From First Principles, 2022, section IV.
    """
    shifted = _below_the_largest(logits)
    is_label = jnp.arange(shifted.shape[0]) == jnp.asarray(label).astype(jnp.int32)
    own = jnp.max(shifted, where=is_label, initial=-jnp.inf)
    return own - jax.nn.logsumexp(shifted, where=~is_label)


def _below_the_largest(logits: Float[Array | np.ndarray, " c"]) -> Float[Array, " c"]:
    """Subtracts the largest logit, so that neither huge nor infinite logits can meet as inf - inf.

    Logits that are all -inf are equal logits.
    """
    z = jnp.asarray(logits)
    z = z if z.dtype == jnp.float64 else z.astype(jnp.float32)
    z = jnp.minimum(z, jnp.finfo(z.dtype).max)
    largest = jnp.max(z)
    return jnp.where(largest == -jnp.inf, 0, z - largest)
