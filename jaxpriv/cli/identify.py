"""The command `jaxpriv identify`: bounds on an adversary's belief and advantage."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxpriv._names import Relation
from jaxpriv.cli import _common

__all__ = ["Identify", "run_identify"]

_LABELS = {
    "violation_probability": "exceeded with p <=",
    "rho_alpha_exact": "advantage, exact",
    "rho_alpha_rdp": "advantage, by RDP",
    "rho_alpha_classical": "advantage, classical",
    "rho_alpha_general": "advantage, general",
    "bayes_accuracy": "accuracy of best guess",
}


@dataclass(frozen=True, kw_only=True)
class Identify(_common.Common):
    """Bound an adversary's belief, and the advantage of any membership attack."""

    epsilon: float | None = None
    """Epsilon of the guarantee, in nats; requires --delta. Alternative: the four options below,
    which describe the training."""
    delta: float | None = None
    """Delta of the (epsilon, delta) guarantee, in (0, 1). Optional beside the description of a
    training, where it adds epsilon, the largest belief and its odds."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise divided by the clip norm."""
    sampling_prob: float | None = None
    """Probability that a batch contains a given record, in (0, 1]; 1 for full batches."""
    steps: int | None = None
    """Number of noisy gradient steps."""
    relation: Relation | None = None
    """Neighbouring relation of the guarantee."""
    prior: float = 0.5
    """Prior belief of the adversary, in (0, 1)."""
    records: int | None = None
    """Number of records n of the training. A delta of 1/n or more is called vacuous."""


def run_identify(command: Identify, argv: Sequence[str]) -> _common.Answer:
    """Bounds belief and advantage as far as the options determine them.

    Args:
      command: parsed options.
      argv: arguments of the program; not used.

    Returns:
      JSON object and lines of text.

    Raises:
      ValueError: if an option is missing or out of range.

    Example:
      >>> answer = run_identify(Identify(epsilon=2.1972, delta=0.01), [])
      >>> round(answer.json["rho_beta"], 3)
      0.9
      >>> answer.lines[2]
      'largest belief        0.899998  at most 9 to 1'
    """
    del argv
    from jaxpriv import _check, _rounding, identifiability

    _check.open_unit(prior=command.prior)
    _common.check_records(command.records, delta=command.delta)
    training = (command.noise_multiplier, command.sampling_prob, command.steps, command.relation)
    is_given = [value is not None for value in training]
    if (command.epsilon is None) != all(is_given) or any(is_given) != all(is_given):
        raise ValueError(
            "Expected --epsilon with --delta, or --noise-multiplier, --sampling-prob, --steps and "
            "--relation."
        )
    result = _from_budget(command) if command.epsilon is not None else _from_training(command)
    rows = [("prior belief", f"{command.prior:g}")]
    if result["epsilon"] is not None:
        epsilon = _rounding.up(result["epsilon"], decimals=6)
        rows.append(("epsilon", f"{epsilon} at delta {command.delta:g}"))
    if result["rho_beta"] is not None:
        odds = identifiability.odds_in_words(result["rho_beta"]) if command.prior == 0.5 else ""
        belief = _rounding.up(result["rho_beta"], decimals=6)
        rows.append(("largest belief", f"{belief}  {odds}"))
    conditions = result["conditions"]
    for key, label in _LABELS.items():
        if result[key] is not None:
            condition = f"  ({conditions[key]})" if key in conditions else ""
            rows.append((label, f"{_rounding.up(result[key], decimals=6)}{condition}"))
    lines = _common.text_table(rows)
    if result["rho_beta"] is not None and result["violation_probability"] is None:
        lines.append("The belief may be exceeded with a probability larger than delta.")
    result["vacuous"] = list(_why_vacuous(command, result))
    return _common.Answer(result, lines + _common.vacuous_lines(result["vacuous"]))


