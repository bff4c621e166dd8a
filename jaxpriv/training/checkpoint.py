"""Checkpoints of a run: orbax writes the arrays, and a manifest written last commits them.

A checkpoint is a folder of files and a `manifest.json` with their SHA-256 hashes. A folder
without a manifest is not a checkpoint, so a kill at any moment leaves complete checkpoints only.
A checkpoint with a wrong hash is skipped and the previous one is used. Nothing is unpickled.
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxpriv import _check, _files
from jaxpriv.training import _identity

__all__ = ["Checkpoints", "SavedCheckpoint"]

_MANIFEST = "manifest.json"
_FORMAT = 3
"""Version of the layout; checkpoints of another version count as damaged."""


class SavedCheckpoint(NamedTuple):
    """A checkpoint whose hashes match.

    step: number of the checkpoint.
    extra: JSON values that were saved beside the arrays.
    path: folder of the checkpoint.
    """

    step: int
    extra: dict[str, Any]
    path: Path

    def restore(self, like: PyTree) -> PyTree:
        """Reads the arrays.

        Args:
          like: a tree of the structure that was saved. A leaf that is a PRNG key gives the type
            of the key; the values of all other leaves are ignored.

        Returns:
          The tree, with the NumPy arrays and keys that were saved.
        """
        import orbax.checkpoint as ocp

        plain = jax.tree.map(lambda _: 0, like)
        args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), like)
        restore = ocp.args.PyTreeRestore(item=plain, restore_args=args)
        arrays = ocp.PyTreeCheckpointer().restore(self.path / "arrays", args=restore)
        return jax.tree.map(_wrap_key, like, arrays)


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """A folder of checkpoints of one run.

    directory: folder, created if missing; each run needs its own.
    seconds: minimum time between two checkpoints.
    keep: number of checkpoints to keep; None keeps all.

    Raises:
      ValueError: if seconds is negative or keep is not a positive whole number.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     checkpoints = Checkpoints(directory=folder)
      ...     checkpoints.save(100, {"w": np.ones(2)}, identity={"run": "1"})
      ...     saved = checkpoints.latest(identity={"run": "1"})
      ...     print(saved.step, saved.restore({"w": 0}))
      100 {'w': array([1., 1.])}
    """

    directory: str | os.PathLike[str]
    seconds: float = 30.0
    keep: int | None = 2

    def __post_init__(self) -> None:
        _check.non_negative(seconds=self.seconds)
        if self.keep is not None:
            _check.positive_int(keep=self.keep)

    def save(
        self,
        step: int,
        tree: PyTree,
        *,
        identity: Mapping[str, str],
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes a checkpoint, and deletes those beyond `keep`.

        Args:
          step: number of the checkpoint; the largest is the newest.
          tree: arrays and PRNG keys.
          identity: description of the run.
          extra: JSON values to store beside the arrays.
        """
        import orbax.checkpoint as ocp

        path = self._path(step)
        if path.exists():
            shutil.rmtree(path)
        path.mkdir(parents=True)
        ocp.PyTreeCheckpointer().save(path / "arrays", jax.tree.map(_unwrap_key, tree))
        manifest = {
            "format": _FORMAT,
            "identity": dict(identity),
            "extra": dict(extra or {}),
            "files": _hashes(path),
        }
        _commit(path / _MANIFEST, json.dumps(manifest))
        if self.keep is not None:
            for old in self._steps()[: -self.keep]:
                shutil.rmtree(self._path(old))

    def latest(self, *, identity: Mapping[str, str]) -> SavedCheckpoint | None:
        """Finds the newest checkpoint whose hashes match.

        Args:
          identity: description of the current run.

        Returns:
          The checkpoint, or None. A damaged one is skipped with a warning.

        Raises:
          ValueError: if the checkpoint belongs to a run with another description.
        """
        for step in reversed(self._steps()):
            saved = self.find(step, identity=identity)
            if saved is not None:
                return saved
        return None

    def find(self, step: int, *, identity: Mapping[str, str]) -> SavedCheckpoint | None:
        """Finds the checkpoint with a given number.

        Args:
          step: number of the checkpoint.
          identity: description of the current run.

        Returns:
          The checkpoint, or None if it is absent or, with a warning, if it is damaged.

        Raises:
          ValueError: if the checkpoint belongs to a run with another description.
        """
        path = self._path(step)
        try:
            manifest = json.loads((path / _MANIFEST).read_text("utf8"))
            is_intact = manifest["format"] == _FORMAT and manifest["files"] == _hashes(path)
            extra, saved_identity = manifest["extra"], manifest["identity"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            is_intact, extra, saved_identity = False, {}, {}
        if not is_intact:
            warnings.warn(f"Skipping a damaged checkpoint: {path}.", stacklevel=3)
            return None
        if difference := _identity.difference(saved_identity, identity):
            raise ValueError(
                f"Expected checkpoints of this run in {self.directory}, but these differ: "
                f"{difference}; each run needs a folder of its own."
            )
        return SavedCheckpoint(step, extra, path)

    def _path(self, step: int) -> Path:
        return Path(self.directory).absolute() / f"{step:012d}"

    def _steps(self) -> list[int]:
        folder = Path(self.directory)
        names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
        return sorted(int(name) for name in names if name.isdigit())


def _is_key(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def _unwrap_key(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _wrap_key(like: Any, array: np.ndarray) -> Any:
    if not _is_key(like):
        return array
    # jax.random.key_impl needs a concrete key; an abstract one has only a type.
    return jax.random.wrap_key_data(jnp.asarray(array), impl=_key_impl(like))


def _key_impl(like: Any) -> Any:
    key = like if isinstance(like, jax.Array) else jnp.zeros((), like.dtype)
    return jax.random.key_impl(key)


def _hashes(path: Path) -> dict[str, str]:
    """Computes the SHA-256 of every file of a checkpoint except its manifest."""
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.name != _MANIFEST)
    files += sorted((path / "arrays").rglob(_MANIFEST))
    return {
        p.relative_to(path).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files
    }


def _commit(path: Path, text: str) -> None:
    """Writes the manifest once all files that it lists have reached the disk."""
    for folder, _, names in os.walk(path.parent):
        for name in names:
            _sync(Path(folder) / name)
        _sync(Path(folder))
    _files.write_whole(path, text.encode())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
