"""Membership scores of one example from its logits; `jax.vmap` them over a batch.

A higher score means more likely a member. Whoever holds probabilities turns them into logits by
`logits_of` first; nothing is guessed from the values. In the shapes below `c` counts classes and
`n` examples.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Integer, Shaped

from jaxpriv import _check


def of_records(
    score: Callable[..., Array],
    logits: Float[Array | np.ndarray, "*m n c"],
    labels: Integer[Array | np.ndarray, " n"],
) -> Float[np.ndarray, "*m n"]:
    """Scores every record, under one model or under m, one model after the other.

    Args:
      score: one of this module's functions of an example's logits and label.
      logits: of one model, or stacked along m.
      labels: true classes.

    Returns:
      The scores, in the type that `score` returns.
    """
    batched = _batched(score)
    if logits.ndim == 2:
        return np.asarray(batched(logits, labels))
    return np.stack([np.asarray(batched(one, labels)) for one in logits])


@functools.cache
def _batched(score: Callable[..., Array]) -> Callable[..., Array]:
    """Compiled once for each score and shape."""
    return jax.jit(jax.vmap(score))


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
    shifted = _below_the_largest(logits)
    is_label = _one_hot(label, shifted)
    own = jnp.max(shifted, where=is_label, initial=-jnp.inf)
    odds = own - jax.nn.logsumexp(shifted, where=~is_label)
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
    log_p, _ = _log_probabilities(logits)
    return jnp.sum(jnp.where(log_p == -jnp.inf, 0, jnp.exp(log_p) * log_p))


def modified_entropy(
    logits: Float[Array | np.ndarray, " c"], label: Integer[ArrayLike, ""]
) -> Float[Array, ""]:
    """Scores an example by the entropy that counts only the label's side as certainty, negated.

    (1 - p_label) log p_label + sum_{j != label} p_j log(1 - p_j): 0 for a sure and right
    prediction, -inf for a sure and wrong one, where the entropy is 0 for both.

    Args:
      logits: the model's outputs before the softmax; float16 and bfloat16 are raised to float32.
      label: the true class, in 0..c-1.

    Returns:
      Minus the modified entropy, nats, at most 0.

    References:
      Song and Mittal, Systematic Evaluation of Privacy Risks of Machine Learning Models, 2021,
      equation 8.
    """
    log_p, log_not_p = _log_probabilities(logits)
    is_label = _one_hot(label, log_p)
    weight = jnp.exp(jnp.where(is_label, log_not_p, log_p))
    surprise = jnp.where(is_label, log_p, log_not_p)
    return jnp.sum(weight * surprise)


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
    shifted = _below_the_largest(logits)
    is_label = _one_hot(label, shifted)
    own = jnp.max(shifted, where=is_label, initial=-jnp.inf)
    return own - jnp.max(shifted, where=~is_label, initial=-jnp.inf)


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


def labels_of(
    labels: Shaped[Array | np.ndarray, "..."], *, num_classes: int
) -> Int[np.ndarray, " n"]:
    """Brings labels into the form that the scores take: one class index an example.

    Args:
      labels: [n], [n, 1] or one-hot [n, c]; whole numbers of any type.
      num_classes: c.

    Returns:
      Class indices, int32, in 0..c-1.

    Raises:
      ValueError: for another shape, numbers that are not whole, classes outside 0..c-1, or rows
        that are not one-hot.
    """
    _check.positive_int(num_classes=num_classes)
    given = np.asarray(labels)
    if given.dtype.kind not in "biufV":
        raise ValueError(f"Expected labels to be whole numbers, got {given.dtype}.")
    given = given.astype(np.float64)
    if given.ndim == 2 and given.shape[1] == num_classes > 1:
        if not (np.isin(given, (0, 1)).all() and (given.sum(axis=1) == 1).all()):
            raise ValueError("Expected one-hot rows with a single 1, got others.")
        return given.argmax(axis=1).astype(np.int32)
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.ndim != 1:
        raise ValueError(
            f"Expected labels of shape [n], [n, 1] or [n, {num_classes}], got {list(given.shape)}."
        )
    broken = given[given != np.floor(given)]
    if broken.size:
        raise ValueError(f"Expected labels to be whole numbers, got {broken[0]:g}.")
    beyond = given[(given < 0) | (given >= num_classes)]
    if beyond.size:
        raise ValueError(
            f"Expected labels in 0..{num_classes - 1}, got {beyond[0]:g}; "
            "numpy.unique(labels, return_inverse=True) renumbers them."
        )
    return given.astype(np.int32)


def _one_hot(label: Integer[ArrayLike, ""], logits: Float[Array, " c"]) -> Array:
    return jnp.arange(logits.shape[0]) == jnp.asarray(label).astype(jnp.int32)


def _log_probabilities(
    logits: Float[Array | np.ndarray, " c"],
) -> tuple[Float[Array, " c"], Float[Array, " c"]]:
    """log p and log(1 - p), both to full precision, also where p rounds to 1."""
    shifted = _below_the_largest(logits)
    is_top = _one_hot(jnp.argmax(shifted), shifted)
    rest = jnp.sum(jnp.exp(shifted), where=~is_top)
    log_p = shifted - jnp.log1p(rest)
    # No other class than the top one has p > 1/2.
    return log_p, jnp.where(is_top, jnp.log(rest) - jnp.log1p(rest), jnp.log1p(-jnp.exp(log_p)))


def _below_the_largest(logits: Float[Array | np.ndarray, " c"]) -> Float[Array, " c"]:
    """Subtracts the largest logit, so that neither huge nor infinite logits can meet as inf - inf.

    Logits that are all -inf are equal logits.
    """
    z = jnp.asarray(logits)
    z = z if z.dtype == jnp.float64 else z.astype(jnp.float32)
    z = jnp.minimum(z, jnp.finfo(z.dtype).max)
    largest = jnp.max(z)
    return jnp.where(largest == -jnp.inf, 0, z - largest)
