"""Defences that change the outputs of a model: top-k, rounding, temperature, label only.

None of them has a guarantee. An adaptive attacker runs the suite on `attacks.evidence.defended`,
whose shadow outputs went through the same defence. Attacks need finite logits, so probabilities
that are not returned are replaced by 1e-13. In the shapes below `c` counts classes.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxpriv import _check
from jaxpriv.defences._defence import Defence

__all__ = ["LOG_FLOOR", "label_only", "rounding", "temperature", "top_k"]

LOG_FLOOR = math.log(1e-13)
"""Log probability of classes that an answer leaves out."""


def top_k(*, k: int) -> Defence:
    """Returns only the k largest probabilities.

    The other classes have log probability log 1e-13.

    Args:
      k: number of probabilities; >= 1.

    Returns:
      The defence.

    Raises:
      ValueError: if k < 1; at the first query, if there are fewer than k classes.

    References:
      Shokri et al., Membership Inference Attacks Against Machine Learning Models, 2017, VIII-A.

    Example:
      >>> answer = top_k(k=2).respond(jax.random.key(0), jnp.log(jnp.array([0.5, 0.2, 0.3])))
      >>> [round(p, 3) for p in jnp.exp(answer).tolist()]
      [0.5, 0.0, 0.3]
    """
    _check.positive_int(k=k)

    def respond(key: PRNGKeyArray, logits: Float[Array, " c"]) -> Float[Array, " c"]:
        del key
        if k > len(logits):
            raise ValueError(f"Expected k of at most {len(logits)} classes, got k={k}.")
        log_probs = jax.nn.log_softmax(logits)
        _, largest = jax.lax.top_k(log_probs, k)
        floor = jnp.full_like(log_probs, LOG_FLOOR)
        return floor.at[largest].set(_floored(log_probs[largest]))

    return Defence(name="top_k", title=f"top {k}", respond=respond)


def rounding(*, decimals: int) -> Defence:
    """Rounds every probability to a number of decimals.

    Args:
      decimals: digits after the point, in 1..7; float32 has no more.

    Returns:
      The defence.

    Raises:
      ValueError: if decimals is not in 1..7.

    References:
      Shokri et al., Membership Inference Attacks Against Machine Learning Models, 2017, VIII-A.

    Example:
      >>> answer = rounding(decimals=1).respond(jax.random.key(0), jnp.log(jnp.array([0.96, 0.04])))
      >>> [round(p, 3) for p in jnp.exp(answer).tolist()]
      [1.0, 0.0]
    """
    _check.positive_int(decimals=decimals)
    if decimals > 7:
        raise ValueError(f"Expected decimals of at most 7, got decimals={decimals}.")

    def respond(key: PRNGKeyArray, logits: Float[Array, " c"]) -> Float[Array, " c"]:
        del key
        rounded = jnp.round(jax.nn.softmax(logits), decimals)
        return _floored(jnp.log(rounded))

    return Defence(name="rounding", title=f"rounding to {decimals} decimals", respond=respond)


_COLDEST = 1e-30
"""Smallest temperature, which float32 represents with all digits."""


def temperature(*, temperature: float) -> Defence:
    """Divides the logits by a temperature.

    Args:
      temperature: at least 1e-30; above 1 it makes the probabilities more equal.

    Returns:
      The defence.

    Raises:
      ValueError: if temperature is out of range.

    References:
      Shokri et al., Membership Inference Attacks Against Machine Learning Models, 2017, VIII-A.

    Example:
      >>> logits = jnp.log(jnp.array([0.9, 0.1]))
      >>> answer = temperature(temperature=2.0).respond(jax.random.key(0), logits)
      >>> [round(p, 3) for p in jnp.exp(answer).tolist()]  # the odds are 3 instead of 9
      [0.75, 0.25]
    """
    _check.positive(temperature=temperature)
    if temperature < _COLDEST:
        raise ValueError(f"Expected temperature >= {_COLDEST:g}, got temperature={temperature}.")

    def respond(key: PRNGKeyArray, logits: Float[Array, " c"]) -> Float[Array, " c"]:
        del key
        below_largest = logits - logits.max()  # the quotient may be -inf, and never inf
        return _floored(jax.nn.log_softmax(below_largest / temperature))

    return Defence(
        name="temperature", title=f"softmax at temperature {temperature:g}", respond=respond
    )


def label_only() -> Defence:
    """Returns only the predicted label.

    Its log probability is 0, that of every other class log 1e-13; NaN logits have no label, and
    remain NaN.

    Returns:
      The defence.

    References:
      Choquette-Choo et al., Label-Only Membership Inference Attacks, 2021.

    Example:
      >>> answer = label_only().respond(jax.random.key(0), jnp.array([0.2, 1.5, 0.3]))
      >>> [round(p, 3) for p in jnp.exp(answer).tolist()]
      [0.0, 1.0, 0.0]
    """

    def respond(key: PRNGKeyArray, logits: Float[Array, " c"]) -> Float[Array, " c"]:
        del key
        is_label = jnp.arange(len(logits)) == jnp.argmax(logits)
        answer = jnp.where(is_label, 0.0, LOG_FLOOR).astype(logits.dtype)
        return jnp.where(jnp.isnan(logits).any(), jnp.nan, answer)

    return Defence(name="label_only", title="label only", respond=respond)


def _floored(log_probs: Float[Array, " c"]) -> Float[Array, " c"]:
    return jnp.maximum(log_probs, jnp.asarray(LOG_FLOOR, log_probs.dtype))
