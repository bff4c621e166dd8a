"""How each layer's gradient factors: from its input and the cotangent of its output.

Rules are for one example. What has no rule here (norm layers, gates, anything of the user's own)
is explicit, which is right for every layer and cheap for small leaves.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.dtypes import promote_dtype
from jaxtyping import Array

from jaxpriv import _tree
from jaxpriv.grads.ghost_factors import Factor, Lookup, Outer, Whole

Path = tuple[str, ...]


class Call(NamedTuple):
    """One call of a module's method, as the loss makes it."""

    module: nn.Module
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def first(self) -> Any:
        """The array that the layer works on."""
        return self.args[0] if self.args else self.kwargs.get("inputs", self.kwargs.get("query"))


class Bumped(NamedTuple):
    """What a call gives when its rule runs it.

    output: of the call.
    record: what `factors` needs of it.
    shape: of the array that the bump is added to.
    """

    output: Any
    record: Any
    shape: jax.ShapeDtypeStruct


def _held_params(module: nn.Module) -> dict[str, Any]:
    """The layer's own: where a scope is shared, others' stand beside them."""
    held = module.variables.get("params", {})
    return {name: held[name] for name in ("kernel", "bias", "embedding") if name in held}


def _apply_bumped(call: Call, params: Mapping[str, Any], bump: Array | None) -> Bumped:
    """Calls the module, detached, on these parameters; the bump is added to what comes out."""
    variables = {**call.module.variables, "params": params}
    detached = call.module.clone(parent=None)
    out = detached.apply(variables, *call.args, method=call.method, **call.kwargs)
    assert isinstance(out, jax.Array)
    shape = jax.ShapeDtypeStruct(out.shape, out.dtype)
    return Bumped(out if bump is None else out + bump, call.first(), shape)


class Rule(NamedTuple):
    """How to take one kind of call apart.

    accepts: whether this call, so configured, is covered.
    factors: (config, record, cotangent of the bump) -> a factor for each parameter.
    held: the parameters that the call reads, nested.
    forward: the call on given parameters; a bump of zeros, whose gradient is wanted, or None.
    config: what is static about the call; given to `factors`.
    """

    accepts: Callable[[Call], bool]
    factors: Callable[[Any, Any, Array], Mapping[Path, Factor]]
    held: Callable[[nn.Module], dict[str, Any]] = _held_params
    forward: Callable[[Call, Mapping[str, Any], Array | None], Bumped] = _apply_bumped
    config: Callable[[Call], Any] = lambda call: call.module.clone(parent=None)


def _as_usual(call: Call) -> bool:
    """Whether the layer multiplies and promotes as usual: nothing replaced by the user."""
    replaced = ("dot_general", "conv_general_dilated")
    given = [getattr(call.module, name + end, None) for name in replaced for end in ("", "_cls")]
    promote = getattr(call.module, "promote_dtype", promote_dtype)
    return promote is promote_dtype and all(one is None for one in given)


def _bias(delta: Array, bias_ndim: int) -> Whole:
    return Whole(jnp.sum(_tree.wide(delta), axis=tuple(range(delta.ndim - bias_ndim))))


def _dense_factors(module: nn.Module, x: Array, delta: Array) -> dict[Path, Factor]:
    """y = x W + b: dW = sum_t x_t (outer) delta_t, db = sum_t delta_t."""
    del module
    left, right = x.reshape(-1, x.shape[-1]), delta.reshape(-1, delta.shape[-1])
    return {("kernel",): Outer(left, right), ("bias",): _bias(delta, 1)}


def _dense_general_accepts(call: Call) -> bool:
    module = call.module
    assert isinstance(module, nn.DenseGeneral)
    return _as_usual(call) and not _as_tuple(module.batch_dims)


def _dense_general_factors(module: nn.Module, x: Array, delta: Array) -> dict[Path, Factor]:
    """The same over several contracted axes and several features."""
    assert isinstance(module, nn.DenseGeneral)
    axes = sorted(a % x.ndim for a in _as_tuple(module.axis))
    features = len(_as_tuple(module.features))
    kept = [a for a in range(x.ndim) if a not in axes]
    contracted = math.prod(x.shape[a] for a in axes)
    left = x.transpose(*kept, *axes).reshape(-1, contracted)
    right = delta.reshape(left.shape[0], -1)
    return {("kernel",): Outer(left, right), ("bias",): _bias(delta, features)}


