"""Membership signals of one example from its logits; `score_records` maps them over records.

A higher signal means more likely a member. Probabilities must be converted to logits by
`logits_of` first. Signals of sequences start from the log-probability of each token of the
reference. In the shapes below `c` counts classes, `n` records, `m` models and `t` tokens.
"""

import functools
import zlib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jaxtyping import Array, ArrayLike, Bool, Float, Integer, Shaped

from jaxpriv import _check

__all__ = [
    "confidence",
    "correctness",
    "entropy",
    "log_probabilities",
    "logit_confidence",
    "logits_of",
    "margin",
    "mean_log_probability",
    "min_k_probability",
    "modified_entropy",
    "negative_loss",
    "negative_squared_error",
    "reference_ratio",
    "score_records",
    "shifted",
    "total_log_probability",
    "zlib_ratio",
]


def score_records(
    signal: Callable[..., Array],
    logits: Shaped[Array | np.ndarray, "*m n c"],
    labels: Shaped[Array | np.ndarray, "n ..."] | None = None,
) -> Float[np.ndarray, "*m n"]:
    """Computes a signal for every record, under one model or under each of m models.

    The largest logit is subtracted in the type of the logits, so that float64 logits keep their
    precision when JAX computes in float32.

    Args:
      signal: signal of this module, a function of an example's logits and label.
      logits: logits of one model, or of m models stacked; without NaN.
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

    This changes neither the softmax nor any signal. A row of -inf is treated as equal logits.

    Args:
      logits: without NaN; +inf is treated as the largest number of its type.

    Returns:
      Shifted logits, at most 0, without the rounding of large logits: float64 if the logits have
      it and JAX's default is float64, otherwise float32.

    Raises:
      ValueError: for NaN, or for values that are not real numbers.

    Example:
      >>> shifted(np.array([[1e9 + 1.0, 1e9]]))  # in float32 both logits would be 1e9
      array([[ 0., -1.]], dtype=float32)
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
      ValueError: for NaN, or for values that are not real numbers.

    Example:
      >>> log_probabilities(np.array([[0.0, 0.0], [np.log(3.0), 0.0]])).round(3)
      array([[-0.693, -0.693],
             [-0.288, -1.386]], dtype=float32)
    """
    return np.asarray(_log_softmax(shifted(logits)))


_log_softmax = jax.jit(jax.nn.log_softmax)


def _logits(values: Shaped[Array | np.ndarray, "..."]) -> np.ndarray:
    return _check.real_array("logits", values)


@functools.cache
def _batched(signal: Callable[..., Array]) -> Callable[..., Array]:
    """Compiles a signal for batches, once for each signal and shape."""
    return jax.jit(jax.vmap(signal))


def negative_loss(
    logits: Float[Array | np.ndarray, " c"],
    label: Integer[ArrayLike, ""],
    *,
    temperature: float = 1.0,
) -> Float[Array, ""]:
    """Scores an example by its negative cross-entropy, log p_label.

    Computed as log sigmoid(logit_confidence), which still separates examples whose p_label rounds
    to 1.

    Args:
      logits: outputs before the softmax; float16 and bfloat16 are converted to float32.
      label: true class, in 0..c-1.
      temperature: divisor of the logits; > 0. RMIA is stronger above 1, see `rmia.tune`.

    Returns:
      log p_label in nats, at most 0; -inf if the logit of the label is -inf.

    Raises:
      ValueError: if temperature is not positive; a traced one is not checked.

    References:
      Yeom et al., Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting, 2018.

    Example:
      >>> logits = jnp.log(jnp.array([0.8, 0.1, 0.1]))
      >>> round(float(negative_loss(logits, 0)), 3)  # log 0.8
      -0.223
    """
    if not isinstance(temperature, core.Tracer):
        _check.positive(temperature=temperature)
    return jax.nn.log_sigmoid(logit_confidence(_below_the_largest(logits) / temperature, label))


