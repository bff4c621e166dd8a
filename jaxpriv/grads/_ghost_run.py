"""Runs one backward pass of the loss of one example, with the records of a plan.

    leaves, example --run--> value, records --backward--> cotangents of the perturbations
    records, cotangents --site by site--> factors

A perturbation of zeros is added at each anchor; its gradient is the cotangent of every product
that was summed there. Leaves with factors enter as constants, so no gradient with respect to them
is computed. In a scan, perturbations are scanned inputs and records are scanned outputs.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpriv import _jaxprs, _tree
from jaxpriv.grads import _ghost_factors
from jaxpriv.grads._ghost_factors import Lookup, Outer, Unformed
from jaxpriv.grads._ghost_plan import Delta, Plan, Region, Use
from jaxpriv.grads._ghost_sites import Site


class Tape(NamedTuple):
    """Arrays of the anchors, records or sites of a region, and the tapes of inner regions."""

    local: dict[int, Array]
    inner: dict[int, "Tape"]


class Tapes(NamedTuple):
    """Records and cotangents from which the factors of one example are computed."""

    records: Tape
    cotangents: Tape


class Gradient(NamedTuple):
    """The gradient of one example, in parts.

    value: value of the loss.
    tapes: records and cotangents of the sites.
    norms: block -> norm, where the total needs a second pass.
    explicit: leaf -> gradient.
    """

    value: Float[Array, "*b"]
    tapes: Tapes
    norms: dict[int, Array]
    explicit: dict[int, Array]


def gradient(plan: Plan, leaves: Sequence[Array], inputs: Sequence[Any]) -> Gradient:
    """Runs the loss of one example forwards and backwards; `inputs` are its leaves and key."""

    def value(tape, explicit):
        args = [explicit.get(i, leaf) for i, leaf in enumerate(leaves)]
        (out,), records = _run(plan.region, [*args, *inputs], tape)
        return out, records

    explicit = {i: leaves[i] for i in plan.explicit}
    both = jax.value_and_grad(value, argnums=(0, 1), has_aux=True)
    (out, records), (cotangents, explicit) = both(_blank(plan.region), explicit)
    norms = {}
    for k, block in enumerate(plan.blocks):
        first = block.uses[0]
        if first.remat is not None:
            norms[k] = _tree.norm(_at(cotangents, first.path).local[first.eqn])
    return Gradient(out, Tapes(records, cotangents), norms, explicit)


def factors(
    plan: Plan, tapes: Tapes, blocks: frozenset[int] | None = None
) -> dict[int, list[Unformed]]:
    """Computes the factors of one example, for the given blocks or for all recorded ones."""
    return {
        k: _ghost_factors.join([_factor(use, *tapes) for use in block.uses])
        for k, block in enumerate(plan.blocks)
        if block.uses[0].remat is None and (blocks is None or k in blocks)
    }


def _blank(region: Region, scans: tuple[int, ...] = ()) -> Tape:
    """Returns the perturbations of a region: zeros, stacked over the enclosing scans."""
    local = {
        index: jnp.zeros(scans + variable.aval.shape, variable.aval.dtype)
        for variable, index in region.anchors.items()
    }
    for i in region.norms:
        dtype = region.closed.jaxpr.eqns[i].outvars[0].aval.dtype
        local[i] = jnp.zeros(scans, _tree.accumulation_dtype(dtype))
    inner = {}
    for i, body in region.inner.items():
        length = region.closed.jaxpr.eqns[i].params.get("length")
        inner[i] = _blank(body, scans if length is None else (*scans, length))
    return Tape(local, inner)


def _run(region: Region, args: Sequence[Any], perturbations: Tape) -> tuple[list[Any], Tape]:
    """Evaluates a region; returns its outputs and records."""
    env = _jaxprs.Environment(region.closed, args)
    inner: dict[int, Tape] = {}
    for i in sorted(region.live):
        eqn = region.closed.jaxpr.eqns[i]
        values = env.read(eqn.invars)
        if i in region.inner:
            evaluate = _scan if eqn.primitive.name == "scan" else _remat
            outputs, inner[i] = evaluate(eqn, region.inner[i], values, perturbations.inner[i])
        elif i in region.norms:
            outputs = [_with_norm(eqn, region.norms[i], perturbations.local[i], values)]
        else:
            outputs = _jaxprs.bind(eqn, values)
        for j, variable in enumerate(eqn.outvars):
            if variable in region.anchors:
                outputs[j] = outputs[j] + perturbations.local[region.anchors[variable]]
        env.write(eqn, outputs)
    records = {index: env.read([v])[0] for v, index in region.records.items()}
    return env.read(region.closed.jaxpr.outvars), Tape(records, inner)


def _scan(eqn: Any, body: Region, values: list[Any], tape: Tape) -> tuple[list[Any], Tape]:
    params, num_consts = eqn.params, eqn.params["num_consts"]
    end = num_consts + params["num_carry"]
    consts, carry, scanned = values[:num_consts], values[num_consts:end], values[end:]
    # A scanned input is its own record, already stacked.
    inputs = dict(zip(body.closed.jaxpr.invars[end:], scanned, strict=True))
    stacked = {index: inputs[v] for v, index in body.records.items() if v in inputs}

    def step(carry, slices):
        scanned, tape = slices
        outputs, records = _run(body, [*consts, *carry, *scanned], tape)
        local = {index: x for index, x in records.local.items() if index not in stacked}
        num = end - num_consts
        return outputs[:num], (outputs[num:], Tape(local, records.inner))

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, (outputs, records) = jax.lax.scan(step, carry, (scanned, tape), **options)
    return [*carry, *outputs], Tape(records.local | stacked, records.inner)


def _remat(eqn: Any, body: Region, values: list[Any], tape: Tape) -> tuple[list[Any], Tape]:
    def evaluate(values, tape):
        return _run(body, values, tape)

    if _has_no_records(body):
        policy, prevent_cse = eqn.params["policy"], eqn.params["prevent_cse"]
        evaluate = jax.checkpoint(evaluate, policy=policy, prevent_cse=prevent_cse)
    return evaluate(values, tape)


def _has_no_records(region: Region) -> bool:
    """Returns whether a region has no records; records would defeat rematerialisation."""
    return not region.records and all(map(_has_no_records, region.inner.values()))


def _with_norm(eqn: Any, site: Site, dummy: Array, values: list[Any]) -> Array:
    """Evaluates a site so that the dummy's gradient is the norm of the view's gradient."""
    at = site.position
    view, operands = jax.lax.stop_gradient(values[at]), values[:at] + values[at + 1 :]

    def product(operands, view):
        return _jaxprs.bind(eqn, [*operands[:at], view, *operands[at:]])[0]

    @jax.custom_vjp
    def evaluate(operands, view, dummy):
        del dummy
        return product(operands, view)

    def forward(operands, view, dummy):
        return evaluate(operands, view, dummy), (operands, view)

    def backward(saved, delta):
        operands, view = saved
        (cotangents,) = jax.vjp(lambda operands: product(operands, view), operands)[1](delta)
        operand = (
            None if site.operand is None else [*operands[:at], view, *operands[at:]][site.operand]
        )
        factor = site.factor(*jax.lax.optimization_barrier((operand, delta)))  # as in `ghost_sum`
        norm = _ghost_factors.norm([factor])
        return cotangents, jnp.zeros_like(view), norm.astype(dummy.dtype)

    evaluate.defvjp(forward, backward)
    return evaluate(operands, view, dummy)


def _factor(use: Use, records: Tape, cotangents: Tape) -> Unformed:
    """Computes the factor of one site, over all iterations of the enclosing scans."""

    def make_factor(x: Array | None, anchors: dict[int, Array]) -> Unformed:
        return use.site.factor(x, _cotangent(use.delta, anchors))

    for _ in use.scans:
        make_factor = jax.vmap(make_factor)
    local = _at(cotangents, use.path).local
    anchors = {i: local[i] for i in use.delta.anchors()}
    record = None if use.record is None else _at(records, use.path).local[use.record]
    factor = make_factor(record, anchors)
    if isinstance(factor, Lookup):
        return Lookup(factor.ids.reshape(-1), factor.right.reshape(-1, factor.right.shape[-1]))
    return Outer(*(_with_positions_joined(side, use.scans) for side in factor))


def _with_positions_joined(side: Array, scans: tuple[tuple[int, bool], ...]) -> Array:
    """Moves the scan axes that are positions next to the position axis, and merges them."""
    positions = tuple(k for k, (_, is_position) in enumerate(scans) if is_position)
    groups = tuple(k for k in range(side.ndim - 2) if k not in positions)
    side = side.transpose(*groups, *positions, side.ndim - 2, side.ndim - 1)
    count = math.prod(side.shape[len(groups) : -1])
    return side.reshape(*side.shape[: len(groups)], count, side.shape[-1])


def _at(tape: Tape, path: tuple[int, ...]) -> Tape:
    return functools.reduce(lambda tape, i: tape.inner[i], path, tape)


def _cotangent(delta: Delta, anchors: dict[int, Array]) -> Array:
    if delta.anchor is not None:
        return anchors[delta.anchor]
    return jnp.concatenate([_cotangent(piece, anchors) for piece in delta.pieces], delta.axis)
