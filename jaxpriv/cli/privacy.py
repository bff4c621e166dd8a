"""`jaxpriv epsilon`, `calibrate` and `identify`: privacy accounting without data.

The number of records is not known here: nothing is truncated, sampling is plain Poisson.
"""

import math
from dataclasses import dataclass
from typing import Any

from jaxpriv.cli import common

_SENSITIVITY_FACTOR = {"add_or_remove_one": 1.0, "replace_one": 2.0}


@dataclass(frozen=True, kw_only=True)
class _Training(common.Common):
    sampling_prob: float
    """Probability that a batch contains a given record; 1 for full batches."""
    steps: int
    """Number of noisy gradient steps."""
    relation: common.RelationName
    """How neighbouring data sets differ."""


@dataclass(frozen=True, kw_only=True)
class Epsilon(_Training):
    """Compute the epsilon of DP-SGD with Poisson sampling."""

    noise_multiplier: float
    """Standard deviation of the noise divided by the clip norm."""
    delta: float
    """Delta of the (epsilon, delta) guarantee."""


@dataclass(frozen=True, kw_only=True)
class Calibrate(_Training):
    """Find the smallest noise multiplier that meets a target epsilon, belief or advantage."""

    epsilon: float | None = None
    """Target epsilon; requires --delta."""
    delta: float | None = None
    """Delta of the (epsilon, delta) guarantee."""
    max_belief: float | None = None
    """Target belief of an adversary who has all other records, from even odds; requires
    --violation-probability."""
    violation_probability: float | None = None
    """Probability that the belief exceeds its target."""
    max_advantage: float | None = None
    """Target advantage: largest TPR - FPR of any membership attack."""


@dataclass(frozen=True, kw_only=True)
class Identify(common.Common):
    """Bound an adversary's belief, and the advantage of any membership attack."""

    epsilon: float | None = None
    """Epsilon of the guarantee; requires --delta. Alternatively describe the training with the
    four options below."""
    delta: float | None = None
    """Delta of the (epsilon, delta) guarantee."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise divided by the clip norm."""
    sampling_prob: float | None = None
    """Probability that a batch contains a given record; 1 for full batches."""
    steps: int | None = None
    """Number of noisy gradient steps."""
    relation: common.RelationName | None = None
    """How neighbouring data sets differ."""
    prior: float = 0.5
    """Prior belief of the adversary, in (0, 1)."""


def run_epsilon(command: Epsilon, argv: list[str]) -> common.Answer:
    """Accounts for a training."""
    del argv
    from jaxpriv import accounting

    event = accounting.poisson_event(
        noise_multiplier=command.noise_multiplier,
        sampling_prob=command.sampling_prob,
        steps=command.steps,
    )
    spent = accounting.epsilon(event, delta=command.delta, relation=command.relation)
    result = {
        "epsilon": None if spent == math.inf else spent,
        "unbounded": spent == math.inf,
        "delta": command.delta,
    }
    vacuous = _vacuous(event, epsilon=spent, delta=command.delta, relation=command.relation)
    return _answer(
        command,
        result,
        command.noise_multiplier,
        first=_guarantee_lines(spent, command.delta),
        vacuous=vacuous,
    )


def run_calibrate(command: Calibrate, argv: list[str]) -> common.Answer:
    """Finds the noise for one of the three promises."""
    del argv
    _check_one_target(command)
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
    spent = accounting.epsilon(event, delta=command.delta, relation=command.relation)
    return _answer(
        command,
        {
            "epsilon": spent,
            "unbounded": False,
            "delta": command.delta,
            "target_epsilon": command.epsilon,
        },
        noise_multiplier,
        first=_guarantee_lines(spent, command.delta),
        vacuous=_vacuous(event, epsilon=spent, delta=command.delta, relation=command.relation),
    )


def _check_one_target(command: Calibrate) -> None:
    belief = (command.max_belief, command.violation_probability)
    targets = [(command.epsilon, command.delta), belief, (command.max_advantage,)]
    is_complete = [None not in target for target in targets]
    is_begun = [any(part is not None for part in target) for target in targets]
    if sum(is_begun) != 1 or is_complete != is_begun:
        raise ValueError(
            "Expected one target: --epsilon with --delta, --max-belief with "
            "--violation-probability, or --max-advantage."
        )


