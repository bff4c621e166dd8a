"""A small target with shadow models and a population, by formula: the same on every machine."""

import numpy as np

from jaxpriv.attacks import Evidence

RECORDS, SHADOWS, CLASSES, POPULATION = 40, 8, 3, 20


def _spread(shape, offset):
    """Numbers in [-2, 2) without visible order."""
    values = np.sin(np.arange(np.prod(shape)) * 12.9898 + offset) * 437.5453
    return (4 * (values % 1) - 2).reshape(shape).astype(np.float32)


def arrays():
    """The arrays of `evidence`, by name."""
    labels = np.arange(RECORDS) * 7 % CLASSES
    population_labels = np.arange(POPULATION) * 5 % CLASSES
    shadow_is_member = _spread((SHADOWS, RECORDS), 3.0) > 0
    is_member = _spread((RECORDS,), 4.0) > 0
    lift = np.float32(1.5) * np.eye(CLASSES, dtype=np.float32)[labels]
    return {
        "is_member": is_member,
        "labels": labels,
        "logits": _spread((RECORDS, CLASSES), 0.0) + lift * (1 + is_member[:, None]),
        "shadow_logits": _spread((SHADOWS, RECORDS, CLASSES), 1.0)
        + lift * (1 + shadow_is_member[..., None]),
        "shadow_is_member": shadow_is_member,
        "population_labels": population_labels,
        "population_logits": _spread((POPULATION, CLASSES), 5.0),
        "population_shadow_logits": _spread((SHADOWS, POPULATION, CLASSES), 6.0),
    }


def signal_arrays():
    """The arrays of `signal_evidence`, by name."""
    parts = arrays()
    level = 3 * _spread((RECORDS,), 7.0)
    shadow_is_member = parts["shadow_is_member"]
    return {
        "labels": parts["labels"],
        "signals": level + _spread((RECORDS,), 8.0) + 2 * parts["is_member"],
        "shadow_signals": level + _spread((SHADOWS, RECORDS), 9.0) + 2 * shadow_is_member,
        "shadow_is_member": shadow_is_member,
    }


def signal_evidence():
    """Evidence that has signals and no logits."""
    return Evidence(**signal_arrays())


def evidence():
    """The evidence, and which records are members."""
    parts = arrays()
    names = ("labels", "logits", "shadow_logits", "shadow_is_member")
    population = {name: parts[f"population_{name}"] for name in names[:3]}
    return Evidence(
        **{name: parts[name] for name in names}, population=Evidence(**population)
    ), parts["is_member"]