def negative_squared_error(
    prediction: Float[Array | np.ndarray, "*d"], target: Float[Array | np.ndarray, "*d"]
) -> Float[Array, ""]:
    """Scores an example of a regression model by its negative squared error.

    LiRA takes this signal, as any other real number, under the target and the shadow models. NumPy
    arrays are subtracted in float64, so that large values keep their differences.

    Args:
      prediction: output of the model; a number or a vector. Integers and half precision are
        converted to float32.
      target: true value, of the same shape.

    Returns:
      -sum (prediction - target)^2, at most 0.

    Raises:
      ValueError: for unequal shapes.

    Example:
      >>> float(negative_squared_error(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0])))
      -4.0
    """
    if np.shape(prediction) != np.shape(target):
        raise ValueError(
            "Expected equal shapes of prediction and target, "
            f"got {list(np.shape(prediction))} and {list(np.shape(target))}."
        )
    if isinstance(prediction, np.ndarray) and isinstance(target, np.ndarray):
        difference = jnp.asarray(prediction.astype(np.float64) - target.astype(np.float64))
    else:
        difference = _at_least_float32(prediction) - _at_least_float32(target)
    return -jnp.sum(difference**2)


def confidence(
    logits: Float[Array | np.ndarray, " c"], label: Integer[ArrayLike, ""]
) -> Float[Array, ""]:
    """Scores an example by the probability of its label.

    It orders examples as `negative_loss` does, but float32 probabilities above 1 - 3e-8 tie at 1.

    Args:
      logits: outputs before the softmax; float16 and bfloat16 are converted to float32.
      label: true class, in 0..c-1.

    Returns:
      p_label, in [0, 1].

    References:
      Salem et al., ML-Leaks: Model and Data Independent Membership Inference Attacks and
      Defenses on Machine Learning Models, 2019.

    Example:
      >>> logits = jnp.log(jnp.array([0.8, 0.1, 0.1]))
      >>> round(float(confidence(logits, 0)), 3)
      0.8
    """
    return jax.nn.sigmoid(logit_confidence(logits, label))


def logit_confidence(
    logits: Float[Array | np.ndarray, " c"], label: Integer[ArrayLike, ""]
) -> Float[Array, ""]:
    """Scores an example by its logit-scaled confidence, log(p_label / (1 - p_label)).

    Computed as z_label - log sum_{j != label} exp z_j, without probabilities, which could round to
    0 or 1. Over trainings the signal is close to Gaussian, as LiRA assumes.

    Args:
      logits: outputs before the softmax; float16 and bfloat16 are converted to float32.
      label: true class, in 0..c-1.

    Returns:
      The log odds of the label; infinite only if all competing logits, or that of the label, are
      -inf or too small for the float type.

    References:
      Carlini et al., Membership Inference Attacks From First Principles, 2022, section IV.

    Example:
      >>> logits = jnp.log(jnp.array([0.8, 0.1, 0.1]))
      >>> round(float(logit_confidence(logits, 0)), 3)  # log 4
      1.386
    """
    z = _checked(logits, label)
    is_label = _is_label(label, z)
    label_logit = jnp.max(z, where=is_label, initial=-jnp.inf)
    odds = label_logit - jax.nn.logsumexp(z, where=~is_label)
    # `_checked` replaced infinite logits by the largest float; the difference is infinite again.
    return jnp.where(jnp.abs(odds) < jnp.finfo(odds.dtype).max / 4, odds, jnp.sign(odds) * jnp.inf)


def entropy(logits: Float[Array | np.ndarray, " c"]) -> Float[Array, ""]:
    """Scores an example by its negative prediction entropy, sum_j p_j log p_j.

    Args:
      logits: outputs before the softmax; float16 and bfloat16 are converted to float32.

    Returns:
      The negative entropy in nats, in [-log c, 0]; higher for a more confident prediction.

    References:
      Salem et al., ML-Leaks: Model and Data Independent Membership Inference Attacks and
      Defenses on Machine Learning Models, 2019.

    Example:
      >>> round(float(entropy(jnp.zeros(4))), 3)  # -log 4
      -1.386
    """
    log_p, _, _ = _log_probabilities(_below_the_largest(logits))
    return jnp.sum(jnp.where(log_p == -jnp.inf, 0, jnp.exp(log_p) * log_p))


