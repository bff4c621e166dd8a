"""Validation of arguments; errors are a ValueError with a message of one line.

The validators of numbers return None, those of arrays return the array in one standard form.
"""

import inspect
import math
import operator
from collections.abc import Collection

import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

_MAX_LABEL = 2**31
"""Class indices are int32."""

_MAX_EXACT = 2**53
"""float64 represents every integer up to this one."""

_SUM_TOLERANCE = 1e-3
"""Non-negative numbers whose sum differs from 1 by at most about this are probabilities."""


def _number(name: str, value: object) -> float:
    """Returns a static number as float; raises ValueError for a traced one."""
    try:
        return float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        raise ValueError(
            f"Expected a static number for {name}, got {type(value).__name__}."
        ) from None


def _whole_number(name: str, value: object) -> int:
    """Returns a static integer; raises ValueError for a float, a bool or a traced number."""
    _number(name, value)
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise ValueError(f"Expected a whole number for {name}, got {name}={value}.") from None


def number_text(value: object) -> str:
    """Formats a number in six digits, or in all that it has if six would be another number."""
    number = float(value)  # pyright: ignore[reportArgumentType]
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


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


def non_negative_or_infinite(**values: object) -> None:
    """Raises ValueError unless every value is >= 0; infinity is allowed."""
    non_negative(**{name: value for name, value in values.items() if value != math.inf})


def positive_int(**values: object) -> None:
    """Raises ValueError unless every value is an integer >= 1; the float 2.0 is not one."""
    for name, value in values.items():
        if _whole_number(name, value) < 1:
            raise ValueError(f"Expected {name} >= 1, got {name}={value}.")


def non_negative_int(**values: object) -> None:
    """Raises ValueError unless every value is an integer >= 0."""
    for name, value in values.items():
        if _whole_number(name, value) < 0:
            raise ValueError(f"Expected {name} >= 0, got {name}={value}.")


def open_unit(**values: object) -> None:
    """Raises ValueError unless every value lies strictly between 0 and 1."""
    for name, value in values.items():
        if not 0 < _number(name, value) < 1:
            raise ValueError(f"Expected 0 < {name} < 1, got {name}={value}.")


def closed_unit(**values: object) -> None:
    """Raises ValueError unless every value is in [0, 1]."""
    for name, value in values.items():
        if not 0 <= _number(name, value) <= 1:
            raise ValueError(f"Expected 0 <= {name} <= 1, got {name}={value}.")


def half_open_unit(**values: object) -> None:
    """Raises ValueError unless every value is in [0, 1)."""
    for name, value in values.items():
        if not 0 <= _number(name, value) < 1:
            raise ValueError(f"Expected 0 <= {name} < 1, got {name}={value}.")


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
    """Raises ValueError unless every value has the attributes, which those of `example` have."""
    for name, value in values.items():
        missing = [attribute for attribute in names if not hasattr(value, attribute)]
        if missing:
            raise ValueError(
                f"Expected {name} such as {example}, "
                f"got {type(value).__name__} without {', '.join(missing)}."
            )


def same_length(**values: object) -> None:
    """Raises ValueError unless all values have the same length."""
    lengths = {name: len(value) for name, value in values.items()}  # pyright: ignore[reportArgumentType]
    if len(set(lengths.values())) > 1:
        description = ", ".join(f"len({name})={length}" for name, length in lengths.items())
        raise ValueError(f"Expected equal lengths, got {description}.")


def takes(signature: str, function: object) -> None:
    """Raises ValueError unless `function` takes the arguments of a signature like "f(x, key)"."""
    if not callable(function):
        raise ValueError(f"Expected {signature} as a function, got {type(function).__name__}.")
    try:
        given = inspect.signature(function)
    except (TypeError, ValueError):  # some callables have no signature
        return
    try:
        given.bind(*signature.split(","))
    except TypeError:
        name = signature.partition("(")[0]
        raise ValueError(f"Expected {signature}, got {name}{given}.") from None


def heads(width: int, num_heads: int) -> None:
    """Raises ValueError unless the heads of an attention are equally wide."""
    if width % num_heads:
        raise ValueError(
            f"Expected a width that is a multiple of num_heads={num_heads}, got width={width}."
        )


