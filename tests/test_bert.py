"""BERT from published files: the outputs of a forward pass in NumPy, padding, what is refused."""

import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as safetensors

from jaxpriv import models
from jaxpriv.models import transformer
from tests import oracles

CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "vocab_size": 11,
    "hidden_size": 6,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 5,
    "max_position_embeddings": 7,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-6,
}
IDS = np.array([4, 9, 1, 10])


def draw_weights():
    rng = np.random.default_rng(0)
    shapes = {
        "embeddings.word_embeddings.weight": (11, 6),
        "embeddings.position_embeddings.weight": (7, 6),
        "embeddings.token_type_embeddings.weight": (2, 6),
        "embeddings.LayerNorm.weight": (6,),
        "embeddings.LayerNorm.bias": (6,),
        "pooler.dense.weight": (6, 6),
    }
    for layer in (f"encoder.layer.{i}" for i in range(2)):
        for name, rows, columns in (
            ("attention.self.query", 6, 6),
            ("attention.self.key", 6, 6),
            ("attention.self.value", 6, 6),
            ("attention.output.dense", 6, 6),
            ("intermediate.dense", 5, 6),
            ("output.dense", 6, 5),
        ):
            shapes |= {
                f"{layer}.{name}.weight": (rows, columns),
                f"{layer}.{name}.bias": (rows,),
            }
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{layer}.{name}.weight": (6,), f"{layer}.{name}.bias": (6,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write(folder, config=CONFIG, weights=None, prefix=""):
    weights = draw_weights() if weights is None else weights
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.save_file(
        {prefix + name: array for name, array in weights.items()}, folder / "model.safetensors"
    )
    return weights


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_outputs_are_those_of_the_forward_pass(tmp_path, prefix):
    weights = write(tmp_path, prefix=prefix)
    model, params = models.load_bert(tmp_path)
    apply = oracles.quick_jit(model.apply)
    result = apply(params, jnp.asarray(IDS), jnp.int32(4))
    expected = oracles.bert(weights, IDS, num_layers=2, num_heads=3, epsilon=1e-6)
    np.testing.assert_allclose(result, expected, atol=1e-4)
    padded = apply(params, jnp.append(jnp.asarray(IDS), jnp.array([3, 3])), jnp.int32(4))
    np.testing.assert_allclose(padded[:4], result, atol=1e-5)
    with pytest.raises(ValueError, match="at most 7 tokens, got 8"):
        model.apply(params, jnp.zeros(8, jnp.int32), jnp.int32(8))


@pytest.mark.slow
def test_minilm_is_that_of_the_forward_pass():
    """The pretrained encoder below JAXPRIV_DATA, a folder with its published files."""
    folder = Path(os.environ.get("JAXPRIV_DATA", ""), "minilm")
    if not (folder / "model.safetensors").exists():
        pytest.skip("needs minilm in JAXPRIV_DATA")
    model, params = models.load_bert(folder)
    ids = np.array([101, 1037, 3899, 3216, 1999, 1996, 4586, 1012, 102])
    result = jax.jit(model.apply)(params, jnp.asarray(ids), jnp.int32(len(ids)))
    weights = safetensors.load_file(folder / "model.safetensors")
    sizes = {"num_layers": model.num_layers, "num_heads": model.num_heads}
    expected = oracles.bert(weights, ids, **sizes, epsilon=model.epsilon)
    np.testing.assert_allclose(result, expected, atol=1e-4)


def test_a_decoder_on_the_encoder_translates_step_by_step_as_with_teacher_forcing(tmp_path):
    write(tmp_path)
    bert, encoder_params = models.load_bert(tmp_path)
    decoder = transformer.Decoder(
        num_tokens=5, width=4, num_layers=1, num_heads=2, hidden=6, dropout=0.1, max_length=3
    )
    model = models.BertTranslator(bert, decoder)
    source, target = jnp.asarray(IDS, jnp.int32), jnp.array([1, 4, 2])
    init = oracles.quick_jit(model.init)
    params = init(jax.random.key(0), source, jnp.int32(4), target)
    assert jax.tree.structure(params["params"]["bert"]) == jax.tree.structure(
        encoder_params["params"]
    )
    params = {"params": {**params["params"], "bert": encoder_params["params"]}}
    forced = oracles.quick_jit(model.apply)(params, source, jnp.int32(4), target)
    carry, memory = model.apply(params, source, jnp.int32(4), method="encode")
    for token, expected in zip(target, forced, strict=True):
        carry, logits = model.apply(params, carry, token, memory, jnp.int32(4), method="step")
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    assert model.max_length == 3


WEIGHTS = draw_weights()


@pytest.mark.parametrize(
    ("config", "weights", "message"),
    [
        ({"model_type": "gpt2"}, {}, "model_type bert"),
        ({"hidden_act": "relu"}, {}, "hidden_act gelu"),
        ({"vocab_size": "many"}, {}, "vocab_size >= 1"),
        ({"hidden_size": 7}, {}, "num_attention_heads divides"),
        ({"vocab_size": 12}, {}, r"shape \(12, 6\) of embeddings.word_embeddings.weight"),
        ({"num_hidden_layers": 3}, {}, "the weight encoder.layer.2"),
        ({"num_hidden_layers": 1}, {}, "got also encoder.layer.1"),
        ({}, {"other": np.zeros(2, np.float32)}, "got also other"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, config, weights, message):
    write(tmp_path, {**CONFIG, **config}, {**WEIGHTS, **weights})
    with pytest.raises(ValueError, match=message) as caught:
        models.load_bert(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b"[]"),
        ("config.json", None),
        ("model.safetensors", b"\x80\x04damaged"),
        ("model.safetensors", b""),
        ("model.safetensors", None),
    ],
)
def test_damaged_files_are_refused(tmp_path, file, content):
    write(tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match="Expected") as caught:
        models.load_bert(tmp_path)
    assert "\n" not in str(caught.value)


def test_norms_may_have_the_names_of_the_first_published_models(tmp_path):
    """bert-base-uncased has gamma and beta."""
    weights = draw_weights()
    names = {name: name.replace("LayerNorm.weight", "LayerNorm.gamma") for name in weights}
    names = {name: old.replace("LayerNorm.bias", "LayerNorm.beta") for name, old in names.items()}
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    write(tmp_path / "new", weights=weights)
    write(tmp_path / "old", weights={names[name]: array for name, array in weights.items()})
    new, old = (models.load_bert(tmp_path / folder)[1] for folder in ("new", "old"))
    jax.tree.map(np.testing.assert_array_equal, old, new)
