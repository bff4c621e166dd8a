"""Recurrent layers: the rule works on the whole sequence, at the level of flax.linen.RNN.

The input projection of all steps is one product outside the scan. The gates' pre-activations of
all steps carry the bump, and the previous hidden states come out with the outputs; both kernels'
gradients are then products over the sequence, outside the scan again.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen import recurrent
from flax.linen.dtypes import promote_dtype
from jaxtyping import Array, Float

from jaxpriv import _tree
from jaxpriv.grads.ghost_factors import Factor, Outer, Whole
from jaxpriv.grads.ghost_rules import Bumped, Call, Path, Rule

Step = Callable[[Any, Array], Any]


class Gates(NamedTuple):
    """How a cell makes a step from products with its input and its hidden state.

    inputs: names of the Dense modules on the input, in the order of their blocks.
    hidden: names of those on the previous hidden state.
    merge: (input product, hidden product) -> pre-activations, block by block.
    step: (cell) -> (carry, pre-activations) -> carry, whose last part is the hidden state.
    """

    inputs: tuple[str, ...]
    hidden: tuple[str, ...]
    merge: Callable[[Array, Array], Array]
    step: Callable[[Any], Step]

    @property
    def blocks(self) -> int:
        """Blocks of pre-activations: a gated candidate has two, its products are not added."""
        return len(self.inputs) + (self.merge is not jnp.add)


def _lstm_step(cell: Any) -> Step:
    def step(carry, pre):
        c, _ = carry
        i, f, g, o = jnp.split(pre, 4, axis=-1)
        c = cell.gate_fn(f) * c + cell.gate_fn(i) * cell.activation_fn(g)
        return c, cell.gate_fn(o) * cell.activation_fn(c)

    return step


def _gru_merge(of_input: Array, of_hidden: Array) -> Array:
    """The candidate takes its hidden product only after the reset gate: a block of its own."""
    input_rz, input_n = jnp.split(of_input, [2 * of_input.shape[-1] // 3], axis=-1)
    hidden_rz, hidden_n = jnp.split(of_hidden, [2 * of_hidden.shape[-1] // 3], axis=-1)
    return jnp.concatenate([input_rz + hidden_rz, input_n, hidden_n], axis=-1)


def _gru_step(cell: Any) -> Step:
    def step(h, pre):
        r, z, input_n, hidden_n = jnp.split(pre, 4, axis=-1)
        r, z = cell.gate_fn(r), cell.gate_fn(z)
        n = cell.activation_fn(input_n + r * hidden_n)
        return (1.0 - z) * n + z * h

    return step


def _simple_step(cell: Any) -> Step:
    def step(h, pre):
        return cell.activation_fn(pre + h if cell.residual else pre)

    return step


_LSTM = Gates(("ii", "if", "ig", "io"), ("hi", "hf", "hg", "ho"), jnp.add, _lstm_step)
_GATES: dict[type[nn.Module], Gates] = {
    nn.LSTMCell: _LSTM,
    nn.OptimizedLSTMCell: _LSTM,
    nn.GRUCell: Gates(("ir", "iz", "in"), ("hr", "hz", "hn"), _gru_merge, _gru_step),
    nn.SimpleCell: Gates(("i",), ("h",), jnp.add, _simple_step),
}


class _Layout(NamedTuple):
    """The options of one call of an RNN, its attributes overridden by its arguments."""

    return_carry: bool
    time_major: bool
    reverse: bool
    keep_order: bool


def _layout(call: Call) -> _Layout:
    given = {name: call.kwargs.get(name) for name in _Layout._fields}
    return _Layout(**{k: getattr(call.module, k) if v is None else v for k, v in given.items()})


def _cell(call: Call) -> Any:
    assert isinstance(call.module, nn.RNN)
    return call.module.cell


def _held(module: nn.Module) -> dict[str, Any]:
    """The cell's parameters: it may live in another module's scope."""
    assert isinstance(module, nn.RNN)
    held, gates = module.cell.variables.get("params", {}), _GATES[type(module.cell)]
    return {name: held[name] for name in (*gates.inputs, *gates.hidden) if name in held}


def _accepts(call: Call) -> bool:
    rnn = call.module
    assert isinstance(rnn, nn.RNN)
    as_usual = rnn.variable_broadcast == "params" and not rnn.variable_axes
    x = call.first()
    floating = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)
    return type(rnn.cell) in _GATES and as_usual and not rnn.variable_carry and floating


def _joint(
    params: Mapping[str, Any], names: tuple[str, ...]
) -> tuple[Float[Array, "i o"], Float[Array, " o"]]:
    """One kernel and one bias for all blocks; absent biases are zero."""
    kernels = [params[name]["kernel"] for name in names]
    none = jnp.zeros(kernels[0].shape[-1:], kernels[0].dtype)
    biases = [params[name].get("bias", none) for name in names]
    return jnp.concatenate(kernels, axis=-1), jnp.concatenate(biases)


def _forward(call: Call, params: Mapping[str, Any], bump: Array | None) -> Bumped:
    """The RNN on given parameters, its pre-activations bumped."""
    layout, lengths = _layout(call), call.kwargs.get("seq_lengths")
    x = call.first()

    def flipped(sequence: Array) -> Array:
        return recurrent.flip_sequences(sequence, lengths, x.ndim - 2, layout.time_major)

    axis = 0 if layout.time_major else x.ndim - 2
    inputs = flipped(x) if layout.reverse else x
    advance, project, width = _advance(call, params)
    shape = jax.ShapeDtypeStruct((*x.shape[:-1], width), project(x).dtype)
    bumps = bump if bump is None or not layout.reverse else flipped(bump)
    sequences = jax.tree.map(lambda s: jnp.moveaxis(s, axis, 0), (inputs, bumps))
    if jax.default_backend() != "cpu":
        # One large product instead of many; a CPU pays more for the memory than it gains.
        sequences, project = (project(sequences[0]), sequences[1]), _unchanged
    keeps_carries = layout.return_carry and lengths is not None

    def step(carry, inputs):
        x, bump = inputs
        previous = _hidden(carry)
        carry = advance(carry, project(x), bump)
        return carry, (_hidden(carry), previous, carry if keeps_carries else None)

    start = _initial_carry(call, layout)
    carry, (ys, previous, carries) = jax.lax.scan(step, start, sequences, unroll=call.module.unroll)
    if keeps_carries and lengths is not None:
        carry = jax.tree.map(lambda c: c[lengths - 1, jnp.arange(c.shape[1])], carries)
    ys, previous = (jnp.moveaxis(s, 0, axis) for s in (ys, previous))
    if layout.reverse and layout.keep_order:
        ys = flipped(ys)
    record = (x, flipped(previous) if layout.reverse else previous)
    return Bumped((carry, ys) if layout.return_carry else ys, record, shape)


def _advance(call: Call, params: Mapping[str, Any]) -> tuple[Callable, Callable, int]:
    """A step on a projected input and a bump; the projection; the width of the pre-activations."""
    cell = _cell(call)
    gates = _GATES[type(cell)]
    of_input, of_hidden = (_joint(params, names) for names in (gates.inputs, gates.hidden))

    def product(x: Array, joint: tuple[Array, Array]) -> Array:
        x, kernel, bias = promote_dtype(x, *joint, dtype=cell.dtype)
        return x @ kernel + bias

    # Keeping the pre-activations of a step and redoing its gates beats keeping a dozen arrays.
    point = jax.checkpoint(gates.step(cell), prevent_cse=False)

    def advance(carry, projected, bump):
        pre = gates.merge(projected, product(_hidden(carry), of_hidden))
        pre = pre if bump is None else pre + bump
        return point(carry, pre)

    return advance, lambda x: product(x, of_input), gates.blocks * cell.features


def _hidden(carry: Any) -> Array:
    return carry[1] if isinstance(carry, tuple) else carry


def _unchanged(x: Array) -> Array:
    return x


def _initial_carry(call: Call, layout: _Layout) -> Any:
    carry = call.kwargs.get("initial_carry")
    if carry is not None:
        return carry
    key = call.kwargs.get("init_key")
    shape, axis = list(call.first().shape), 0 if layout.time_major else -2
    del shape[axis]
    return _cell(call).initialize_carry(jax.random.key(0) if key is None else key, tuple(shape))


def _factors(gates: Gates, record: Any, delta: Array) -> dict[Path, Factor]:
    """dW_x = sum_t x_t (outer) delta_t, dW_h = sum_t h_(t-1) (outer) delta_t, gate by gate."""
    x, previous = (side.reshape(-1, side.shape[-1]) for side in record)
    deltas = jnp.split(delta.reshape(x.shape[0], -1), gates.blocks, axis=-1)
    of_hidden = [*deltas[: len(gates.hidden) - 1], deltas[-1]]
    result: dict[Path, Factor] = {}
    for names, left, sides in ((gates.inputs, x, deltas), (gates.hidden, previous, of_hidden)):
        for name, side in zip(names, sides, strict=False):
            result[name, "kernel"] = Outer(left, side)
            result[name, "bias"] = Whole(jnp.sum(_tree.wide(side), axis=0))
    return result


RULES: dict[tuple[type[nn.Module], str], Rule] = {
    (nn.RNN, "__call__"): Rule(
        _accepts,
        _factors,
        held=_held,
        forward=_forward,
        config=lambda call: _GATES[type(_cell(call))],
    )
}
