"""Prepared TFDS data sets, read without TensorFlow where the format allows.

TFDS can store a data set as `array_record`, which needs no TensorFlow; `tfrecord`, its default,
does. Nothing here downloads, prepares or runs a data set's own code. In shapes `n` counts records.
"""

import importlib.util
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Shaped

_LARGEST_BYTES = 8 * 2**30
_NAME = re.compile(r"(?P<set>\w+)(/(?P<config>\w[\w.-]*))?(:(?P<version>\d+\.\d+\.\d+))?")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """A split of a TFDS data set, a column a feature; nested features are named "outer/inner".

    columns: each with the records along its first axis.
    num_classes: of the columns that are class labels.
    supervised: names of the input and the label column, where the set says so.
    name: the set's name, configuration and version.
    source: the folder that was read, and how.
    """

    columns: Mapping[str, Shaped[np.ndarray, "n ..."]]
    num_classes: Mapping[str, int]
    supervised: tuple[str, str] | None
    name: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Classification:
    """Inputs with class labels, as the set stores them: no scaling.

    x: images [n, height, width, channels] or rows [n, d].
    y: class of each record.
    num_classes: number of labels; the label column's, or the largest label + 1.
    name: the set's name, configuration and version.
    source: the folder that was read, and how.
    """

    x: Shaped[np.ndarray, "n ..."]
    y: Int[np.ndarray, " n"]
    num_classes: int
    name: str
    source: str


def load(
    name: str,
    *,
    split: str,
    data_dir: str | os.PathLike[str] | None = None,
    keys: tuple[str, str] | None = None,
) -> Classification:
    """Reads a prepared classification set.

    Args:
      name: as TFDS names it: "mnist", "mnist:3.0.1", "set/config".
      split: as TFDS writes it: "train", "test[:10%]", "train+test".
      data_dir: where to look; see `find_prepared`.
      keys: columns of input and label; those that the set calls supervised if None.

    Returns:
      The arrays.

    Raises:
      ValueError: as `load_columns`; if the set names no input and label and `keys` does not
        either; if the input is not numbers or the labels are not whole numbers >= 0.
    """
    opened = _opened(name, split, data_dir)
    info = opened.builder.info
    names = ", ".join(key for key, _ in _flat(info.features))
    keys = keys or _supervised(info.supervised_keys)
    if keys is None:
        raise ValueError(f"Expected keys (input, label) for {info.full_name}, which has {names}.")
    for key in keys:
        if key not in dict(_flat(info.features)):
            raise ValueError(f"Expected one of {names} as a column of {name}, got {key!r}.")
    return _classified(_read(opened, keys), *keys)


def load_columns(
    name: str, *, split: str, data_dir: str | os.PathLike[str] | None = None
) -> Columns:
    """Reads every column of a prepared set. Never downloads.

    Args:
      name: as TFDS names it: "titanic", "titanic:4.0.0", "set/config".
      split: as TFDS writes it: "train", "test[:10%]", "train+test".
      data_dir: where to look; see `find_prepared`.

    Returns:
      The columns; text as bytes in an object array.

    Raises:
      ValueError: if the set is not prepared there, needs TensorFlow and there is none, has no
        such split, is damaged or above 8 GiB, holds records of unequal shapes, names code
        that is not TFDS's own, or points outside its folder.

    References:
      TensorFlow Datasets, TFDS for JAX and PyTorch (data sources), 2023.
    """
    return _read(_opened(name, split, data_dir), None)


