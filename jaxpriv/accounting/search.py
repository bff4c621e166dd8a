"""Searches for the noise multiplier that meets a target, over its logarithm."""

import math
from collections.abc import Callable

TOLERANCE = 1e-3
"""How far below its target, relatively, the epsilon of a calibrated noise may lie."""
_MIN_NOISE, _MAX_NOISE = 1e-3, 1e7


def root(excess: Callable[[float], float], *, target_name: str, target_value: float) -> float:
    """Finds where a decreasing function of log z is about 0, and not above TOLERANCE / 4.

    Args:
      excess: of log z.
      target_name: name of the target, for the error message.
      target_value: its value, for the error message.

    Returns:
      log z.

    Raises:
      ValueError: if no noise multiplier fits.
    """
    return _illinois(excess, *bracket(excess, target_name=target_name, target_value=target_value))


def bracket(
    excess: Callable[[float], float], *, target_name: str, target_value: float
) -> tuple[float, float, float, float]:
    """Finds two values of log z between which a decreasing function changes its sign.

    Args:
      excess: of log z.
      target_name: name of the target, for the error message.
      target_value: its value, for the error message.

    Returns:
      One end and the value there, the other end and the value there, which may be 0.

    Raises:
      ValueError: if it keeps its sign over all noise multipliers.
    """
    lowest, highest = math.log(_MIN_NOISE), math.log(_MAX_NOISE)
    left = right = 0.0
    left_value = right_value = excess(0.0)
    # Downwards in small steps: epsilon explodes there, and with it the work.
    stride = math.log(4) if left_value > 0 else -math.log(2)
    while left_value * right_value > 0:
        if not lowest < right < highest:
            raise ValueError(
                f"No noise multiplier between {_MIN_NOISE} and {_MAX_NOISE:g} reaches "
                f"{target_name}={target_value}."
            )
        left, left_value = right, right_value
        right = min(max(left + stride, lowest), highest)
        right_value = excess(right)
        stride = 1.5 * stride if stride > 0 else stride
    return left, left_value, right, right_value


def _illinois(
    excess: Callable[[float], float],
    left: float,
    left_value: float,
    right: float,
    right_value: float,
) -> float:
    """Regula falsi between two points of opposite sign, that halves the value at a stuck end."""
    while abs(right_value) > TOLERANCE / 4 and abs(right - left) > 1e-12:
        middle = (left * right_value - right * left_value) / (right_value - left_value)
        value = excess(middle)
        if value * right_value < 0:
            left, left_value = right, right_value
        else:
            left_value /= 2
        right, right_value = middle, value
    # At a jump there is no such point: then the side with more noise.
    return right if abs(right_value) <= TOLERANCE / 4 else max(left, right)
