"""A trained model as the subject of a report: a function of the user's, and two files of records.

    members, nonmembers --FILE.py:predict--> logits --> Evidence (with shadow logits from a file)

In the shapes below `n` counts records, members first, `m` shadow models and `c` classes.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray, Shaped

from jaxpriv import _check, _files, data, units
from jaxpriv.attacks.evidence import Evidence
from jaxpriv.data import Dataset
from jaxpriv.reports import _user_code
from jaxpriv.reports.findings import Data
from jaxpriv.reports.settings import Settings
from jaxpriv.reports.subjects import Subject

_BATCH = 1024

_MIN_PROBABILITY = 1e-30


def load(settings: Settings, *, log: Callable[[str], None]) -> tuple[Subject, Data]:
    """Reads the records, queries the model, and reads the outputs of its shadow models.

    Args:
      settings: settings with `predict`, `members` and `nonmembers`.
      log: receives progress messages.

    Returns:
      The subject, without training and promise, and the description of the records.

    Raises:
      ValueError: if a file is damaged, the records do not fit together, or the function fails or
        returns something else than logits.
    """
    assert settings.predict is not None
    parts = [
        data.load(
            path,
            label=settings.label,
            group=settings.group,
            exclude=settings.exclude,
            missing=settings.missing,
            log=log,
        )
        for path in (settings.members, settings.nonmembers)
        if path is not None
    ]
    _check_same_columns(parts)
    x = np.concatenate([part.x for part in parts])
    is_member = np.arange(len(x)) < len(parts[0])
    function = _user_code.load_function(settings.predict)
    log(f"querying the model for {len(x):,} records")
    first, is_probability = _outputs(function, settings.predict, x)
    labels, names = _labels(parts, first.shape[1])
    notes = [note for part in parts for note in part.notes]
    if is_probability:
        notes.append("The outputs are probabilities; their logarithms are taken as logits.")

    def predict(key: PRNGKeyArray, rows: np.ndarray) -> Float[np.ndarray, "b c"]:
        del key
        return _outputs(function, settings.predict or "", rows)[0]

    shadow_logits, shadow_is_member = _shadows(settings.shadows_file, first.shape)
    unit_id = _joined_groups([part.group for part in parts])
    groups = None if unit_id is None else units.groups(unit_id)
    evidence = Evidence(
        inputs=x,
        labels=labels,
        logits=first,
        shadow_logits=shadow_logits,
        shadow_is_member=shadow_is_member,
        unit_id=unit_id,
        predict=predict,
    )
    joined = Dataset(
        x=x,
        y=labels,
        name=f"{parts[0].name} and {parts[1].name}",
        num_classes=first.shape[1],
        class_names=names,
        source=f"members: {parts[0].source}; non-members: {parts[1].source}",
    )
    _check_disjoint(parts, joined)
    described = Data(
        name=joined.name,
        source=joined.source,
        num_records=len(joined),
        num_classes=joined.num_classes,
        class_names=joined.class_names,
        notes=tuple(dict.fromkeys(notes)),
        not_private=(),
        num_members=len(parts[0]),
        num_nonmembers=len(parts[1]),
        num_population=0,
        num_groups=None if groups is None else groups.num_units,
        largest_group=None if groups is None else groups.largest,
        num_duplicates=data.num_duplicates(joined),
        by_coin=False,
    )
    return Subject("Given model", evidence, is_member, training=None, promise=None), described


def _check_disjoint(parts: list[Dataset], joined: Dataset) -> None:
    """Warns of records in both files, and refuses non-members that are all members."""
    members, nonmembers = parts
    repeated = data.num_duplicates(nonmembers)
    shared = data.num_duplicates(joined) - data.num_duplicates(members) - repeated
    if shared == len(nonmembers) - repeated:
        raise ValueError(
            f"Expected non-members, got {nonmembers.name}, of which every record is also in "
            f"{members.name}."
        )
    if shared:
        warnings.warn(
            f"{shared} records are in both --members and --nonmembers: the attacks "
            "understate a leak.",
            stacklevel=3,
        )


def _check_same_columns(parts: list[Dataset]) -> None:
    members, nonmembers = parts
    if members.x.shape[1:] != nonmembers.x.shape[1:]:
        raise ValueError(
            f"Expected members and non-members of one shape, got {list(members.x.shape[1:])} in "
            f"{members.name} and {list(nonmembers.x.shape[1:])} in {nonmembers.name}."
        )
    names, reference = ([column.name for column in part.columns] for part in parts)
    if names and reference and names != reference:
        raise ValueError(
            f"Expected the same columns in the same order in {members.name} and "
            f"{nonmembers.name}, got {names[:20]} and {reference[:20]}."
        )
    with_groups = [part.name for part in parts if part.group is not None]
    if len(with_groups) == 1:
        raise ValueError(
            f"Expected groups of members and of non-members, got groups in {with_groups[0]} alone."
        )
    for part in parts:
        if part.not_private:
            # Each file would be converted in its own way.
            raise ValueError(
                f"Expected records whose conversion does not depend on the file for --predict, but "
                f"in {part.name}: {part.not_private[0]} Save the inputs of the model as an .npz."
            )


def _outputs(
    function: Callable[..., Any], text: str, x: Shaped[np.ndarray, "n ..."]
) -> tuple[Float[np.ndarray, "n c"], bool]:
    """Queries the model in batches; returns logits, and whether the outputs were probabilities."""
    rows = []
    for start in range(0, len(x), _BATCH):
        batch = x[start : start + _BATCH]
        try:
            answer = np.asarray(function(batch))
            is_wide = answer.dtype.kind in "iu" or answer.dtype == np.float64
            answer = answer.astype(np.float64 if is_wide else np.float32)
        except Exception as e:
            path = Path(text.rpartition(":")[0])
            raise ValueError(f"Expected {text} to run, got {_user_code.describe(e, path)}.") from e
        if answer.ndim != 2 or len(answer) != len(batch) or answer.shape[1] < 2:
            raise ValueError(
                f"Expected logits of shape [{len(batch)}, classes] from {text}, "
                f"got shape {list(answer.shape)}."
            )
        rows.append(answer)
    outputs = np.concatenate(rows)
    if np.isnan(outputs).any():
        raise ValueError(f"Expected logits without NaN from {text}.")
    is_probability = _check.are_probabilities(outputs)
    if is_probability:
        outputs = np.log(np.maximum(outputs, _MIN_PROBABILITY))
    return outputs, is_probability


def _labels(
    parts: list[Dataset], num_classes: int
) -> tuple[Int[np.ndarray, " n"], tuple[str, ...]]:
    """Numbers the classes as the columns of the outputs.

    Classes that are whole numbers are columns themselves; others are columns in sorted order.
    """
    names = _sorted({name for part in parts for name in part.class_names})
    if all(name.isdecimal() and int(name) < num_classes for name in names):
        columns = {name: int(name) for name in names}
        names = [str(i) for i in range(num_classes)]
    else:
        columns = {name: i for i, name in enumerate(names)}
    if len(names) != num_classes:
        raise ValueError(
            f"Expected one output for each of the {len(names)} classes, got {num_classes} outputs."
        )
    labels = [np.array([columns[name] for name in part.class_names])[part.y] for part in parts]
    return np.concatenate(labels), tuple(names)


def _sorted(names: set[str]) -> list[str]:
    """Sorts names of classes as numbers if all are numbers, as the data sets do, else as text."""
    try:
        return sorted(names, key=float)
    except ValueError:
        return sorted(names)


def _shadows(path: str | None, shape: tuple[int, ...]) -> tuple[np.ndarray | None, ...]:
    """Reads outputs of shadow models; rows are members, then non-members."""
    if path is None:
        return None, None
    with _files.open_npz(Path(path), "outputs of shadow models") as archive:
        present = set(archive.namelist())
        for name in ("shadow_logits", "shadow_is_member"):
            if f"{name}.npy" not in present:
                raise ValueError(f"Expected the array {name!r} in {Path(path).name}, got none.")
        unused = sorted(present - {"shadow_logits.npy", "shadow_is_member.npy"})
        if unused:
            names = ", ".join(name.removesuffix(".npy") for name in unused)
            warnings.warn(f"{Path(path).name}: unused arrays: {names}.", stacklevel=4)
        logits = _files.npz_array(archive, "shadow_logits")
        is_member = _files.npz_array(archive, "shadow_is_member")
    if logits.ndim != 3 or logits.shape[1:] != shape:
        raise ValueError(
            f"Expected shadow_logits of shape [models, {shape[0]}, {shape[1]}] in "
            f"{Path(path).name}, got {list(logits.shape)}."
        )
    return logits, is_member


def _joined_groups(groups: list[np.ndarray | None]) -> np.ndarray | None:
    """Numbers the groups of both files together; equal numbers are different groups."""
    members, nonmembers = groups
    if members is None or nonmembers is None:
        return None
    return np.concatenate([members, nonmembers + members.max() + 1])
