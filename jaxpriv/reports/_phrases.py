"""Formats numbers, units, relations and guarantees as text."""

from collections.abc import Sequence

from jaxpriv import _rounding
from jaxpriv._names import Relation
from jaxpriv.reports.findings import Guarantee
from jaxpriv.reports.settings import Unit

NBSP = "\N{NO-BREAK SPACE}"

_RELATIONS = {
    "add_or_remove_one": "one {} added or removed",
    "replace_one": "one {} replaced",
}


def percent(share: float, digits: int = 1) -> str:
    """Formats a share as a percentage with a no-break space: 0.9123 -> '91.2 %'."""
    return f"{100 * share:.{digits}f}{NBSP}%"


def interval(ends: Sequence[float] | None, *, as_percent: bool = False) -> str:
    """Formats an interval, or None as '': (0.5, 0.6) -> '0.500 to 0.600'."""
    if ends is None:
        return ""
    low, high = ends
    text = f"{100 * low:.1f} to {100 * high:.1f} %" if as_percent else f"{low:.3f} to {high:.3f}"
    return text.replace(" ", NBSP)


def confidence_level(confidence: float) -> str:
    """Formats a confidence level: 0.95 -> '95 %', 0.995454 -> '99.55 %'."""
    return f"{100 * confidence:.4g}{NBSP}%"


def unit_name(unit: Unit, size: int = 1) -> str:
    """Returns the name of the unit of privacy: 'record', 'class', 'group of up to 12 records'."""
    return f"group of up to {size} records" if unit == "group" else unit


def units_name(unit: Unit) -> str:
    """Returns the plural of the unit: 'records', 'groups' or 'classes'."""
    return "classes" if unit == "class" else f"{unit}s"


def tested_on(unit: Unit) -> str:
    """Returns the name of the records on which accuracy is measured."""
    return "held-out records" if unit == "class" else "non-members"


def relation_name(relation: Relation, unit: Unit = "record", size: int = 1) -> str:
    """Describes a neighbouring relation: 'one record added or removed'."""
    return _RELATIONS[relation].format(unit_name(unit, size))


def epsilon_text(guarantee: Guarantee, digits: int = 2) -> str:
    """Formats the epsilon of a guarantee, rounded up, or returns 'unbounded'."""
    return (
        "unbounded"
        if guarantee.epsilon is None
        else _rounding.up(guarantee.epsilon, decimals=digits)
    )


def guarantee_text(guarantee: Guarantee) -> str:
    """Formats a guarantee: 'epsilon = 2.00 at delta = 0.0001 (one record added or removed)'."""
    neighbours = relation_name(guarantee.relation, guarantee.unit, guarantee.size)
    epsilon = f"epsilon = {epsilon_text(guarantee)}"
    if guarantee.epsilon is None:
        epsilon = "no finite epsilon"
    return f"{epsilon} at delta = {guarantee.delta:g} ({neighbours})"


def class_name(value: str | int, names: tuple[str, ...] | None) -> str:
    """Returns the name of a class, or its number if classes have no names."""
    return str(value) if names is None or isinstance(value, str) else names[value]


def capitalised(text: str) -> str:
    """Converts the first letter to upper case."""
    return text[:1].upper() + text[1:]
