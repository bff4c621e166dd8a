"""Files of membership scores, from any framework: `SCORES.npz`.

In shapes `n` counts rows (records, canaries or runs), `m` shadow models, `c` classes.
"""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from jaxpriv.data import _files

_KEYS = (
    "scores",
    "is_member",
    "shadow_scores",
    "shadow_is_member",
    "labels",
    "logits",
    "group",
)


class Scores(NamedTuple):
    """What a scores file holds; optional arrays are None when absent.

    scores: higher = more likely a member.
    is_member: the truth.
    shadow_scores: of the same rows under shadow models.
    shadow_is_member: whether row j was a member of shadow model i.
    labels: true class of each row, from 0.
    logits: the target's outputs before the softmax.
    group: the person or household of each row, as the file has it.
    """

    scores: Float[np.ndarray, " n"]
    is_member: Bool[np.ndarray, " n"]
    shadow_scores: Float[np.ndarray, "m n"] | None
    shadow_is_member: Bool[np.ndarray, "m n"] | None
    labels: Int[np.ndarray, " n"] | None = None
    logits: Float[np.ndarray, "n c"] | None = None
    group: Shaped[np.ndarray, " n"] | None = None


def load_scores(path: str | os.PathLike[str]) -> Scores:
    """Reads a scores file as `numpy.savez` writes it. Never unpickles.

    Args:
      path: an .npz with `scores [n]` and `is_member [n]` (bool or 0/1), optionally
        `shadow_scores [m, n]` with `shadow_is_member [m, n]`; `labels [n]` (or one-hot),
        `logits [n, c]`, `group [n]`.

    Returns:
      The arrays, scores as float64.

    Raises:
      ValueError: if the file or an array in it is missing, damaged or of the wrong kind.
    """
    path = Path(path)
    with _files.open_npz(path, "scores") as archive:
        names = archive.namelist()
        held = {k: _files.npz_array(archive, k) for k in _KEYS if f"{k}.npy" in names}
    for key in _KEYS[:2]:
        if key not in held:
            raise ValueError(f"Expected the array {key!r} in {path.name}, found {sorted(held)}.")
    if ("shadow_scores" in held) != ("shadow_is_member" in held):
        raise ValueError("Expected shadow_scores and shadow_is_member together, found one.")
    n = held["scores"].size
    shadows = held.get("shadow_scores")
    m = 0 if shadows is None or shadows.ndim == 0 else len(shadows)
    return Scores(
        _numbers("scores", held["scores"], (n,)),
        _truths("is_member", held["is_member"], (n,)),
        None if shadows is None else _numbers("shadow_scores", shadows, (m, n)),
        None if shadows is None else _truths("shadow_is_member", held["shadow_is_member"], (m, n)),
        **_outputs(held, n),
    )


def _outputs(held: dict[str, np.ndarray], n: int) -> dict[str, np.ndarray | None]:
    """Labels, logits and groups, each where there is one."""
    logits, labels, group = (held.get(key) for key in ("logits", "labels", "group"))
    classes = None
    if logits is not None:
        classes = logits.shape[1] if logits.ndim == 2 else 0
        logits = _numbers("logits", logits, (n, classes))
        if classes < 2 or np.isnan(logits).any():
            raise ValueError(
                f"Expected logits [n, c] of at least two classes without NaN, got {logits.shape}."
            )
    if labels is not None:
        labels = _labels(labels, n, classes)
    if group is not None and (group.shape != (n,) or group.dtype.kind not in "biuU"):
        raise ValueError(
            f"Expected group as whole numbers or text of shape ({n},), "
            f"got {group.dtype} of {group.shape}."
        )
    return {"labels": labels, "logits": logits, "group": group}


def _labels(labels: np.ndarray, n: int, classes: int | None) -> np.ndarray:
    if labels.ndim == 2 and labels.shape[1] > 1 and len(labels) == n:
        one_hot = labels.dtype.kind in "bfiu" and np.isin(labels, (0, 1)).all()
        if not (one_hot and (labels.sum(axis=1) == 1).all()):
            raise ValueError("Expected labels as [n] classes, or one-hot rows of one 1 each.")
        labels = labels.argmax(axis=1)
    held = _numbers("labels", labels, (n,))
    if (
        not (held == np.floor(held)).all()
        or held.min(initial=0) < 0
        or held.max(initial=0) >= 2**31
    ):
        raise ValueError("Expected labels as whole numbers from 0.")
    if classes is not None and held.max(initial=0) >= classes:
        raise ValueError(f"Expected labels below {classes}, as logits have it, got {held.max():g}.")
    return held.astype(np.int32)


def _numbers(name: str, array: np.ndarray, shape: tuple[int, ...]) -> Float[np.ndarray, "..."]:
    # A column [n, 1] is what many frameworks write for [n].
    fits = array.shape in (shape, (*shape, 1))
    if array.dtype.kind not in "fiu" or not fits:
        raise ValueError(
            f"Expected {name} as numbers of shape {shape}, got {array.dtype} of {array.shape}."
        )
    with np.errstate(invalid="ignore"):  # signalling NaN
        return array.reshape(shape).astype(np.float64)


def _truths(name: str, array: np.ndarray, shape: tuple[int, ...]) -> Bool[np.ndarray, "..."]:
    if array.dtype.kind not in "bfiu" or not np.isin(array, (0, 1)).all():
        raise ValueError(f"Expected {name} as True/False or 1/0, got {array.dtype}.")
    return _numbers(name, array.astype(np.int8), shape).astype(bool)