def modified_entropy(
    logits: Float[Array | np.ndarray, " c"], label: Integer[ArrayLike, ""]
) -> Float[Array, ""]:
    """Scores an example by its negative modified entropy, which depends on the label.

    (1 - p_label) log p_label + sum_{j != label} p_j log(1 - p_j), which is near 0 for a confident
    correct prediction and very negative for a confident wrong one; the entropy is 0 for both.
    log(1 - p_j) is computed as the logsumexp of the other log probabilities, which cannot
    underflow.

    Args:
      logits: outputs before the softmax; float16 and bfloat16 are converted to float32.
      label: true class, in 0..c-1.

    Returns:
      The negative modified entropy in nats, at most 0; finite if the logits are.

    References:
      Song and Mittal, Systematic Evaluation of Privacy Risks of Machine Learning Models, 2021,
      equation 8.

    Example:
      >>> logits = jnp.array([10.0, 0.0])
      >>> [round(float(modified_entropy(logits, label)), 2) for label in (0, 1)]
      [-0.0, -20.0]
    """
    z = _checked(logits, label)
    is_label = _is_label(label, z)
    log_p, is_top, log_not_top = _log_probabilities(z)
    # Only the top class can have p > 1/2, so only its 1 - p can lose digits to cancellation.
    log_not_p = jnp.where(is_top, log_not_top, jnp.log1p(-jnp.exp(jnp.where(is_top, -1.0, log_p))))
    weight = jnp.exp(jnp.where(is_label, log_not_p, log_p))
    terms = weight * jnp.where(is_label, log_p, log_not_p)
    total = jnp.sum(jnp.where(weight == 0, 0, terms))
    lowest = jnp.where(jnp.isfinite(z).all(), jnp.finfo(z.dtype).min, -jnp.inf)
    return jnp.maximum(total, lowest)


def margin(
    logits: Float[Array | np.ndarray, " c"], label: Integer[ArrayLike, ""]
) -> Float[Array, ""]:
    """Scores an example by the logit of its label minus the largest other logit.

    Args:
      logits: outputs before the softmax; float16 and bfloat16 are converted to float32.
      label: true class, in 0..c-1.

    Returns:
      The margin; > 0 for a correct prediction, +inf if there are no other logits.

    Example:
      >>> float(margin(jnp.array([2.0, 0.5, 1.5]), 0))
      0.5
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
      logits: outputs before the softmax; float16 and bfloat16 are converted to float32.
      label: true class, in 0..c-1.

    Returns:
      1 for a correct prediction and 0 for a wrong one; a tie with another class is wrong.

    References:
      Yeom et al., Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting,
      2018, Adversary 1.

    Example:
      >>> logits = jnp.array([2.0, 0.5, 1.5])
      >>> float(correctness(logits, 0)), float(correctness(logits, 2))
      (1.0, 0.0)
    """
    return jnp.heaviside(margin(logits, label), 0.0)


def total_log_probability(
    token_log_probs: Float[Array | np.ndarray, " t"], length: Integer[ArrayLike, ""]
) -> Float[Array, ""]:
    """Scores a sequence by its log-probability, the sum over its tokens.

    Args:
      token_log_probs: log-probability of each reference token; those after the end are ignored.
        float16 and bfloat16 are converted to float32.
      length: number of tokens; >= 1.

    Returns:
      The sum in nats, at most 0. Longer sequences have smaller values.

    Example:
      >>> float(total_log_probability(jnp.array([-1.0, -2.0, -9.0]), 2))
      -3.0
    """
    values = _at_least_float32(token_log_probs)
    return jnp.where(jnp.arange(len(values)) < length, values, 0).sum()


