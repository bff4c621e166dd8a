"""Trains the models of a report by a function of the user's, in any framework.

In the shapes below `n` counts records, `m` shadow models and `c` classes.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from jaxpriv import _check
from jaxpriv.attacks.evidence import Evidence
from jaxpriv.data import Dataset
from jaxpriv.reports import _promise, _score_files
from jaxpriv.reports.findings import Promise
from jaxpriv.reports.partition import Partition
from jaxpriv.reports.settings import Settings
from jaxpriv.reports.subjects import Subject

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_OF_OUR_TRAINING = (
    "epsilon",
    "model",
    "tokens",
    "width",
    "sampling_prob",
    "clip_norm",
    "steps",
    "learning_rate",
    "plain_steps",
    "plain_learning_rate",
    "canaries",
    "repetitions",
    "sensitive",
)
"""Settings that such a training does not use."""

Train = Callable[[PRNGKeyArray, Dataset], Callable[[np.ndarray], Any]]
"""`train(key, records) -> predict`, with `predict(x [n, ...]) -> logits [n, c]`."""

Event = Callable[[int], "DpEvent"]
"""`event(n)`, the privacy event of the whole training on n records."""


def check(train: Train, settings: Settings) -> None:
    """Raises ValueError for settings that the user's training would ignore."""
    _check.takes("train(key, records)", train)
    settings.refuse(_OF_OUR_TRAINING, "for a training of the user's")
    if settings.unit == "class":
        raise ValueError("Expected the unit record or group for a training of the user's.")


def check_event(train: Train | None, settings: Settings) -> None:
    """Raises ValueError unless the settings state delta and relation for the event of `train`."""
    if train is None:
        raise ValueError("Expected train(key, records) with event, got None.")
    settings.refuse(("no_dp",), "with the event of a private training")
    if settings.delta is None or settings.relation is None:
        raise ValueError("Expected delta and relation in the settings, with event.")


def claim(event: Event, records: Partition, settings: Settings) -> Promise:
    """Computes the guarantee of an event of the user's, which nothing verifies.

    Args:
      event: event of the training.
      records: members, non-members and population.
      settings: settings with delta and relation.

    Returns:
      The guarantee, as a claim.

    Raises:
      ValueError: if groups are the unit.
    """
    assert settings.delta is not None
    assert settings.relation is not None
    if records.units.kind == "group":
        raise ValueError("Expected records without groups with event, which is for one record.")
    num_members = int(records.is_member.sum())
    promise = _promise.guarantee(
        event(num_members),
        num_members=num_members,
        delta=settings.delta,
        relation=settings.relation,
    )
    return dataclasses.replace(promise, is_claim=True)


def train(
    function: Train,
    key: PRNGKeyArray,
    *,
    promise: Promise | None,
    records: Partition,
    shadow_is_member: Bool[np.ndarray, "m n"],
    checkpoints: Path | None,
) -> Subject:
    """Trains the target and its shadow models one after the other.

    The outputs of each model are stored, so that a resumed report does not train it again. Outputs
    for another key or other records are replaced; a change of the function is not noticed.

    Args:
      function: trains one model.
      key: PRNG key.
      promise: guarantee of the training; None without one.
      records: members, non-members and population.
      shadow_is_member: whether each shadow model is trained on each record of the pool.
      checkpoints: folder for the outputs; None stores none.

    Returns:
      The subject, without a description of its training.

    Raises:
      ValueError: if the outputs are not logits.
    """
    num_classes = records.pool.num_classes
    x = np.concatenate([records.pool.x, records.population.x])
    keys = jax.random.split(key, 1 + len(shadow_is_member))
    masks = np.concatenate([records.is_member[None], shadow_is_member])
    store = _score_files.Store(checkpoints)
    outputs = []
    for i, (model_key, mask) in enumerate(zip(keys, masks, strict=True)):

        def compute(model_key: PRNGKeyArray = model_key, mask: np.ndarray = mask) -> np.ndarray:
            predict = function(model_key, records.pool.subset(mask))
            return _checked(predict(x), len(x), num_classes)

        identity = _score_files.identity(model_key, x=x, y=records.pool.y, mask=mask)
        outputs.append(store.scores(f"logits-{i}", identity, compute).astype(np.float32))
    pool, population = np.split(np.stack(outputs), [len(records.pool)], axis=1)
    evidence = Evidence(
        inputs=records.pool.x,
        labels=records.pool.y,
        logits=pool[0],
        shadow_logits=pool[1:],
        shadow_is_member=shadow_is_member,
        unit_id=records.units.index if records.units.kind == "group" else None,
        population=Evidence(
            inputs=records.population.x,
            labels=records.population.y,
            logits=population[0],
            shadow_logits=population[1:],
        ),
    )
    return Subject(
        name="Given training",
        evidence=evidence,
        is_member=records.is_member,
        training=None,
        promise=promise,
        rows=records.rows,
    )


def _checked(logits: Any, count: int, num_classes: int) -> Float[np.ndarray, "n c"]:
    array = np.asarray(logits, np.float32)
    if array.shape != (count, num_classes):
        raise ValueError(
            f"Expected logits of shape [{count}, {num_classes}] from predict, "
            f"got {list(array.shape)}."
        )
    if np.isnan(array).any():
        raise ValueError("Expected logits without NaN from predict.")
    return array
