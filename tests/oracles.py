"""Slow, obvious versions of what the library does fast."""

import importlib.metadata
import inspect
import math

import jax
import numpy as np
import pytest

_UNOPTIMISED = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
if importlib.metadata.version("jaxlib").startswith("0.10."):
    _UNOPTIMISED["xla_cpu_use_fusion_emitters"] = False


def quick_jit(function):
    """`jax.jit` without XLA's optimisations: compiles in a quarter of the time, runs slower."""
    return jax.jit(function, compiler_options=_UNOPTIMISED)


def clipped_sum(loss, params, batch, mask, key, *, clip_norm):
    """One example after the other, in float64 from float32 gradients."""
    keys = jax.random.split(key, len(mask))
    grad = quick_jit(jax.grad(loss))
    total = jax.tree.map(lambda p: np.zeros(p.shape), params)
    norms = np.zeros(len(mask))
    for i in range(len(mask)):
        if not mask[i]:
            continue
        one = grad(params, jax.tree.map(lambda leaf, i=i: leaf[i], batch), keys[i])
        one = jax.tree.map(lambda g: np.asarray(g, np.float64), one)
        norm = math.sqrt(sum(float(np.sum(g**2)) for g in jax.tree.leaves(one)))
        norms[i] = norm if math.isfinite(norm) else math.inf
        if not math.isfinite(norm):
            continue
        weight = min(1.0, clip_norm / norm) if norm > 0 else 1.0
        total = jax.tree.map(lambda t, g, w=weight: t + w * g, total, one)
    return total, norms


def assert_same_sum(found, expected, *, rtol=1e-5):
    """Relative to the largest entry over all leaves: a leaf may be near zero by cancellation."""
    total, norms = expected
    scale = max(float(np.abs(leaf).max(initial=0)) for leaf in jax.tree.leaves(total))
    for f, e in zip(jax.tree.leaves(found.total), jax.tree.leaves(total), strict=True):
        np.testing.assert_allclose(np.asarray(f, np.float64), e, rtol=rtol, atol=rtol * scale)
    np.testing.assert_allclose(np.asarray(found.norms, np.float64), norms, rtol=rtol)


def largest_difference(found, expected):
    """Between two trees, relative to the largest entry of the second."""
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True))
    scale = max(float(np.abs(e).max(initial=0)) for _, e in pairs)
    apart = max(float(np.abs(np.asarray(f, np.float64) - e).max(initial=0)) for f, e in pairs)
    return apart / scale if scale else apart


def tree_norm(tree):
    """Euclidean norm over all leaves, float64."""
    return math.sqrt(
        sum(float(np.sum(np.asarray(x, np.float64) ** 2)) for x in jax.tree.leaves(tree))
    )


def slow_after(count, cases):
    """Marks all cases but the first as slow: `make test` runs some of each kind."""
    params = []
    for i, case in enumerate(cases):
        values, marks, name = (case if isinstance(case, tuple) else (case,)), (), None
        if isinstance(case, type(pytest.param())):
            values, marks, name = case
        slow = (pytest.mark.slow,) if i >= count else ()
        params.append(pytest.param(*values, marks=(*marks, *slow), id=name))
    return params


def assert_lowers(function, *args):
    """The function compiles for accelerators: no callbacks, nothing the CPU alone can do."""
    lowered = jax.jit(function).trace(*args).lower(lowering_platforms=("tpu", "cuda"))
    assert "callback" not in lowered.as_text()


def unhooked(function):
    """The function without the tests' type checks: what a user who passes a wrong type meets."""
    return inspect.unwrap(function)


def bert(weights, ids, *, num_layers, num_heads, epsilon):
    """Forward pass of a BERT encoder from its published weights, in float64."""
    from scipy import special

    w = {name: np.asarray(array, np.float64) for name, array in weights.items()}

    def dense(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        centred = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
        return centred / scale * w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in (f"encoder.layer.{i}" for i in range(num_layers)):
        parts = [
            np.split(dense(x, f"{layer}.attention.self.{part}"), num_heads, axis=1)
            for part in ("query", "key", "value")
        ]
        heads = []
        for query, key, value in zip(*parts, strict=True):
            scores = query @ key.T / math.sqrt(query.shape[1])
            heads.append(special.softmax(scores, axis=1) @ value)
        attended = dense(np.concatenate(heads, axis=1), f"{layer}.attention.output.dense")
        x = norm(x + attended, f"{layer}.attention.output.LayerNorm")
        hidden = dense(x, f"{layer}.intermediate.dense")
        hidden = hidden * (1 + special.erf(hidden / math.sqrt(2))) / 2
        x = norm(x + dense(hidden, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    return x