def _embed_accepts(call: Call) -> bool:
    """A table of one row ignores its ids, so it is explicit."""
    module = call.module
    assert isinstance(module, nn.Embed)
    whole = call.method == "attend" or jnp.issubdtype(call.first().dtype, jnp.integer)
    return whole and module.num_embeddings > 1 and _as_usual(call)


def _embed_factors(module: nn.Module, ids: Array, delta: Array) -> dict[Path, Factor]:
    """Adds delta_t to row ids_t. A negative id counts from the end; one out of range has no row."""
    assert isinstance(module, nn.Embed)
    ids, right = ids.reshape(-1).astype(jnp.int32), delta.reshape(-1, delta.shape[-1])
    ids = jnp.where(ids < 0, ids + module.num_embeddings, ids)
    exists = (ids >= 0) & (ids < module.num_embeddings)
    right = jnp.where(exists[:, None], right, jnp.zeros((), right.dtype))
    return {("embedding",): Lookup(jnp.where(exists, ids, 0), right)}


def _attend_factors(module: nn.Module, query: Array, delta: Array) -> dict[Path, Factor]:
    """logits = query E^T: dE = sum_t delta_t (outer) query_t."""
    del module
    left, right = delta.reshape(-1, delta.shape[-1]), query.reshape(-1, query.shape[-1])
    return {("embedding",): Outer(left, right)}


def _conv_accepts(call: Call) -> bool:
    module = call.module
    assert isinstance(module, nn.Conv | nn.ConvTranspose)
    if module.mask is not None or not _as_usual(call):
        return False
    if isinstance(module, nn.ConvTranspose):
        known = not isinstance(module.padding, str) or module.padding in ("SAME", "VALID")
        return known and not module.transpose_kernel
    return True


def _conv_factors(module: nn.Module, x: Array, delta: Array) -> dict[Path, Factor]:
    """A convolution is a product with the patches of its input."""
    assert isinstance(module, nn.Conv)
    window = _as_tuple(module.kernel_size)
    rank, groups = len(window), module.feature_group_count
    images = x.reshape(-1, *x.shape[-rank - 1 :])
    stride, spread = _per_axis(module.strides, rank), _per_axis(module.kernel_dilation, rank)
    inner = _per_axis(module.input_dilation, rank)
    images = _padded(images, module.padding, window, stride, spread, inner)
    patches = _patches(images, delta.shape[-rank - 1 : -1], window, stride, spread)
    return {
        ("kernel",): _grouped(patches, delta.reshape(-1, delta.shape[-1]), groups),
        ("bias",): _bias(delta, 1),
    }


def _conv_transpose_factors(module: nn.Module, x: Array, delta: Array) -> dict[Path, Factor]:
    """A transposed convolution is one over the input with its strides as gaps."""
    assert isinstance(module, nn.ConvTranspose)
    window = _as_tuple(module.kernel_size)
    rank = len(window)
    ones = (1,) * rank
    images = x.reshape(-1, *x.shape[-rank - 1 :])
    stride, spread = _per_axis(module.strides, rank), _per_axis(module.kernel_dilation, rank)
    reach = [(k - 1) * d + 1 for k, d in zip(window, spread, strict=True)]
    padding = module.padding
    if isinstance(padding, str):
        pairs = [_transposed_pad(padding, k, s) for k, s in zip(reach, stride, strict=True)]
    else:
        pairs = _pad_pairs(padding, rank)
    images = _padded(images, pairs, window, ones, spread, stride)
    patches = _patches(images, delta.shape[-rank - 1 : -1], window, ones, spread)
    return {
        ("kernel",): _grouped(patches, delta.reshape(-1, delta.shape[-1]), 1),
        ("bias",): _bias(delta, 1),
    }


