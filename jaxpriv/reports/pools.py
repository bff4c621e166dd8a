"""Members, non-members and the population of a report.

In the shapes below `n` counts the records of the pool, `k` and `l` its two parts, `p` those of the
population, on which no model is trained.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxpriv.data import Dataset, num_duplicates

_FEWEST = 5
"""Members or non-members that the blind attack's folds need."""


class Split(NamedTuple):
    """Positions of the target's members and of the rest in the pool, the pool, the population."""

    members: Int[np.ndarray, " k"]
    others: Int[np.ndarray, " l"]
    x: Float[Array, "n d"]
    y: Int[Array, " n"]
    group: Int[np.ndarray, " n"] | None
    population_x: Float[Array, "p d"]
    population_y: Int[Array, " p"]
    num_classes: int

    def is_member(self) -> Bool[np.ndarray, " n"]:
        """Whether the target was trained on each record."""
        return np.isin(np.arange(len(self.y)), self.members)


def make_split(key: PRNGKeyArray, dataset: Dataset) -> Split:
    """Sets a tenth of the records aside and tosses a coin for each of the others.

    Args:
      key: consumed.
      dataset: at least 40 records, of at least 8 groups where there are groups.

    Returns:
      The split.

    Raises:
      ValueError: for fewer.
    """
    if len(dataset) < 40:
        raise ValueError(f"Expected at least 40 records, got {len(dataset)}.")
    if dataset.group is not None and len(np.unique(dataset.group)) < 8:
        raise ValueError(
            f"Expected at least 8 groups to split by, got {len(np.unique(dataset.group))}."
        )
    population_key, half_key = jax.random.split(key)
    chosen = _tenth(population_key, dataset)
    pool, population = dataset.subset(~chosen), dataset.subset(chosen)
    inside = _coins(half_key, pool)
    if min(inside.sum(), (~inside).sum()) < _FEWEST:
        raise ValueError(
            f"Expected at least {_FEWEST} members and non-members, the coins of this key gave "
            f"{inside.sum()} and {(~inside).sum()}: too few records, or groups too large."
        )
    return Split(
        members=np.flatnonzero(inside),
        others=np.flatnonzero(~inside),
        x=_inputs(pool),
        y=jnp.asarray(pool.y),
        group=pool.group,
        population_x=_inputs(population),
        population_y=jnp.asarray(population.y),
        num_classes=dataset.num_classes,
    )


def about(dataset: Dataset, split: Split) -> dict[str, Any]:
    """Tells what the report says of the records: names and counts.

    Args:
      dataset: all records.
      split: of them.

    Returns:
      Plain values, ready for JSON.
    """
    return {
        "name": dataset.name,
        "source": dataset.source,
        "num_examples": len(dataset),
        "num_classes": dataset.num_classes,
        "num_members": len(split.members),
        "num_nonmembers": len(split.others),
        "num_population": len(split.population_y),
        "num_groups": None if dataset.group is None else len(np.unique(dataset.group)),
        "num_duplicates": num_duplicates(dataset),
    }


def _coins(key: PRNGKeyArray, dataset: Dataset) -> Bool[np.ndarray, " n"]:
    """Whether the target is trained on each record: a fair coin for each, as audits need it.

    One coin for each group where there are groups.
    """
    units = np.arange(len(dataset)) if dataset.group is None else dataset.group
    _, unit = np.unique(units, return_inverse=True)
    return np.asarray(jax.random.bernoulli(key, 0.5, (int(unit.max()) + 1,)))[unit]


def _tenth(key: PRNGKeyArray, dataset: Dataset) -> Bool[np.ndarray, " n"]:
    """Whole random groups, as many as first reach a tenth; larger ones only if all are."""
    units = np.arange(len(dataset)) if dataset.group is None else dataset.group
    _, unit, weight = np.unique(units, return_inverse=True, return_counts=True)
    order = np.asarray(jax.random.permutation(key, len(weight)))
    small = weight[order] <= max(1, len(dataset) / 10)
    order = order[small] if small.any() else order
    enough = 1 + np.searchsorted(np.cumsum(weight[order]), len(dataset) / 10)
    return np.isin(unit, order[:enough])


def _inputs(dataset: Dataset) -> Float[Array, "n d"]:
    """Rows for a network, by a fixed function of each record: x up to 1, then 1 + log x.

    Means and deviations of the members would be a release that epsilon does not cover.
    """
    rows = dataset.x.reshape(len(dataset), -1)
    beyond = np.sign(rows) * (1 + np.log(np.maximum(np.abs(rows), 1)))
    return jnp.asarray(np.where(np.abs(rows) <= 1, rows, beyond))