def _for_belief(command: Calibrate) -> common.Answer:
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
        first=[
            f"belief            {rho:g}, {odds}, but with p <= {_rounding.up(exceeded, decimals=6)}"
        ],
        vacuous=verdict.why_vacuous(
            epsilon=math.log(rho / (1 - rho)), delta=0.0, advantage_bound=advantage
        ),
    )


def _for_advantage(command: Calibrate) -> common.Answer:
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
        first=[f"advantage         {_rounding.up(reached, decimals=6)}"],
        vacuous=verdict.why_vacuous(epsilon=0.0, delta=0.0, advantage_bound=reached),
    )


def run_identify(command: Identify, argv: list[str]) -> common.Answer:
    """Bounds belief and advantage, as far as the input determines them."""
    del argv
    from jaxpriv import _check, _rounding, identifiability

    _check.open_unit(prior=command.prior)
    training = (command.noise_multiplier, command.sampling_prob, command.steps, command.relation)
    is_given = [part is not None for part in training]
    if (command.epsilon is None) != all(is_given) or any(is_given) != all(is_given):
        raise ValueError(
            "Expected --epsilon with --delta, or --noise-multiplier, --sampling-prob, --steps and "
            "--relation."
        )
    result = _of_budget(command) if command.epsilon is not None else _of_training(command)
    lines = [f"prior belief           {command.prior:g}"]
    if result["epsilon"] is not None:
        epsilon = _rounding.up(result["epsilon"], decimals=6)
        lines.append(f"epsilon                {epsilon} at delta {command.delta:g}")
    if result["rho_beta"] is not None:
        odds = identifiability.odds_in_words(result["rho_beta"]) if command.prior == 0.5 else ""
        belief = _rounding.up(result["rho_beta"], decimals=6)
        lines.append(f"largest belief         {belief}  {odds}".rstrip())
    conditions = result["conditions"]
    for key, label in _LABELS.items():
        if result[key] is not None:
            condition = f"  ({conditions[key]})" if key in conditions else ""
            lines.append(f"{label:<22} {_rounding.up(result[key], decimals=6)}{condition}")
    if result["rho_beta"] is not None and result["violation_probability"] is None:
        lines.append("The belief may be exceeded, and with more than probability delta.")
    return common.Answer(result, lines)


_LABELS = {
    "violation_probability": "exceeded with p <=",
    "rho_alpha_exact": "advantage, exact",
    "rho_alpha_rdp": "advantage, by RDP",
    "rho_alpha_classical": "advantage, classical",
    "rho_alpha_general": "advantage, general",
    "bayes_accuracy": "best guess is right",
}


def _of_budget(command: Identify) -> dict[str, Any]:
    """Bounds from epsilon and delta alone."""
    from jaxpriv import _check, identifiability

    if command.delta is None:
        raise ValueError("Expected --delta beside --epsilon.")
    epsilon, delta = command.epsilon, command.delta
    assert epsilon is not None
    _check.non_negative(epsilon=epsilon)
    _check.open_unit(delta=delta)
    classical = identifiability.classical_rho_alpha(epsilon, delta=delta) if epsilon > 0 else 0.0
    return {
        **_identified(command, epsilon),
        "rho_alpha_classical": classical,
        "rho_alpha_general": identifiability.general_rho_alpha(epsilon, delta),
        "conditions": {
            "rho_alpha_classical": _classical_condition(epsilon, delta),
            "rho_alpha_general": "for every mechanism",
        },
    }


def _classical_condition(epsilon: float, delta: float) -> str:
    """Compares the classical noise with the exact one, which is smaller only for small epsilon."""
    from jaxpriv.accounting import gaussian

    condition = "only for noise of std sqrt(2 ln(1.25/delta)) / epsilon x sensitivity"
    classical = math.sqrt(2 * math.log(1.25 / delta)) / epsilon if epsilon > 0 else math.inf
    if not 1e-6 < classical < 1e6:
        return condition
    exact = 1 / gaussian.mu(epsilon, delta=delta)
    numbers = f"({exact:.6g} against {classical:.6g})"
    if exact < classical:
        return f"{condition}; exact noise is smaller {numbers}, its advantage larger"
    return f"{condition}; exact noise is larger {numbers}: this one does not meet epsilon at delta"