def _grouped(patches: Array, delta: Array, groups: int) -> Outer:
    """[t, window, channels] and [t, features] -> an Outer, with a group axis when grouped."""
    t, window, channels = patches.shape
    if groups == 1:
        return Outer(patches.reshape(t, -1), delta)
    left = patches.reshape(t, window, groups, channels // groups)
    left = left.transpose(2, 0, 1, 3).reshape(groups, t, -1)
    return Outer(left, delta.reshape(t, groups, -1).transpose(1, 0, 2))


def _padded(
    images: Array,
    padding: str | int | Sequence[int | tuple[int, int]],
    window: tuple[int, ...],
    stride: tuple[int, ...],
    spread: tuple[int, ...],
    inner: tuple[int, ...],
) -> Array:
    """Pads [n, *spatial, c] as flax.linen.Conv does, then opens gaps of input dilation."""
    rank = len(window)
    reach = tuple((k - 1) * d + 1 for k, d in zip(window, spread, strict=True))
    modes = {"CIRCULAR": "wrap", "REFLECT": "reflect", "CAUSAL": "constant"}
    if isinstance(padding, str) and padding in modes:
        causal = padding == "CAUSAL"
        around = [(r - 1, 0) if causal else ((r - 1) // 2, r // 2) for r in reach]
        images = jnp.pad(images, [(0, 0), *around, (0, 0)], mode=modes[padding])
        pairs = [(0, 0)] * rank
    elif isinstance(padding, str):
        pairs = jax.lax.padtype_to_pads(images.shape[1:-1], reach, stride, padding)
    else:
        pairs = _pad_pairs(padding, rank)
    config = [(low, high, d - 1) for (low, high), d in zip(pairs, inner, strict=True)]
    return jax.lax.pad(images, jnp.zeros((), images.dtype), [(0, 0, 0), *config, (0, 0, 0)])


def _patches(
    images: Array,
    spatial: tuple[int, ...],
    window: tuple[int, ...],
    stride: tuple[int, ...],
    spread: tuple[int, ...],
) -> Array:
    """[n, *padded, c] -> [t, window, c]: one strided slice for each place in the window."""
    if 0 in spatial:
        return jnp.zeros((0, math.prod(window), images.shape[-1]), images.dtype)
    slices = []
    for place in np.ndindex(*window):
        start = [p * d for p, d in zip(place, spread, strict=True)]
        stop = [b + (n - 1) * s + 1 for b, n, s in zip(start, spatial, stride, strict=True)]
        slices.append(
            jax.lax.slice(
                images,
                (0, *start, 0),
                (images.shape[0], *stop, images.shape[-1]),
                (1, *stride, 1),
            )
        )
    return jnp.stack(slices, axis=-2).reshape(-1, len(slices), images.shape[-1])


def _transposed_pad(padding: str, k: int, s: int) -> tuple[int, int]:
    """Pads that make the output s times as long ("SAME"), or keep every product ("VALID")."""
    if padding == "SAME":
        total = k + s - 2
        before = k - 1 if s > k - 1 else -(-total // 2)
    else:
        total = k + s - 2 + max(k - s, 0)
        before = k - 1
    return before, total - before


def _pad_pairs(padding: int | Sequence[int | tuple[int, int]], rank: int) -> list[tuple[int, int]]:
    if isinstance(padding, int):
        return [(padding, padding)] * rank
    pairs = [(p, p) if isinstance(p, int) else (p[0], p[1]) for p in padding]
    return pairs * rank if len(pairs) == 1 else pairs


def _per_axis(value: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    if value is None:
        return (1,) * rank
    return (value,) * rank if isinstance(value, int) else tuple(value)


def _as_tuple(value: int | Sequence[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


RULES: dict[tuple[type[nn.Module], str], Rule] = {
    (nn.Dense, "__call__"): Rule(_as_usual, _dense_factors),
    (nn.DenseGeneral, "__call__"): Rule(_dense_general_accepts, _dense_general_factors),
    (nn.Conv, "__call__"): Rule(_conv_accepts, _conv_factors),
    (nn.ConvTranspose, "__call__"): Rule(_conv_accepts, _conv_transpose_factors),
    (nn.Embed, "__call__"): Rule(_embed_accepts, _embed_factors),
    (nn.Embed, "attend"): Rule(_embed_accepts, _attend_factors),
}