def _why_vacuous(command: Identify, result: dict[str, Any]) -> tuple[str, ...]:
    """Lists the reasons why the guarantee is vacuous, as far as the options determine it."""
    from jaxpriv.metrics import verdict

    epsilon = math.inf if result["unbounded"] else result["epsilon"] or 0.0
    exact = result["rho_alpha_exact"]
    return verdict.why_vacuous(
        epsilon=epsilon,
        delta=command.delta or 0.0,
        num_examples=command.records,
        advantage_bound=result["rho_alpha_general"] if exact is None else exact,
    )


def _from_budget(command: Identify) -> dict[str, Any]:
    """Computes the bounds that follow from epsilon and delta."""
    from jaxpriv import _check, identifiability

    if command.delta is None:
        raise ValueError("Expected --delta with --epsilon.")
    epsilon, delta = command.epsilon, command.delta
    assert epsilon is not None
    _check.non_negative(epsilon=epsilon)
    _check.open_unit(delta=delta)
    classical = identifiability.classical_rho_alpha(epsilon, delta=delta) if epsilon > 0 else 0.0
    return {
        **_initial_result(command, epsilon),
        "rho_alpha_classical": classical,
        "rho_alpha_general": identifiability.general_rho_alpha(epsilon, delta=delta),
        "conditions": {
            "rho_alpha_classical": _classical_condition(epsilon, delta),
            "rho_alpha_general": "for every mechanism",
        },
    }


def _classical_condition(epsilon: float, delta: float) -> str:
    """States for which noise the classical bound holds, and compares it with the exact noise."""
    from jaxpriv.accounting import gaussian

    condition = "only for noise of std sqrt(2 ln(1.25/delta)) / epsilon x sensitivity"
    classical = math.sqrt(2 * math.log(1.25 / delta)) / epsilon if epsilon > 0 else math.inf
    if not 1e-6 < classical < 1e6:
        return condition
    exact = 1 / gaussian.mu(epsilon, delta=delta)
    numbers = f"({exact:.6g} against {classical:.6g})"
    if exact < classical:
        return f"{condition}; exact noise is smaller {numbers}, its advantage larger"
    return (
        f"{condition}; exact noise is larger {numbers}, and the classical noise does not meet "
        "epsilon at delta"
    )


def _from_training(command: Identify) -> dict[str, Any]:
    from jaxpriv import accounting, identifiability

    z, q, steps, relation = (
        command.noise_multiplier,
        command.sampling_prob,
        command.steps,
        command.relation,
    )
    assert z is not None
    assert q is not None
    assert steps is not None
    assert relation is not None
    event = accounting.poisson_event(noise_multiplier=z, sampling_prob=q, steps=steps)
    epsilon = None
    if command.delta is not None:
        epsilon = accounting.epsilon(event, delta=command.delta, relation=relation)
    result = _initial_result(command, epsilon)
    result["rho_alpha_exact"] = accounting.advantage_bound(event, relation=relation)
    result["bayes_accuracy"] = identifiability.bayes_accuracy(
        lambda e: accounting.delta(event, epsilon=e, relation=relation), prior=command.prior
    )
    mu = _common.SENSITIVITY_FACTOR[relation] * math.sqrt(steps) / z if q == 1 and z > 0 else None
    if mu is not None:
        result["rho_alpha_rdp"] = accounting.gaussian.advantage(mu)
    # For every prior, the belief exceeds rho_beta if and only if the privacy loss exceeds epsilon.
    if epsilon is not None and epsilon < math.inf:
        result["violation_probability"] = (
            identifiability.loss_tail(event, epsilon=epsilon, relation=relation)
            if mu is None
            else identifiability.gaussian_loss_tail(epsilon, mu=mu)
        )
    result["conditions"] = {"rho_alpha_rdp": "for full batches"}
    return result


def _initial_result(command: Identify, epsilon: float | None) -> dict[str, Any]:
    """Returns all keys with None, except those that epsilon determines."""
    from jaxpriv import identifiability

    belief = None if epsilon is None else identifiability.rho_beta(epsilon, prior=command.prior)
    return {
        "epsilon": None if epsilon == math.inf else epsilon,
        "unbounded": epsilon == math.inf,
        "delta": command.delta,
        "relation": command.relation,
        "prior": command.prior,
        "rho_beta": belief,
        **dict.fromkeys((*_LABELS, "conditions")),
    }
