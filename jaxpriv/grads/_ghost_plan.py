"""Plans a ghost norm: which primitives are sites, and which leaves are explicit and why.

    loss --trace--> jaxpr --walk--> regions (the loss, bodies of scans, rematerialised bodies)
                                    uses (a site, where its operand and cotangent are recorded)
                                    blocks (all uses of one source: their gradients add up)

A walk follows views from the leaves through the jaxpr. Any other primitive that reads a view
makes its leaves explicit; the walk is repeated with those leaves as ordinary values until nothing
changes. No value is identified by its id(), so the loss may close over tracers.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
from jax.extend import core
from jaxtyping import PyTree

from jaxpriv._types import Example, Loss, Params
from jaxpriv.grads import _ghost_cost, _ghost_jaxpr, _ghost_sites, _ghost_views
from jaxpriv.grads._ghost_sites import Layout, Site
from jaxpriv.grads._ghost_views import Source, View

Path = tuple[int, ...]
"""Indices of the equations that lead to a region."""


@dataclass(frozen=True, kw_only=True)
class Region:
    """A jaxpr that is evaluated with perturbations and records.

    closed: jaxpr with its calls inlined.
    live: indices of the equations that contribute to the outputs.
    anchors: variable -> index; a perturbation is added to each.
    records: variable -> index; the value of each is recorded.
    inner: equation -> region of its body.
    norms: equation -> site, in a rematerialised region: the norm of the view's gradient is the
      cotangent of a scalar, and nothing is recorded.
    """

    closed: core.ClosedJaxpr
    live: set[int]
    anchors: dict[Any, int] = field(default_factory=dict)
    records: dict[Any, int] = field(default_factory=dict)
    inner: dict[int, "Region"] = field(default_factory=dict)
    norms: dict[int, Site] = field(default_factory=dict)


class Delta(NamedTuple):
    """How the cotangent of an output is read from the cotangents of the perturbations.

    anchor: index of a perturbation; None if the pieces are concatenated along the axis.
    """

    anchor: int | None
    pieces: tuple["Delta", ...] = ()
    axis: int = 0

    def anchors(self) -> list[int]:
        """Returns the indices of all perturbations that are read."""
        if self.anchor is not None:
            return [self.anchor]
        return [index for piece in self.pieces for index in piece.anchors()]


class Use(NamedTuple):
    """A site in its region.

    path: equations that lead to the region of the site.
    eqn: index of the equation within the region.
    site: recognised primitive.
    record: index of the operand among the region's records; None if it is not needed.
    delta: cotangent of the output.
    scans: (length, whether iterations are positions) of each enclosing scan, outermost first.
    remat: path of the region in whose backward pass the norm is computed; None if operand and
      cotangent are recorded.
    """

    path: Path
    eqn: int
    site: Site
    record: int | None
    delta: Delta
    scans: tuple[tuple[int, bool], ...]
    remat: Path | None


class Block(NamedTuple):
    """All uses of one source; blocks have no entry in common."""

    source: Source
    layout: Layout
    uses: tuple[Use, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How the clipped gradients of a loss are computed.

    region: region of the loss.
    blocks: sources whose gradients are computed from factors.
    explicit: leaf -> reason for its explicit gradients.
    unused: leaves that the loss does not depend on.
    working_set: estimated bytes of activations of one example.
    """

    region: Region
    blocks: tuple[Block, ...]
    explicit: dict[int, str]
    unused: frozenset[int]
    working_set: int

    @property
    def two_passes(self) -> bool:
        """Whether totals need a second backward pass, of the weighted losses."""
        return any(use.remat is not None for block in self.blocks for use in block.uses)


def make_plan(loss: Loss, params: Params, example: Example, key: PyTree) -> Plan:
    """Plans the clipped gradients of a loss.

    Args:
      loss: `loss(params, example, key)` of one example.
      params: trainable leaves, arrays or shapes.
      example: one record, arrays or shapes.
      key: a PRNG key or its shape.

    Returns:
      The plan.

    Raises:
      ValueError: if the loss is not a real scalar.
    """
    closed = _ghost_jaxpr.trace(loss, params, example, key)
    shapes = [leaf.shape for leaf in jax.tree.leaves(params)]
    inlined: dict[Path, core.ClosedJaxpr] = {(): closed}
    explicit = {i: "it has no entries" for i, shape in enumerate(shapes) if 0 in shape}
    saved: set[Path] = set()
    while True:
        walk = _Walk(inlined, explicit, saved)
        views = [
            None if i in explicit else _ghost_views.of_leaf(i, shape)
            for i, shape in enumerate(shapes)
        ]
        views += [None] * (len(closed.jaxpr.invars) - len(views))
        region = walk.region((), views)
        blocks = walk.blocks()
        if not walk.changed:
            break
    _, reads = _ghost_jaxpr.used(closed.jaxpr)
    unused = {i for i, v in enumerate(closed.jaxpr.invars[: len(shapes)]) if not reads[v]}
    return Plan(
        region=region,
        blocks=blocks,
        explicit={i: reason for i, reason in explicit.items() if i not in unused},
        unused=frozenset(unused),
        working_set=_ghost_cost.working_set(
            closed.jaxpr, [i >= len(shapes) for i in range(len(closed.jaxpr.invars))]
        ),
    )


