"""Trains the models of a report by a function of the user's, in any framework.

In the shapes below `n` counts records, `m` shadow models and `c` classes.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from jaxpriv.attacks.evidence import Evidence
from jaxpriv.data import Dataset
from jaxpriv.reports import _score_files
from jaxpriv.reports.partition import Partition
from jaxpriv.reports.settings import Settings
from jaxpriv.reports.subjects import Subject

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
    "sensitive",
)
"""Settings that such a training does not use."""

Train = Callable[[PRNGKeyArray, Dataset], Callable[[np.ndarray], Any]]
"""`train(key, records) -> predict`, with `predict(x [n, ...]) -> logits [n, c]`."""


def check(train: Train, settings: Settings) -> None:
    """Raises ValueError for settings that the user's training would ignore."""
    if not callable(train):
        raise ValueError(f"Expected train(key, records) as a function, got {type(train).__name__}.")
    settings.refuse(_OF_OUR_TRAINING, "for a training of the user's")
    if settings.unit == "class":
        raise ValueError("Expected the unit record or group for a training of the user's.")


def train(
    function: Train,
    key: PRNGKeyArray,
    *,
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
      records: members, non-members and population.
      shadow_is_member: whether each shadow model is trained on each record of the pool.
      checkpoints: folder for the outputs; None stores none.

    Returns:
      The subject, without training and promise.

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
        promise=None,
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
