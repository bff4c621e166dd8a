"""The search for the noise multiplier that spends a budget, over its logarithm."""

import math
from collections.abc import Callable

TOLERANCE = 1e-3
"""How far below its target, relatively, the epsilon of a calibrated noise may lie."""
_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e7


def root(excess: Callable[[float], float], *, sought: str, told: str) -> float:
    """Finds where a decreasing function of log z is about 0, and not above TOLERANCE / 4.

    Args:
      excess: of log z.
      sought: what the noise is to spend, for the error.
      told: its value, for the error.

    Returns:
      log z.

    Raises:
      ValueError: if no noise multiplier fits.
    """
    return _illinois(excess, *bracket(excess, sought=sought, told=told))


def bracket(
    excess: Callable[[float], float], *, sought: str, told: str
) -> tuple[float, float, float, float]:
    """Finds two values of log z between which a decreasing function changes its sign.

    Args:
      excess: of log z.
      sought: what the noise is to spend, for the error.
      told: its value, for the error.

    Returns:
      One end and the value there, the other end and the value there, which may be 0.

    Raises:
      ValueError: if it keeps its sign over all noise multipliers.
    """
    least, most = math.log(_LEAST_NOISE), math.log(_MOST_NOISE)
    near = far = 0.0
    at_near = at_far = excess(0.0)
    # Downwards in small steps: epsilon explodes there, and with it the work.
    stride = math.log(4) if at_near > 0 else -math.log(2)
    while at_near * at_far > 0:
        if not least < far < most:
            raise ValueError(
                f"Expected {sought} that a noise multiplier in {_LEAST_NOISE} to {_MOST_NOISE:g} "
                f"spends, got {told}."
            )
        near, at_near = far, at_far
        far = min(max(near + stride, least), most)
        at_far = excess(far)
        stride = 1.5 * stride if stride > 0 else stride
    return near, at_near, far, at_far


def _illinois(
    excess: Callable[[float], float], near: float, at_near: float, far: float, at_far: float
) -> float:
    """Regula falsi between two points of opposite sign, that halves the value at a stuck end."""
    while abs(at_far) > TOLERANCE / 4 and abs(far - near) > 1e-12:
        middle = (near * at_far - far * at_near) / (at_far - at_near)
        value = excess(middle)
        if value * at_far < 0:
            near, at_near = far, at_far
        else:
            at_near /= 2
        far, at_far = middle, value
    # At a jump there is no such point: then the side with more noise.
    return far if abs(at_far) <= TOLERANCE / 4 else max(near, far)
