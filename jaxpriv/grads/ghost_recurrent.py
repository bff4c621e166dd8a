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

Step = Callable[[Any, Array, Array], tuple[Any, Array]]


class Gates(NamedTuple):
    """How a cell makes a step from products with its input and its hidden state.

    inputs: names of the Dense modules on the input, in the order of their blocks.
    hidden: names of those on the previous hidden state; the last blocks of the pre-activations
      are theirs where the two are not simply added.
    step: (cell) -> (carry, pre-activations, hidden product) -> (carry, hidden state).
    """

    inputs: tuple[str, ...]
    hidden: tuple[str, ...]
    step: Callable[[Any], Step]

    @property
    def blocks(self) -> int:
        """Blocks of pre-activations: a GRU's candidate takes its hidden product separately."""
        return 4 if len(self.inputs) == 3 else len(self.inputs)


def _lstm_step(cell: Any) -> Step:
    def step(carry, pre, product):
        c, _ = carry
        i, f, g, o = jnp.split(pre + product, 4, axis=-1)
        c = cell.gate_fn(f) * c + cell.gate_fn(i) * cell.activation_fn(g)
        h = cell.gate_fn(o) * cell.activation_fn(c)
        return (c, h), h

    return step


def _gru_step(cell: Any) -> Step:
    def step(h, pre, product):
        pre_r, pre_z, pre_n, bump_n = jnp.split(pre, 4, axis=-1)
        hidden_r, hidden_z, hidden_n = jnp.split(product, 3, axis=-1)
        r, z = cell.gate_fn(pre_r + hidden_r), cell.gate_fn(pre_z + hidden_z)
        n = cell.activation_fn(pre_n + r * (hidden_n + bump_n))
        h = (1.0 - z) * n + z * h
        return h, h

    return step


def _simple_step(cell: Any) -> Step:
    def step(h, pre, product):
        total = pre + product + h if cell.residual else pre + product
        h = cell.activation_fn(total)
        return h, h

    return step


_LSTM = Gates(("ii", "if", "ig", "io"), ("hi", "hf", "hg", "ho"), _lstm_step)
_GATES: dict[type[nn.Module], Gates] = {
    nn.LSTMCell: _LSTM,
    nn.OptimizedLSTMCell: _LSTM,
    nn.GRUCell: Gates(("ir", "iz", "in"), ("hr", "hz", "hn"), _gru_step),
    nn.SimpleCell: Gates(("i",), ("h",), _simple_step),
}


class _Stepper(nn.RNNCellBase):
    """A cell that takes pre-activations, and tells the hidden state that it started from."""

    step: Step
    dtype: Any

    def __call__(self, carry: Any, pre: Array) -> tuple[Any, tuple[Array, Array]]:
        previous = carry[1] if isinstance(carry, tuple) else carry
        kernel, bias = (self.get_variable("params", name) for name in ("kernel", "bias"))
        h, kernel, bias = promote_dtype(previous, kernel, bias, dtype=self.dtype)
        # Keeping three arrays a step and redoing the gates beats keeping a dozen.
        step = jax.checkpoint(self.step, prevent_cse=False)
        carry, output = step(carry, pre, h @ kernel + bias)
        return carry, (output, previous)

    @property
    def num_feature_axes(self) -> int:
        return 1


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
    return dict(module.cell.variables.get("params", {}))


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
    cell, layout, x = _cell(call), _layout(call), call.first()
    gates = _GATES[type(cell)]
    kernel, bias = _joint(params, gates.inputs)
    inputs, kernel, bias = promote_dtype(x, kernel, bias, dtype=cell.dtype)
    pre = inputs @ kernel + bias
    extra = gates.blocks - len(gates.inputs)
    if extra:
        none = jnp.zeros((*pre.shape[:-1], extra * cell.features), pre.dtype)
        pre = jnp.concatenate([pre, none], axis=-1)
    shape = jax.ShapeDtypeStruct(pre.shape, pre.dtype)
    if bump is not None:
        pre = pre + bump
    stepper = _Stepper(step=gates.step(cell), dtype=cell.dtype, parent=None)
    hidden = dict(zip(("kernel", "bias"), _joint(params, gates.hidden), strict=True))
    runner = nn.RNN(
        stepper, time_major=layout.time_major, reverse=layout.reverse, keep_order=True, parent=None
    )
    lengths = call.kwargs.get("seq_lengths")
    carry, (ys, previous) = runner.apply(
        {"params": {"cell": hidden}},
        pre,
        initial_carry=_initial_carry(call, layout),
        seq_lengths=lengths,
        return_carry=True,
    )
    if layout.reverse and not layout.keep_order:
        batch_dims = x.ndim - 2
        ys = recurrent.flip_sequences(ys, lengths, batch_dims, layout.time_major)
    return Bumped((carry, ys) if layout.return_carry else ys, (x, previous), shape)


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
    blocks = jnp.split(delta.reshape(x.shape[0], -1), gates.blocks, axis=-1)
    of_hidden = [*blocks[: len(gates.hidden) - 1], blocks[-1]]
    result: dict[Path, Factor] = {}
    for names, left, deltas in ((gates.inputs, x, blocks), (gates.hidden, previous, of_hidden)):
        for name, block in zip(names, deltas, strict=False):
            result[name, "kernel"] = Outer(left, block)
            result[name, "bias"] = Whole(jnp.sum(_tree.wide(block), axis=0))
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
