"""`jaxpriv epsilon`, `calibrate` and `identify`: what a mechanism spends and gives away.

No number of records is known here: nothing is truncated, sampling is plain Poisson.
"""

import math
from dataclasses import dataclass
from typing import Any

from jaxpriv.cli import common

_HOW_MUCH_REPLACED = {"add_or_remove_one": 1.0, "replace_one": 2.0}


@dataclass(frozen=True, kw_only=True)
class _Training(common.Common):
    sampling_prob: float
    """Chance of each record to be in a batch; 1: full batch."""
    steps: int
    """Noisy gradient steps."""
    relation: common.RelationName
    """By which neighbouring data sets differ."""


@dataclass(frozen=True, kw_only=True)
class Epsilon(_Training):
    """What DP-SGD with Poisson sampling spends."""

    noise_multiplier: float
    """Standard deviation of the noise / clip norm."""
    delta: float
    """Chance with which epsilon may fail."""


@dataclass(frozen=True, kw_only=True)
class Calibrate(_Training):
    """The smallest noise multiplier that keeps a promise; never one that overshoots it."""

    epsilon: float | None = None
    """To be kept, with --delta."""
    delta: float | None = None
    """Chance with which epsilon may fail."""
    max_belief: float | None = None
    """Largest belief of an adversary who knows all other records, from even odds."""
    violation_probability: float | None = None
    """Chance with which that belief may be exceeded."""
    max_advantage: float | None = None
    """Largest TPR - FPR of any membership attack."""


@dataclass(frozen=True, kw_only=True)
class Identify(common.Common):
    """What an adversary may believe, and the advantage of any membership attack."""

    epsilon: float | None = None
    """Of the guarantee, with --delta; or name the training instead."""
    delta: float | None = None
    """Chance with which epsilon may fail."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise / clip norm."""
    sampling_prob: float | None = None
    """Chance of each record to be in a batch; 1: full batch."""
    steps: int | None = None
    """Noisy gradient steps."""
    relation: common.RelationName | None = None
    """By which neighbouring data sets differ."""
    prior: float = 0.5
    """Belief before anything is released."""


def run_epsilon(command: Epsilon, argv: list[str]) -> common.Told:
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
    return _told(command, result, command.noise_multiplier)


def run_calibrate(command: Calibrate, argv: list[str]) -> common.Told:
    """Finds the noise for one of the three promises."""
    del argv
    _one_promise(command)
    if command.max_belief is not None:
        return _for_belief(command)
    if command.max_advantage is not None:
        return _for_advantage(command)
    from jaxpriv import accounting

    assert command.epsilon is not None
    assert command.delta is not None
    noise_multiplier = accounting.calibrate_event(
        _maker(command), epsilon=command.epsilon, delta=command.delta, relation=command.relation
    )
    spent = accounting.epsilon(
        _maker(command)(noise_multiplier), delta=command.delta, relation=command.relation
    )
    result = {"epsilon": spent, "unbounded": False, "delta": command.delta}
    result, lines = _told(command, result, noise_multiplier)
    return {**result, "target_epsilon": command.epsilon}, lines


def _one_promise(command: Calibrate) -> None:
    belief = (command.max_belief, command.violation_probability)
    promises = [(command.epsilon, command.delta), belief, (command.max_advantage,)]
    whole = [None not in promise for promise in promises]
    begun = [any(part is not None for part in promise) for promise in promises]
    if sum(begun) != 1 or whole != begun:
        raise ValueError(
            "Expected one promise: --epsilon with --delta, --max-belief with "
            "--violation-probability, or --max-advantage."
        )


def _for_belief(command: Calibrate) -> common.Told:
    from jaxpriv import identifiability

    rho, allowed = command.max_belief, command.violation_probability
    assert rho is not None
    assert allowed is not None
    if command.sampling_prob == 1:
        mu = identifiability.mu_for_belief(rho, violation_probability=allowed)
        noise_multiplier = _noise_of_mu(command, mu)
        exceeded = identifiability.gaussian_violation_probability(
            rho, mu=_mu(command, noise_multiplier)
        )
    else:
        noise_multiplier = identifiability.calibrate_belief(
            _maker(command),
            max_belief=rho,
            violation_probability=allowed,
            relation=command.relation,
        )
        exceeded = identifiability.violation_probability(
            _maker(command)(noise_multiplier), rho=rho, relation=command.relation
        )
    result = {"max_belief": rho, "violation_probability": exceeded}
    result, lines = _told(command, result, noise_multiplier)
    odds = identifiability.odds_in_words(rho)
    return result, [f"belief            {rho:g}, {odds}, but with p <= {_up(exceeded)}", *lines]


