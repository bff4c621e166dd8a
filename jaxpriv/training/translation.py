"""Training of translation models with teacher forcing; the unit is a sentence with its translation.

In the shapes below `s` counts tokens of a source and `t` those of a target, padding included.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxpriv import _check
from jaxpriv._types import Loss, Params
from jaxpriv.grads import LengthBuckets

__all__ = ["SentencePair", "buckets", "loss", "make_pairs", "reference_logits"]


class SentencePair(NamedTuple):
    """A sentence and its translation as tokens; pairs are stacked along a leading axis.

    source: tokens of the source from its start to its end, then padding.
    source_length: number of tokens without padding.
    target: tokens of the translation from its start to its end, then padding.
    target_length: number of tokens without padding.
    """

    source: Int[Array | np.ndarray, "*n s"]
    source_length: Int[Array | np.ndarray, "*n"]
    target: Int[Array | np.ndarray, "*n t"]
    target_length: Int[Array | np.ndarray, "*n"]


def make_pairs(
    source: Int[np.ndarray, "n s"],
    source_mask: Bool[np.ndarray, "n s"],
    target: Int[np.ndarray, "n t"],
    target_mask: Bool[np.ndarray, "n t"],
) -> SentencePair:
    """Joins padded sentences and their translations, as from `data.pad`.

    Args:
      source: tokens of the sources.
      source_mask: True at tokens, False at the padding that follows them.
      target: tokens of the translations.
      target_mask: True at tokens, False at the padding that follows them.

    Returns:
      The pairs, with leading axis n.

    Raises:
      ValueError: if there are not as many sources as translations, or a translation has fewer than
        two tokens, its start and its end.

    Example:
      >>> pairs = make_pairs(
      ...     np.array([[1, 5, 2]]), np.ones((1, 3), bool), np.array([[1, 2, 0]]),
      ...     np.array([[True, True, False]]),
      ... )
      >>> pairs.source_length.tolist(), pairs.target_length.tolist()
      ([3], [2])
    """
    _check.same_length(source=source, target=target)
    lengths = target_mask.sum(axis=1)
    if lengths.min(initial=2) < 2 or source_mask.sum(axis=1).min(initial=1) < 1:
        raise ValueError("Expected a start and an end in every sentence, got an empty one.")
    return SentencePair(
        source.astype(np.int32),
        source_mask.sum(axis=1).astype(np.int32),
        target.astype(np.int32),
        lengths.astype(np.int32),
    )


def loss(model: nn.Module) -> Loss:
    """Creates the loss of a sentence: the mean cross-entropy of the tokens of its translation.

    Each token is predicted from the true tokens before it (teacher forcing). Padding does not
    count, so the loss of a pair does not depend on the width to which it is padded.

    Args:
      model: translation model, called as `Seq2Seq` and `Transformer` are.

    Returns:
      `loss(params, pair, key)` for one `SentencePair`; the key draws dropout.

    Example:
      >>> import jax
      >>> from jaxpriv import models
      >>> model = models.Seq2Seq(num_source_tokens=5, num_target_tokens=6, embedding=2, hidden=2)
      >>> tokens, mask = np.array([[1, 3, 2]]), np.ones((1, 3), bool)
      >>> pairs = make_pairs(tokens, mask, tokens, mask)
      >>> pair = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), pairs)
      >>> shapes = jax.eval_shape(model.init, jax.random.key(0), *pair[:3])
      >>> zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes)
      >>> round(float(loss(model)(zeros, pair, jax.random.key(1))), 3)  # log 6
      1.792
    """

    def sentence_loss(params: Params, pair: Any, key: PRNGKeyArray) -> Float[Array, ""]:
        logits: Any = model.apply(
            params,
            pair.source,
            pair.source_length,
            pair.target[:-1],
            deterministic=False,
            rngs={"dropout": key},
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, pair.target[1:])
        count = pair.target_length - 1
        total = jnp.where(jnp.arange(len(losses)) < count, losses, 0).sum()
        return total / count.astype(total.dtype)

    return sentence_loss


def buckets(*, widths: tuple[int, ...], rows: int) -> LengthBuckets:
    """Creates the length buckets of sentence pairs, for `clipped_grad` and `sgd`.

    Args:
      widths: increasing numbers of tokens to which source and target are cut.
      rows: number of pairs processed at a time.

    Returns:
      The buckets; the length of a pair is that of its longer sentence.

    Raises:
      ValueError: as for `LengthBuckets`.

    Example:
      >>> buckets(widths=(16, 24), rows=16).widths
      (16, 24)
    """

    def cut(pair: Any, width: int) -> Any:
        return pair._replace(source=pair.source[:width], target=pair.target[:width])

    return LengthBuckets(
        length=lambda pair: jnp.maximum(pair.source_length, pair.target_length),
        cut=cut,
        widths=widths,
        rows=rows,
    )


def reference_logits(
    model: nn.Module, params: Params, pair: SentencePair
) -> Float[Array, "t_minus_1 v"]:
    """Computes the logits of each token of a translation, given the true tokens before it.

    Args:
      model: translation model.
      params: its variables.
      pair: a sentence and its translation.

    Returns:
      Logits of target[1:]; the first `target_length` - 1 of them are of real tokens.

    Example:
      >>> import jax
      >>> from jaxpriv import models
      >>> model = models.Seq2Seq(num_source_tokens=5, num_target_tokens=6, embedding=2, hidden=2)
      >>> tokens, mask = np.array([[1, 3, 2]]), np.ones((1, 3), bool)
      >>> pairs = make_pairs(tokens, mask, tokens, mask)
      >>> pair = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), pairs)
      >>> params = jax.eval_shape(model.init, jax.random.key(0), *pair[:3])
      >>> jax.eval_shape(lambda params: reference_logits(model, params, pair), params).shape
      (2, 6)
    """
    logits: Any = model.apply(params, pair.source, pair.source_length, pair.target[:-1])
    return logits
