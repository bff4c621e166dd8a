"""Runs an algorithm: one model as a compiled scan, many models by vmap or map.

In the shapes below `n` counts records, `m` models, `e` evaluations.
"""

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxpriv import _check, _tree, accounting
from jaxpriv._types import RELATIONS, Keys, Params, Relation
from jaxpriv.training.algorithms import Algorithm, State

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


class ManyInfo(NamedTuple):
    """How many models were trained at once, and what the algorithm said.

    info: the algorithm's Info, every leaf [m, steps, ...].
    strategy: "vmap" trains a chunk side by side, "map" one after the other in one program.
    chunk: models a program.
    """

    info: PyTree
    strategy: Literal["vmap", "map"]
    chunk: int


def fit(
    key: PRNGKeyArray,
    alg: Algorithm,
    params: Params,
    data: PyTree,
    *,
    steps: int,
    budget: Budget | None = None,
    evaluate: Callable[[Params], Mapping[str, Any]] | None = None,
) -> tuple[State, History]:
    """Trains one model: chunks of an epoch, each one compiled scan.

    Step t draws from fold_in(key, t), so how steps are cut into chunks changes nothing.

    Args:
      key: consumed.
      alg: from `sgd` or `dpsgd`.
      params: initial.
      data: pytree with leading axis n, the sampler's number of examples.
      steps: at most so many.
      budget: turned into a number of steps beforehand.
      evaluate: called on the host with the parameters after every epoch (at least 10 steps
        apart); returns numbers by name.

    Returns:
      The final state and the history.

    Raises:
      ValueError: if the data do not match the sampler or the budget does not allow one step.
    """
    _check.positive_int(steps=steps)
    _check_rows(data, alg)
    if budget is not None:
        _warn_if_large(budget.delta, alg.sampler.num_examples)
        steps = _affordable(alg, budget, steps)
    epoch = max(_SHORTEST_CHUNK, round(alg.sampler.num_examples / alg.sampler.expected_batch_size))
    length = math.ceil(steps / math.ceil(steps / epoch))
    state, infos, evaluations = alg.init(params), [], []
    ends = [min(start + length, steps) for start in range(0, steps, length)]
    with _progress(steps) as advance:
        for end in ends:
            state, info = _run_chunk(alg, length, key, state, data, jnp.int32(steps))
            infos.append(info)
            if evaluate is not None:
                evaluations.append({k: np.asarray(v) for k, v in evaluate(state.params).items()})
            jax.block_until_ready(state.step)
            advance(end)
    info = jax.tree.map(lambda *x: np.concatenate(x)[:steps], *infos)
    named = {k: np.stack([e[k] for e in evaluations]) for k in (evaluations or [{}])[0]}
    spent = None if budget is None else _spent(alg, budget, ends)
    return state, History(info, np.array(ends), named, spent)


def fit_many(
    keys: Keys,
    make_alg: Callable[[Any], Algorithm],
    params: Params,
    data: PyTree,
    *,
    members: Int[Array, "m k"] | Int[np.ndarray, "m k"],
    steps: int,
    hyper: PyTree = None,
    chunk: int | None = None,
) -> tuple[State, ManyInfo]:
    """Trains many models, each on its own members; equal to `fit` with the same keys.

    On a GPU or TPU a chunk of models runs side by side by vmap; on a CPU, where batched
    products are slow, one after the other inside one program.

    Args:
      keys: [m], one a model.
      make_alg: hyper-parameters of one model -> algorithm. They are traced inside (a learning
        rate); privacy parameters must not depend on them.
      params: initial, leading axis m.
      data: the pool; pytree with leading axis n.
      members: indices into the pool. Rows have equal length k: the sampler is over k records.
      steps: of every model.
      hyper: pytree with leading axis m, or None; checked on the host for every model first.
      chunk: models in one program; default 8 where vmap is used, all otherwise.

    Returns:
      The states, stacked along m, and how it was done.

    Raises:
      ValueError: if lengths disagree, a member is out of range, or make_alg refuses.
    """
    members = np.asarray(members)
    many = len(members)
    _check.positive_int(steps=steps)
    _check.same_length(keys=keys, members=members)
    _check_stacked(many, params=params, hyper=hyper)
    _check_members(members, data)
    for i in range(many):
        alg = make_alg(_row(hyper, i))
        if alg.sampler.num_examples != members.shape[1]:
            raise ValueError(
                f"Expected a sampler over the {members.shape[1]} members of a model, "
                f"got one over {alg.sampler.num_examples} examples."
            )
    strategy = "map" if jax.default_backend() == "cpu" else "vmap"
    if chunk is None:
        chunk = many if strategy == "map" else min(many, 8)
    _check.positive_int(chunk=chunk)

    def one(run):
        key, params, mine, hyper = run
        alg = make_alg(hyper)
        chunk_of = functools.partial(_scan, alg, steps, key, alg.init(params))
        return chunk_of(data, jnp.int32(steps), mine)

    program = jax.jit(jax.vmap(one) if strategy == "vmap" else lambda runs: jax.lax.map(one, runs))
    runs = (keys, params, jnp.asarray(members), hyper)
    results = []
    with _progress(many) as advance:
        for start in range(0, many, chunk):
            # The last chunk repeats models so that one program serves all.
            rows = jnp.arange(start, start + chunk) % many
            results.append(jax.block_until_ready(program(_tree.take(runs, rows))))
            advance(min(start + chunk, many))
    states, info = jax.tree.map(lambda *x: jnp.concatenate(x)[:many], *results)
    return states, ManyInfo(info, strategy, chunk)


@functools.partial(jax.jit, static_argnames=("alg", "length"))
def _run_chunk(alg, length, key, state, data, last):
    return _scan(alg, length, key, state, data, last, None)


def _scan(alg, length, key, state, data, last, members):
    """`length` steps; those at or beyond `last` change nothing."""

    def step(state, _):
        sample_key, update_key = jax.random.split(jax.random.fold_in(key, state.step))
        indices, mask = alg.sampler.sample(sample_key)
        rows = indices if members is None else members[indices]
        new, info = alg.update(update_key, state, _tree.take(data, rows), mask)
        return _tree.where(state.step < last, new, state), info

    return jax.lax.scan(step, state, length=length)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task("training", total=total)
        yield lambda done: shown.update(task, completed=done)


def _warn_if_large(delta: float, n: int) -> None:
    if delta >= 1 / n:
        warnings.warn(
            f"delta={delta} is at least 1/n for n={n}: publishing one record in the clear would "
            "meet it.",
            stacklevel=3,
        )


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


def _check_stacked(many: int, **trees: PyTree) -> None:
    for name, tree in trees.items():
        for leaf in jax.tree.leaves(tree):
            if jnp.ndim(leaf) == 0 or leaf.shape[0] != many:
                raise ValueError(
                    f"Expected {name} stacked for {many} models, got shape {jnp.shape(leaf)}."
                )
            if not np.all(np.isfinite(np.asarray(leaf, np.float64))):
                raise ValueError(f"Expected finite {name}, got NaN or inf.")


def _check_members(members: Int[np.ndarray, "m k"], data: PyTree) -> None:
    n = min(leaf.shape[0] for leaf in jax.tree.leaves(data))
    if members.size == 0 or members.min() < 0 or members.max() >= n:
        raise ValueError(f"Expected members in 0..{n - 1}, got {members.shape} rows beyond that.")


def _row(tree: PyTree, i: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[i], tree)
