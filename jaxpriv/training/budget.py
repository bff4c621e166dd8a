"""Privacy budgets, which limit the number of steps of `fit`.

`_spending` finds the number by `accounting.max_steps`.
"""

from dataclasses import dataclass

from jaxpriv import _check
from jaxpriv._types import RELATIONS, Relation

__all__ = ["Budget"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Target (epsilon, delta) guarantee, which limits the number of steps of `fit`.

    epsilon: in nats; > 0.
    delta: in (0, 1); should be below 1 / number of records.
    relation: how neighbouring data sets differ, `add_or_remove_one` or `replace_one`.

    Raises:
      ValueError: if an argument is out of range.

    Example:
      >>> Budget(epsilon=4.0, delta=1e-5, relation="add_or_remove_one").epsilon
      4.0
      >>> Budget(epsilon=4.0, delta=1.5, relation="add_or_remove_one")
      Traceback (most recent call last):
      ValueError: Expected 0 < delta < 1, got delta=1.5.
    """

    epsilon: float
    delta: float
    relation: Relation

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        _check.open_unit(delta=self.delta)
        _check.one_of(RELATIONS, relation=self.relation)
