"""Formats bounds as text: upper bounds are rounded up, lower bounds down."""

import math

_SLACK = 1e-12
"""Relative error of a computed bound, so that 0.1 + 0.2 is printed as 0.3 and not as 0.4."""

_MAX_FIXED = 1e9
"""Numbers from this size on are printed with all their digits."""


def up(bound: float, *, decimals: int) -> str:
    """Formats an upper bound with a fixed number of decimals.

    Args:
      bound: the number; infinity is printed as inf.
      decimals: number of digits after the decimal point.

    Returns:
      The smallest such decimal number that is not below the bound.

    Example:
      >>> up(2.34501, decimals=2), up(0.3, decimals=1)
      ('2.35', '0.3')
    """
    if abs(bound) >= _MAX_FIXED:
        return repr(float(bound))
    scale = 10**decimals
    slack = _SLACK if bound >= 0 else -_SLACK
    # Adding zero turns -0.0 into 0.0.
    return f"{math.ceil(bound * scale * (1 - slack)) / scale + 0.0:.{decimals}f}"


def down(bound: float, *, decimals: int) -> str:
    """Formats a lower bound with a fixed number of decimals.

    Args:
      bound: the number; infinity is printed as inf.
      decimals: number of digits after the decimal point.

    Returns:
      The largest such decimal number that is not above the bound.

    Example:
      >>> down(2.34999, decimals=2)
      '2.34'
    """
    text = up(-bound, decimals=decimals)
    negated = text[1:] if text.startswith("-") else f"-{text}"
    return negated if float(negated) else text


def up_significant(bound: float, *, digits: int) -> str:
    """Formats an upper bound with a fixed number of significant digits.

    Args:
      bound: the number; >= 0.
      digits: number of significant digits.

    Returns:
      The smallest number with that many significant digits that is not below the bound.

    Example:
      >>> up_significant(0.012345678, digits=4)
      '0.01235'
    """
    if not 0 < bound < math.inf:
        return f"{bound:g}"
    unit = 10.0 ** (math.floor(math.log10(bound)) - digits + 1)
    return f"{math.ceil(bound / unit * (1 - 1e-15)) * unit:.{digits}g}"