def mean_log_probability(
    token_log_probs: Float[Array | np.ndarray, " t"], length: Integer[ArrayLike, ""]
) -> Float[Array, ""]:
    """Scores a sequence by the mean log-probability of its tokens, the negative log-perplexity.

    Args:
      token_log_probs: log-probability of each reference token; those after the end are ignored.
        float16 and bfloat16 are converted to float32.
      length: number of tokens; >= 1.

    Returns:
      The mean in nats, at most 0.

    Example:
      >>> float(mean_log_probability(jnp.array([-1.0, -2.0, -9.0]), 2))
      -1.5
    """
    total = total_log_probability(token_log_probs, length)
    return total / jnp.asarray(length, total.dtype)


def min_k_probability(
    token_log_probs: Float[Array | np.ndarray, " t"],
    length: Integer[ArrayLike, ""],
    *,
    share: float = 0.2,
) -> Float[Array, ""]:
    """Scores a sequence by the mean log-probability of its least likely tokens (min-k %).

    Args:
      token_log_probs: log-probability of each reference token; those after the end are ignored.
        float16 and bfloat16 are converted to float32.
      length: number of tokens; >= 1.
      share: share of the tokens that count, rounded down to at least one; in (0, 1].

    Returns:
      The mean in nats, at most 0.

    Raises:
      ValueError: if share is not in (0, 1].

    References:
      Shi et al., Detecting Pretraining Data from Large Language Models, 2024.

    Example:
      >>> tokens = jnp.array([-1.0, -5.0, -2.0, -3.0, -9.0])
      >>> float(min_k_probability(tokens, 4, share=0.5))  # the mean of -5 and -3
      -4.0
    """
    _check.probability(share=share)
    values = _at_least_float32(token_log_probs)
    places = jnp.arange(len(values))
    ascending = jnp.sort(jnp.where(places < length, values, jnp.inf))
    # float32 may round share * length to just below a whole number.
    rounded = jnp.floor(share * jnp.asarray(length, values.dtype) + 1e-4)
    count = jnp.maximum(1, rounded.astype(places.dtype))
    return jnp.where(places < count, ascending, 0).sum() / count.astype(values.dtype)


def zlib_ratio(
    totals: Float[Array | np.ndarray, " n"], texts: Sequence[str]
) -> Float[np.ndarray, " n"]:
    """Scores sequences by their log-probability for each bit of their zlib compression.

    Args:
      totals: log-probability of each sequence, as from `total_log_probability`.
      texts: the sequences as text.

    Returns:
      The ratios, at most 0.

    Raises:
      ValueError: for unequal lengths.

    References:
      Carlini et al., Extracting Training Data from Large Language Models, 2021, section 4.2.

    Example:
      >>> ratios = zlib_ratio(np.array([-80.0, -80.0]), ["a b c d e f", "a " * 40])
      >>> bool(ratios[0] > ratios[1])  # the second text compresses to fewer bits for each word
      True
    """
    _check.same_length(totals=totals, texts=texts)
    bits = [8 * len(zlib.compress(text.encode())) for text in texts]
    return np.asarray(totals, np.float64) / np.asarray(bits, np.float64)


def reference_ratio(
    target: Float[Array | np.ndarray, "*n"], reference: Float[Array | np.ndarray, "*n"]
) -> Float[np.ndarray, "*n"]:
    """Scores records by the log of the ratio of their probabilities under target and reference.

    Args:
      target: log-probabilities under the target.
      reference: log-probabilities under a model that was not trained on the records.

    Returns:
      target - reference, in nats.

    Raises:
      ValueError: for unequal shapes.

    Example:
      >>> reference_ratio(np.array([-1.0]), np.array([-3.5])).tolist()
      [2.5]
    """
    if np.shape(target) != np.shape(reference):
        raise ValueError(
            "Expected equal shapes of target and reference, "
            f"got {list(np.shape(target))} and {list(np.shape(reference))}."
        )
    return np.asarray(target, np.float64) - np.asarray(reference, np.float64)