def _of_training(command: Identify) -> dict[str, Any]:
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
    spent = None
    if command.delta is not None:
        spent = accounting.epsilon(event, delta=command.delta, relation=relation)
    result = _identified(command, spent)
    result["rho_alpha_exact"] = accounting.advantage_bound(event, relation=relation)
    result["bayes_accuracy"] = identifiability.bayes_accuracy(
        lambda e: accounting.delta(event, epsilon=e, relation=relation), prior=command.prior
    )
    mu = _SENSITIVITY_FACTOR[relation] * math.sqrt(steps) / z if q == 1 and z > 0 else None
    if mu is not None:
        result["rho_alpha_rdp"] = accounting.gaussian.advantage(mu)
    # The loss exceeds epsilon just when the belief exceeds rho_beta, whatever the prior.
    if spent is not None and spent < math.inf:
        result["violation_probability"] = (
            identifiability.loss_tail(event, epsilon=spent, relation=relation)
            if mu is None
            else identifiability.gaussian_loss_tail(spent, mu=mu)
        )
    result["conditions"] = {"rho_alpha_rdp": "for full batches"}
    return result


def _identified(command: Identify, epsilon: float | None) -> dict[str, Any]:
    """All keys, of which epsilon alone determines the belief."""
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


def _event_factory(command: Calibrate):
    from jaxpriv import accounting

    def make_event(noise_multiplier: float):
        return accounting.poisson_event(
            noise_multiplier=noise_multiplier,
            sampling_prob=command.sampling_prob,
            steps=command.steps,
        )

    make_event(1.0)  # refuses what is out of range before any closed form uses it
    return make_event


def _mu(command: Calibrate, noise_multiplier: float) -> float:
    """The mu of full batches; its own inverse in the noise multiplier."""
    return _SENSITIVITY_FACTOR[command.relation] * math.sqrt(command.steps) / noise_multiplier


def _noise_of_mu(command: Calibrate, mu: float) -> float:
    _event_factory(command)
    # Slightly more noise than the closed form, so that rounding cannot exceed the target.
    return _mu(command, mu) * (1 + 1e-12)


def _vacuous(
    event: object, *, epsilon: float, delta: float, relation: common.RelationName
) -> tuple[str, ...]:
    """Reasons for which the guarantee of a training is vacuous."""
    from jaxpriv import accounting, identifiability
    from jaxpriv.metrics import verdict

    # The bound from epsilon and delta alone is cheap, and no smaller than the one of the event.
    bound = identifiability.general_rho_alpha(min(epsilon, 100.0), delta)
    if bound > verdict.MAX_ADVANTAGE and epsilon <= verdict.MAX_EPSILON:
        bound = accounting.advantage_bound(event, relation=relation)  # pyright: ignore[reportArgumentType]
    elif epsilon > verdict.MAX_EPSILON:
        bound = None
    return verdict.why_vacuous(epsilon=epsilon, delta=delta, advantage_bound=bound)


def _answer(
    command: Epsilon | Calibrate,
    result: dict[str, Any],
    noise_multiplier: float,
    *,
    first: list[str],
    vacuous: tuple[str, ...],
) -> common.Answer:
    """The answer of both accounting commands."""
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
    lines = [
        *first,
        f"relation          {command.relation}",
        f"noise multiplier  {_rounding.up_significant(noise_multiplier, digits=6)}",
        f"method            {method}",
    ]
    if vacuous:
        lines.append(f"This guarantee is vacuous: {'; '.join(vacuous)}.")
    return common.Answer(result, lines)


def _guarantee_lines(epsilon: float, delta: float) -> list[str]:
    from jaxpriv import _rounding

    shown = "unbounded" if epsilon == math.inf else _rounding.up(epsilon, decimals=4)
    return [f"epsilon           {shown}", f"delta             {delta:g}"]