class _Walk:
    """A walk through the jaxpr that collects uses and marks leaves as explicit.

    inlined: jaxprs by path, with calls inlined.
    explicit: leaf -> reason; extended by the walk.
    saved: paths of rematerialised regions whose records are saved; extended by the walk.
    """

    def __init__(
        self, inlined: dict[Path, core.ClosedJaxpr], explicit: dict[int, str], saved: set[Path]
    ):
        self.inlined, self.explicit, self.saved = inlined, explicit, saved
        # With a second backward pass the total of a narrow leaf would be rounded, its norm not.
        self.is_narrow = _ghost_jaxpr.is_narrow(inlined[()].jaxpr)
        self.uses: list[Use] = []
        self.changed = False

    def mark(self, source: Source, reason: str) -> None:
        """Makes the leaves of a source explicit."""
        for leaf in _ghost_views.leaves(source):
            if leaf not in self.explicit:
                self.explicit[leaf] = reason
                self.changed = True

    def region(
        self,
        path: Path,
        views: Sequence[View | None],
        scans: tuple[tuple[Path, int], ...] = (),
        remat: Path | None = None,
        unchanged: frozenset[int] = frozenset(),
    ) -> Region:
        """Walks through one region and collects its sites.

        Args:
          path: path of the region.
          views: views among the inputs.
          scans: path and length of each enclosing scan.
          remat: path of the enclosing rematerialised region, or None.
          unchanged: positions of outputs that are carries which a scan leaves unchanged.

        Returns:
          The region.
        """
        jaxpr = self.inlined[path].jaxpr
        live, reads = _ghost_jaxpr.used(jaxpr)
        region = Region(closed=self.inlined[path], live=live)
        readers = {v: i for i in sorted(live) for v in jaxpr.eqns[i].invars if _is_var(v)}
        env = {v: view for v, view in zip(jaxpr.invars, views, strict=True) if view is not None}
        for i in sorted(live):
            eqn = jaxpr.eqns[i]
            operands = [env.get(v) if _is_var(v) else None for v in eqn.invars]
            if not any(operands):
                continue
            rearranged = _ghost_views.rearranged(eqn, operands)
            if rearranged is not None:
                env |= zip(eqn.outvars, rearranged, strict=True)
            elif eqn.primitive.name == "scan":
                env |= self._scan(region, path, i, operands, scans, remat)
            elif eqn.primitive.name in ("remat2", "checkpoint", "remat"):
                self._remat(region, path, i, operands, scans, remat)
            elif (site := _ghost_sites.match(eqn, operands)) is not None:
                self._site(region, path, i, site, scans, remat, reads, readers)
            else:
                for view in filter(None, operands):
                    self.mark(view.source, _reason(eqn, operands))
        for j, v in enumerate(jaxpr.outvars):
            if _is_var(v) and v in env and j not in unchanged:
                self.mark(env[v].source, "returned as it is")
        return region

    def _scan(self, region, path, i, operands, scans, remat) -> dict[Any, View]:
        """Constants and unchanged carries stay views; scanned inputs become rows."""
        eqn = region.closed.jaxpr.eqns[i]
        body = self._body((*path, i), eqn.params["jaxpr"])
        num_consts, num_carry = eqn.params["num_consts"], eqn.params["num_carry"]
        views, out, unchanged = list(operands), {}, set()
        for j, view in enumerate(operands):
            if view is None:
                continue
            if j >= num_consts + num_carry:
                views[j] = _ghost_views.of(_ghost_views.Row((view,), (*path, i)))
            elif j >= num_consts:
                if body.jaxpr.outvars[j - num_consts] is body.jaxpr.invars[j]:
                    out[eqn.outvars[j - num_consts]] = view
                    unchanged.add(j - num_consts)
                else:
                    self.mark(view.source, "carried by a scan that changes it")
                    views[j] = None
        inner = (*scans, ((*path, i), eqn.params["length"]))
        region.inner[i] = self.region((*path, i), views, inner, remat, frozenset(unchanged))
        return out

    def _remat(self, region, path, i, operands, scans, remat) -> None:
        """Walks through a rematerialised body; if its records are saved, as through any other."""
        eqn = region.closed.jaxpr.eqns[i]
        self._body((*path, i), eqn.params["jaxpr"])
        enclosing = remat if (*path, i) in self.saved else (remat or (*path, i))
        region.inner[i] = self.region((*path, i), operands, scans, enclosing)

    def _body(self, path: Path, jaxpr: Any) -> core.ClosedJaxpr:
        if path not in self.inlined:
            closed = jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else core.ClosedJaxpr(jaxpr, ())
            self.inlined[path] = _ghost_jaxpr.inline(closed)
        return self.inlined[path]

    def _site(self, region, path, i, site, scans, remat, reads, readers) -> None:
        eqn = region.closed.jaxpr.eqns[i]
        rows = _ghost_views.scans(site.view.source)
        lead = tuple(length for scan, length in scans if scan in rows)
        site = site._replace(layout=site.layout._replace(lead=lead))
        if lead and "gather" in eqn.primitive.name:
            return self.mark(site.view.source, "a lookup in a table that a scan reads by rows")
        kinds = tuple((length, scan not in rows) for scan, length in scans)
        if remat is not None:
            is_real = all(_ghost_jaxpr.is_real(v.aval.dtype) for v in eqn.invars)
            if self.is_narrow or not is_real or any(is_position for _, is_position in kinds):
                self._save(remat)
            region.norms[i] = site
            use = Use(path, i, site, None, Delta(None), kinds, remat)
        else:
            record = None
            if site.operand is not None:
                record = _index(region.records, eqn.invars[site.operand])
            delta = _delta(region, eqn.outvars[0], reads, readers)
            use = Use(path, i, site, record, delta, kinds, None)
        self.uses.append(use)
        return None

    def _save(self, remat: Path) -> None:
        if remat not in self.saved:
            self.saved.add(remat)
            self.changed = True

    def blocks(self) -> tuple[Block, ...]:
        """Joins the uses of each source; marks leaves whose uses cannot be added."""
        uses: dict[Source, list[Use]] = {}
        for use in self.uses:
            uses.setdefault(use.site.view.source, []).append(use)
        by_leaf: dict[int, list[Source]] = {}
        for source in uses:
            for leaf in _ghost_views.leaves(source):
                by_leaf.setdefault(leaf, []).append(source)
        for sources in by_leaf.values():
            for first, second in itertools.combinations(sources, 2):
                if _ghost_views.overlap(first, second):
                    self.mark(first, "used through two different views")
                    self.mark(second, "used through two different views")
        for source, group in uses.items():
            if len({use.site.layout for use in group}) > 1:
                self.mark(source, "used through two different views")
            if len(group) > 1:
                for use in group:
                    if use.remat is not None:
                        self._save(use.remat)
        return tuple(Block(s, group[0].site.layout, tuple(group)) for s, group in uses.items())


