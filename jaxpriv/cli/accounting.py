"""The commands `jaxpriv epsilon` and `jaxpriv calibrate`: privacy accounting without data.

The number of records is unknown here, so batches are not truncated: sampling is plain Poisson.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxpriv._names import Relation
from jaxpriv.cli import _common

if TYPE_CHECKING:
    from dp_accounting import DpEvent

__all__ = ["Calibrate", "Epsilon", "run_calibrate", "run_epsilon"]


@dataclass(frozen=True, kw_only=True)
class _Training(_common.Common):
    sampling_prob: float
    """Probability that a batch contains a given record, in (0, 1]; 1 for full batches."""
    steps: int
    """Number of noisy gradient steps."""
    relation: Relation
    """Neighbouring relation of the guarantee."""
    records: int | None = None
    """Number of records n of the training. A delta of 1/n or more is called vacuous."""


@dataclass(frozen=True, kw_only=True)
class Epsilon(_Training):
    """Compute the epsilon of DP-SGD with Poisson sampling."""

    noise_multiplier: float
    """Standard deviation of the noise divided by the clip norm."""
    delta: float
    """Delta of the (epsilon, delta) guarantee, in (0, 1)."""


@dataclass(frozen=True, kw_only=True)
class Calibrate(_Training):
    """Find the smallest noise multiplier that meets a target epsilon, belief or advantage."""

    epsilon: float | None = None
    """Target epsilon, in nats; requires --delta."""
    delta: float | None = None
    """Delta of the (epsilon, delta) guarantee, in (0, 1)."""
    max_belief: float | None = None
    """Target belief, in (0.5, 1), of an adversary who has all other records and even prior odds;
    requires --violation-probability."""
    violation_probability: float | None = None
    """Probability that the belief exceeds its target."""
    max_advantage: float | None = None
    """Target advantage, the largest TPR - FPR of any membership attack, in (0, 1)."""


def run_epsilon(command: Epsilon, argv: Sequence[str]) -> _common.Answer:
    """Computes the epsilon of a training.

    Args:
      command: parsed options.
      argv: arguments of the program; not used.

    Returns:
      JSON object and lines of text.

    Raises:
      ValueError: if an option is missing or out of range.

    Example:
      >>> command = Epsilon(
      ...     noise_multiplier=1.6, sampling_prob=0.2, steps=10, delta=1e-3,
      ...     relation="add_or_remove_one",
      ... )
      >>> answer = run_epsilon(command, [])
      >>> round(answer.json["epsilon"], 1)
      1.4
      >>> answer.lines[1:3]
      ['delta             0.001', 'relation          add_or_remove_one']
    """
    del argv
    from jaxpriv import accounting

    _common.check_records(command.records, delta=command.delta)
    event = accounting.poisson_event(
        noise_multiplier=command.noise_multiplier,
        sampling_prob=command.sampling_prob,
        steps=command.steps,
    )
    epsilon = accounting.epsilon(event, delta=command.delta, relation=command.relation)
    result = {
        "epsilon": None if epsilon == math.inf else epsilon,
        "unbounded": epsilon == math.inf,
        "delta": command.delta,
    }
    return _answer(
        command,
        result,
        command.noise_multiplier,
        rows=_guarantee_rows(epsilon, command.delta),
        vacuous=_vacuous(command, event, epsilon=epsilon, delta=command.delta),
    )


def run_calibrate(command: Calibrate, argv: Sequence[str]) -> _common.Answer:
    """Finds the smallest noise multiplier for a target epsilon, belief or advantage.

    Args:
      command: parsed options.
      argv: arguments of the program; not used.

    Returns:
      JSON object and lines of text.

    Raises:
      ValueError: if an option is missing or out of range.

    Example:
      >>> command = Calibrate(
      ...     max_advantage=0.5, sampling_prob=1.0, steps=30, relation="add_or_remove_one"
      ... )
      >>> round(run_calibrate(command, []).json["noise_multiplier"], 2)
      4.06
    """
    del argv
    _check_one_target(command)
    _common.check_records(command.records, delta=command.delta)
    if command.max_belief is not None:
        return _for_belief(command)
    if command.max_advantage is not None:
        return _for_advantage(command)
    from jaxpriv import accounting

    assert command.epsilon is not None
    assert command.delta is not None
    make_event = _event_factory(command)
    noise_multiplier = accounting.calibrate_event(
        make_event, epsilon=command.epsilon, delta=command.delta, relation=command.relation
    )
    event = make_event(noise_multiplier)
    epsilon = accounting.epsilon(event, delta=command.delta, relation=command.relation)
    return _answer(
        command,
        {
            "epsilon": epsilon,
            "unbounded": False,
            "delta": command.delta,
            "target_epsilon": command.epsilon,
        },
        noise_multiplier,
        rows=_guarantee_rows(epsilon, command.delta),
        vacuous=_vacuous(command, event, epsilon=epsilon, delta=command.delta),
    )


def _check_one_target(command: Calibrate) -> None:
    belief = (command.max_belief, command.violation_probability)
    targets = [(command.epsilon, command.delta), belief, (command.max_advantage,)]
    is_complete = [None not in target for target in targets]
    is_started = [any(value is not None for value in target) for target in targets]
    if sum(is_started) != 1 or is_complete != is_started:
        raise ValueError(
            "Expected one target: --epsilon with --delta, --max-belief with "
            "--violation-probability, or --max-advantage."
        )


def _for_belief(command: Calibrate) -> _common.Answer:
    from jaxpriv import _rounding, accounting, identifiability
    from jaxpriv.metrics import verdict

    rho, allowed = command.max_belief, command.violation_probability
    assert rho is not None
    assert allowed is not None
    make_event = _event_factory(command)
    if command.sampling_prob == 1:
        mu = identifiability.mu_for_belief(rho, violation_probability=allowed)
        noise_multiplier = _noise_of_mu(command, mu)
        exceeded = identifiability.gaussian_violation_probability(
            rho, mu=_mu(command, noise_multiplier)
        )
    else:
        noise_multiplier = identifiability.calibrate_belief(
            make_event,
            max_belief=rho,
            violation_probability=allowed,
            relation=command.relation,
        )
        exceeded = identifiability.violation_probability(
            make_event(noise_multiplier), rho=rho, relation=command.relation
        )
    odds = identifiability.odds_in_words(rho)
    advantage = accounting.advantage_bound(make_event(noise_multiplier), relation=command.relation)
    return _answer(
        command,
        {"max_belief": rho, "violation_probability": exceeded},
        noise_multiplier,
        rows=[
            ("largest belief", f"{rho:g}, {odds}"),
            ("exceeded with p <=", _rounding.up(exceeded, decimals=6)),
        ],
        vacuous=verdict.why_vacuous(
            epsilon=math.log(rho / (1 - rho)), delta=0.0, advantage_bound=advantage
        ),
    )


def _for_advantage(command: Calibrate) -> _common.Answer:
    from jaxpriv import _rounding, accounting, identifiability
    from jaxpriv.metrics import verdict

    target = command.max_advantage
    assert target is not None
    if command.sampling_prob == 1:
        noise_multiplier = _noise_of_mu(command, identifiability.mu_for_advantage(target))
    else:
        noise_multiplier = identifiability.calibrate_advantage(
            _event_factory(command), max_advantage=target, relation=command.relation
        )
    reached = accounting.advantage_bound(
        _event_factory(command)(noise_multiplier), relation=command.relation
    )
    return _answer(
        command,
        {"max_advantage": reached, "target_advantage": target},
        noise_multiplier,
        rows=[("advantage", _rounding.up(reached, decimals=6))],
        vacuous=verdict.why_vacuous(epsilon=0.0, delta=0.0, advantage_bound=reached),
    )


def _event_factory(command: Calibrate) -> "Callable[[float], DpEvent]":
    from jaxpriv import accounting

    def make_event(noise_multiplier: float) -> "DpEvent":
        return accounting.poisson_event(
            noise_multiplier=noise_multiplier,
            sampling_prob=command.sampling_prob,
            steps=command.steps,
        )

    make_event(1.0)  # checks the options before a closed form uses them
    return make_event


def _mu(command: Calibrate, noise_multiplier: float) -> float:
    """Returns mu of full batches for a noise multiplier, and the noise multiplier for mu."""
    return (
        _common.SENSITIVITY_FACTOR[command.relation] * math.sqrt(command.steps) / noise_multiplier
    )


def _noise_of_mu(command: Calibrate, mu: float) -> float:
    _event_factory(command)
    # Slightly more noise than the closed form, so that rounding cannot exceed the target.
    return _mu(command, mu) * (1 + 1e-12)


def _vacuous(
    command: Epsilon | Calibrate, event: "DpEvent", *, epsilon: float, delta: float
) -> tuple[str, ...]:
    """Lists the reasons why the guarantee of a training is vacuous."""
    from jaxpriv import accounting, identifiability
    from jaxpriv.metrics import verdict

    # The bound from epsilon and delta is cheap and never below the bound of the event, which is
    # therefore computed only if the cheap bound would make the guarantee vacuous.
    bound = identifiability.general_rho_alpha(min(epsilon, 100.0), delta=delta)
    if bound > verdict.MAX_ADVANTAGE and epsilon <= verdict.MAX_EPSILON:
        bound = accounting.advantage_bound(event, relation=command.relation)
    elif epsilon > verdict.MAX_EPSILON:
        bound = None
    return verdict.why_vacuous(
        epsilon=epsilon, delta=delta, num_examples=command.records, advantage_bound=bound
    )


def _answer(
    command: Epsilon | Calibrate,
    result: dict[str, Any],
    noise_multiplier: float,
    *,
    rows: list[tuple[str, str]],
    vacuous: tuple[str, ...],
) -> _common.Answer:
    """Combines the results shared by both commands with the first rows of the text."""
    from jaxpriv import _rounding

    method = (
        "closed form of the Gaussian mechanism"
        if command.sampling_prob == 1
        else "privacy loss distribution, plain Poisson sampling"
    )
    result = {
        **result,
        "relation": command.relation,
        "method": method,
        "noise_multiplier": noise_multiplier,
        "sampling_prob": command.sampling_prob,
        "steps": command.steps,
        "vacuous": list(vacuous),
    }
    lines = _common.text_table(
        [
            *rows,
            ("relation", command.relation),
            ("noise multiplier", _rounding.up_significant(noise_multiplier, digits=6)),
            ("method", method),
        ]
    )
    return _common.Answer(result, lines + _common.vacuous_lines(vacuous))


def _guarantee_rows(epsilon: float, delta: float) -> list[tuple[str, str]]:
    from jaxpriv import _rounding

    shown = "unbounded" if epsilon == math.inf else _rounding.up(epsilon, decimals=4)
    return [("epsilon", shown), ("delta", f"{delta:g}")]
