"""Checkpoints of a run: orbax writes the arrays, and a manifest written last commits them.

A checkpoint is a folder of files and `manifest.json`, which has the SHA-256 of each. Without a
manifest it does not exist, so a kill at any moment leaves whole checkpoints only. A checkpoint
with a wrong hash is passed over for the one before it. Nothing is ever unpickled.
"""

import hashlib
import json
import os
import shutil
import time
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

_MANIFEST = "manifest.json"
_FORMAT = 2


class SavedCheckpoint(NamedTuple):
    """A checkpoint whose hashes are right.

    step: its number.
    extra: JSON values that were saved beside the arrays.
    path: its folder.
    """

    step: int
    extra: dict[str, Any]
    path: Path

    def restore(self, like: PyTree) -> PyTree:
        """Reads the arrays.

        Args:
          like: a tree of the structure that was saved; leaves that are PRNG keys give the type
            of the keys, others do not matter.

        Returns:
          The tree, with NumPy arrays and keys as they were saved.
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

    directory: created if missing; used by one run only.
    seconds: minimum time between two checkpoints.
    keep: number of checkpoints that are kept; None keeps all.
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
        """Writes a checkpoint; it counts once its manifest is in place.

        Args:
          step: its number; the largest is the newest.
          tree: arrays and PRNG keys.
          identity: description of the run.
          extra: JSON values, stored in the manifest.
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
        """Finds the newest checkpoint whose hashes are right.

        Args:
          identity: description of the run that looks for it.

        Returns:
          The checkpoint, or None. A damaged one is passed over with a warning.

        Raises:
          ValueError: if the folder has checkpoints of a run with another description.
        """
        for step in reversed(self._steps()):
            saved = self.find(step, identity=identity)
            if saved is not None:
                return saved
        return None

    def find(self, step: int, *, identity: Mapping[str, str]) -> SavedCheckpoint | None:
        """Finds the checkpoint of one number; see `latest`."""
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
            warnings.warn(f"Passing over a damaged checkpoint: {path}.", stacklevel=3)
            return None
        if difference := _identity.difference(saved_identity, identity):
            raise ValueError(
                f"Expected checkpoints of this run in {self.directory}, but these differ: "
                f"{difference}."
            )
        return SavedCheckpoint(step, extra, path)

    def _path(self, step: int) -> Path:
        return Path(self.directory).absolute() / f"{step:012d}"

    def _steps(self) -> list[int]:
        folder = Path(self.directory)
        names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
        return sorted(int(name) for name in names if name.isdigit())


class PartialRun(NamedTuple):
    """A run up to some step.

    state: of the algorithm.
    steps_done: steps up to which it got.
    infos: the algorithm's Info of each chunk, every leaf [steps, ...].
    chunk_ends: steps done at the end of each chunk.
    metrics: result of `evaluate` after each chunk.
    first_step: steps that the initial state had done; the Info begins there.
    planned_steps: number of steps that was asked for.
    planned_at: steps done when it was asked for.
    is_stopped: whether `evaluate` ended the run.
    """

    state: PyTree
    steps_done: int
    infos: list[PyTree]
    chunk_ends: list[int]
    metrics: list[dict[str, np.ndarray]]
    first_step: int
    planned_steps: int
    planned_at: int
    is_stopped: bool = False

    def info(self) -> PyTree:
        """Joins the Info of all steps."""
        count = self.steps_done - self.first_step
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *self.infos)

    def stacked_metrics(self) -> dict[str, np.ndarray]:
        """Stacks the results of `evaluate` by name."""
        names = self.metrics[0] if self.metrics else {}
        return {name: np.stack([metrics[name] for metrics in self.metrics]) for name in names}


class RunCheckpointer:
    """Saves a run at most every `seconds` and restores it."""

    def __init__(self, checkpoints: Checkpoints | None, identity: Mapping[str, str]) -> None:
        """Sets up the checkpointer.

        Args:
          checkpoints: the folder; None saves nothing.
          identity: description of the run.
        """
        self._checkpoints = checkpoints
        self._identity = identity
        self._saved_at = time.monotonic()

    def restore(self, start: PartialRun, info_like: PyTree) -> PartialRun:
        """Finds where the run stopped.

        Args:
          start: the run before its first step.
          info_like: a tree of the structure of the Info.

        Returns:
          The run as it was saved, with the plan of `start` if that has more steps; or `start`.

        Raises:
          ValueError: if more steps were planned when the checkpoint was written.
        """
        saved = self._checkpoints and self._checkpoints.latest(identity=self._identity)
        if not saved:
            return start
        extra = saved.extra
        if extra["planned_steps"] > start.planned_steps:
            raise ValueError(
                f"Expected steps >= {extra['planned_steps']}, the number planned in the "
                f"checkpoint {saved.path}, got {start.planned_steps}."
            )
        names = extra["metric_names"]
        like = {"state": start.state, "info": info_like, "metrics": dict.fromkeys(names, 0)}
        leaves = saved.restore(_leaves(like))
        trees = {k: jax.tree.unflatten(jax.tree.structure(like[k]), leaves[k]) for k in like}
        is_extended = start.planned_steps > extra["planned_steps"]
        return PartialRun(
            state=jax.tree.map(jnp.asarray, trees["state"]),
            steps_done=saved.step,
            infos=[trees["info"]],
            chunk_ends=extra["chunk_ends"],
            metrics=[
                {name: trees["metrics"][name][i] for name in names}
                for i in range(len(extra["chunk_ends"]) if names else 0)
            ],
            first_step=start.first_step,
            planned_steps=start.planned_steps,
            planned_at=saved.step if is_extended else extra["planned_at"],
            is_stopped=extra["is_stopped"] and not is_extended,
        )

    def save(self, run: PartialRun, *, is_last: bool) -> None:
        """Saves a run if it ends here, or if the last checkpoint is old enough.

        Args:
          run: up to the end of a chunk.
          is_last: whether the run ends here.
        """
        if self._checkpoints is None:
            return
        if not is_last and time.monotonic() - self._saved_at < self._checkpoints.seconds:
            return
        metrics = run.stacked_metrics()
        extra = {
            "metric_names": sorted(metrics),
            "chunk_ends": run.chunk_ends,
            "planned_steps": run.planned_steps,
            "planned_at": run.planned_at,
            "is_stopped": run.is_stopped,
        }
        tree = {"state": run.state, "info": run.info(), "metrics": metrics}
        self._checkpoints.save(run.steps_done, _leaves(tree), identity=self._identity, extra=extra)
        self._saved_at = time.monotonic()


def _leaves(tree: dict[str, PyTree]) -> dict[str, list[Any]]:
    """Lists the leaves: what is saved must not depend on how containers are written down."""
    return {name: jax.tree.leaves(part) for name, part in tree.items()}


def _is_key(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def _unwrap_key(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _wrap_key(like: Any, array: np.ndarray) -> Any:
    if not _is_key(like):
        return array
    # An abstract key has no implementation that can be asked for, but its type has a name.
    return jax.random.wrap_key_data(jnp.asarray(array), impl=_key_impl(like))


def _key_impl(like: Any) -> Any:
    key = like if isinstance(like, jax.Array) else jnp.zeros((), like.dtype)
    return jax.random.key_impl(key)


def _hashes(path: Path) -> dict[str, str]:
    """SHA-256 of every file of a checkpoint except its manifest."""
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.name != _MANIFEST)
    files += sorted((path / "arrays").rglob(_MANIFEST))
    return {
        p.relative_to(path).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files
    }


def _commit(path: Path, text: str) -> None:
    """Writes the manifest, after all files that it vouches for have reached the disk."""
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
