"""Intervals of attack metrics, and of their differences, by resampling whole units.

The targets of one victim share their records, so that a draw takes the same units for all of them.
The intervals cover the choice of records, not that of the trained models. In the shapes below `n`
counts records.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

CONFIDENCE = 0.95

METRICS = ("auc", "0.01", "0.001")
"""Area under the ROC curve, and true positive rates at two false positive rates."""


class Column(NamedTuple):
    """Scores of an attack on one target, prepared for weighted metrics.

    rank: rank of the score of each record among the distinct scores, from the highest.
    is_member: the truth.
    """

    rank: Int[np.ndarray, " n"]
    is_member: Bool[np.ndarray, " n"]


def column(scores: Float[np.ndarray, " n"], is_member: Bool[np.ndarray, " n"]) -> Column:
    """Ranks the scores."""
    return Column(np.unique(-scores, return_inverse=True)[1], is_member)


def weighted_metrics(
    prepared: Column, weights: Float[np.ndarray, " n"] | Int[np.ndarray, " n"]
) -> Float[np.ndarray, " k"]:
    """Computes the metrics named in `METRICS` with weighted records."""
    members = np.bincount(prepared.rank, weights * prepared.is_member)
    nonmembers = np.bincount(prepared.rank, weights * ~prepared.is_member)
    members, nonmembers = members / members.sum(), nonmembers / nonmembers.sum()
    tpr, fpr = np.cumsum(members), np.cumsum(nonmembers)
    auc = np.sum(nonmembers * (tpr - members / 2))
    allowed = [np.searchsorted(fpr, float(name) + 1e-12, side="right") for name in METRICS[1:]]
    return np.array([auc, *(tpr[count - 1] if count else 0.0 for count in allowed)])


class Table:
    """Metrics of several attacks on the same targets, over draws of the units.

    Args:
      columns: for each attack, one column for each target.
      unit: unit of each judged record.
      resamples: number of draws.
    """

    def __init__(
        self,
        columns: Mapping[str, Sequence[Column]],
        unit: Int[np.ndarray, " n"],
        *,
        resamples: int,
    ):
        draws = list(_draws(unit, resamples))
        self._values: dict[tuple[str, str], np.ndarray] = {}
        for name, targets in columns.items():
            values = np.mean(
                [[weighted_metrics(each, weights) for weights in draws] for each in targets], axis=0
            )
            for i, metric in enumerate(METRICS):
                self._values[name, metric] = values[:, i]

    def mean(self, name: str, metric: str) -> tuple[float, tuple[float, float]]:
        """Returns a metric, averaged over targets, and its interval."""
        return _with_interval(self._values[name, metric])

    def difference(self, name: str, base: str, metric: str) -> tuple[float, tuple[float, float]]:
        """Returns by how much an attack exceeds another, and the interval of the difference."""
        return _with_interval(self._values[name, metric] - self._values[base, metric])

    def ratio(
        self, name: str, base: str, metric: str, *, smallest: float
    ) -> tuple[float, tuple[float, float]]:
        """Returns a metric divided by that of another attack, counted as at least `smallest`."""
        denominator = np.maximum(self._values[base, metric], smallest)
        return _with_interval(self._values[name, metric] / denominator)


def _with_interval(values: np.ndarray) -> tuple[float, tuple[float, float]]:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values[1:], [tail, 1 - tail])
    return float(values[0]), (float(low), float(high))


def _draws(unit: Int[np.ndarray, " n"], resamples: int) -> Iterator[np.ndarray]:
    """Weighs the records: the sample itself first, then how often each draw has their unit."""
    _, index = np.unique(unit, return_inverse=True)
    num_units = int(index.max()) + 1
    rng = np.random.default_rng(2)
    yield np.ones(len(index))
    for _ in range(resamples):
        yield rng.multinomial(num_units, np.full(num_units, 1 / num_units))[index]
