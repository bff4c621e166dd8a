"""Clipped sums without per-example weight gradients, for unchanged flax.linen modules.

For y = x W, example i's gradient is x_i (outer) delta_i, so its norm is |x_i| |delta_i| and the
clipped sum is one weighted product. A zero perturbation added to each layer's output has delta
as its gradient; one backward pass with respect to the perturbations alone yields every delta.

References:
  Goodfellow, Efficient Per-Example Gradient Computations, 2015.
  Li et al., Large Language Models Can Be Strong Differentially Private Learners, 2022.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.extend
import jax.numpy as jnp
from flax import traverse_util
from flax.linen import module as linen_module
from jaxtyping import Array, Bool, PyTree

from jaxpriv import _tree
from jaxpriv._types import Batch, Example, Keys, Loss, Params, Scalar
from jaxpriv.grads import ghost_factors, ghost_recurrent, ghost_rules, per_example
from jaxpriv.grads.ghost_factors import Factor, Group
from jaxpriv.grads.ghost_rules import Call, Path, Rule

_NOT_THE_SAME = "Expected a loss that calls the same layers every time it is traced."
_RULES = {**ghost_rules.RULES, **ghost_recurrent.RULES}


class Site(NamedTuple):
    """One call of a layer that has a rule, in the order of the calls.

    path: of the module, for people and to recognise the call.
    config: what the rule's `factors` needs to know.
    leaves: parameter -> position among the leaves of `params`; none: not our parameters.
    bump: shape and type of the array whose cotangent is wanted.
    """

    path: str
    rule: Rule
    config: Any
    leaves: Mapping[Path, int]
    bump: jax.ShapeDtypeStruct | None


class Plan(NamedTuple):
    """Which leaves go which way.

    sites: every call that has a rule.
    explicit: leaves that some operation outside the sites reads.
    """

    sites: tuple[Site, ...]
    explicit: tuple[int, ...]

    def ghosts(self, site: Site) -> dict[Path, int]:
        """The parameters of a site whose gradient comes from its factors."""
        return {name: i for name, i in site.leaves.items() if i not in self.explicit}


Visit = Callable[[Rule, Callable[..., Any], Call], Any]


@contextlib.contextmanager
def _intercepted(visit: Visit) -> Iterator[None]:
    """Hands every call that has a rule to `visit`, inside the loss's own trace only.

    Under a vmap, scan, cond or jit of the loss's own, the arrays seen belong to an inner trace
    and must not be kept; such calls run as they are, and their leaves go the explicit way.
    """
    entry = _trace_state()
    inside_a_visit = False

    def interceptor(next_fun, args, kwargs, context):
        nonlocal inside_a_visit
        rule = _RULES.get((type(context.module), context.method_name))
        call = Call(context.module, context.method_name, args, kwargs)
        ours = rule is not None and not inside_a_visit and _trace_state() == entry
        if rule is None or not ours or _others_intercept() or not rule.accepts(call):
            return next_fun(*args, **kwargs)
        inside_a_visit = True
        try:
            return visit(rule, next_fun, call)
        finally:
            inside_a_visit = False

    mark_ours(interceptor)
    with nn.intercept_methods(interceptor):
        yield


_OURS: weakref.WeakSet[Any] = weakref.WeakSet()


def mark_ours(interceptor: Any) -> None:
    """Tells the library's interceptors from the user's."""
    _OURS.add(interceptor)


def _others_intercept() -> bool:
    """Whether the user changes what layers do; a rule could not know how."""
    return any(one not in _OURS for one in linen_module._global_interceptor_stack)


def _trace_state() -> object:
    return jax.extend.core.get_opaque_trace_state(convention="flax")


def make_plan(loss: Loss, params: Params, example: Example, key: PyTree) -> Plan:
    """Traces the loss once and finds how each leaf of params is used.

    A module reads from its variables the very tracers that were passed in, so identity tells
    which leaf a call uses. Each such call is then replaced by one on zeros; a leaf that still
    enters an operation has a use that no rule covers, and is explicit.

    Args:
      loss: `loss(params, example, key)` of one example.
      params: arrays or their shapes.
      example: one row, arrays or shapes.
      key: a key or its shape.

    Returns:
      The plan.

    Raises:
      ValueError: if the loss is not a scalar.
    """
    leaves, treedef = jax.tree.flatten(params)
    sites: list[Site] = []

    def traced(leaves, example, key):
        position = {id(leaf): i for i, leaf in enumerate(leaves)}

        def visit(rule, next_fun, call):
            held: dict[Path, Any] = dict(traverse_util.flatten_dict(rule.held(call.module)))
            ours = {name: position[id(x)] for name, x in held.items() if id(x) in position}
            path = "/".join(call.module.path)
            if not ours:
                sites.append(Site(path, rule, None, {}, None))
                return next_fun(*call.args, **call.kwargs)
            blank = {k: jnp.zeros_like(x) if k in ours else x for k, x in held.items()}
            done = rule.forward(call, traverse_util.unflatten_dict(blank), None)
            sites.append(Site(path, rule, rule.config(call), ours, done.shape))
            return done.output

        with _intercepted(visit):
            return loss(jax.tree.unflatten(treedef, leaves), example, key)

    closed = jax.make_jaxpr(traced)(leaves, example, key)
    shapes = [aval.shape for aval in closed.out_avals]
    if shapes != [()]:
        raise ValueError(f"Expected the loss of one example to be a scalar, got shapes {shapes}.")
    read = {id(v) for eqn in closed.jaxpr.eqns for v in eqn.invars}
    read |= {id(v) for v in closed.jaxpr.outvars}
    explicit = [i for i, v in enumerate(closed.jaxpr.invars[: len(leaves)]) if id(v) in read]
    return Plan(tuple(sites), tuple(explicit))


def ghost_sum(
    loss: Loss,
    params: Params,
    batch: Batch,
    mask: Bool[Array, " b"],
    keys: Keys,
    *,
    clip_norm: Scalar,
) -> per_example.ClippedSum:
    """Sums clipped gradients from each layer's inputs and output cotangents.

    Leaves without a rule, or with a use outside one, get explicit per-example gradients in the
    same backward pass. Equal to `per_example.explicit_sum` up to rounding.

    Args:
      loss: `loss(params, example, key)` of one example.
      params: trainable leaves.
      batch: leading axis b.
      mask: which rows are real.
      keys: one a row.
      clip_norm: C.

    Returns:
      The clipped sum and the norms.
    """
    leaves, treedef = jax.tree.flatten(params)
    plan = make_plan(loss, params, *one_row(batch, keys))
    factors, explicit = per_example_factors(loss, params, batch, keys, plan)
    squares = [jnp.zeros(mask.shape, jnp.float32)]
    squares += [jax.vmap(ghost_factors.squared_norm)(f) for f in factors.values()]
    squares += [_tree.squared_norms(rows) for rows in explicit.values()]
    weights, norms = per_example.clip_weights(_tree.added(squares), mask, clip_norm=clip_norm)
    totals = [jnp.zeros(leaf.shape, _tree.wide_dtype(leaf.dtype)) for leaf in leaves]
    for group, parts in factors.items():
        total = ghost_factors.weighted_total(weights, parts, group.shape)
        for i, part in ghost_factors.split(total, group).items():
            totals[i] = part.reshape(leaves[i].shape)
    for i, rows in explicit.items():
        totals[i] = per_example.weighted_sum(weights, rows)
    return per_example.ClippedSum(jax.tree.unflatten(treedef, totals), norms)


def one_row(batch: Batch, keys: Keys) -> tuple[Example, PyTree]:
    """Shapes of one example and of its key."""
    return jax.eval_shape(lambda b, k: (_tree.take(b, jnp.int32(0)), k[0]), batch, keys)


def per_example_factors(
    loss: Loss, params: Params, batch: Batch, keys: Keys, plan: Plan
) -> tuple[dict[Group, list[Factor]], dict[int, Array]]:
    """One backward pass, with respect to the bumps and the explicit leaves alone.

    Args:
      loss: of one example.
      params: trainable leaves.
      batch: leading axis b.
      keys: one a row.
      plan: of this loss.

    Returns:
      The factors of each group of ghost leaves, and the gradients of the explicit leaves by
      position; leading axis b.
    """
    leaves, treedef = jax.tree.flatten(params)

    def one(example, key):
        bumps = tuple(
            jnp.zeros(site.bump.shape, site.bump.dtype) if site.bump and plan.ghosts(site) else None
            for site in plan.sites
        )
        explicit = {i: leaves[i] for i in plan.explicit}

        def value(bumps, explicit):
            filled = [explicit.get(i, leaf) for i, leaf in enumerate(leaves)]
            return _recorded(loss, jax.tree.unflatten(treedef, filled), example, key, plan, bumps)

        found = jax.grad(value, argnums=(0, 1), has_aux=True)(bumps, explicit)
        (deltas, explicit), records = found
        return _grouped_factors(plan, records, deltas, leaves), explicit

    return jax.vmap(one)(batch, keys)


def _recorded(loss, params, example, key, plan, bumps):
    """The loss with every ghost site bumped, and what the sites recorded."""
    records = []
    calls = iter(zip(plan.sites, bumps, strict=True))

    def visit(rule, next_fun, call):
        site, bump = next(calls, (None, None))
        if site is None or site.path != "/".join(call.module.path):
            raise ValueError(_NOT_THE_SAME)
        if bump is None:
            return next_fun(*call.args, **call.kwargs)
        done = rule.forward(call, rule.held(call.module), bump)
        records.append(done.record)
        return done.output

    with _intercepted(visit):
        value = loss(params, example, key)
    if next(calls, None) is not None:
        raise ValueError(_NOT_THE_SAME)
    return value, tuple(records)


def _grouped_factors(plan: Plan, records, deltas, leaves) -> dict[Group, list[Factor]]:
    """Of one example: what its ghost leaves' gradients are made of."""
    uses: dict[int, list[Factor]] = {}
    record = iter(records)
    for site, delta in zip(plan.sites, deltas, strict=True):
        if delta is None:
            continue
        made = site.rule.factors(site.config, next(record), delta)
        for name, i in plan.ghosts(site).items():
            uses.setdefault(i, []).append(made[name])
    return ghost_factors.grouped(uses, {i: leaves[i].shape for i in uses})
