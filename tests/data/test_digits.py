"""The digits that scikit-learn carries."""

import numpy as np
import pytest

from jaxpriv import data


def test_digits_are_the_published_ones():
    digits = data.load("digits")
    assert digits.x.shape == (1797, 64)
    assert (digits.x.min(), digits.x.max()) == (0, 1)
    assert np.bincount(digits.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert len(digits) == 1797
    with pytest.raises(ValueError, match="Expected data to be one of digits"):
        data.load("nothing")
