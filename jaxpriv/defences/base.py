"""The table of defences, and the types that they share.

Adding a defence takes one function and one row here.
"""

import inspect
from collections.abc import Callable

from jaxpriv import _check
from jaxpriv.defences import outputs
from jaxpriv.defences._defence import Defence, Predict, Promise, Release, Respond

__all__ = ["DEFENCES", "Defence", "Predict", "Promise", "Release", "Respond", "from_text"]

DEFENCES: dict[str, Callable[..., Defence]] = {
    "label_only": outputs.label_only,
    "rounding": outputs.rounding,
    "temperature": outputs.temperature,
    "top_k": outputs.top_k,
}
"""Functions that make a defence, by name; their keyword arguments are numbers."""


def from_text(text: str) -> Defence:
    """Makes a defence from its name and settings.

    Args:
      text: NAME or NAME:ARGUMENT=NUMBER,ARGUMENT=NUMBER, such as "top_k:k=3".

    Returns:
      The defence.

    Raises:
      ValueError: for an unknown name or argument, a missing one, what is not a number, or a
        number out of range.

    Example:
      >>> from_text("top_k:k=3").title
      'top 3'
    """
    name, _, settings = text.partition(":")
    _check.one_of(DEFENCES, defence=name)
    wanted = inspect.signature(DEFENCES[name]).parameters
    pairs = [setting.partition("=")[::2] for setting in settings.split(",") if setting]
    if sorted(argument for argument, _ in pairs) != sorted(wanted):
        arguments = ",".join(f"{argument}=NUMBER" for argument in wanted)
        raise ValueError(f"Expected {name}{':' if wanted else ''}{arguments}, got {text!r}.")
    is_count = {argument: wanted[argument].annotation is int for argument in wanted}
    return DEFENCES[name](
        **{argument: _number(argument, text, whole=is_count[argument]) for argument, text in pairs}
    )


def _number(argument: str, text: str, *, whole: bool) -> int | float:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        number = "a whole number" if whole else "a number"
        raise ValueError(f"Expected {number} for {argument}, got {text!r}.") from None
