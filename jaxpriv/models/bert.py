"""BERT encoder with pretrained weights from a safetensors folder, and a translation model on it.

In the shapes below `s` counts tokens of a source, `t` those of a target, `w` the width of the
encoder, `v` the target vocabulary, and `l` and `d` are blocks and width of the decoder.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxpriv import _check, _files
from jaxpriv._types import Params
from jaxpriv.models.transformer import Cache, Decoder

__all__ = ["Bert", "BertTranslator", "load_bert"]

_MASKED = -1e9
"""Attention score of a padded place."""

_UNUSED = ("pooler.", "cls.", "embeddings.position_ids")
"""Beginnings of the names of weights that are no part of the encoder."""


class Bert(nn.Module):
    """BERT encoder: each block normalises its outputs, positions are learned, GELU is exact.

    Padding changes no output of a real token. All tokens are of type 0, the first sentence.

    num_tokens: size of the vocabulary.
    width: width w; a multiple of `num_heads`.
    num_layers: number of blocks.
    num_heads: number of attention heads.
    hidden: width of the hidden layer of a block.
    num_positions: largest number of tokens.
    num_types: number of types of tokens.
    epsilon: added to the variance by the norms.
    dropout: rate of dropout on embeddings and on the output of every layer of a block.

    References:
      Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers for Language
      Understanding, 2019, section 3.

    Example:
      >>> model = Bert(num_tokens=30, width=8, num_layers=1, num_heads=2, hidden=12)
      >>> ids = jnp.zeros(5, jnp.int32)
      >>> params = jax.eval_shape(model.init, jax.random.key(0), ids, jnp.int32(5))
      >>> jax.eval_shape(model.apply, params, ids, jnp.int32(5)).shape
      (5, 8)
    """

    num_tokens: int
    width: int
    num_layers: int
    num_heads: int
    hidden: int
    num_positions: int = 512
    num_types: int = 2
    epsilon: float = 1e-12
    dropout: float = 0.1

    @nn.compact
    def __call__(
        self, ids: Int[Array, " s"], length: Int[Array, ""], *, deterministic: bool = True
    ) -> Float[Array, "s w"]:
        """Encodes a sentence.

        Args:
          ids: tokens; at most `num_positions`.
          length: number of real tokens; >= 1.
          deterministic: whether dropout is left out.

        Returns:
          The output of the last block for each token.

        Raises:
          ValueError: if there are more tokens than positions.
        """
        if len(ids) > self.num_positions:
            raise ValueError(f"Expected at most {self.num_positions} tokens, got {len(ids)}.")
        drop = nn.Dropout(self.dropout, deterministic=deterministic)
        x = nn.Embed(self.num_tokens, self.width, name="tokens")(ids)
        x = x + nn.Embed(self.num_positions, self.width, name="positions")(jnp.arange(len(ids)))
        x = x + nn.Embed(self.num_types, self.width, name="types")(jnp.zeros_like(ids))
        x = drop(nn.LayerNorm(self.epsilon, name="norm")(x))
        is_real = jnp.arange(len(ids)) < length
        for i in range(self.num_layers):
            block = _Block(self.num_heads, self.hidden, self.epsilon, name=f"layer_{i}")
            x = block(x, is_real, drop)
        return x


class _Block(nn.Module):
    num_heads: int
    hidden: int
    epsilon: float

    @nn.compact
    def __call__(self, x: Array, is_real: Array, drop: nn.Dropout) -> Array:
        size, width = x.shape
        _check.heads(width, self.num_heads)
        heads = (size, self.num_heads, width // self.num_heads)
        query, key, value = (
            nn.Dense(width, name=name)(x).reshape(heads) for name in ("query", "key", "value")
        )
        scores = jnp.einsum("qhd,khd->hqk", query, key) / heads[2] ** 0.5
        weights = nn.softmax(jnp.where(is_real, scores, _MASKED))
        attended = jnp.einsum("hqk,khd->qhd", weights, value).reshape(x.shape)
        attended = drop(nn.Dense(width, name="attention_output")(attended))
        x = nn.LayerNorm(self.epsilon, name="attention_norm")(x + attended)
        hidden = nn.gelu(nn.Dense(self.hidden, name="hidden")(x), approximate=False)
        output = drop(nn.Dense(width, name="output")(hidden))
        return nn.LayerNorm(self.epsilon, name="output_norm")(x + output)


class BertTranslator(nn.Module):
    """Translation model with BERT as its encoder, for fine-tuning.

    It is called as `Transformer` is. Its parameters have the parts "bert", which `load_bert` gives,
    and "decoder".

    bert: the encoder.
    decoder: the decoder, which reads the outputs of the last block.

    Example:
      >>> bert = Bert(num_tokens=30, width=8, num_layers=1, num_heads=2, hidden=12)
      >>> decoder = Decoder(
      ...     num_tokens=20, width=4, num_layers=1, num_heads=1, hidden=6, dropout=0.1, max_length=9
      ... )
      >>> model = BertTranslator(bert, decoder)
      >>> source, target = jnp.zeros(7, jnp.int32), jnp.zeros(5, jnp.int32)
      >>> params = jax.eval_shape(model.init, jax.random.key(0), source, jnp.int32(7), target)
      >>> jax.eval_shape(model.apply, params, source, jnp.int32(7), target).shape
      (5, 20)
    """

    bert: Bert
    decoder: Decoder

    @property
    def max_length(self) -> int:
        """Largest number of tokens that `step` decodes."""
        return self.decoder.max_length

    def __call__(
        self,
        source: Int[Array, " s"],
        source_length: Int[Array, ""],
        target: Int[Array, " t"],
        *,
        deterministic: bool = True,
    ) -> Float[Array, "t v"]:
        """Computes the logits of the token after each token of the target.

        Args:
          source: tokens of the source, in the vocabulary of BERT.
          source_length: number of real tokens of the source; >= 1.
          target: tokens of the target, the first of which starts the sentence.
          deterministic: whether dropout is left out.

        Returns:
          Logits [t, v] of the following tokens.
        """
        _, memory = self.encode(source, source_length, deterministic=deterministic)
        return self.decoder(target, memory, source_length, deterministic=deterministic)

    def encode(
        self, source: Int[Array, " s"], length: Int[Array, ""], *, deterministic: bool = True
    ) -> tuple[Cache, Float[Array, "l 2 s d"]]:
        """Reads a source.

        Args:
          source: tokens of the source.
          length: number of real tokens.
          deterministic: whether dropout is left out.

        Returns:
          The state from which the decoder starts, and what its blocks attend to.
        """
        return self.decoder.start(self.bert(source, length, deterministic=deterministic))

    def step(
        self,
        carry: Cache,
        token: Int[Array, ""],
        memory: Float[Array, "l 2 s d"],
        source_length: Int[Array, ""],
    ) -> tuple[Cache, Float[Array, " v"]]:
        """Decodes one token, as the step of `Transformer`.

        Args:
          carry: state of the decoder, at first that of `encode`.
          token: last token of the target so far.
          memory: what the blocks of the decoder attend to.
          source_length: number of real tokens of the source.

        Returns:
          The next state, and the logits of the next token.
        """
        return self.decoder.step(carry, token, memory, source_length)


def load_bert(folder: str | os.PathLike[str], *, dropout: float = 0.1) -> tuple[Bert, Params]:
    """Loads a pretrained BERT encoder, without unpickling.

    Args:
      folder: folder with config.json and model.safetensors in the layout of the transformers
        library; weights of a pooler or of a head for pretraining are left out.
      dropout: rate of dropout of the module in training.

    Returns:
      The module and its variables, float32.

    Raises:
      ValueError: if a file is missing or damaged, the model is no BERT with GELU and absolute
        positions, weights are missing, unknown or of other shapes than the configuration says, or
        safetensors is not installed.

    References:
      Wolf et al., Transformers: State-of-the-Art Natural Language Processing, 2020.

    Example:
      >>> model, params = load_bert("minilm")  # doctest: +SKIP
      >>> model.width, model.num_layers  # doctest: +SKIP
      (384, 6)
    """
    folder = Path(folder)
    model = _module(_read_config(folder / "config.json"), dropout)
    weights = _read_weights(folder / "model.safetensors")
    ids = jnp.zeros(1, jnp.int32)
    expected = jax.eval_shape(model.init, jax.random.key(0), ids, jnp.int32(1))
    leaves, treedef = jax.tree_util.tree_flatten_with_path(expected)
    arrays = []
    for path, leaf in leaves:
        name, is_kernel = _published_name([key.key for key in path[1:]])
        if name not in weights:
            raise ValueError(f"Expected the weight {name} in {folder}, got none.")
        array = weights.pop(name)
        array = array.T if is_kernel else array
        if array.shape != leaf.shape:
            raise ValueError(
                f"Expected shape {leaf.shape} of {name} in {folder}, got {array.shape}."
            )
        arrays.append(jnp.asarray(array, jnp.float32))
    unknown = [name for name in weights if not name.startswith(_UNUSED)]
    if unknown:
        raise ValueError(f"Expected weights of a BERT encoder in {folder}, got also {unknown[0]}.")
    return model, jax.tree.unflatten(treedef, arrays)


_REQUIRED = {
    "vocab_size": "num_tokens",
    "hidden_size": "width",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "hidden",
    "max_position_embeddings": "num_positions",
    "type_vocab_size": "num_types",
}
"""Sizes in config.json, and the fields of `Bert` that they set."""


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(_files.read_bytes(path))
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise ValueError(f"Expected JSON in {path}: {_files.one_line(e)}.") from None
    if not isinstance(config, dict):
        raise ValueError(f"Expected an object in {path}, got {type(config).__name__}.")
    for name, wanted in (
        ("model_type", "bert"),
        ("hidden_act", "gelu"),
        ("position_embedding_type", "absolute"),
    ):
        if config.get(name, wanted) != wanted:
            raise ValueError(f"Expected {name} {wanted} in {path}, got {config[name]!r}.")
    for name in _REQUIRED:
        if not isinstance(config.get(name), int) or config[name] < 1:
            raise ValueError(f"Expected {name} >= 1 in {path}, got {config.get(name)!r}.")
    if config["hidden_size"] % config["num_attention_heads"]:
        raise ValueError(f"Expected a hidden_size that num_attention_heads divides in {path}.")
    return config


def _module(config: Mapping[str, Any], dropout: float) -> Bert:
    sizes = {field: config[name] for name, field in _REQUIRED.items()}
    return Bert(**sizes, epsilon=float(config.get("layer_norm_eps", 1e-12)), dropout=dropout)


def _read_weights(path: Path) -> dict[str, np.ndarray]:
    """Reads the tensors; names lose the beginning "bert." that models with a head have.

    The first published models have gamma and beta for weight and bias of the norms.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load
    except ImportError:
        raise ValueError("Expected the package safetensors: pip install 'jaxpriv[text]'.") from None
    raw = _files.read_bytes(path)
    try:
        weights = load(raw)
    except (SafetensorError, KeyError, ValueError, TypeError) as e:
        raise ValueError(f"Expected safetensors in {path}: {_files.one_line(e)}.") from None
    return {_current_name(name): array for name, array in weights.items()}


def _current_name(name: str) -> str:
    name = name.removeprefix("bert.")
    for old, new in (("gamma", "weight"), ("beta", "bias")):
        if name.endswith(f"LayerNorm.{old}"):
            return name.removesuffix(old) + new
    return name


_PUBLISHED = {
    "tokens": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "hidden": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
"""Names of the layers of `Bert` in published weights, without that of the block."""


def _published_name(path: list[str]) -> tuple[str, bool]:
    """Returns the published name of a leaf, and whether it is a kernel, stored transposed."""
    *block, layer, leaf = path
    prefix = f"encoder.layer.{block[0].removeprefix('layer_')}." if block else ""
    return f"{prefix}{_PUBLISHED[layer]}.{'bias' if leaf == 'bias' else 'weight'}", leaf == "kernel"
