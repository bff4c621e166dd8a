"""Trains one model, in compiled scans of at most an epoch; stops, continues and resumes.

In the shapes below `n` counts records and `e` evaluations.
"""

import functools
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray, PyTree

from jaxpriv import _check, _progress, _types
from jaxpriv._types import Params
from jaxpriv.training import _arguments, _identity, _scan, _spending
from jaxpriv.training._run import PartialRun, RunCheckpointer
from jaxpriv.training.algorithms import Algorithm
from jaxpriv.training.budget import Budget
from jaxpriv.training.checkpoint import Checkpoints

__all__ = ["Evaluation", "History", "fit"]

_MIN_CHUNK = 10
"""Minimum number of steps between two evaluations."""


class Evaluation(NamedTuple):
    """Result of one call of `evaluate`.

    metrics: numbers or arrays by name; every call must return the same names.
    stop: whether training ends here. The choice depends on released parameters, so the guarantee
      remains that of the planned steps.

    Example:
      >>> losses = [0.9, 0.5, 0.49]
      >>> Evaluation({"loss": losses[-1]}, stop=losses[-2] - losses[-1] < 0.05)
      Evaluation(metrics={'loss': 0.49}, stop=True)
    """

    metrics: Mapping[str, Any]
    stop: bool = False


class History(NamedTuple):
    """Record of a run.

    info: diagnostics of the algorithm, every leaf [steps, ...]; those of DP-SGD are not private.
    evaluated_at: number of steps done at the end of each chunk, where `evaluate` was called.
    metrics: results of `evaluate`, by name.
    planned_steps: number of planned steps, whose event is the guarantee of the run.
    steps_done: number of steps done; fewer than planned if `evaluate` stopped the run.
    epsilon: epsilon of the planned steps at the budget's delta; None without a budget.
    epsilon_curve: epsilon of the steps up to each evaluation, never understated; None without a
      budget. An entry is a guarantee only for parameters that were chosen before training.
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

    Step t draws from fold_in(key, t), so the result depends neither on the chunks nor on
    interruptions: a run that is continued under the same key equals the uninterrupted one bit for
    bit. The guarantee of the run is `alg.event(steps)`, the event of all steps planned at this
    call, even if `evaluate` ends the run earlier: when a run ends depends on released parameters.

    Args:
      key: PRNG key. Reusing it with initial parameters repeats the noise; reusing it with the
        state of an earlier run does not.
      alg: algorithm, such as `dpsgd(...)`.
      params: initial parameters, or the state of an earlier run to be continued. A state of an
        algorithm with another privacy event is refused, since all steps are counted as steps of
        `alg`. The guarantee holds if `steps` is no smaller than the number that the earlier run
        planned, which a state does not record.
      data: pytree with leading axis n, the number of examples of the sampler.
      steps: total number of steps, including those that the state has done.
      budget: limits the number of steps, with a warning if it allows fewer.
      evaluate: `evaluate(params, step) -> Evaluation`, called on the host after every epoch (at
        least 10 steps apart).
      checkpoints: folder of checkpoints. After an interruption the same call continues to the
        same result; a call with more steps continues a finished run.

    Returns:
      The final state and the history.

    Raises:
      ValueError: if an argument is of the wrong kind, the data do not match the sampler, the
        state has other arrays or another event than one of `alg` or has done all steps, the
        budget does not allow one step, or the checkpoints belong to a run with other arguments.

    Example:
      >>> import optax
      >>> from jaxpriv import sampling, training
      >>> def loss(w, example, key):
      ...     x, y = example
      ...     return (w * x - y) ** 2
      >>> x = jnp.linspace(-1.0, 1.0, 50)
      >>> alg = training.sgd(loss, optax.sgd(0.5), sampling.poisson(50, sampling_prob=0.5))
      >>> state, history = fit(jax.random.key(0), alg, jnp.float32(0), (x, 3.0 * x), steps=40)
      >>> round(float(state.params), 2), history.steps_done
      (3.0, 40)
    """
    _arguments.check_run(key, alg, evaluate, checkpoints)
    _check.positive_int(steps=steps)
    _arguments.check_rows(data, alg)
    _spending.check(budget)
    start = _initial_state(alg, params)
    first_step = int(start.step)
    if budget is not None:
        steps = _spending.steps_within(alg, budget, steps)
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
        spent = _spending.epsilon_after(alg, budget, [*run.chunk_ends, steps])
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
    """Runs the remaining chunks."""
    ends, length = _chunks(alg, run.planned_at, run.planned_steps)
    has_warned = False
    with _progress.bar("training", run.planned_steps) as advance:
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
    """Divides the steps into chunks of at most an epoch; returns their ends and their length."""
    size = _types.num_units(alg.sampler) or alg.sampler.num_examples
    epoch = max(_MIN_CHUNK, round(size / alg.sampler.expected_batch_size))
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
    """Warns if gradients or losses of a chunk are not finite."""
    counts = getattr(info, "num_nonfinite", None)
    dropped = 0 if counts is None else int(np.asarray(counts)[:num_steps].sum())
    if dropped:
        rows = int(np.asarray(info.batch_size)[:num_steps].sum())
        warnings.warn(_scan.nonfinite_warning(dropped, rows), stacklevel=4)
    return dropped > 0


def _initial_state(alg: Algorithm, params: Params) -> Any:
    """Returns the initial state: the given one, or that of the initial parameters."""
    is_state = isinstance(params, tuple) and hasattr(params, "params") and hasattr(params, "step")
    if not is_state:
        return alg.init(params)
    state: Any = jax.tree.map(jnp.asarray, params)
    expected = jax.eval_shape(alg.init, state.params)
    given, wanted = (
        [(jax.tree_util.keystr(path), leaf.shape, leaf.dtype) for path, leaf in leaves]
        for leaves in map(jax.tree_util.tree_leaves_with_path, (state, expected))
    )
    for (path, shape, dtype), leaf in zip(wanted, given, strict=False):
        if leaf != (path, shape, dtype):
            raise ValueError(
                f"Expected a state of this algorithm, with {shape} {dtype} at {path}, "
                f"got {leaf[1]} {leaf[2]} at {leaf[0]}."
            )
    if jax.tree.structure(state) != jax.tree.structure(expected):
        raise ValueError(
            f"Expected a state of this algorithm with {len(wanted)} arrays, got {len(given)}."
        )
    if getattr(state, "event", None) is not None:
        init: Any = alg.init
        event = jax.jit(lambda params: init(params).event)(state.params)
        if int(event) != int(state.event):
            raise ValueError(
                "Expected a state of an algorithm with the same privacy event for each step, got "
                "one with another sampler or noise multiplier: start from its params with a new "
                "key, and compose the events of both runs."
            )
    return state


@functools.partial(jax.jit, static_argnames=("alg", "length"))
def _run_chunk(alg, length, key, state, data, num_steps):
    return _scan.scan_steps(alg, length, key, state, data, num_steps, None)
