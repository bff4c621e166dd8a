"""Defences that change a model's outputs: top-k, rounding, temperature, label only.

None of them carries a guarantee. Probabilities that a defence withholds are floored at 1e-13, as
attacks take finite logits. In the shapes below `c` counts classes.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxpriv import _check
from jaxpriv.defences._defence import Defence

LOG_FLOOR = math.log(1e-13)
"""Log probability of what an answer does not contain."""


def top_k(*, k: int) -> Defence:
    """Answers with the k largest probabilities.

    The other classes have log probability log 1e-13.

    Args:
      k: probabilities that are shown; >= 1.

    Returns:
      The defence.

    Raises:
      ValueError: if k < 1; and at the first query, if there are fewer than k classes.

    References:
      Shokri et al., Membership Inference Attacks Against Machine Learning Models, 2017, VIII-A.
    """
    _check.positive_int(k=k)

    def respond(key: PRNGKeyArray, logits: Float[Array, " c"]) -> Float[Array, " c"]:
        del key
        if k > len(logits):
            raise ValueError(f"Expected k of at most {len(logits)} classes, got k={k}.")
        log_probs = jax.nn.log_softmax(logits)
        _, shown = jax.lax.top_k(log_probs, k)
        withheld = jnp.full_like(log_probs, LOG_FLOOR)
        return withheld.at[shown].set(_floored(log_probs[shown]))

    return Defence(name="top_k", title=f"top {k}", respond=respond)


def rounding(*, decimals: int) -> Defence:
    """Rounds every probability to a number of decimals.

    Args:
      decimals: digits after the point, in 1..7 (float32 holds no more).

    Returns:
      The defence.

    Raises:
      ValueError: if decimals is not in 1..7.

    References:
      Shokri et al., Membership Inference Attacks Against Machine Learning Models, 2017, VIII-A.
    """
    _check.positive_int(decimals=decimals)
    if decimals > 7:
        raise ValueError(f"Expected decimals of at most 7, got decimals={decimals}.")

    def respond(key: PRNGKeyArray, logits: Float[Array, " c"]) -> Float[Array, " c"]:
        del key
        rounded = jnp.round(jax.nn.softmax(logits), decimals)
        return _floored(jnp.log(rounded))

    return Defence(name="rounding", title=f"rounding to {decimals} decimals", respond=respond)


def temperature(*, temperature: float) -> Defence:
    """Divides the logits by a temperature, which flattens the probabilities above 1.

    Args:
      temperature: > 0.

    Returns:
      The defence.

    Raises:
      ValueError: if temperature is not positive.

    References:
      Shokri et al., Membership Inference Attacks Against Machine Learning Models, 2017, VIII-A.
    """
    _check.positive(temperature=temperature)

    def respond(key: PRNGKeyArray, logits: Float[Array, " c"]) -> Float[Array, " c"]:
        del key
        return _floored(jax.nn.log_softmax(logits / temperature))

    return Defence(
        name="temperature", title=f"softmax at temperature {temperature:g}", respond=respond
    )


def label_only() -> Defence:
    """Answers with the predicted label alone.

    Its log probability is 0, that of every other class log 1e-13.

    Returns:
      The defence.

    References:
      Choquette-Choo et al., Label-Only Membership Inference Attacks, 2021.
    """

    def respond(key: PRNGKeyArray, logits: Float[Array, " c"]) -> Float[Array, " c"]:
        del key
        is_label = jnp.arange(len(logits)) == jnp.argmax(logits)
        return jnp.where(is_label, 0.0, LOG_FLOOR).astype(logits.dtype)

    return Defence(name="label_only", title="label only", respond=respond)


def _floored(log_probs: Float[Array, " c"]) -> Float[Array, " c"]:
    return jnp.maximum(log_probs, jnp.asarray(LOG_FLOOR, log_probs.dtype))
