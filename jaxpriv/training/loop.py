"""Runs an algorithm: one model as a compiled scan, many models by vmap or map.

In the shapes below `n` counts records, `m` models, `e` evaluations.
"""

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray, PyTree

from jaxpriv import _check, _tree, accounting
from jaxpriv._types import RELATIONS, Params, Relation
from jaxpriv.training.algorithms import Algorithm
from jaxpriv.training.checkpoint import Checkpoints, fingerprint
from jaxpriv.training.journal import Journal, Track

_SHORTEST_CHUNK = 10
_EPSILON_POINTS = 20


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Stops training before epsilon would be exceeded."""

    epsilon: float
    delta: float
    relation: Relation

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        _check.open_unit(delta=self.delta)
        _check.one_of(RELATIONS, relation=self.relation)


class History(NamedTuple):
    """What a run leaves for its reader.

    info: the algorithm's Info, every leaf [steps, ...]; says itself whether it is private.
    evaluated_at: steps done at each evaluation.
    evaluations: what `evaluate` returned, by name.
    epsilon: spent so far at each evaluation, never understated; None without a budget.
    """

    info: PyTree
    evaluated_at: Int[np.ndarray, " e"]
    evaluations: dict[str, Float[np.ndarray, " e"]]
    epsilon: Float[np.ndarray, " e"] | None


def fit(
    key: PRNGKeyArray,
    alg: Algorithm,
    params: Params,
    data: PyTree,
    *,
    steps: int,
    budget: Budget | None = None,
    evaluate: Callable[[Params], Mapping[str, Any]] | None = None,
    checkpoints: Checkpoints | None = None,
) -> tuple[Any, History]:
    """Trains one model: chunks of an epoch, each one compiled scan.

    Step t draws from fold_in(key, t), so neither how steps are cut into chunks nor a kill and a
    resumption changes anything.

    Args:
      key: consumed.
      alg: from `sgd`, `dpsgd` or `adaptive_dpsgd`, `averaged` or not.
      params: initial.
      data: pytree with leading axis n, the sampler's number of examples.
      steps: at most so many.
      budget: turned into a number of steps beforehand.
      evaluate: called on the host with the parameters after every epoch (at least 10 steps
        apart); returns numbers by name.
      checkpoints: where to save the run, and to look for one that was killed: the same call
        then goes on from its last checkpoint, to the same result bit for bit.

    Returns:
      The final state and the history.

    Raises:
      ValueError: if the data do not match the sampler, the budget does not allow one step, or
        the checkpoints are of another run.
    """
    _check.positive_int(steps=steps)
    _check_rows(data, alg)
    if budget is not None:
        accounting.warn_if_large(budget.delta, alg.sampler.num_examples)
        steps = _affordable(alg, budget, steps)
    epoch = max(_SHORTEST_CHUNK, round(alg.sampler.num_examples / alg.sampler.expected_batch_size))
    length = math.ceil(steps / math.ceil(steps / epoch))
    ends = [min(start + length, steps) for start in range(0, steps, length)]
    chunk = functools.partial(_run_chunk, alg, length, key)
    start = alg.init(params)
    mark = ""
    if checkpoints is not None:
        # The program knows what no value tells: loss, optimiser, clip norm.
        program = _run_chunk.lower(alg, length, key, start, data, jnp.int32(steps)).as_text()
        mark = fingerprint(key, params, data, steps, program)
    journal = Journal(checkpoints, mark)
    _, info_like = jax.eval_shape(chunk, start, data, jnp.int32(steps))
    track = journal.resume(start, info_like)
    with progress_bar(steps) as advance:
        for end in ends[ends.index(track.done) + 1 if track.done else 0 :]:
            state, info = chunk(track.state, data, jnp.int32(steps))
            if evaluate is not None:
                found = {name: np.asarray(v) for name, v in evaluate(state.params).items()}
                track.evaluations.append(found)
            track = Track(
                end, jax.block_until_ready(state), [*track.infos, info], track.evaluations
            )
            journal.save(track, last=end == steps)
            advance(end)
    spent = None if budget is None else _spent(alg, budget, ends)
    return track.state, History(track.info(), np.array(ends), track.evaluated(), spent)


@functools.partial(jax.jit, static_argnames=("alg", "length"))
def _run_chunk(alg, length, key, state, data, last):
    return scan_steps(alg, length, key, state, data, last, None)


def scan_steps(alg, length, key, state, data, last, members):
    """`length` steps; those at or beyond `last` change nothing."""

    def step(state, _):
        sample_key, update_key = jax.random.split(jax.random.fold_in(key, state.step))
        indices, mask = alg.sampler.sample(sample_key)
        rows = indices if members is None else members[indices]
        new, info = alg.update(update_key, state, _tree.take(data, rows), mask)
        return _tree.where(state.step < last, new, state), info

    return jax.lax.scan(step, state, length=length)


@contextlib.contextmanager
def progress_bar(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task("training", total=total)
        yield lambda done: shown.update(task, completed=done)


@contextlib.contextmanager
def _already_warned() -> Iterator[None]:
    """The accountant says the same where it knows n."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="delta=")
        yield


@_already_warned()
def _affordable(alg: Algorithm, budget: Budget, steps: int) -> int:
    allowed = accounting.max_steps(
        alg.event,
        epsilon=budget.epsilon,
        delta=budget.delta,
        relation=budget.relation,
        at_most=steps,
    )
    if allowed < 1:
        raise ValueError(f"Expected a budget that allows one step, got epsilon={budget.epsilon}.")
    return allowed


@_already_warned()
def _spent(alg: Algorithm, budget: Budget, ends: list[int]) -> Float[np.ndarray, " e"]:
    """Epsilon at each end; with many ends, that of a later one stands for those before it."""
    picked = np.unique(np.linspace(0, len(ends) - 1, min(len(ends), _EPSILON_POINTS)).round())
    counts = np.array(ends)[picked.astype(int)]
    curve = accounting.epsilon_curve(
        alg.event(1), counts.tolist(), delta=budget.delta, relation=budget.relation
    )
    return curve[np.searchsorted(counts, ends)]


def _check_rows(data: PyTree, alg: Algorithm) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        if leaf.shape[0] != alg.sampler.num_examples:
            name = jax.tree_util.keystr(path)
            raise ValueError(
                f"Expected {alg.sampler.num_examples} records as in the sampler, "
                f"got shape {leaf.shape} at data{name}."
            )
