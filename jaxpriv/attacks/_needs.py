"""Parts of the evidence that an attack may need: availability and descriptions."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from jaxpriv.attacks.evidence import Evidence

Need = Literal[
    "signals",
    "logits",
    "labels",
    "inputs",
    "predict",
    "revealed",
    "shadow_signals",
    "out_shadow_signals",
    "shadow_logits",
    "out_shadow_logits",
    "population_inputs",
    "population_logits",
    "population_shadow_logits",
]
"""A part of the evidence; `suite.missing` describes each."""


MIN_POPULATION = 10
"""Smallest number of records from which the quantiles of scores are estimated."""


class Part(NamedTuple):
    """A part of the evidence.

    description: noun phrase, after "needs".
    is_available: whether the evidence has it.
    """

    description: str
    is_available: Callable[[Evidence], bool]


def _has(*names: str) -> Callable[[Evidence], bool]:
    return lambda evidence: all(getattr(evidence, name) is not None for name in names)


def _population_has(*names: str) -> Callable[[Evidence], bool]:
    return lambda evidence: evidence.population is not None and _has(*names)(evidence.population)


def _has_out_shadows(evidence: Evidence) -> bool:
    return evidence.shadow_is_member is not None and not evidence.shadow_is_member.all()


def _reveals_both_sides(evidence: Evidence) -> bool:
    """Whether the attacker has the membership of members and of non-members."""
    if evidence.revealed is None or evidence.revealed_is_member is None:
        return False
    return bool(0 < evidence.revealed_is_member.sum() < evidence.revealed.sum())


PARTS: dict[str, Part] = {
    "signals": Part("scores", _has("signals")),
    "logits": Part("logits", _has("logits")),
    "labels": Part("labels", _has("labels")),
    "inputs": Part("inputs", _has("inputs")),
    "predict": Part("queries of the target", _has("predict")),
    "revealed": Part("members and non-members known to the attacker", _reveals_both_sides),
    "shadow_signals": Part(
        "IN and OUT shadow models", lambda e: e.shadows_vary and e.has_shadow_signals
    ),
    "out_shadow_signals": Part(
        "shadow models that were not trained on the records",
        lambda e: e.has_shadow_signals and _has_out_shadows(e),
    ),
    "shadow_logits": Part(
        "shadow logits", lambda e: e.shadow_logits is not None and e.shadows_vary
    ),
    "out_shadow_logits": Part(
        "shadow logits of models that were not trained on the records",
        lambda e: e.shadow_logits is not None and _has_out_shadows(e),
    ),
    "population_inputs": Part(
        f"inputs of a population of at least {MIN_POPULATION} records",
        lambda e: _population_has("inputs")(e) and len(e.population or ()) >= MIN_POPULATION,
    ),
    "population_logits": Part("logits of a population", _population_has("logits", "labels")),
    "population_shadow_logits": Part(
        "shadow logits of a population", _population_has("shadow_logits")
    ),
}
