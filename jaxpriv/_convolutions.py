"""Rearranges the axes of convolutions, so that XLA computes them fast in loops on a CPU.

XLA's fast routine for the CPU needs the order batch, space, features of both images and
space, in, out of the kernel. XLA brings other convolutions into this order outside of loops and
conditionals, and computes them by a slow general routine inside (jax-ml/jax#12868). The gradients
of a convolution are convolutions in other orders: in a scan, a training step of a small network
takes several times as long. Here the order is made explicit by transposes, before XLA sees it.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core
from jax.extend.core import primitives

from jaxpriv import _jaxprs

_BODIES = {
    primitives.jit_p: ("jaxpr",),
    primitives.scan_p: ("jaxpr",),
    primitives.while_p: ("cond_jaxpr", "body_jaxpr"),
    primitives.cond_p: ("branches",),
    primitives.remat_p: ("jaxpr",),
}
"""Primitives whose bodies are searched, and the parameters with these bodies."""


def for_loops(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function for the body of a loop, with the same results.

    Args:
      function: function of arrays, or pytrees of arrays.

    Returns:
      The function with its convolutions in the order of XLA's routine, if the default backend is a
      CPU; otherwise the function itself is called.
    """

    @functools.wraps(function)
    def call(*args):
        if jax.default_backend() != "cpu":
            return function(*args)
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        outputs = _evaluate(closed, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return call


def _evaluate(closed: core.ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    """Evaluates a jaxpr with its convolutions rearranged."""
    if not _is_affected(closed.jaxpr):
        return core.jaxpr_as_fun(closed)(*args)
    env = _jaxprs.Environment(closed, args)
    for eqn in closed.jaxpr.eqns:
        values = env.read(eqn.invars)
        if not _is_affected_eqn(eqn):
            results = _jaxprs.bind(eqn, values)
        elif eqn.primitive is primitives.conv_general_dilated_p:
            results = [_convolve(eqn, *values)]
        else:
            bodies = {name: _rearranged(eqn.params[name]) for name in _BODIES[eqn.primitive]}
            results = _jaxprs.bind(eqn, values, **bodies)
        env.write(eqn, results)
    return env.read(closed.jaxpr.outvars)


def _rearranged(body: Any) -> Any:
    """Rearranges the convolutions of a body: a jaxpr, closed or not, or a tuple of closed ones."""
    if isinstance(body, tuple):
        return tuple(_rearranged(branch) for branch in body)
    if isinstance(body, core.Jaxpr):
        return _rearranged(core.ClosedJaxpr(body, ())).jaxpr
    shapes = [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type)
        for v in body.jaxpr.invars
    ]
    return jax.make_jaxpr(lambda *args: _evaluate(body, args))(*shapes)


def _is_affected(jaxpr: core.Jaxpr) -> bool:
    return any(_is_affected_eqn(eqn) for eqn in jaxpr.eqns)


def _is_affected_eqn(eqn: core.JaxprEqn) -> bool:
    if eqn.primitive is primitives.conv_general_dilated_p:
        given = eqn.params["dimension_numbers"]
        return given != _order(len(given.lhs_spec))
    return any(_is_affected(body) for body in _bodies(eqn))


def _bodies(eqn: core.JaxprEqn) -> Iterator[core.Jaxpr]:
    for name in _BODIES.get(eqn.primitive, ()):
        given = eqn.params[name]
        for body in given if isinstance(given, tuple) else (given,):
            yield body.jaxpr if isinstance(body, core.ClosedJaxpr) else body


def _order(rank: int) -> lax.ConvDimensionNumbers:
    """Returns the order of XLA's routine: batch or kernel axes around the space axes."""
    space = tuple(range(1, rank - 1))
    image = (0, rank - 1, *space)
    kernel = (rank - 1, rank - 2, *range(rank - 2))
    return lax.ConvDimensionNumbers(image, kernel, image)


def _convolve(eqn: core.JaxprEqn, x: Any, kernel: Any) -> Any:
    given: lax.ConvDimensionNumbers = eqn.params["dimension_numbers"]
    batch, features, *space = given.lhs_spec
    out, into, *kernel_space = given.rhs_spec
    operands = (
        lax.transpose(x, (batch, *space, features)),
        lax.transpose(kernel, (*kernel_space, into, out)),
    )
    (result,) = _jaxprs.bind(eqn, operands, dimension_numbers=_order(x.ndim))
    batch, features, *space = given.out_spec
    order = (batch, *space, features)
    return lax.transpose(result, sorted(range(x.ndim), key=order.__getitem__))
