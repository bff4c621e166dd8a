"""Table of defences, by name.

A new defence takes one function and one row here.
"""

import inspect
from collections.abc import Callable

from jaxpriv import _check
from jaxpriv.defences import adversarial, dirichlet, gaussian, outputs
from jaxpriv.defences._defence import Defence

__all__ = ["DEFENCES", "from_text"]

DEFENCES: dict[str, Callable[..., Defence]] = {
    "adversarial": adversarial.regularised_training,
    "dirichlet": dirichlet.noised_outputs,
    "gaussian": gaussian.noised_parameters,
    "label_only": outputs.label_only,
    "rounding": outputs.rounding,
    "temperature": outputs.temperature,
    "top_k": outputs.top_k,
}
"""Functions that make the defences, by name. Their keyword arguments are numbers; those with a
default may be left out."""


def from_text(text: str) -> Defence:
    """Makes a defence from its name and settings.

    Args:
      text: NAME or NAME:ARGUMENT=NUMBER,ARGUMENT=NUMBER, such as "top_k:k=3" or
        "dirichlet:k=10,eta=0.01,b=0.1,delta=1e-5".

    Returns:
      The defence.

    Raises:
      ValueError: for an unknown name, unknown or missing arguments, or a value that is not a
        number or out of range.

    Example:
      >>> from_text("top_k:k=3").title
      'top 3'
    """
    name, _, settings = text.partition(":")
    _check.one_of(DEFENCES, defence=name)
    parameters = inspect.signature(DEFENCES[name]).parameters
    pairs = [setting.partition("=")[::2] for setting in settings.split(",") if setting]
    names = [argument for argument, _ in pairs]
    optional = {name for name, p in parameters.items() if p.default is not p.empty}
    is_complete = parameters.keys() - optional <= set(names) <= parameters.keys()
    if not is_complete or len(names) != len(set(names)):
        arguments = ",".join(
            f"[{argument}=NUMBER]" if argument in optional else f"{argument}=NUMBER"
            for argument in parameters
        )
        raise ValueError(f"Expected {name}{':' if parameters else ''}{arguments}, got {text!r}.")
    is_int = {argument: parameters[argument].annotation is int for argument in parameters}
    return DEFENCES[name](
        **{argument: _number(argument, text, is_int=is_int[argument]) for argument, text in pairs}
    )


def _number(argument: str, text: str, *, is_int: bool) -> int | float:
    try:
        return int(text) if is_int else float(text)
    except ValueError:
        number = "a whole number" if is_int else "a number"
        raise ValueError(f"Expected {number} for {argument}, got {text!r}.") from None