def sentences(**values: object) -> None:
    """Raises ValueError if a value is one text, whose letters would count as sentences."""
    for name, value in values.items():
        if isinstance(value, str):
            raise ValueError(f"Expected a list of sentences as {name}, got one text.")


def real_array(name: str, values: Shaped[Array | np.ndarray, "..."]) -> np.ndarray:
    """Returns real numbers without NaN that float64 represents exactly, in their own type.

    Args:
      name: name of the argument, for the message.
      values: bool, integers or floats of any width; infinities are allowed.

    Returns:
      The array, not copied.

    Raises:
      ValueError: for text, dates, complex numbers or objects, for NaN, or for numbers that
        float64 would round (integers beyond 2^53, long doubles): distinct scores would tie.
    """
    array = np.asarray(values)
    # ml_dtypes' float types (bfloat16) are of kind V, as raw bytes are.
    if array.dtype.kind not in "biufV" or array.dtype.type is np.void:
        raise ValueError(f"Expected real numbers in {name}, got {array.dtype}.")
    if array.dtype.kind in "fV":
        missing = int(np.isnan(array).sum())
        if missing:
            raise ValueError(f"Expected {name} without NaN, got {missing} NaN.")
        # Only types wider than float64 (long doubles) can hold numbers that float64 rounds.
        is_rounded = array.dtype.itemsize > 8 and (array.astype(np.float64) != array).any()
        if is_rounded:
            raise ValueError(
                f"Expected numbers in {name} that float64 represents exactly, got {array.dtype}."
            )
    elif array.dtype.itemsize == 8 and array.size:
        low, high = int(array.min()), int(array.max())
        if max(-low, high) > _MAX_EXACT:
            largest = high if high >= -low else low
            raise ValueError(f"Expected integers in {name} of at most 2^53, got {largest}.")
    return array


def scores(
    values: Shaped[Array | np.ndarray, "..."], *, name: str = "scores"
) -> Float[np.ndarray, " n"]:
    """Returns a column of scores in float64.

    Args:
      values: [n] or [n, 1], of any real type; infinities are allowed.
      name: name of the argument, for the message.

    Returns:
      The scores as [n]; the conversion is exact.

    Raises:
      ValueError: for another shape, or for the errors of `real_array`.
    """
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"Expected {name} of shape [n] or [n, 1], got {list(array.shape)}.")
    return real_array(name, array).astype(np.float64)


def membership(values: Shaped[Array | np.ndarray, "..."], *, name: str = "is_member") -> np.ndarray:
    """Returns membership as bool, in the shape of the input.

    Args:
      values: bool, or the numbers 0 and 1.
      name: name of the argument, for the message.

    Returns:
      The membership as bool.

    Raises:
      ValueError: for other numbers, text or NaN.
    """
    array = real_array(name, values)
    if array.dtype != bool:
        wrong = array[(array != 0) & (array != 1)]
        if wrong.size:
            raise ValueError(f"Expected only 0 and 1 in {name}, got {number_text(wrong.flat[0])}.")
    return array.astype(bool, copy=False)


