"""Printed upper bounds are never below the bound, printed lower bounds never above it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpriv import _rounding

numbers = st.floats(-1e6, 1e6)


@given(numbers, st.integers(0, 6))
def test_rounding_brackets_the_bound_within_one_unit(bound, decimals):
    up, down = (float(f(bound, decimals=decimals)) for f in (_rounding.up, _rounding.down))
    slack = 2e-12 * abs(bound)
    assert down - slack <= bound <= up + slack
    assert up - down <= 10.0**-decimals * (1 + 1e-9) + slack
    assert len(_rounding.up(bound, decimals=decimals).partition(".")[2]) == decimals


@given(st.floats(1e-300, 1e300), st.integers(1, 8))
def test_significant_digits_are_kept_and_never_below(bound, digits):
    shown = float(_rounding.up_significant(bound, digits=digits))
    assert bound * (1 - 1e-12) <= shown <= bound * (1 + 10.0 ** (1 - digits) + 1e-12)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: _rounding.up(2.345, decimals=2), "2.35"),
        (lambda: _rounding.up(0.3, decimals=1), "0.3"),
        (lambda: _rounding.up(0.1 + 0.2, decimals=1), "0.3"),
        (lambda: _rounding.up(0.0, decimals=2), "0.00"),
        (lambda: _rounding.up(-0.001, decimals=2), "0.00"),
        (lambda: _rounding.down(0.001, decimals=2), "0.00"),
        (lambda: _rounding.down(2.349, decimals=2), "2.34"),
        (lambda: _rounding.down(-2.341, decimals=2), "-2.35"),
        (lambda: _rounding.up(1e305, decimals=6), "1e+305"),
        (lambda: _rounding.up(math.inf, decimals=6), "inf"),
        (lambda: _rounding.down(math.inf, decimals=6), "inf"),
        (lambda: _rounding.up_significant(0.0, digits=3), "0"),
        (lambda: _rounding.up_significant(math.inf, digits=3), "inf"),
        (lambda: _rounding.up_significant(99.91, digits=3), "100"),
    ],
)
def test_values(call, expected):
    assert call() == expected
