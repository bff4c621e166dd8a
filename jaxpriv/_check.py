"""One-line refusals of what cannot be right. Imports nothing heavy."""

import math
from collections.abc import Collection


def _number(name: str, value: object) -> float:
    """A static number; a traced one cannot be checked, so it is refused."""
    try:
        return float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        raise ValueError(
            f"Expected a static number for {name}, got {type(value).__name__}."
        ) from None


def positive(**values: object) -> None:
    """Raises ValueError unless every value is finite and > 0."""
    for name, value in values.items():
        number = _number(name, value)
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"Expected {name} > 0, got {name}={value}.")


def non_negative(**values: object) -> None:
    """Raises ValueError unless every value is finite and >= 0."""
    for name, value in values.items():
        number = _number(name, value)
        if not (math.isfinite(number) and number >= 0):
            raise ValueError(f"Expected {name} >= 0, got {name}={value}.")


def positive_int(**values: object) -> None:
    """Raises ValueError unless every value is a whole number >= 1."""
    for name, value in values.items():
        number = _number(name, value)
        if isinstance(value, bool) or not math.isfinite(number) or number != int(number):
            raise ValueError(f"Expected a whole number for {name}, got {name}={value}.")
        if number < 1:
            raise ValueError(f"Expected {name} >= 1, got {name}={value}.")


def open_unit(**values: object) -> None:
    """Raises ValueError unless every value lies strictly between 0 and 1."""
    for name, value in values.items():
        if not 0 < _number(name, value) < 1:
            raise ValueError(f"Expected 0 < {name} < 1, got {name}={value}.")


def probability(**values: object) -> None:
    """Raises ValueError unless every value is in (0, 1]."""
    for name, value in values.items():
        if not 0 < _number(name, value) <= 1:
            raise ValueError(f"Expected 0 < {name} <= 1, got {name}={value}.")


def one_of(allowed: Collection[str], **values: object) -> None:
    """Raises ValueError unless every value is one of the allowed names."""
    for name, value in values.items():
        if value not in allowed:
            raise ValueError(f"Expected {name} to be one of {', '.join(allowed)}, got {value!r}.")


def attributes(names: Collection[str], example: str, **values: object) -> None:
    """Raises ValueError unless every value has these attributes, as the example has."""
    for name, value in values.items():
        missing = [attribute for attribute in names if not hasattr(value, attribute)]
        if missing:
            raise ValueError(
                f"Expected {name} as {example} gives it, "
                f"got {type(value).__name__} without {', '.join(missing)}."
            )


def same_length(**values: object) -> None:
    """Raises ValueError unless all have the same length."""
    lengths = {name: len(value) for name, value in values.items()}  # pyright: ignore[reportArgumentType]
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"len({name})={length}" for name, length in lengths.items())
        raise ValueError(f"Expected equal lengths, got {told}.")
