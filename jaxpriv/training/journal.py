"""What a run has done so far, so that a killed one goes on where its last checkpoint was."""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxpriv.training.checkpoint import Checkpoints


class Track(NamedTuple):
    """A run up to some step.

    done: steps done.
    state: the algorithm's.
    infos: the algorithm's Info of the chunks so far, every leaf [steps, ...].
    evaluations: what `evaluate` returned after each chunk.
    """

    done: int
    state: PyTree
    infos: list[PyTree]
    evaluations: list[dict[str, np.ndarray]]

    def info(self) -> PyTree:
        """The Info of all steps so far."""
        return jax.tree.map(lambda *x: np.concatenate(x)[: self.done], *self.infos)

    def evaluated(self) -> dict[str, np.ndarray]:
        """The evaluations so far, by name."""
        names = self.evaluations[0] if self.evaluations else {}
        return {name: np.stack([e[name] for e in self.evaluations]) for name in names}


class Journal:
    """Saves a track now and then."""

    def __init__(self, checkpoints: Checkpoints | None, mark: str) -> None:
        """Keeps a journal.

        Args:
          checkpoints: where; None: nowhere.
          mark: fingerprint of the run.
        """
        self._checkpoints = checkpoints
        self._mark = mark
        self._saved_at = time.monotonic()

    def resume(self, start: PyTree, info_like: PyTree) -> Track:
        """Finds where the run stopped.

        Args:
          start: the state before the first step.
          info_like: a tree of the structure of the Info.

        Returns:
          The saved track, or an empty one.
        """
        found = self._checkpoints and self._checkpoints.latest(fingerprint=self._mark)
        if not found:
            return Track(0, start, [], [])
        names = found.extra["evaluations"]
        like = {"state": start, "info": info_like, "evaluations": dict.fromkeys(names, 0)}
        saved = found.restore(_leaves(like))
        held = {k: jax.tree.unflatten(jax.tree.structure(like[k]), saved[k]) for k in like}
        evaluations = [
            {name: held["evaluations"][name][i] for name in names}
            for i in range(found.extra["count"])
        ]
        state = jax.tree.map(jnp.asarray, held["state"])
        return Track(found.step, state, [held["info"]], evaluations)

    def save(self, track: Track, *, last: bool) -> None:
        """Saves a track if it is the last, or if it is time.

        Args:
          track: up to the step just done.
          last: whether the run ends here.
        """
        if self._checkpoints is None:
            return
        if not last and time.monotonic() - self._saved_at < self._checkpoints.seconds:
            return
        evaluated = track.evaluated()
        extra: dict[str, Any] = {"evaluations": sorted(evaluated), "count": len(track.evaluations)}
        tree = {"state": track.state, "info": track.info(), "evaluations": evaluated}
        self._checkpoints.save(track.done, _leaves(tree), fingerprint=self._mark, extra=extra)
        self._saved_at = time.monotonic()


def _leaves(tree: dict[str, PyTree]) -> dict[str, list[Any]]:
    """Lists of leaves: what is saved must not depend on how containers are written down."""
    return {name: jax.tree.leaves(part) for name, part in tree.items()}
