"""Checkpoints that a kill at any moment cannot spoil: orbax writes, a manifest commits.

A checkpoint is a folder of files and, written last, `manifest.json` with the SHA-256 of each.
Without a manifest it does not exist; with a wrong sum it is refused and the one before it used.
Nothing is ever unpickled.
"""

import hashlib
import json
import os
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from jaxpriv import _check

_MANIFEST = "manifest.json"
_FORMAT = 1


class Found(NamedTuple):
    """A checkpoint whose sums are right.

    step: as it was saved.
    extra: what was saved beside the arrays.
    path: its folder.
    """

    step: int
    extra: dict[str, Any]
    path: Path

    def restore(self, like: PyTree) -> PyTree:
        """Reads the arrays into a tree of this structure; its leaves do not matter.

        Args:
          like: a tree of the structure that was saved.

        Returns:
          The tree, with NumPy arrays as they were saved.
        """
        import orbax.checkpoint as ocp

        plain = jax.tree.map(lambda _: 0, like)
        args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), like)
        restore = ocp.args.PyTreeRestore(item=plain, restore_args=args)
        return ocp.PyTreeCheckpointer().restore(self.path / "arrays", args=restore)


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """A folder of checkpoints of one run.

    directory: made when missing; belongs to the run alone.
    seconds: at most so often `fit` writes one.
    keep: so many are kept; None: all.
    """

    directory: str | os.PathLike[str]
    seconds: float = 30.0
    keep: int | None = 2

    def __post_init__(self) -> None:
        _check.non_negative(seconds=self.seconds)
        if self.keep is not None:
            _check.positive_int(keep=self.keep)

    def save(
        self, step: int, tree: PyTree, *, fingerprint: str, extra: dict[str, Any] | None = None
    ) -> None:
        """Writes a checkpoint; it counts once its manifest is in place.

        Args:
          step: its number; a later one is preferred.
          tree: arrays.
          fingerprint: of the run, from `fingerprint`.
          extra: JSON values kept in the manifest.
        """
        import orbax.checkpoint as ocp

        path = Path(self.directory).absolute() / f"{step:012d}"
        if path.exists():
            shutil.rmtree(path)
        path.mkdir(parents=True)
        ocp.PyTreeCheckpointer().save(path / "arrays", jax.tree.map(np.asarray, tree))
        manifest = {
            "format": _FORMAT,
            "fingerprint": fingerprint,
            "extra": extra or {},
            "files": _sums(path),
        }
        _write(path / _MANIFEST, json.dumps(manifest))
        if self.keep is not None:
            for old in self._steps()[: -self.keep]:
                shutil.rmtree(path.parent / f"{old:012d}")

    def latest(self, *, fingerprint: str) -> Found | None:
        """Finds the newest checkpoint whose sums are right.

        Args:
          fingerprint: of the run that asks.

        Returns:
          It, or None. Damaged ones are passed over with a warning, unfinished ones silently.

        Raises:
          ValueError: if the folder holds another run's.
        """
        for step in reversed(self._steps()):
            found = self.at(step, fingerprint=fingerprint)
            if found is not None:
                return found
        return None

    def at(self, step: int, *, fingerprint: str) -> Found | None:
        """Finds the checkpoint of one number; as `latest` otherwise."""
        path = Path(self.directory).absolute() / f"{step:012d}"
        try:
            manifest = json.loads((path / _MANIFEST).read_text("utf8"))
            intact = manifest["format"] == _FORMAT and manifest["files"] == _sums(path)
            extra, owner = manifest["extra"], manifest["fingerprint"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            intact, extra, owner = False, {}, ""
        if not intact:
            warnings.warn(f"Passing over a damaged checkpoint: {path}.", stacklevel=3)
            return None
        if owner != fingerprint:
            raise ValueError(
                f"Expected checkpoints of this run in {self.directory}, got another run's: "
                "other data, parameters, key or settings."
            )
        return Found(step, extra, path)

    def _steps(self) -> list[int]:
        folder = Path(self.directory)
        names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
        return sorted(int(name) for name in names if name.isdigit())


def fingerprint(*parts: PyTree) -> str:
    """Identifies a run by what goes into it.

    Args:
      parts: trees of arrays, keys, numbers and strings.

    Returns:
      A SHA-256 in hexadecimal, over every value, type and shape.
    """
    digest = hashlib.sha256()
    leaves, treedef = jax.tree.flatten(parts)
    digest.update(str(treedef).encode())
    for leaf in leaves:
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if isinstance(leaf, str):
            digest.update(leaf.encode())
            continue
        array = np.ascontiguousarray(np.asarray(leaf))
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _sums(path: Path) -> dict[str, str]:
    """SHA-256 of every file of a checkpoint but its manifest."""
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.name != _MANIFEST)
    files += sorted((path / "arrays").rglob(_MANIFEST))
    return {
        p.relative_to(path).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files
    }


def _write(path: Path, text: str) -> None:
    """Puts a file in place whole: the commit mark must not come before what it vouches for."""
    for folder, _, names in os.walk(path.parent):
        for name in names:
            _sync(Path(folder) / name)
        _sync(Path(folder))
    handle, name = tempfile.mkstemp(dir=path.parent.parent)
    with os.fdopen(handle, "w", encoding="utf8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(name, path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
