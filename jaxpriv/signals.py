"""Membership signals of one example from its logits; `score_records` maps them over records.

A higher signal means more likely a member. Probabilities are turned into logits by `logits_of`;
nothing is guessed from the values. In the shapes below `c` counts classes, `n` records and `m`
models.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jaxtyping import Array, ArrayLike, Bool, Float, Integer, Shaped

from jaxpriv import _check


def score_records(
    signal: Callable[..., Array],
    logits: Shaped[Array | np.ndarray, "*m n c"],
    labels: Shaped[Array | np.ndarray, "n ..."] | None = None,
) -> Float[np.ndarray, "*m n"]:
    """Computes a signal for every record, under one model or under m, one model after the other.

    The largest logit is subtracted in the type of the logits, so that float64 logits lose nothing
    when JAX computes in float32.

    Args:
      signal: one of this module's functions of an example's logits and label.
      logits: of one model, or stacked along m; without NaN.
      labels: true classes, [n], [n, 1] or one-hot; None for a signal of the logits alone.

    Returns:
      The signals, in the type that `signal` returns.

    Raises:
      ValueError: for NaN, another shape, or labels that do not index the logits.

    Example:
      >>> score_records(margin, np.array([[2.0, 0.5], [0.0, 1.0]]), np.array([0, 0]))
      array([ 1.5, -1. ], dtype=float32)
    """
    array = _logits(logits)
    if array.ndim not in (2, 3):
        raise ValueError(f"Expected logits [n, c] or [m, n, c], got shape {list(array.shape)}.")
    arguments = ()
    if labels is not None:
        classes = _check.labels(labels, num_classes=array.shape[-1])
        if len(classes) != array.shape[-2]:
            raise ValueError(f"Expected {array.shape[-2]} labels, got {len(classes)}.")
        arguments = (classes,)
    batched = _batched(signal)
    if array.ndim == 2:
        return np.asarray(batched(shifted(array), *arguments))
    return np.stack([np.asarray(batched(shifted(model), *arguments)) for model in array])


def shifted(logits: Shaped[Array | np.ndarray, "... c"]) -> Float[np.ndarray, "... c"]:
    """Subtracts the largest logit of each row, in the type of the logits.

    Softmax and every signal are the same for the result. Rows of -inf alone are equal logits.

    Args:
      logits: without NaN; +inf counts as the largest number of its type.

    Returns:
      Shifted logits, at most 0, without the rounding of large logits: float32, or float64 where
      the logits and JAX's default have it.

    Raises:
      ValueError: for NaN or what is not a real number.
    """
    array = _logits(logits)
    if array.dtype.itemsize < 4 or array.dtype.kind == "V":
        array = array.astype(np.float32)
    elif array.dtype.kind in "biu":
        array = array.astype(np.float64)
    array = np.minimum(array, np.finfo(array.dtype).max)
    largest = array.max(axis=-1, keepdims=True)
    dtype = jax.dtypes.canonicalize_dtype(np.float64 if array.dtype.itemsize > 4 else np.float32)
    lowest = np.where(array == -np.inf, -np.inf, np.finfo(dtype).min)
    with np.errstate(over="ignore"):
        result = np.where(largest == -np.inf, 0, array - np.where(largest == -np.inf, 0, largest))
    return np.maximum(result, np.where(largest == -np.inf, 0, lowest)).astype(dtype)


def log_probabilities(
    logits: Shaped[Array | np.ndarray, "... c"],
) -> Float[np.ndarray, "... c"]:
    """Computes the log softmax of each row.

    Args:
      logits: without NaN.

    Returns:
      Log probabilities, float32; -inf for a logit of -inf.

    Raises:
      ValueError: for NaN or what is not a real number.
    """
    return np.asarray(_log_softmax(shifted(logits)))


_log_softmax = jax.jit(jax.nn.log_softmax)


def _logits(values: Shaped[Array | np.ndarray, "..."]) -> np.ndarray:
    return _check.real_array("logits", values)


@functools.cache
def _batched(signal: Callable[..., Array]) -> Callable[..., Array]:
    """Compiled once for each signal and shape."""
    return jax.jit(jax.vmap(signal))


def negative_loss(
    logits: Float[Array | np.ndarray, " c"], label: Integer[ArrayLike, ""]
) -> Float[Array, ""]:
    """Scores an example by its negative cross-entropy, log p_label.

    Computed as log sigmoid(logit_confidence), which still separates examples where p_label
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


