"""Lower bounds from one training with many canaries: a row is a canary and its own fair coin.

Each canary was put in by an independent fair coin. The guesses follow from the scores alone: the
highest are guessed in, the lowest out, the rest are abstentions. A higher score means more likely
in; scores that point the other way give 0.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Shaped

from jaxpriv import _check

Scores = Shaped[Array | np.ndarray, "..."]

_COIN_PVALUE = 1e-6
"""p-value below which the coins are refused as unfair: the bounds assume fair coins."""

_GUESS_SHARES = {1.0: 0.05, 0.5: 0.25, 0.25: 0.6, 0.125: 0.1}
"""Shares of the canaries that are guessed, and of the error that each plan may spend.

Guessing a quarter is best for mu between 1 and 3 with hundreds of canaries; guessing all is best
for scores with few distinct values.
"""


class Guesses(NamedTuple):
    """Number of correct guesses, of guesses and of canaries."""

    correct: int
    guesses: int
    canaries: int


def guess(scores: Scores, is_member: Scores, *, guess_in: int, guess_out: int) -> Guesses:
    """Guesses the highest scores in and the lowest out.

    Among equal scores at the edge of a group, the guesses count as if they were the wrong ones:
    neither the order of rows nor a tie can make a bound.

    Args:
      scores: [n], one a canary.
      is_member: [n], how the coins fell.
      guess_in: number guessed in; fixed without looking at is_member.
      guess_out: number guessed out.

    Returns:
      The guesses.

    Raises:
      ValueError: for NaN, one class only, unequal lengths, more guesses than canaries, or coins
        that are far from fair.
    """
    members, nonmembers = _canaries(scores, is_member)
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
    """Bounds epsilon from below, for numbers of guesses fixed in advance.

    With W ~ Binomial(guesses, 1/(1 + e^-epsilon)), (epsilon, delta)-DP gives P[correct >= v] <=
    P[W >= v] + 2 canaries delta max over i of P[v > W >= v - i] / i.

    Args:
      guesses: how many were right.
      delta: in [0, 1).
      confidence: probability that the bound holds, in (0, 1).

    Returns:
      The bound in nats; 0 where the guesses prove nothing.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run, 2023, Theorem 5.2.
    """
    _check_guesses(guesses, delta, confidence)
    return _epsilon(*guesses, delta, 1 - confidence)


def mu_of_guesses(guesses: Guesses, *, confidence: float) -> float:
    """Bounds mu of Gaussian differential privacy from below, for guesses fixed in advance.

    With p_t the probability of t right guesses of k, R_j = sum over t >= j of t p_t and
    H_j = sum over t >= j of (k - t) p_t, flipping one coin shows for every j that
    R_(j+1)/canaries <= Phi(Phi^-1(H_j/canaries) + mu). The bound is the largest mu for which no
    p with P[t >= correct] = 1 - confidence keeps all of this. It is on mu:
    `accounting.gaussian.epsilon` of it assumes that the trade-off is Gaussian.

    Args:
      guesses: how many were right.
      confidence: probability that the bound holds, in (0, 1).

    Returns:
      The bound; 0 where the guesses prove nothing.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Mahloujifar, Melis and Chaudhuri, Auditing f-Differential Privacy in One Run, 2024.
    """
    _check_guesses(guesses, 0.0, confidence)
    return _mu(*guesses, 1 - confidence)


def epsilon_of_scores(
    scores: Scores, is_member: Scores, *, delta: float, confidence: float
) -> float:
    """Bounds epsilon from below over several numbers of guesses, and pays for them.

    All, 1/2, 1/4 and 1/8 of the canaries are guessed, half of those in and half out; the plans
    share the error 1 - confidence.

    Args:
      scores: [n], one a canary; ties and infinities are fine.
      is_member: [n], how the coins fell.
      delta: in [0, 1).
      confidence: probability that the bound holds, in (0, 1).

    Returns:
      The best bound, nats; 0 where the scores prove nothing.

    Raises:
      ValueError: if an argument is out of range, or for what `guess` refuses.

    References:
      Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run, 2023.
    """
    _check_budget(delta, confidence)
    return _best(scores, is_member, lambda g, error: _epsilon(*g, delta, error), confidence)


def mu_of_scores(scores: Scores, is_member: Scores, *, confidence: float) -> float:
    """Bounds mu from below over several numbers of guesses; see `epsilon_of_scores`.

    Args:
      scores: [n], one a canary.
      is_member: [n], how the coins fell.
      confidence: probability that the bound holds, in (0, 1).

    Returns:
      The best bound on mu; see `mu_of_guesses` for what it says of epsilon.

    Raises:
      ValueError: if an argument is out of range, or for what `guess` refuses.

    References:
      Mahloujifar, Melis and Chaudhuri, Auditing f-Differential Privacy in One Run, 2024.
    """
    _check_budget(0.0, confidence)
    return _best(scores, is_member, lambda g, error: _mu(*g, error), confidence)


def _best(
    scores: Scores,
    is_member: Scores,
    bound: Callable[[Guesses, float], float],
    confidence: float,
) -> float:
    n, bounds = np.size(scores), [0.0]
    for share, part in _GUESS_SHARES.items():
        side = max(1, int(n * share) // 2)
        guesses = guess(scores, is_member, guess_in=side, guess_out=side)
        bounds.append(bound(guesses, part * (1 - confidence)))
    return max(bounds)


def _canaries(
    scores: Scores, is_member: Scores
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " k"]]:
    from scipy import special

    members, nonmembers = _check.split_by_membership(scores, is_member)
    n = members.size + nonmembers.size
    if 2 * special.bdtr(min(members.size, nonmembers.size), n, 0.5) < _COIN_PVALUE:
        raise ValueError(f"Expected fair coins, got {members.size} of {n} canaries in.")
    return members, nonmembers


def _min_correct(right: Float[np.ndarray, " m"], wrong: Float[np.ndarray, " k"], size: int) -> int:
    """Counts the `right` ones among the `size` highest scores, with ties broken for the worst."""
    if size == 0:
        return 0
    edge = np.sort(np.concatenate([right, wrong]))[-size]
    surely = int((right > edge).sum())
    left = size - surely - int((wrong > edge).sum())
    return surely + max(0, left - int((wrong == edge).sum()))


@functools.lru_cache(4096)
def _epsilon(correct: int, guesses: int, canaries: int, delta: float, error: float) -> float:
    """Finds an epsilon with a p-value below `error`, as large as bisection gets."""
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
    from scipy import special

    if correct == 0:
        return 1.0
    wrong = float(special.expit(-epsilon))
    # P[W >= v] as the probability of at most guesses - v wrong ones keeps its digits.
    at_least = special.bdtr(guesses - np.arange(correct, -1, -1), guesses, wrong)
    if delta == 0:
        return float(at_least[0])
    slope = float(np.max((at_least[1:] - at_least[0]) / np.arange(1, correct + 1)))
    return float(at_least[0]) + 2 * canaries * delta * slope


@functools.lru_cache(4096)
def _mu(correct: int, guesses: int, canaries: int, error: float) -> float:
    """The largest mu on an ever finer grid that is rejected together with all below it."""
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
) -> np.ndarray:
    """Whether P[t >= correct] = error is impossible, for each mu.

    Such a p with the least mass has all of its tail at `correct`, and below it at each j just the
    p_j that lifts H_j to what R_(j+1) needs; it exists if that adds up to at most 1.
    """
    from scipy import special

    right = np.full_like(mu, error * correct / canaries)
    missed = np.full_like(mu, error * (guesses - correct) / canaries)
    for j in range(correct - 1, -1, -1):
        needed = special.ndtr(special.ndtri(np.minimum(right, 1.0)) - mu)
        more = np.maximum(needed - missed, 0.0)
        missed = missed + more
        right = right + j / (guesses - j) * more
    return right + missed > guesses / canaries


def _check_guesses(guesses: Guesses, delta: float, confidence: float) -> None:
    _check_budget(delta, confidence)
    correct, tried, canaries = guesses
    if not 0 <= correct <= tried <= canaries or tried < 1:
        raise ValueError(
            f"Expected 0 <= correct <= guesses <= canaries and a guess, got {tuple(guesses)}."
        )


def _check_budget(delta: float, confidence: float) -> None:
    if not 0 <= delta < 1:
        raise ValueError(f"Expected 0 <= delta < 1, got delta={delta}.")
    _check.open_unit(confidence=confidence)
