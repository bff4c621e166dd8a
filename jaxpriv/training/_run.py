"""A run up to some step, and its checkpoints."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxpriv.training.checkpoint import Checkpoints


class PartialRun(NamedTuple):
    """A run up to some step.

    state: state of the algorithm.
    steps_done: number of steps done.
    infos: diagnostics of each chunk, every leaf [steps, ...].
    chunk_ends: number of steps done at the end of each chunk.
    metrics: result of `evaluate` after each chunk.
    first_step: number of steps of the initial state, at which the diagnostics begin.
    planned_steps: number of steps planned.
    planned_at: number of steps done when they were planned.
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
        """Joins the diagnostics of all steps."""
        count = self.steps_done - self.first_step
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *self.infos)

    def stacked_metrics(self) -> dict[str, np.ndarray]:
        """Stacks the results of `evaluate` by name."""
        names = self.metrics[0] if self.metrics else {}
        return {name: np.stack([metrics[name] for metrics in self.metrics]) for name in names}


class RunCheckpointer:
    """Saves a run at most every `seconds` seconds, and restores it."""

    def __init__(self, checkpoints: Checkpoints | None, identity: Mapping[str, str]) -> None:
        """Prepares the checkpoints of one run.

        Args:
          checkpoints: folder of the checkpoints; None disables them.
          identity: description of the run.
        """
        self._checkpoints = checkpoints
        self._identity = identity
        self._saved_at = time.monotonic()

    def restore(self, start: PartialRun, info_like: PyTree) -> PartialRun:
        """Restores the latest checkpoint of the run.

        Args:
          start: the run before its first step.
          info_like: a tree of the structure of the diagnostics.

        Returns:
          The saved run, with the plan of `start` if that has more steps; `start` if there is no
          checkpoint.

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
        """Saves a run if it is complete, or if the last checkpoint is old enough.

        Args:
          run: the run up to the end of a chunk.
          is_last: whether the run is complete.
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
    """Lists the leaves, so that files do not depend on how orbax stores containers."""
    return {name: jax.tree.leaves(subtree) for name, subtree in tree.items()}