def confidence(
    logits: Float[Array | np.ndarray, " c"], label: Integer[ArrayLike, ""]
) -> Float[Array, ""]:
    """Scores an example by the probability of its label.

    It ranks as `negative_loss` does, but float32 probabilities above 1 - 3e-8 are all 1.

    Args:
      logits: the model's outputs before the softmax; float16 and bfloat16 are raised to float32.
      label: the true class, in 0..c-1.

    Returns:
      p_label, in [0, 1].

    References:
      Salem et al., ML-Leaks: Model and Data Independent Membership Inference Attacks and
      Defenses on Machine Learning Models, 2019.
    """
    return jax.nn.sigmoid(logit_confidence(logits, label))


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
    z = _checked(logits, label)
    is_label = _is_label(label, z)
    label_logit = jnp.max(z, where=is_label, initial=-jnp.inf)
    odds = label_logit - jax.nn.logsumexp(z, where=~is_label)
    # An infinite logit was lowered to the largest float.
    return jnp.where(jnp.abs(odds) < jnp.finfo(odds.dtype).max / 4, odds, jnp.sign(odds) * jnp.inf)


def entropy(logits: Float[Array | np.ndarray, " c"]) -> Float[Array, ""]:
    """Scores an example by its negative prediction entropy, sum_j p_j log p_j; needs no label.

    Args:
      logits: the model's outputs before the softmax; float16 and bfloat16 are raised to float32.

    Returns:
      Minus the entropy, nats, in [-log c, 0]: a surer prediction scores higher.

    References:
      Salem et al., ML-Leaks: Model and Data Independent Membership Inference Attacks and
      Defenses on Machine Learning Models, 2019.
    """
    log_p, _, _ = _log_probabilities(_below_the_largest(logits))
    return jnp.sum(jnp.where(log_p == -jnp.inf, 0, jnp.exp(log_p) * log_p))


def modified_entropy(
    logits: Float[Array | np.ndarray, " c"], label: Integer[ArrayLike, ""]
) -> Float[Array, ""]:
    """Scores an example by the entropy that counts only the label's side as certainty, negated.

    (1 - p_label) log p_label + sum_{j != label} p_j log(1 - p_j): near 0 for a confident and
    right prediction, very negative for a confident and wrong one; the entropy is 0 for both.
    log(1 - p_j) is the logsumexp of the other log probabilities, which cannot underflow.

    Args:
      logits: the model's outputs before the softmax; float16 and bfloat16 are raised to float32.
      label: the true class, in 0..c-1.

    Returns:
      Minus the modified entropy, nats, at most 0; finite where the logits are.

    References:
      Song and Mittal, Systematic Evaluation of Privacy Risks of Machine Learning Models, 2021,
      equation 8.
    """
    z = _checked(logits, label)
    is_label = _is_label(label, z)
    log_p, is_top, log_not_top = _log_probabilities(z)
    # No other class than the top one has p > 1/2, so only its 1 - p can cancel.
    log_not_p = jnp.where(is_top, log_not_top, jnp.log1p(-jnp.exp(jnp.where(is_top, -1.0, log_p))))
    weight = jnp.exp(jnp.where(is_label, log_not_p, log_p))
    terms = weight * jnp.where(is_label, log_p, log_not_p)
    total = jnp.sum(jnp.where(weight == 0, 0, terms))
    lowest = jnp.where(jnp.isfinite(z).all(), jnp.finfo(z.dtype).min, -jnp.inf)
    return jnp.maximum(total, lowest)


def margin(
    logits: Float[Array | np.ndarray, " c"], label: Integer[ArrayLike, ""]
) -> Float[Array, ""]:
    """Scores an example by the label's logit minus the largest other one.

    Args:
      logits: the model's outputs before the softmax; float16 and bfloat16 are raised to float32.
      label: the true class, in 0..c-1.

    Returns:
      The margin; > 0 where the prediction is right, +inf where there is no competing logit.
    """
    z = _checked(logits, label)
    is_label = _is_label(label, z)
    label_logit = jnp.max(z, where=is_label, initial=-jnp.inf)
    return label_logit - jnp.max(z, where=~is_label, initial=-jnp.inf)