def find_prepared(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """Finds a prepared set's folder by name alone, without importing anything.

    Looks for `DIR/NAME[/CONFIG]/VERSION/features.json`; DIR is `data_dir` if given, else
    JAXPRIV_DATA, TFDS_DATA_DIR and ~/tensorflow_datasets in turn. Without a version the
    highest serves; without a configuration the set must have none or one.

    Args:
      name: "set", "set/config", "set:1.0.0" or "set/config:1.0.0".
      data_dir: the only place to look.

    Returns:
      The folder of the version, or None.

    Raises:
      ValueError: if the name is not a valid TFDS name, or matches several configurations.
    """
    parts = _NAME.fullmatch(name)
    if not parts:
        raise ValueError(f"Expected a TFDS name like mnist or set/config:1.0.0, got {name!r}.")
    for root in _roots(data_dir):
        below = root / parts["set"] / (parts["config"] or "")
        folders = _versions(below, parts["version"])
        if not folders and not parts["config"]:
            options = [d for d in _folders(below) if _versions(d, parts["version"])]
            if len(options) > 1:
                names = ", ".join(f"{parts['set']}/{d.name}" for d in options)
                raise ValueError(f"Expected one configuration of {name}, choose among {names}.")
            folders = [v for d in options for v in _versions(d, parts["version"])]
        if folders:
            return folders[-1]
    return None


def _classified(table: Columns, x_key: str, y_key: str) -> Classification:
    x, y = (table.columns[key] for key in (x_key, y_key))
    if x.dtype.kind not in "biuf":
        raise ValueError(f"Expected numbers as {x_key} of {table.name}, got {x.dtype}.")
    if y.dtype.kind not in "biu" or y.ndim != 1:
        raise ValueError(
            f"Expected a class a record as {y_key} of {table.name}, got {y.dtype} {y.shape}."
        )
    # TFDS writes -1 where a test split keeps its labels to itself.
    classes = table.num_classes.get(y_key, int(y.max()) + 1)
    if not 0 <= y.min() <= y.max() < classes:
        raise ValueError(
            f"Expected classes 0 to {classes - 1} as {y_key} of {table.name}, "
            f"got {y.min()} to {y.max()}."
        )
    return Classification(
        x=x, y=y.astype(np.int32), num_classes=classes, name=table.name, source=table.source
    )


class _Opened(NamedTuple):
    folder: Path
    builder: Any
    how: str
    records: Any


def _opened(name: str, split: str, data_dir: str | os.PathLike[str] | None) -> _Opened:
    import tensorflow_datasets as tfds

    folder = find_prepared(name, data_dir=data_dir)
    if folder is None:
        places = " or ".join(map(str, _roots(data_dir)))
        raise ValueError(
            f"Expected the TFDS set {name} prepared below {places}, got none: "
            f"tfds.builder({name!r}, file_format='array_record').download_and_prepare() makes it."
        )
    _only_known_features(folder)
    builder = _guarded(folder, lambda: tfds.builder_from_directory(str(folder)))
    _stays_inside(folder, builder)
    _known_split(builder.info.splits, split)
    how, records = _records(folder, builder, split)
    return _Opened(folder, builder, how, records)


def _read(opened: _Opened, keys: Collection[str] | None) -> Columns:
    """Reads the named columns, or all; columns that are not read may be ragged."""
    records, info = opened.records, opened.builder.info
    return Columns(
        columns=_guarded(opened.folder, lambda: _stacked(records, len(records), keys)),
        num_classes=_label_counts(info.features),
        supervised=_supervised(info.supervised_keys),
        name=info.full_name,
        source=f"{opened.folder}, {opened.how}",
    )


def _roots(data_dir: str | os.PathLike[str] | None) -> list[Path]:
    if data_dir is not None:
        return [Path(data_dir)]
    named = [os.environ.get("JAXPRIV_DATA"), os.environ.get("TFDS_DATA_DIR")]
    return [Path(root).expanduser() for root in (*named, "~/tensorflow_datasets") if root]


def _folders(folder: Path) -> list[Path]:
    return sorted(d for d in folder.iterdir() if d.is_dir()) if folder.is_dir() else []


def _versions(folder: Path, version: str | None) -> list[Path]:
    """Lists prepared versions, the highest last; unfinished ones have other names."""
    prepared = [
        d
        for d in _folders(folder)
        if re.fullmatch(r"\d+\.\d+\.\d+", d.name) and (d / "features.json").is_file()
    ]
    prepared.sort(key=lambda d: [int(part) for part in d.name.split(".")])
    return [d for d in prepared if version in (None, d.name)]


def _only_known_features(folder: Path) -> None:
    """Refuses features of other modules, since TFDS imports what features.json names."""

    def class_names(node: Any) -> Iterator[str]:
        children = node.values() if isinstance(node, dict) else node
        for child in children if isinstance(node, (dict, list)) else ():
            yield from class_names(child)
        if isinstance(node, dict):
            keys = ("pythonClassName", "python_class_name", "type", "proto_cls")
            yield from (node[key] for key in keys if isinstance(node.get(key), str))

    content = _guarded(folder, lambda: json.loads((folder / "features.json").read_text("utf8")))
    for cls in _guarded(folder, lambda: list(class_names(content))):
        if not cls.startswith("tensorflow_datasets."):
            raise ValueError(f"Expected features of TFDS's own kinds in {folder}, got {cls!r}.")


def _stays_inside(folder: Path, builder: Any) -> None:
    home = os.path.realpath(folder)
    for info in _guarded(folder, lambda: list(builder.info.splits.values())):
        for path in _guarded(folder, lambda info=info: info.filepaths):
            if not Path(os.path.realpath(path)).is_relative_to(home):
                raise ValueError(f"Expected the files of {folder} inside it, got {path}.")


def _known_split(splits: Any, split: str) -> None:
    try:
        num_examples = splits[split].num_examples
    except Exception:
        num_examples = 0
    if not num_examples:
        names = ", ".join(splits)
        raise ValueError(f"Expected a split made of {names}, with records in it, got {split!r}.")


def _records(folder: Path, builder: Any, split: str) -> tuple[str, Any]:
    """Opens the records through array_record, or else through TensorFlow."""
    import tensorflow_datasets as tfds

    formats = {file_format.value for file_format in builder.info.available_file_formats()}
    if "array_record" in formats:
        source = _guarded(
            folder, lambda: builder.as_data_source(split=split, file_format="array_record")
        )
        # The announced number sizes the arrays, so the last record must exist.
        _guarded(folder, lambda: source[len(source) - 1])
        return "array_record without TensorFlow", source
    if importlib.util.find_spec("tensorflow") is None:
        raise ValueError(
            f"Expected array_record in {folder}, got {', '.join(sorted(formats))}, which only "
            "TensorFlow reads: pip install tensorflow, or prepare it with "
            "file_format='array_record'."
        )
    return "by TensorFlow", _guarded(folder, lambda: tfds.as_numpy(builder.as_dataset(split=split)))


def _stacked(
    records: Any, n: int, keys: Collection[str] | None
) -> dict[str, Shaped[np.ndarray, "n ..."]]:
    """Fills an array for each column; the first record gives shapes and types."""
    columns: dict[str, np.ndarray] = {}
    i = -1
    for i, record in enumerate(records):
        cells = {k: _cell(value) for k, value in _flat(record) if keys is None or k in keys}
        if not columns:
            size = n * sum(cell.nbytes for cell in cells.values())
            if size > _LARGEST_BYTES:
                raise ValueError(f"{size >> 20} MiB are above {_LARGEST_BYTES >> 20} MiB")
            columns = {key: np.empty((n, *c.shape), c.dtype) for key, c in cells.items()}
        for key, column in columns.items():
            if cells[key].shape != column.shape[1:]:
                raise ValueError(
                    f"{key} has the shape {cells[key].shape} in record {i}, "
                    f"{column.shape[1:]} in the first"
                )
            column[i] = cells[key][()]
    if i + 1 != n:
        raise ValueError(f"{i + 1} records where {n} were announced")
    return columns


def _cell(value: Any) -> np.ndarray:
    """Keeps text as objects, since byte strings of NumPy lose trailing zeros."""
    array = np.asarray(value, object) if isinstance(value, (str, bytes)) else np.asarray(value)
    return array if array.dtype.kind in "biufc" else array.astype(object)


def _flat(record: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, cell in record.items():
        if hasattr(cell, "items"):
            yield from _flat(cell, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", cell


def _label_counts(features: Any) -> dict[str, int]:
    flat = dict(_flat(features)) if hasattr(features, "items") else {}
    return {
        key: int(feature.num_classes)
        for key, feature in flat.items()
        if getattr(feature, "num_classes", None) is not None
    }


def _supervised(keys: Any) -> tuple[str, str] | None:
    """Returns the names of input and label; None if the input is several columns."""
    if isinstance(keys, tuple) and len(keys) == 2 and all(isinstance(k, str) for k in keys):
        return keys
    return None


def _guarded(folder: Path, read: Callable[[], Any]) -> Any:
    """Runs TFDS, whose errors on damaged files are of many kinds."""
    try:
        return read()
    except Exception as e:
        lines = str(e).strip().splitlines() or [""]
        reason = lines[0].rstrip(".: ") or type(e).__name__
        raise ValueError(f"Expected a whole TFDS set in {folder}: {reason}.") from None
