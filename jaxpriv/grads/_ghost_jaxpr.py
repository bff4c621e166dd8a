"""Operations on the jaxpr of a loss that `jax.extend.core` lacks: trace, inline, analyse."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jaxtyping import PyTree

from jaxpriv import _jaxprs
from jaxpriv._types import Example, Loss, Params

_INLINED = {"jit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
"""Primitives that only group equations -> name of the parameter with their body."""


def trace(loss: Loss, params: Params, example: Example, key: PyTree) -> core.ClosedJaxpr:
    """Traces the loss of one example, with every `jit` in it inlined.

    Args:
      loss: `loss(params, example, key)` of one example.
      params: trainable leaves, arrays or their shapes.
      example: one row, arrays or shapes.
      key: a key or its shape.

    Returns:
      A jaxpr whose inputs are the leaves of params, then of the example, then of the key.

    Raises:
      ValueError: if the loss is not a real scalar, or uses the batch statistics of a BatchNorm.
    """
    closed, out = jax.make_jaxpr(loss, return_shape=True)(params, example, key)
    _check_scalar(out)
    _refuse_batch_statistics(closed.jaxpr)
    return inline(closed)


def _check_scalar(out: PyTree) -> None:
    shapes = jax.tree.leaves(out)
    if isinstance(out, tuple | list | dict):
        raise ValueError(
            f"Expected a loss that returns one scalar, got a {type(out).__name__} of "
            f"{len(shapes)}: return the loss alone (`with_values` gives its values)."
        )
    if [x.shape for x in shapes] != [()] or not is_real(shapes[0].dtype):
        got = ", ".join(f"{x.dtype}{list(x.shape)}" for x in shapes) or repr(out)
        raise ValueError(f"Expected the loss of one example to be a real scalar, got {got}.")


def inline(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Returns a jaxpr with its calls replaced by their bodies."""
    if not any(eqn.primitive.name in _INLINED for eqn in closed.jaxpr.eqns):
        return closed
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars]
    return jax.make_jaxpr(lambda *args: _evaluate_inlined(closed, args))(*avals)


def _evaluate_inlined(closed: core.ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    env = _jaxprs.Environment(closed, args)
    for eqn in closed.jaxpr.eqns:
        body = eqn.params.get(_INLINED.get(eqn.primitive.name, ""))
        if isinstance(body, core.ClosedJaxpr):
            env.write(eqn, _evaluate_inlined(body, env.read(eqn.invars)))
        else:
            env.write(eqn, _jaxprs.bind(eqn, env.read(eqn.invars)))
    return env.read(closed.jaxpr.outvars)


def used(jaxpr: core.Jaxpr) -> tuple[set[int], Counter[Any]]:
    """Computes which equations contribute to the outputs.

    Args:
      jaxpr: any jaxpr.

    Returns:
      The indices of the equations that an output depends on or that have effects, and the number
      of times that these equations and the outputs read each variable.
    """
    reads = Counter(v for v in jaxpr.outvars if isinstance(v, core.Var))
    live = set()
    for i, eqn in reversed(list(enumerate(jaxpr.eqns))):
        if eqn.effects or any(reads[v] for v in eqn.outvars):
            live.add(i)
            reads.update(v for v in eqn.invars if isinstance(v, core.Var))
    return live, reads


def constant(atom: Any) -> Any:
    """Returns the value of a literal, None for a variable."""
    return atom.val if isinstance(atom, core.Literal) else None


def is_real(dtype: Any) -> bool:
    """Returns whether a type is real floating point."""
    return jnp.issubdtype(dtype, jnp.floating)


def is_narrow(jaxpr: core.Jaxpr) -> bool:
    """Returns whether an input or an equation has floating-point numbers of less than 32 bits."""
    return any(_is_narrow_type(v.aval) for v in jaxpr.invars) or any(
        any(map(is_narrow, bodies(eqn))) or any(_is_narrow_type(v.aval) for v in eqn.outvars)
        for eqn in jaxpr.eqns
    )


def _is_narrow_type(aval: Any) -> bool:
    return is_real(aval.dtype) and aval.dtype.itemsize < 4


def bodies(eqn: Any) -> list[core.Jaxpr]:
    """Returns the jaxprs among an equation's parameters."""
    return [getattr(j, "jaxpr", j) for j in core.jaxprs_in_params(eqn.params)]


def _refuse_batch_statistics(jaxpr: core.Jaxpr) -> None:
    """Refuses a BatchNorm of flax.nnx in training mode, by the tracebacks of the equations.

    That of flax.linen is refused by an interceptor, which can report the path of the module.
    """
    for eqn in jaxpr.eqns:
        for body in bodies(eqn):
            _refuse_batch_statistics(body)
        if eqn.source_info.traceback is None:
            continue
        frames = [f.function_name for f in eqn.source_info.traceback.frames]
        if "_compute_stats" in frames and "BatchNorm.__call__" in frames:
            raise ValueError(
                "Expected no batch statistics under per-example clipping, got BatchNorm: use "
                "GroupNorm, or use_running_average=True."
            )
