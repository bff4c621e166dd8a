"""Data sets as frozen arrays. In shapes `n` counts records and `d` features."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from jaxpriv import _check


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Records with labels.

    x: features, scaled to [0, 1].
    y: class of each record, 0 to num_classes - 1.
    name: what it is called here.
    num_classes: number of labels.
    source: where the arrays came from.
    """

    x: Float[np.ndarray, "n d"]
    y: Int[np.ndarray, " n"]
    name: str
    num_classes: int
    source: str

    def __len__(self) -> int:
        return len(self.y)


def load(name: str) -> Dataset:
    """Loads a data set by name.

    Args:
      name: "digits": scikit-learn's 1,797 handwritten digits of 8 x 8 pixels.

    Returns:
      The data set.

    Raises:
      ValueError: if there is none of that name.

    >>> load("digits").x.shape
    (1797, 64)
    """
    _check.one_of(_SETS, data=name)
    return _SETS[name]()


def _digits() -> Dataset:
    import sklearn
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return Dataset(
        x=np.asarray(x / 16, np.float32),
        y=np.asarray(y, np.int32),
        name="digits",
        num_classes=10,
        source=f"scikit-learn {sklearn.__version__}, load_digits (UCI optical recognition)",
    )


_SETS = {"digits": _digits}