def _for_advantage(command: Calibrate) -> common.Told:
    from jaxpriv import accounting, identifiability

    most = command.max_advantage
    assert most is not None
    if command.sampling_prob == 1:
        noise_multiplier = _noise_of_mu(command, identifiability.mu_for_advantage(most))
    else:
        noise_multiplier = identifiability.calibrate_advantage(
            _maker(command), max_advantage=most, relation=command.relation
        )
    reached = accounting.advantage_bound(
        _maker(command)(noise_multiplier), relation=command.relation
    )
    result, lines = _told(command, {"max_advantage": reached}, noise_multiplier)
    return {**result, "target_advantage": most}, [f"advantage         {_up(reached)}", *lines]


def run_identify(command: Identify, argv: list[str]) -> common.Told:
    """Bounds belief and advantage, as far as the input determines them."""
    del argv
    from jaxpriv import _check, identifiability

    _check.open_unit(prior=command.prior)
    training = (command.noise_multiplier, command.sampling_prob, command.steps, command.relation)
    named = [part is not None for part in training]
    if (command.epsilon is None) != all(named) or any(named) != all(named):
        raise ValueError(
            "Expected --epsilon with --delta, or --noise-multiplier, --sampling-prob, --steps and "
            "--relation."
        )
    result = _of_budget(command) if command.epsilon is not None else _of_training(command)
    lines = [f"prior belief           {command.prior:g}"]
    if result["epsilon"] is not None:
        lines.append(f"epsilon                {_up(result['epsilon'])} at delta {command.delta:g}")
    if result["rho_beta"] is not None:
        odds = identifiability.odds_in_words(result["rho_beta"]) if command.prior == 0.5 else ""
        lines.append(f"largest belief         {_up(result['rho_beta'])}  {odds}".rstrip())
    conditions = result["conditions"]
    for key, told in _IDENTIFIED.items():
        if result[key] is not None:
            condition = f"  ({conditions[key]})" if key in conditions else ""
            lines.append(f"{told:<22} {_up(result[key])}{condition}")
    if result["rho_beta"] is not None and result["violation_probability"] is None:
        lines.append("The belief may be exceeded, and with more than probability delta.")
    return result, lines


_IDENTIFIED = {
    "violation_probability": "exceeded with p <=",
    "rho_alpha_exact": "advantage, exact",
    "rho_alpha_rdp": "advantage, by RDP",
    "rho_alpha_classical": "advantage, classical",
    "rho_alpha_general": "advantage, general",
    "bayes_accuracy": "best guess is right",
}


def _of_budget(command: Identify) -> dict[str, Any]:
    """From epsilon and delta alone."""
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
            "rho_alpha_classical": "only for noise of sensitivity "
            "sqrt(2 ln(1.25/delta)) / epsilon; exact noise is smaller, its advantage larger",
            "rho_alpha_general": "for every mechanism",
        },
    }


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
    mu = _HOW_MUCH_REPLACED[relation] * math.sqrt(steps) / z if q == 1 and z > 0 else None
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
    """All keys, and what epsilon alone says."""
    from jaxpriv import identifiability

    known = None if epsilon is None else identifiability.rho_beta(epsilon, prior=command.prior)
    unknown = (*_IDENTIFIED, "conditions")
    return {
        "epsilon": None if epsilon == math.inf else epsilon,
        "unbounded": epsilon == math.inf,
        "delta": command.delta,
        "relation": command.relation,
        "prior": command.prior,
        "rho_beta": known,
        **dict.fromkeys(unknown),
    }


def _maker(command: Calibrate):
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
    """Of full batches."""
    return _HOW_MUCH_REPLACED[command.relation] * math.sqrt(command.steps) / noise_multiplier


def _noise_of_mu(command: Calibrate, mu: float) -> float:
    _maker(command)
    # A hair more noise than the closed form, so that rounding cannot break the promise.
    return _mu(command, mu) * (1 + 1e-12)


def _up(bound: float) -> str:
    """Six digits after the point, never below the bound; very large ones as they are."""
    return f"{math.ceil(bound * 1e6 * (1 - 1e-15)) / 1e6:.6f}" if bound < 1e9 else repr(bound)


def _digits_up(number: float) -> str:
    """Six significant digits, never below the number."""
    unit = 10.0 ** (math.floor(math.log10(number)) - 5) if number > 0 else 1.0
    return f"{math.ceil(number / unit * (1 - 1e-15)) * unit:.6g}"


def _told(
    command: Epsilon | Calibrate, result: dict[str, Any], noise_multiplier: float
) -> common.Told:
    """What both accounting commands answer."""
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
    }
    lines = [
        f"relation          {command.relation}",
        f"noise multiplier  {_digits_up(noise_multiplier)}",
        f"method            {method}",
    ]
    if "epsilon" in result:
        spent = result["epsilon"]
        shown = "unbounded" if spent is None else f"{math.ceil(spent * 1e4) / 1e4:.4f}"
        lines = [f"epsilon           {shown}", f"delta             {result['delta']:g}", *lines]
    return result, lines
