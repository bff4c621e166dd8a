"""Searches for the smallest noise multiplier z that meets a target, over log z.

    excess(log z), decreasing --_bracket--> interval with a change of sign --find_root--> z

The bracket is our own, because `scipy.optimize.elementwise.bracket_root` widens an interval on both
sides: at small noise an event takes seconds to evaluate, or is refused for its memory, even where
the root lies at large noise.
"""

import functools
import math
from collections.abc import Callable

import numpy as np

_MIN_NOISE, _MAX_NOISE = 1e-3, 1e7


def smallest_noise(
    excess: Callable[[float], float],
    *,
    target_name: str,
    target_value: float,
    excess_tolerance: float = 0.0,
    log_tolerance: float = 1e-12,
) -> float:
    """Finds the smallest noise multiplier z at which a decreasing function is at most 0.

    Args:
      excess: function of log z, positive where the noise is too small.
      target_name: name of the target, for the error message.
      target_value: its value, for the error message.
      excess_tolerance: the search stops where |excess| is at most this.
      log_tolerance: the search stops where log z is known to this accuracy.

    Returns:
      A z whose excess is at most excess_tolerance. If the search stopped at log_tolerance, as it
      does at a jump of the function, its excess is at most 0.

    Raises:
      ValueError: if no noise multiplier meets the target, or every one does.
    """
    from scipy.optimize import elementwise

    excess_at = functools.cache(excess)  # find_root evaluates both ends of the bracket again
    low, high = _bracket(excess_at, target_name=target_name, target_value=target_value)
    result = elementwise.find_root(
        np.vectorize(excess_at, otypes=[np.float64]),
        (low, high),
        tolerances={"xatol": log_tolerance, "xrtol": 0.0, "fatol": excess_tolerance, "frtol": 0.0},
    )
    is_close = abs(result.f_x) <= excess_tolerance
    # The upper end of the final bracket has more noise, and its excess is at most 0.
    return math.exp(float(result.x if is_close else result.bracket[1]))


def _bracket(
    excess: Callable[[float], float], *, target_name: str, target_value: float
) -> tuple[float, float]:
    """Finds two values of log z, ascending, between which a decreasing function changes sign."""
    lowest, highest = math.log(_MIN_NOISE), math.log(_MAX_NOISE)
    near = far = 0.0
    near_value = far_value = excess(0.0)
    # Steps towards less noise stay small: epsilon explodes there, and with it the work.
    stride = math.log(4) if near_value > 0 else -math.log(2)
    while near_value * far_value > 0:
        if not lowest < far < highest:
            target = f"{target_name}={target_value}"
            if near_value > 0:
                raise ValueError(f"No noise multiplier up to {_MAX_NOISE:g} meets {target}.")
            raise ValueError(f"Every noise multiplier from {_MIN_NOISE} on meets {target}.")
        near, near_value = far, far_value
        far = min(max(near + stride, lowest), highest)
        far_value = excess(far)
        stride = 1.5 * stride if stride > 0 else stride
    return min(near, far), max(near, far)
