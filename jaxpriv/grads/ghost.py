"""Clipped sums without per-example weight gradients, for unchanged flax.linen modules.

For y = x W, example i's gradient is x_i (outer) delta_i, so its norm is |x_i| |delta_i| and the
clipped sum is one weighted product. A zero perturbation added to each layer's output has delta
as its gradient; one backward pass with respect to the perturbations alone yields every delta.

References:
  Goodfellow, Efficient Per-Example Gradient Computations, 2015.
  Li et al., Large Language Models Can Be Strong Differentially Private Learners, 2022.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.extend
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from jaxpriv import _tree
from jaxpriv._types import Batch, Example, Keys, Loss, Params
from jaxpriv.grads import ghost_rules, per_example


class Site(NamedTuple):
    """One call of a layer that has a rule, in the order of the calls.

    path: of the module, for people.
    module: unbound, for its configuration.
    leaves: parameter name -> position among the leaves of `params`; none: not our parameters.
    output: shape and type of what the call returns.
    """

    path: str
    module: nn.Module
    rule: ghost_rules.Rule
    leaves: Mapping[str, int]
    output: jax.ShapeDtypeStruct


class Plan(NamedTuple):
    """Which leaves go which way.

    sites: every interceptable call.
    explicit: leaves that some operation outside the sites reads.
    """

    sites: tuple[Site, ...]
    explicit: tuple[int, ...]


Visit = Callable[[ghost_rules.Rule, Callable[..., Any], nn.Module, tuple, dict], Any]


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
        rule = ghost_rules.RULES.get((type(context.module), context.method_name))
        if (
            rule is None
            or inside_a_visit
            or _trace_state() != entry
            or not rule.accepts(context.module)
        ):
            return next_fun(*args, **kwargs)
        inside_a_visit = True
        try:
            return visit(rule, next_fun, context.module, args, kwargs)
        finally:
            inside_a_visit = False

    with nn.intercept_methods(interceptor):
        yield


def _trace_state() -> object:
    return jax.extend.core.get_opaque_trace_state(convention="flax")


def make_plan(loss: Loss, params: Params, example: Example, key: PyTree) -> Plan:
    """Traces the loss once and finds how each leaf of params is used.

    A module reads from `module.variables` the very tracers that were passed in, so identity
    tells which leaf a call uses. Each such call is then replaced by one on zeros; a leaf that
    still enters an operation has a use that no rule covers, and is explicit.

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

        def visit(rule, next_fun, module, args, kwargs):
            held = module.variables.get("params", {})
            ours = {name: position[id(x)] for name, x in held.items() if id(x) in position}
            detached = module.clone(parent=None)
            if ours:
                blank = {k: jnp.zeros_like(x) if k in ours else x for k, x in held.items()}
                out = detached.apply({**module.variables, "params": blank}, *args, **kwargs)
            else:
                out = next_fun(*args, **kwargs)
            shape = jax.ShapeDtypeStruct(out.shape, out.dtype)
            sites.append(Site("/".join(module.path), detached, rule, ours, shape))
            return out

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
    clip_norm: float,
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
    one_row = jax.eval_shape(lambda b, k: (_tree.take(b, jnp.int32(0)), k[0]), batch, keys)
    plan = make_plan(loss, params, *one_row)
    records, deltas, explicit = _backward(loss, treedef, leaves, plan, batch, keys)
    factors = _factors(plan, records, deltas)
    squares = [jnp.zeros(mask.shape, jnp.float32)]
    squares += [jax.vmap(ghost_rules.squared_norm)(f) for f in factors.values()]
    squares += [_tree.squared_norms(rows) for rows in explicit]
    square = sum(squares[1:], squares[0])
    weights, norms = per_example.clip_weights(square, mask, clip_norm=clip_norm)
    totals = [jnp.zeros(leaf.shape, _tree.wide_dtype(leaf.dtype)) for leaf in leaves]
    for i, factor in factors.items():
        totals[i] = ghost_rules.weighted_total(weights, factor).reshape(leaves[i].shape)
    for i, rows in zip(plan.explicit, explicit, strict=True):
        totals[i] = per_example.weighted_sum(weights, rows)
    return per_example.ClippedSum(jax.tree.unflatten(treedef, totals), norms)


def _backward(loss, treedef, leaves, plan, batch, keys):
    """One pass: each site's input and output cotangent, and the explicit leaves' gradients."""
    ghost_sites = [bool(_ghost_leaves(plan, site)) for site in plan.sites]

    def one(example, key):
        def value(bumps, explicit):
            records = []
            calls = iter(zip(plan.sites, ghost_sites, bumps, strict=True))

            def visit(rule, next_fun, module, args, kwargs):
                site, is_ghost, bump = next(calls, (None, False, None))
                if site is None or site.path != "/".join(module.path):
                    raise ValueError("Expected a loss that calls the same layers every time.")
                out = next_fun(*args, **kwargs)
                if not is_ghost:
                    return out
                records.append(args[0] if args else next(iter(kwargs.values())))
                return out + bump

            filled = list(leaves)
            for i, leaf in zip(plan.explicit, explicit, strict=True):
                filled[i] = leaf
            with _intercepted(visit):
                return loss(jax.tree.unflatten(treedef, filled), example, key), tuple(records)

        bumps = tuple(
            jnp.zeros(site.output.shape, site.output.dtype) if is_ghost else None
            for site, is_ghost in zip(plan.sites, ghost_sites, strict=True)
        )
        explicit = tuple(leaves[i] for i in plan.explicit)
        grads, records = jax.grad(value, argnums=(0, 1), has_aux=True)(bumps, explicit)
        return records, *grads

    return jax.vmap(one)(batch, keys)


def _ghost_leaves(plan: Plan, site: Site) -> dict[str, int]:
    return {name: i for name, i in site.leaves.items() if i not in plan.explicit}


def _factors(plan: Plan, records: tuple, deltas: tuple) -> dict[int, ghost_rules.Factor]:
    """One factor a leaf, its uses joined."""
    uses: dict[int, list[ghost_rules.Factor]] = {}
    record = iter(records)
    for site, delta in zip(plan.sites, deltas, strict=True):
        ghosts = _ghost_leaves(plan, site)
        if not ghosts:
            continue
        made = jax.vmap(lambda x, d, site=site: site.rule.factors(site.module, x, d))(
            next(record), delta
        )
        for name, i in ghosts.items():
            uses.setdefault(i, []).append(made[name])
    return {i: _one_factor(factors) for i, factors in uses.items()}


def _one_factor(factors: list[ghost_rules.Factor]) -> ghost_rules.Factor:
    parts = ghost_rules.joined(factors)
    if len(parts) == 1:
        return parts[0]
    wholes = [jax.vmap(ghost_rules.materialised)(part).grad for part in parts]
    return ghost_rules.Whole(sum(wholes[1:], wholes[0]))
