"""Steps that a privacy budget allows, and the epsilon of a run.

In the shapes below `e` counts evaluations.
"""

import contextlib
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from jaxpriv import _types, accounting
from jaxpriv.accounting import _large_delta
from jaxpriv.training.algorithms import Algorithm
from jaxpriv.training.budget import Budget

_MAX_CURVE_POINTS = 20
"""Number of step counts whose epsilon is computed: each takes a composition."""


def check(budget: object) -> None:
    """Raises ValueError unless the argument is a Budget or None."""
    if budget is not None and not isinstance(budget, Budget):
        raise ValueError(
            "Expected budget=training.Budget(epsilon=..., delta=..., relation=...), "
            f"got {type(budget).__name__}."
        )


def steps_within(alg: Algorithm, budget: Budget, steps: int) -> int:
    """Computes how many of the steps a budget allows, with a warning if it allows fewer.

    Args:
      alg: the algorithm.
      budget: the target guarantee.
      steps: number of steps requested.

    Returns:
      The largest number of steps, at most `steps`, whose epsilon is within the budget.

    Raises:
      ValueError: if the budget does not allow one step.
    """
    size = _types.num_units(alg.sampler)
    if size is not None:
        _large_delta.warn(budget.delta, size, stacklevel=4)
    with _without_delta_warning():
        allowed = accounting.max_steps(
            alg.event,
            epsilon=budget.epsilon,
            delta=budget.delta,
            relation=budget.relation,
            at_most=steps,
        )
    if allowed < 1:
        raise ValueError(
            f"One step exceeds the budget of epsilon={budget.epsilon} at delta={budget.delta}: "
            "increase noise_multiplier or epsilon."
        )
    if allowed < steps:
        warnings.warn(
            f"The budget of epsilon={budget.epsilon} allows {allowed} of the {steps} steps: "
            f"training ends there. A learning-rate schedule over {steps} steps is cut short.",
            stacklevel=3,
        )
    return allowed


def epsilon_after(alg: Algorithm, budget: Budget, steps: Sequence[int]) -> Float[np.ndarray, " e"]:
    """Computes the epsilon after each of several step counts, never understated.

    If there are many counts, some share the epsilon of a later count, which is an upper bound.

    Args:
      alg: the algorithm.
      budget: gives delta and the relation.
      steps: increasing step counts.

    Returns:
      The epsilon after each count.
    """
    points = np.linspace(0, len(steps) - 1, min(len(steps), _MAX_CURVE_POINTS))
    counts = np.asarray(steps)[np.unique(points.round()).astype(int)]
    with _without_delta_warning():
        curve = accounting.epsilon_curve(
            alg.event(1), counts.tolist(), delta=budget.delta, relation=budget.relation
        )
    return curve[np.searchsorted(counts, steps)]


@contextlib.contextmanager
def _without_delta_warning() -> Iterator[None]:
    """Silences the accountant's copy of the warning that `steps_within` has given."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", accounting.LargeDeltaWarning)
        yield
