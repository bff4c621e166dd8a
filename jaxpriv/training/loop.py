"""Trains one model: the steps of an algorithm as compiled scans over chunks of an epoch.

In the shapes below `n` counts records and `e` evaluations.
"""

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray, PyTree

from jaxpriv import _check, _tree
from jaxpriv._types import Params
from jaxpriv.training import _arguments, _identity
from jaxpriv.training import budget as budgets
from jaxpriv.training.algorithms import Algorithm
from jaxpriv.training.budget import Budget
from jaxpriv.training.checkpoint import Checkpoints, PartialRun, RunCheckpointer

_MIN_CHUNK = 10


class Evaluation(NamedTuple):
    """Result of one call of `evaluate`.

    metrics: numbers or arrays by name, the same names at every call.
    stop: whether training ends here. This is a choice made on released parameters, so the
      guarantee stays that of the planned steps.
    """

    metrics: Mapping[str, Any]
    stop: bool = False


class History(NamedTuple):
    """Record of a run.

    info: the algorithm's Info, every leaf [steps, ...]; states itself whether it is private.
    evaluated_at: steps done at the end of each chunk, where `evaluate` was called.
    metrics: results of `evaluate`, by name.
    planned_steps: number of steps whose event is the guarantee of the run.
    steps_done: number of steps; fewer if `evaluate` stopped the run.
    epsilon: of the planned steps at the budget's delta; None without a budget.
    epsilon_curve: of the steps up to each evaluation, never understated; None without a budget.
      One of these is a guarantee only for parameters that were chosen before training.
    """

    info: PyTree
    evaluated_at: Int[np.ndarray, " e"]
    metrics: dict[str, Float[np.ndarray, "e ..."]]
    planned_steps: int
    steps_done: int
    epsilon: float | None
    epsilon_curve: Float[np.ndarray, " e"] | None


def fit(
    key: PRNGKeyArray,
    alg: Algorithm,
    params: Params,
    data: PyTree,
    *,
    steps: int,
    budget: Budget | None = None,
    evaluate: Callable[[Params, int], Evaluation] | None = None,
    checkpoints: Checkpoints | None = None,
) -> tuple[Any, History]:
    """Trains one model.

    Step t draws from fold_in(key, t), so neither the length of the chunks nor a kill and a
    resumption changes anything, and a run that is continued under the same key equals the
    uninterrupted one bit for bit. The guarantee of the run is `alg.event(steps)`, the event of
    all steps planned at this call, wherever `evaluate` ends it: the place where a run ends
    depends on parameters that were released before.

    Args:
      key: PRNG key. To reuse it with initial parameters repeats the noise; to reuse it with a
        state does not.
      alg: from `sgd`, `dpsgd` or `adaptive_dpsgd`, `averaged` or not.
      params: initial parameters; or the state of an earlier run, which is continued.
      data: pytree with leading axis n, the sampler's number of examples.
      steps: total number of steps, including those that the state has done.
      budget: reduces the steps to those that it allows, with a warning.
      evaluate: called on the host with the parameters and the steps done, after every epoch (at
        least 10 steps apart).
      checkpoints: folder where the run is saved and looked for. After a kill the same call
        continues to the same result. With more steps it continues a finished run.

    Returns:
      The final state and the history.

    Raises:
      ValueError: if an argument is of the wrong kind, the data do not match the sampler, the
        state is not of this algorithm or has done all steps, the budget does not allow one step,
        or the checkpoints are of a run with other arguments.
    """
    _arguments.check_run(key, alg, evaluate, checkpoints)
    _check.positive_int(steps=steps)
    _arguments.check_rows(data, alg)
    budgets.check(budget)
    start = _initial_state(alg, params)
    first_step = int(start.step)
    if budget is not None:
        steps = budgets.steps_within(alg, budget, steps)
    if steps <= first_step:
        raise ValueError(
            f"Expected steps > {first_step}, the number that the state has done, got {steps}."
        )
    identity = {}
    if checkpoints is not None:
        identity = _identity.describe(key=key, params=params, data=data, algorithm=alg)
        identity |= _identity.versions()
    checkpointer = RunCheckpointer(checkpoints, identity)
    run = PartialRun(start, first_step, [], [], [], first_step, steps, first_step)
    _, info_like = jax.eval_shape(
        functools.partial(_run_chunk, alg, 1, key), start, data, jnp.int32(steps)
    )
    run = checkpointer.restore(run, info_like)
    run = _train(key, alg, data, run, evaluate, checkpointer)
    epsilon = curve = None
    if budget is not None:
        spent = budgets.epsilon_after(alg, budget, [*run.chunk_ends, steps])
        epsilon, curve = float(spent[-1]), spent[:-1]
    metrics = run.stacked_metrics()
    history = History(
        run.info(), np.array(run.chunk_ends), metrics, steps, run.steps_done, epsilon, curve
    )
    return run.state, history


def _train(
    key: PRNGKeyArray,
    alg: Algorithm,
    data: PyTree,
    run: PartialRun,
    evaluate: Callable[[Params, int], Evaluation] | None,
    checkpointer: RunCheckpointer,
) -> PartialRun:
    """Runs the chunks that are left."""
    ends, length = _chunks(alg, run.planned_at, run.planned_steps)
    has_warned = False
    with progress_bar(run.planned_steps) as advance:
        for end in ends:
            if end <= run.steps_done or run.is_stopped:
                continue
            state, info = _run_chunk(
                alg, length, key, run.state, data, jnp.int32(run.planned_steps)
            )
            state = jax.block_until_ready(state)
            metrics, stop = _evaluate(evaluate, state.params, end, run)
            has_warned = has_warned or _warn_if_not_finite(info, end - run.steps_done)
            run = run._replace(
                state=state,
                steps_done=end,
                infos=[*run.infos, info],
                chunk_ends=[*run.chunk_ends, end],
                metrics=[*run.metrics, *metrics],
                is_stopped=stop,
            )
            checkpointer.save(run, is_last=stop or end == run.planned_steps)
            advance(end)
    return run


