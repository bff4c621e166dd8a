"""Files of attack scores: those from which a report is resumed, and the table for its owner.

In the shapes below `n` counts records.
"""

import csv
import hashlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, PRNGKeyArray, Shaped

from jaxpriv import _files
from jaxpriv.attacks.evidence import Evidence


class Store:
    """Stores scores or outputs in a folder, so that a resumed report does not repeat them."""

    def __init__(self, folder: Path | None) -> None:
        """Sets the folder; None stores nothing."""
        self._folder = folder

    def scores(
        self, name: str, identity: str, compute: Callable[[], Shaped[Any, "n *c"]]
    ) -> Float[np.ndarray, "n *c"]:
        """Reads the scores of an attack, or computes and stores them.

        Args:
          name: name of the attack.
          identity: hash of the inputs of the attack; stored scores with another hash are replaced.
          compute: runs the attack.

        Returns:
          The scores in float64.
        """
        if self._folder is None:
            return np.asarray(compute(), np.float64)
        path = self._folder / f"{name}.npz"
        stored = _read_scores(path, identity)
        if stored is not None:
            return stored
        scores = np.asarray(compute(), np.float64)
        content = io.BytesIO()
        np.savez(content, scores=scores, identity=np.array(identity))
        self._folder.mkdir(parents=True, exist_ok=True)
        _files.write_whole(path, content.getvalue(), private=True)
        return scores


def write_table(
    path: Path,
    rows: Int[np.ndarray, " n"],
    is_member: Bool[np.ndarray, " n"],
    evidence: Evidence,
    scores: dict[str, Float[np.ndarray, " n"]],
) -> None:
    """Writes the scores of all records, readable by their owner only."""
    columns: dict[str, Any] = {"row": rows.tolist(), "is_member": is_member.astype(int).tolist()}
    for name, array in (("label", evidence.labels), ("group", evidence.unit_id)):
        if array is not None:
            columns[name] = array.tolist()
    if evidence.revealed is not None:
        columns["revealed"] = evidence.revealed.astype(int).tolist()
    columns |= {name: values.tolist() for name, values in scores.items()}
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    _files.write_whole(path, text.getvalue().encode(), private=True)


def arrays(evidence: Evidence) -> dict[str, np.ndarray]:
    """Returns all arrays of the evidence and of its population by name."""
    arrays = {name: getattr(evidence, name) for name in _ARRAY_FIELDS}
    if evidence.population is not None:
        arrays |= {
            f"population_{name}": getattr(evidence.population, name) for name in _ARRAY_FIELDS
        }
    return {name: array for name, array in arrays.items() if array is not None}


_ARRAY_FIELDS = (
    "inputs",
    "labels",
    "logits",
    "signals",
    "shadow_logits",
    "shadow_signals",
    "shadow_is_member",
    "unit_id",
    "revealed",
    "revealed_is_member",
)


def identity(key: PRNGKeyArray, **arrays: np.ndarray) -> str:
    """Returns the SHA-256 of a key and of arrays with their names, types and shapes."""
    digest = hashlib.sha256(np.asarray(jax.random.key_data(key)).tobytes())
    for name, array in arrays.items():
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _read_scores(path: Path, identity: str) -> Float[np.ndarray, "n *c"] | None:
    if not path.exists():
        return None
    try:
        with _files.open_npz(path, "scores") as archive:
            if str(_files.npz_array(archive, "identity")) != identity:
                return None
            return _files.npz_array(archive, "scores")
    except ValueError as e:
        warnings.warn(
            f"Running an attack again, since its stored scores are damaged: {e}", stacklevel=2
        )
        return None
