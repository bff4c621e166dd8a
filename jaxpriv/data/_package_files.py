"""Finds and verifies files of installed packages without importing the packages."""

import hashlib
import importlib.util
from pathlib import Path

from jaxpriv import _files


def find(package: str, relative: str) -> Path | None:
    """Finds a file or folder of an installed package without importing it.

    Args:
      package: import name of the package.
      relative: path below the package's folder.

    Returns:
      The path, or None if the package is not installed or has no such file.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / relative
    return path if path.exists() else None


def read_verified(path: Path, sha256: str) -> bytes:
    """Reads a file and compares its hash with the expected one.

    Args:
      path: the file.
      sha256: expected hash, in hexadecimal.

    Returns:
      The content of the file.

    Raises:
      ValueError: if the hashes differ.
    """
    raw = _files.read_bytes(path)
    digest = hashlib.sha256(raw).hexdigest()
    if digest != sha256:
        raise ValueError(f"Expected {path} with SHA-256 {sha256}, got {digest}.")
    return raw