def scores_and_membership(
    values: Shaped[Array | np.ndarray, "..."], is_member: Shaped[Array | np.ndarray, "..."]
) -> tuple[Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Returns scores in float64 and their membership as bool.

    Args:
      values: scores, [n] or [n, 1].
      is_member: [n] or [n, 1], bool or 0 and 1.

    Returns:
      Both as [n].

    Raises:
      ValueError: for unequal lengths, no scores, or the errors of `scores` and `membership`.
    """
    array = scores(values)
    truth = membership(scores(is_member, name="is_member"))
    same_length(scores=array, is_member=truth)
    if array.size == 0:
        raise ValueError("Expected at least one score, got none.")
    return array, truth


def split_by_membership(
    values: Shaped[Array | np.ndarray, "..."], is_member: Shaped[Array | np.ndarray, "..."]
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " k"]]:
    """Splits scores into those of members and those of non-members, both sorted.

    Args:
      values: scores, [n] or [n, 1].
      is_member: [n] or [n, 1], bool or 0 and 1.

    Returns:
      The scores of members and those of non-members, each ascending.

    Raises:
      ValueError: for the errors of `scores_and_membership`, or if there are no members or no
        non-members.
    """
    array, truth = scores_and_membership(values, is_member)
    both_sides(truth)
    return np.sort(array[truth]), np.sort(array[~truth])


def both_sides(is_member: Bool[np.ndarray, " n"], *, beside: str = "") -> None:
    """Raises ValueError unless there are members and non-members.

    Args:
      is_member: bool, [n].
      beside: what they are counted beside, for the message.
    """
    num_members, num_nonmembers = int(is_member.sum()), int((~is_member).sum())
    if not (num_members and num_nonmembers):
        where = f" beside {beside}" if beside else ""
        raise ValueError(
            f"Expected members and non-members{where}, got {num_members} and {num_nonmembers}."
        )


def are_probabilities(rows: Float[np.ndarray, "n c"]) -> bool:
    """Returns whether every row has non-negative numbers whose sum is 1, up to rounding."""
    sums = rows.sum(axis=1, dtype=np.float64)
    return bool((rows >= 0).all() and np.allclose(sums, 1, atol=_SUM_TOLERANCE))


def whole_numbers(
    name: str, values: Shaped[Array | np.ndarray, "..."], *, low: int, high: int
) -> Int[np.ndarray, "..."]:
    """Returns whole numbers of a range, such as lengths, in the shape of the input.

    Args:
      name: name of the argument, for the message.
      values: whole numbers of any real type.
      low: smallest number that is allowed.
      high: largest number that is allowed; at most 2^31 - 1.

    Returns:
      The numbers, int32.

    Raises:
      ValueError: for text, NaN, numbers that are not whole, or numbers out of range.
    """
    array = real_array(name, values)
    _require_whole(name, array)
    outside = array[(array < low) | (array > high)]
    if outside.size:
        raise ValueError(f"Expected {name} in {low}..{high}, got {number_text(outside[0])}.")
    return array.astype(np.int32)


def _require_whole(name: str, array: np.ndarray) -> None:
    fractions = array[array != np.floor(array)] if array.dtype.kind in "fV" else array[:0]
    if fractions.size:
        raise ValueError(f"Expected whole numbers in {name}, got {number_text(fractions[0])}.")


def labels(
    values: Shaped[Array | np.ndarray, "..."],
    *,
    num_classes: int | None,
    name: str = "labels",
) -> Int[np.ndarray, " n"]:
    """Returns labels as class indices, which index the logits of a model.

    Args:
      values: [n] or [n, 1] whole numbers of any type, or one-hot [n, c].
      num_classes: number of classes c, the width of the logits; None without logits.
      name: name of the argument, for the message.

    Returns:
      Class indices, int32, in 0..c-1.

    Raises:
      ValueError: for another shape or width, text, numbers that are not whole, classes outside
        0..c-1, or rows that are not one-hot.
    """
    if np.asarray(values).dtype.kind == "U":
        raise ValueError(
            f"Expected class indices in {name}, got text; "
            "numpy.unique(labels, return_inverse=True) numbers the classes in sorted order."
        )
    array = real_array(name, values)
    width = array.shape[1] if array.ndim == 2 else 0
    if width > 1 and num_classes in (None, width):
        if not (np.isin(array, (0, 1)).all() and (array.sum(axis=1) == 1).all()):
            raise ValueError(f"Expected one-hot rows with a single 1 in {name}, got other rows.")
        return array.argmax(axis=1).astype(np.int32)
    array = array[:, 0] if width == 1 else array
    if array.ndim != 1:
        one_hot = "[n, c]" if num_classes is None else f"[n, {num_classes}]"
        raise ValueError(
            f"Expected {name} of shape [n], [n, 1] or {one_hot}, got {list(array.shape)}."
        )
    _require_whole(name, array)
    limit = _MAX_LABEL if num_classes is None else num_classes
    outside = array[(array < 0) | (array >= limit)]
    if outside.size:
        raise ValueError(
            f"Expected {name} in 0..{limit - 1}, got {number_text(outside[0])}; "
            "numpy.unique(labels, return_inverse=True) renumbers them."
        )
    return array.astype(np.int32)
