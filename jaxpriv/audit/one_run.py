"""Lower bounds on epsilon from one training run with many canaries.

    scores, is_member --guess--> number of correct guesses --p-value--> epsilon or mu

A row is a canary, which an independent fair coin included or left out. The guesses depend on the
scores alone: the canaries with the highest scores are guessed as included, those with the lowest as
left out, and the rest are not guessed. A higher score means that the canary was more likely
included; reversed scores give 0. In the shapes below `n` counts canaries.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from jaxpriv import _check
from jaxpriv._types import Column

__all__ = [
    "Guesses",
    "epsilon_of_guesses",
    "epsilon_of_scores",
    "guess",
    "largest_epsilon",
    "mu_of_guesses",
    "mu_of_scores",
]

_COIN_PVALUE = 1e-6
"""p-value below which the coins are refused as unfair, since the bounds assume fair coins."""

_GUESS_SHARES = {1.0: 0.05, 0.5: 0.25, 0.25: 0.6, 0.125: 0.1}
"""For each share of the canaries that is guessed, the share of the error that it may spend.

Guessing a quarter is best for mu between 1 and 3 with hundreds of canaries; guessing all is best
for scores with few distinct values.
"""


class Guesses(NamedTuple):
    """Numbers of correct guesses, of guesses and of canaries."""

    correct: int
    guesses: int
    canaries: int


def guess(scores: Column, is_member: Column, *, guess_in: int, guess_out: int) -> Guesses:
    """Guesses the canaries with the highest scores as included and the lowest as left out.

    Ties at the edge of either group are broken for the worst, so that neither the order of the
    rows nor a tie can increase a bound.

    Args:
      scores: [n]; one score per canary.
      is_member: [n]; whether the coin included the canary.
      guess_in: number of canaries guessed as included; chosen independently of is_member.
      guess_out: number of canaries guessed as left out; chosen independently of is_member.

    Returns:
      The number of correct guesses, of guesses and of canaries.

    Raises:
      ValueError: for NaN, one class only, unequal lengths, more guesses than canaries, or coins
        that are far from fair.

    Example:
      >>> import numpy as np
      >>> from jaxpriv.audit import one_run
      >>> scores, is_member = np.array([0.9, 0.8, 0.5, 0.4, 0.2, 0.1]), np.array([1, 0, 1, 0, 1, 0])
      >>> one_run.guess(scores, is_member, guess_in=2, guess_out=2)
      Guesses(correct=2, guesses=4, canaries=6)
    """
    members, nonmembers = _split_canaries(scores, is_member)
    n = members.size + nonmembers.size
    if not (guess_in >= 0 and guess_out >= 0 and 0 < guess_in + guess_out <= n):
        raise ValueError(
            f"Expected 1 to {n} guesses, got guess_in={guess_in}, guess_out={guess_out}."
        )
    correct = _min_correct(members, nonmembers, guess_in) + _min_correct(
        -nonmembers, -members, guess_out
    )
    return Guesses(correct, guess_in + guess_out, n)


def epsilon_of_guesses(guesses: Guesses, *, delta: float, confidence: float) -> float:
    """Bounds epsilon from below, for numbers of guesses that were fixed in advance.

    With W ~ Binomial(guesses, 1/(1 + e^-epsilon)), (epsilon, delta)-DP gives P[correct >= v] <=
    P[W >= v] + 2 canaries delta max over i of P[v > W >= v - i] / i.

    Args:
      guesses: result of `guess`.
      delta: delta of the guarantee, in [0, 1).
      confidence: confidence level of the bound, in (0, 1).

    Returns:
      The bound in nats; 0 if the guesses show no leak.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run, 2023, Theorem 5.2.

    Example:
      >>> from jaxpriv.audit import one_run
      >>> guesses = one_run.Guesses(correct=90, guesses=100, canaries=1000)
      >>> round(one_run.epsilon_of_guesses(guesses, delta=0.0, confidence=0.95), 3)
      1.631
      >>> round(one_run.epsilon_of_guesses(guesses, delta=1e-5, confidence=0.95), 3)
      1.626
    """
    _check_guesses(guesses, delta, confidence)
    return _epsilon(*guesses, delta, 1 - confidence)


def mu_of_guesses(guesses: Guesses, *, confidence: float) -> float:
    """Bounds mu of Gaussian differential privacy from below, for guesses fixed in advance.

    With p_t the probability of t correct guesses of k, R_j = sum over t >= j of t p_t and
    H_j = sum over t >= j of (k - t) p_t, flipping one coin shows for every j that
    R_(j+1)/canaries <= Phi(Phi^-1(H_j/canaries) + mu). The bound is the largest mu for which no
    p with P[t >= correct] = 1 - confidence satisfies all of these inequalities. Converting it to
    epsilon by `accounting.gaussian.epsilon` assumes that the trade-off function of the mechanism
    is Gaussian.

    Args:
      guesses: result of `guess`.
      confidence: confidence level of the bound, in (0, 1).

    Returns:
      The bound on mu; 0 if the guesses show no leak.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Mahloujifar, Melis and Chaudhuri, Auditing f-Differential Privacy in One Run, 2024.

    Example:
      >>> from jaxpriv.audit import one_run
      >>> guesses = one_run.Guesses(correct=90, guesses=100, canaries=1000)
      >>> round(one_run.mu_of_guesses(guesses, confidence=0.95), 2)
      0.6
    """
    _check_guesses(guesses, 0.0, confidence)
    return _mu(*guesses, 1 - confidence)


def epsilon_of_scores(
    scores: Column, is_member: Column, *, delta: float, confidence: float
) -> float:
    """Bounds epsilon from below, with several numbers of guesses on the same scores.

    All, 1/2, 1/4 and 1/8 of the canaries are guessed, half of them as included; the four bounds
    share the error 1 - confidence.

    Args:
      scores: [n]; one score per canary. Ties and infinities are allowed.
      is_member: [n]; whether the coin included the canary.
      delta: delta of the guarantee, in [0, 1).
      confidence: confidence level of the bound, in (0, 1).

    Returns:
      The largest bound, nats; 0 if the scores show no leak.

    Raises:
      ValueError: if an argument is out of range, or for the errors of `guess`.

    References:
      Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run, 2023.

    Example:
      >>> import numpy as np
      >>> from jaxpriv.audit import one_run
      >>> rng, is_member = np.random.default_rng(0), np.arange(1000) < 500
      >>> scores = rng.normal(2.0 * is_member)  # mu = 2 has epsilon 10.0 at this delta
      >>> round(one_run.epsilon_of_scores(scores, is_member, delta=1e-5, confidence=0.95), 1)
      3.0
    """
    _check.half_open_unit(delta=delta)
    _check.open_unit(confidence=confidence)
    return _best(scores, is_member, lambda g, error: _epsilon(*g, delta, error), confidence)


def mu_of_scores(scores: Column, is_member: Column, *, confidence: float) -> float:
    """Bounds mu from below, with several numbers of guesses on the same scores.

    See `epsilon_of_scores` for the numbers and `mu_of_guesses` for the bound.

    Args:
      scores: [n]; one score per canary. Ties and infinities are allowed.
      is_member: [n]; whether the coin included the canary.
      confidence: confidence level of the bound, in (0, 1).

    Returns:
      The largest bound on mu; 0 if the scores show no leak.

    Raises:
      ValueError: if an argument is out of range, or for the errors of `guess`.

    References:
      Mahloujifar, Melis and Chaudhuri, Auditing f-Differential Privacy in One Run, 2024.

    Example:
      >>> import numpy as np
      >>> from jaxpriv.audit import one_run
      >>> rng, is_member = np.random.default_rng(0), np.arange(1000) < 500
      >>> scores = rng.normal(2.0 * is_member)
      >>> round(one_run.mu_of_scores(scores, is_member, confidence=0.95), 1)
      1.1
    """
    _check.open_unit(confidence=confidence)
    return _best(scores, is_member, lambda g, error: _mu(*g, error), confidence)


def largest_epsilon(num_canaries: int, *, delta: float, confidence: float) -> float:
    """Computes the bound of `epsilon_of_scores` if every guess is correct.

    It is 0 from about delta = (1 - confidence) / num_canaries on: (0, delta)-DP allows a mechanism
    that reveals many canaries at once with a probability above 1 - confidence.

    Args:
      num_canaries: number of canaries.
      delta: delta of the guarantee, in [0, 1).
      confidence: confidence level of the bound, in (0, 1).

    Returns:
      The largest bound that any scores can give, nats.

    Raises:
      ValueError: if an argument is out of range.

    Example:
      >>> from jaxpriv.audit import one_run
      >>> round(one_run.largest_epsilon(1000, delta=1e-5, confidence=0.95), 2)
      4.92
      >>> one_run.largest_epsilon(1000, delta=0.1, confidence=0.95)
      0.0
    """
    _check.half_open_unit(delta=delta)
    _check.open_unit(confidence=confidence)
    _check.positive_int(num_canaries=num_canaries)
    bounds = [0.0]
    for share, error_share in _GUESS_SHARES.items():
        guesses = min(2 * max(1, int(num_canaries * share) // 2), num_canaries)
        error = error_share * (1 - confidence)
        bounds.append(_epsilon(guesses, guesses, num_canaries, delta, error))
    return max(bounds)


def _best(
    scores: Column,
    is_member: Column,
    bound: Callable[[Guesses, float], float],
    confidence: float,
) -> float:
    n, bounds = np.size(scores), [0.0]
    for share, error_share in _GUESS_SHARES.items():
        per_side = max(1, int(n * share) // 2)
        guesses = guess(scores, is_member, guess_in=per_side, guess_out=per_side)
        bounds.append(bound(guesses, error_share * (1 - confidence)))
    return max(bounds)


def _split_canaries(
    scores: Column, is_member: Column
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " k"]]:
    from scipy import special

    members, nonmembers = _check.split_by_membership(scores, is_member)
    n = members.size + nonmembers.size
    if 2 * special.bdtr(min(members.size, nonmembers.size), n, 0.5) < _COIN_PVALUE:
        raise ValueError(
            f"Expected fair coins, got {members.size} members of {n} canaries; without coins one "
            "training bounds no epsilon."
        )
    return members, nonmembers


def _min_correct(right: Float[np.ndarray, " m"], wrong: Float[np.ndarray, " k"], size: int) -> int:
    """Counts the `right` scores among the `size` highest, with ties broken for the worst."""
    if size == 0:
        return 0
    edge = np.sort(np.concatenate([right, wrong]))[-size]
    right_above = int((right > edge).sum())
    # Guesses that remain for the scores at the edge, which go to the wrong ones first.
    num_at_edge = size - right_above - int((wrong > edge).sum())
    return right_above + max(0, num_at_edge - int((wrong == edge).sum()))


@functools.lru_cache(4096)
def _epsilon(correct: int, guesses: int, canaries: int, delta: float, error: float) -> float:
    """Finds the largest epsilon whose p-value is below `error`, from below, by bisection."""
    if _p_value(0.0, correct, guesses, canaries, delta) >= error:
        return 0.0
    rejected, accepted = 0.0, 1.0
    while _p_value(accepted, correct, guesses, canaries, delta) < error:
        rejected, accepted = accepted, 2 * accepted
    while accepted - rejected > 1e-9 * accepted:
        middle = (rejected + accepted) / 2
        if _p_value(middle, correct, guesses, canaries, delta) < error:
            rejected = middle
        else:
            accepted = middle
    return rejected


def _p_value(epsilon: float, correct: int, guesses: int, canaries: int, delta: float) -> float:
    """Bounds P[number of correct guesses >= correct] under (epsilon, delta)-DP."""
    from scipy import special

    if correct == 0:
        return 1.0
    wrong = float(special.expit(-epsilon))
    # P[W >= v] is computed as the probability of at most guesses - v wrong guesses, which keeps
    # its relative accuracy where it is small.
    at_least = special.bdtr(guesses - np.arange(correct, -1, -1), guesses, wrong)
    if delta == 0:
        return float(at_least[0])
    slope = float(np.max((at_least[1:] - at_least[0]) / np.arange(1, correct + 1)))
    return float(at_least[0]) + 2 * canaries * delta * slope


@functools.lru_cache(4096)
def _mu(correct: int, guesses: int, canaries: int, error: float) -> float:
    """Finds the largest mu, on grids of increasing resolution, below which all mu are rejected."""
    # All mu of a grid are tested at once. Each round keeps the cell below the first mu that is
    # accepted, so four rounds resolve mu to 16 / 32^4.
    low, width = 0.0, 16.0
    if not _rejects(np.zeros(1), correct, guesses, canaries, error)[0]:
        return 0.0
    for _ in range(4):
        grid = low + width * np.arange(33) / 32
        accepted = np.flatnonzero(~_rejects(grid, correct, guesses, canaries, error))
        low, width = float(grid[accepted[0] - 1]) if accepted.size else float(grid[-1]), width / 32
    return low


def _rejects(
    mu: Float[np.ndarray, " g"], correct: int, guesses: int, canaries: int, error: float
) -> Bool[np.ndarray, " g"]:
    """Decides for each mu whether P[t >= correct] = error is impossible.

    The p with the least total mass has all of its tail at `correct`, and at each j below it the
    smallest p_j that increases H_j to what R_(j+1) needs. A distribution exists if this mass is at
    most 1; `right` and `missed` are R_j and H_j divided by the number of canaries.
    """
    from scipy import special

    right = np.full_like(mu, error * correct / canaries)
    missed = np.full_like(mu, error * (guesses - correct) / canaries)
    for j in range(correct - 1, -1, -1):
        needed = special.ndtr(special.ndtri(np.minimum(right, 1.0)) - mu)
        increase = np.maximum(needed - missed, 0.0)
        missed = missed + increase
        right = right + j / (guesses - j) * increase
    # R_0 + H_0 is the number of guesses times the total mass.
    return right + missed > guesses / canaries


def _check_guesses(guesses: Guesses, delta: float, confidence: float) -> None:
    _check.half_open_unit(delta=delta)
    _check.open_unit(confidence=confidence)
    correct, num_guesses, canaries = guesses
    if not 0 <= correct <= num_guesses <= canaries or num_guesses < 1:
        raise ValueError(
            f"Expected 0 <= correct <= guesses <= canaries and a guess, got {tuple(guesses)}."
        )