def logits_of(
    probabilities: Shaped[Array | np.ndarray, "n c"], *, tolerance: float = 1e-3
) -> Float[np.ndarray, "n c"]:
    """Converts probabilities to logits, log p renormalised, for the signals of this module.

    Precision lost when p_label was rounded to 1 cannot be recovered: if the other classes were
    rounded to 0, the `logit_confidence` is +inf, and all such examples tie. Float32 rounds a
    p_label above 1 - 3e-8 to 1, but small probabilities of the other classes still separate
    examples. Prefer the logits of the model.

    Args:
      probabilities: one row for each example, of any float type.
      tolerance: largest difference of the sum of a row from 1, and largest excess of a number
        over 1.

    Returns:
      Log probabilities, float32; -inf for probability 0.

    Raises:
      ValueError: for NaN, numbers outside [0, 1], or a row that does not sum to 1.

    Example:
      >>> logits = logits_of(np.array([[0.8, 0.2], [0.5, 0.5]]))
      >>> score_records(logit_confidence, logits, np.array([0, 0])).round(3)  # log 4, log 1
      array([1.386, 0.   ], dtype=float32)
    """
    _check.positive(tolerance=tolerance)
    p = np.asarray(probabilities).astype(np.float64)
    if p.ndim != 2:
        raise ValueError(f"Expected probabilities of shape [n, c], got {list(p.shape)}.")
    if np.isnan(p).any():
        raise ValueError(f"Expected probabilities without NaN, got {np.isnan(p).sum()} NaN.")
    outside = p[(p < 0) | (p > 1 + tolerance)]
    if outside.size:
        raise ValueError(f"Expected probabilities in [0, 1], got {outside[0]:g}.")
    totals = p.sum(axis=1, keepdims=True)
    error = np.abs(totals - 1)
    if (error > tolerance).any():
        raise ValueError(
            f"Expected rows that sum to 1 within {tolerance:g}, "
            f"got {totals.ravel()[np.argmax(error)]:g}."
        )
    with np.errstate(divide="ignore"):
        return (np.log(p) - np.log(totals)).astype(np.float32)


def _at_least_float32(values: Shaped[Array | np.ndarray, "*t"]) -> Float[Array, "*t"]:
    array = jnp.asarray(values)
    return array if array.dtype == jnp.float64 else array.astype(jnp.float32)


def _is_label(label: Integer[ArrayLike, ""], logits: Float[Array, " c"]) -> Array:
    """Returns a one-hot mask of a label that `_checked` has validated."""
    return jnp.arange(logits.shape[0]) == jnp.asarray(label).astype(jnp.int32)


def _log_probabilities(
    z: Float[Array, " c"],
) -> tuple[Float[Array, " c"], Bool[Array, " c"], Float[Array, ""]]:
    """Returns log p, a mask of the top class, and its log(1 - p), precise also near p = 1."""
    is_top = jnp.arange(z.shape[0]) == jnp.argmax(z)
    log_rest = jax.nn.logsumexp(z, where=~is_top)
    log_total = jnp.log1p(jnp.exp(log_rest))
    return z - log_total, is_top, log_rest - log_total


def _checked(
    logits: Float[Array | np.ndarray, " c"], label: Integer[ArrayLike, ""]
) -> Float[Array, " c"]:
    """Shifts logits and checks the label: an invalid one raises, or gives NaN if it is traced."""
    z = _below_the_largest(logits)
    if not isinstance(label, core.Tracer):
        _check.labels(np.asarray(label)[None], num_classes=z.shape[0], name="label")
        return z
    index = label.astype(jnp.int32)
    is_class = (index >= 0) & (index < z.shape[0]) & (index.astype(label.dtype) == label)
    return jnp.where(is_class, z, jnp.nan)


def _below_the_largest(logits: Float[Array | np.ndarray, " c"]) -> Float[Array, " c"]:
    """Subtracts the largest logit, so that large or infinite logits never give inf - inf.

    Logits that are all -inf are treated as equal logits.
    """
    if isinstance(logits, np.ndarray):
        return jnp.asarray(shifted(logits))
    z = logits if logits.dtype == jnp.float64 else logits.astype(jnp.float32)
    z = jnp.minimum(z, jnp.finfo(z.dtype).max)
    largest = jnp.max(z)
    return jnp.where(largest == -jnp.inf, 0, z - largest)
