"""Evaluates jaxprs equation by equation, which `jax.extend.core` lacks."""

from collections.abc import Iterable, Sequence
from typing import Any

from jax.extend import core


class Environment:
    """The values of a jaxpr's variables while it is evaluated."""

    def __init__(self, closed: core.ClosedJaxpr, args: Sequence[Any]):
        self._values = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        self._values |= zip(closed.jaxpr.invars, args, strict=True)

    def read(self, atoms: Iterable[Any]) -> list[Any]:
        """Returns the values of variables and literals."""
        return [a.val if isinstance(a, core.Literal) else self._values[a] for a in atoms]

    def write(self, eqn: Any, values: Sequence[Any]) -> None:
        """Stores the outputs of an equation."""
        self._values |= zip(eqn.outvars, values, strict=True)


def bind(eqn: Any, values: Sequence[Any], **changes: Any) -> list[Any]:
    """Evaluates one equation, under the settings with which it was traced.

    Args:
      eqn: the equation.
      values: its inputs.
      changes: parameters that replace those of the equation.

    Returns:
      Its outputs.
    """
    with eqn.ctx.manager:
        params = eqn.primitive.get_bind_params(eqn.params | changes)
        out = eqn.primitive.bind(*values, **params)
    return list(out) if eqn.primitive.multiple_results else [out]