def _chunks(alg: Algorithm, start: int, steps: int) -> tuple[list[int], int]:
    """Cuts the steps into chunks of equal length, at most an epoch: their ends and the length."""
    epoch = max(_MIN_CHUNK, round(alg.sampler.num_examples / alg.sampler.expected_batch_size))
    length = math.ceil((steps - start) / math.ceil((steps - start) / epoch))
    return [min(first + length, steps) for first in range(start, steps, length)], length


def _evaluate(
    evaluate: Callable[[Params, int], Evaluation] | None,
    params: Params,
    step: int,
    run: PartialRun,
) -> tuple[list[dict[str, np.ndarray]], bool]:
    """Calls `evaluate` and checks that its metrics can be stacked with the earlier ones."""
    result = Evaluation({}) if evaluate is None else evaluate(params, step)
    if not isinstance(result, Evaluation) or not isinstance(result.metrics, Mapping):
        raise ValueError(
            "Expected evaluate to return training.Evaluation(metrics={...}, stop=False), "
            f"got {type(result).__name__}."
        )
    metrics = {name: np.asarray(value) for name, value in result.metrics.items()}
    for name, value in metrics.items():
        if value.dtype.kind not in "biuf":
            raise ValueError(
                f"Expected evaluate to return numbers, got {result.metrics[name]!r} as {name!r}."
            )
    earlier = sorted(run.metrics[0]) if run.metrics else []
    if run.chunk_ends and earlier != sorted(metrics):
        raise ValueError(
            f"Expected evaluate to return the metrics {earlier} as before step {step}, "
            f"got {sorted(metrics)}."
        )
    return ([metrics] if metrics else []), bool(result.stop)


def _warn_if_not_finite(info: PyTree, num_steps: int) -> bool:
    """Warns if examples of a chunk had gradients or losses that are not finite."""
    counts = getattr(info, "num_nonfinite", None)
    dropped = 0 if counts is None else int(np.asarray(counts)[:num_steps].sum())
    if dropped:
        rows = int(np.asarray(info.batch_size)[:num_steps].sum())
        warnings.warn(nonfinite_warning(dropped, rows), stacklevel=4)
    return dropped > 0


def nonfinite_warning(dropped: int, rows: int) -> str:
    """Formats the warning about gradients or losses that are not finite."""
    return (
        f"{dropped} of {rows} per-example gradients or losses are NaN or infinite. DP-SGD counts "
        "such a gradient as zero, so training on them follows the noise alone: check the loss, "
        "the learning rate and the data. info.num_nonfinite has the count of each step."
    )


def _initial_state(alg: Algorithm, params: Params) -> Any:
    """Returns the state to begin with: the one given, or that of the initial parameters."""
    is_state = isinstance(params, tuple) and hasattr(params, "params") and hasattr(params, "step")
    if not is_state:
        return alg.init(params)
    state: Any = jax.tree.map(jnp.asarray, params)
    expected = jax.eval_shape(alg.init, state.params)
    given, wanted = (
        [(jax.tree_util.keystr(path), leaf.shape, leaf.dtype) for path, leaf in leaves]
        for leaves in map(jax.tree_util.tree_leaves_with_path, (state, expected))
    )
    for got, want in zip(given, wanted, strict=False):
        if got != want:
            raise ValueError(
                f"Expected a state of this algorithm, with {want[1]} {want[2]} at {want[0]}, "
                f"got {got[1]} {got[2]} at {got[0]}."
            )
    if jax.tree.structure(state) != jax.tree.structure(expected):
        raise ValueError(
            f"Expected a state of this algorithm with {len(wanted)} arrays, got {len(given)}."
        )
    return state


@functools.partial(jax.jit, static_argnames=("alg", "length"))
def _run_chunk(alg, length, key, state, data, num_steps):
    return scan_steps(alg, length, key, state, data, num_steps, None)


def scan_steps(
    alg: Algorithm,
    length: int,
    key: PRNGKeyArray,
    state: Any,
    data: PyTree,
    num_steps: Int[jax.Array, ""],
    members: Int[jax.Array, " k"] | None,
) -> tuple[Any, PyTree]:
    """Scans over steps; those at or beyond `num_steps` change nothing.

    Args:
      alg: the algorithm.
      length: number of steps to scan.
      key: PRNG key of the run; step t draws from fold_in(key, t).
      state: before the first of the steps.
      data: pytree with leading axis n.
      num_steps: total number of steps of the run.
      members: indices of the records that the sampler draws from; None for all.

    Returns:
      The state and the Info, every leaf [length, ...].
    """

    def step(state, _):
        sample_key, update_key = jax.random.split(jax.random.fold_in(key, state.step))
        indices, mask = alg.sampler.sample(sample_key)
        rows = indices if members is None else members[indices]
        new, info = alg.update(update_key, state, _tree.take(data, rows), mask)
        return _tree.where(state.step < num_steps, new, state), info

    return jax.lax.scan(step, state, length=length)


@contextlib.contextmanager
def progress_bar(total: int) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on a terminal, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=total)
        yield lambda done: progress.update(task, completed=done)