def _delta(region: Region, variable: Any, reads: Any, readers: dict[Any, int]) -> Delta:
    """Follows an output through additions, whose operands share a cotangent.

    Gates of a recurrent cell are sums of two products, which may be split before they are added.
    """
    if isinstance(variable, core.DropVar) or reads[variable] != 1 or variable not in readers:
        return Delta(_index(region.anchors, variable))
    eqn = region.closed.jaxpr.eqns[readers[variable]]
    if eqn.primitive.name == "add":
        out = eqn.outvars[0]
        if (out.aval.shape, out.aval.dtype) == (variable.aval.shape, variable.aval.dtype):
            return _delta(region, out, reads, readers)
    if eqn.primitive.name == "split":
        pieces = tuple(_delta(region, v, reads, readers) for v in eqn.outvars)
        return Delta(None, pieces, eqn.params["axis"])
    return Delta(_index(region.anchors, variable))


def _index(table: dict[Any, int], key: Any) -> int:
    return table.setdefault(key, len(table))


def _is_var(atom: Any) -> bool:
    return isinstance(atom, core.Var)


_NAMES = {
    "cond": "inside a cond",
    "while": "inside a while loop",
    "custom_jvp_call": "inside a function with a custom derivative rule (custom_jvp)",
    "custom_vjp_call": "inside a function with a custom derivative rule (custom_vjp)",
    "concatenate": "concatenated with another array, or with itself",
}


def _reason(eqn: Any, operands: Sequence[View | None]) -> str:
    name = eqn.primitive.name
    if name in _NAMES:
        return _NAMES[name]
    if any(_complex(v) for v in (*eqn.invars, *eqn.outvars)):
        return f"meets complex numbers in {name}"
    if sum(view is not None for view in operands) > 1 and name in (
        "dot_general",
        "conv_general_dilated",
    ):
        return f"both operands of {name} are parameters"
    return f"read by {name}"


def _complex(atom: Any) -> bool:
    return getattr(atom.aval.dtype, "kind", "") == "c"