def correctness(
    logits: Float[Array | np.ndarray, " c"], label: Integer[ArrayLike, ""]
) -> Float[Array, ""]:
    """Scores an example by whether its label has the largest logit: the gap attack.

    Args:
      logits: the model's outputs before the softmax; float16 and bfloat16 are raised to float32.
      label: the true class, in 0..c-1.

    Returns:
      1 for a right prediction and 0 for a wrong one; a tie with another class is wrong.

    References:
      Yeom et al., Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting,
      2018, Adversary 1.
    """
    return jnp.heaviside(margin(logits, label), 0.0)


def logits_of(
    probabilities: Shaped[Array | np.ndarray, "n c"], *, tolerance: float = 1e-3
) -> Float[np.ndarray, "n c"]:
    """Turns probabilities into logits that every score here takes: log p, renormalised.

    What was lost at p_label = 1 stays lost: where the other classes were rounded to 0 the
    logit_confidence is +inf, so all such examples tie at the top. In float32 the label itself
    rounds to 1 from 1 - 3e-8 on, but small competing probabilities that were kept still tell
    examples apart. Take logits from the model where you can.

    Args:
      probabilities: one row an example, of any float type.
      tolerance: how far the sum of a row may lie from 1.

    Returns:
      Log probabilities, float32; -inf for probability 0.

    Raises:
      ValueError: for NaN, numbers outside [0, 1], or a row that does not sum to 1.
    """
    _check.positive(tolerance=tolerance)
    p = np.asarray(probabilities).astype(np.float64)
    if p.ndim != 2:
        raise ValueError(f"Expected probabilities of shape [n, c], got {list(p.shape)}.")
    if np.isnan(p).any():
        raise ValueError(f"Expected probabilities without NaN, got {np.isnan(p).sum()} NaN.")
    outside = p[(p < 0) | (p > 1)]
    if outside.size:
        raise ValueError(f"Expected probabilities in [0, 1], got {outside[0]:g}.")
    totals = p.sum(axis=1, keepdims=True)
    apart = np.abs(totals - 1)
    if (apart > tolerance).any():
        raise ValueError(
            f"Expected rows that sum to 1 within {tolerance:g}, "
            f"got {totals.ravel()[np.argmax(apart)]:g}."
        )
    with np.errstate(divide="ignore"):
        return (np.log(p) - np.log(totals)).astype(np.float32)


def _is_label(label: Integer[ArrayLike, ""], logits: Float[Array, " c"]) -> Array:
    """Marks the label, which the caller has checked by `_checked`."""
    return jnp.arange(logits.shape[0]) == jnp.asarray(label).astype(jnp.int32)


def _log_probabilities(
    z: Float[Array, " c"],
) -> tuple[Float[Array, " c"], Bool[Array, " c"], Float[Array, ""]]:
    """log p, which class is the top one, and its log(1 - p), to full precision near p = 1."""
    is_top = jnp.arange(z.shape[0]) == jnp.argmax(z)
    log_rest = jax.nn.logsumexp(z, where=~is_top)
    log_total = jnp.log1p(jnp.exp(log_rest))
    return z - log_total, is_top, log_rest - log_total


def _checked(
    logits: Float[Array | np.ndarray, " c"], label: Integer[ArrayLike, ""]
) -> Float[Array, " c"]:
    """Shifted logits; NaN for a traced label that does not index them, an error otherwise."""
    z = _below_the_largest(logits)
    if not isinstance(label, core.Tracer):
        _check.labels(np.asarray(label)[None], num_classes=z.shape[0], name="label")
        return z
    index = label.astype(jnp.int32)
    is_class = (index >= 0) & (index < z.shape[0]) & (index.astype(label.dtype) == label)
    return jnp.where(is_class, z, jnp.nan)


def _below_the_largest(logits: Float[Array | np.ndarray, " c"]) -> Float[Array, " c"]:
    """Subtracts the largest logit, so that neither huge nor infinite logits can meet as inf - inf.

    Logits that are all -inf are equal logits.
    """
    if isinstance(logits, np.ndarray):
        return jnp.asarray(shifted(logits))
    z = logits if logits.dtype == jnp.float64 else logits.astype(jnp.float32)
    z = jnp.minimum(z, jnp.finfo(z.dtype).max)
    largest = jnp.max(z)
    return jnp.where(largest == -jnp.inf, 0, z - largest)
