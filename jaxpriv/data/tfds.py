"""Reads prepared TFDS data sets, without TensorFlow if the format allows it.

TFDS stores data sets as `array_record`, which can be read without TensorFlow, or as `tfrecord`, its
default, which cannot. This module does not download or prepare data sets, and does not run code
that belongs to a data set. In the shapes below `n` counts records.
"""

import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Shaped

from jaxpriv import _files
from jaxpriv.data.text import Pairs

__all__ = ["Classification", "find_prepared", "load", "load_pairs"]

_NAME = re.compile(r"(?P<set>\w+)(/(?P<config>\w[\w.-]*))?(:(?P<version>\d+\.\d+\.\d+))?")


@dataclass(frozen=True, kw_only=True)
class Classification:
    """Inputs and class labels of a TFDS data set, without scaling.

    x: images [n, height, width, channels] or rows [n, d].
    y: class of each record.
    num_classes: number of classes of the label column, or else the largest label + 1.
    name: name, configuration and version of the data set.
    source: folder and format from which it was read.
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
    """Reads a prepared classification data set, without downloading anything.

    Args:
      name: TFDS name, such as "mnist", "mnist:3.0.1" or "set/config".
      split: TFDS split, such as "train", "test[:10%]" or "train+test".
      data_dir: folder of prepared data sets; see `find_prepared`.
      keys: columns of input and label; None takes the supervised keys of the data set. Nested
        features are named "outer/inner".

    Returns:
      Inputs and labels.

    Raises:
      ValueError: if the data set is not prepared, needs TensorFlow that is not installed, lacks
        the split, is damaged, exceeds 8 GiB, contains records of unequal shapes, refers to code
        outside TFDS or to files outside its folder; if it has no supervised keys and `keys` is
        None; if the input is not numeric or the labels are not integers >= 0.

    References:
      TensorFlow Datasets, TFDS for JAX and PyTorch (data sources), 2023.

    Example:
      >>> digits = load("mnist", split="test[:100]")  # doctest: +SKIP
      >>> digits.x.shape, digits.num_classes  # doctest: +SKIP
      ((100, 28, 28, 1), 10)
    """
    opened = _open(name, split, data_dir)
    info = opened.builder.info
    names = ", ".join(key for key, _ in _flatten(info.features))
    keys = keys or _supervised_keys(info.supervised_keys)
    if keys is None:
        raise ValueError(f"Expected keys (input, label) for {info.full_name}, which has {names}.")
    for key in keys:
        if key not in dict(_flatten(info.features)):
            raise ValueError(f"Expected one of {names} as a column of {name}, got {key!r}.")
    return _as_classification(_read_columns(opened, keys), *keys)


def load_pairs(
    name: str,
    *,
    languages: tuple[str, str] = ("fr", "en"),
    split: str = "train",
    data_dir: str | os.PathLike[str] | None = None,
) -> Pairs:
    """Reads a prepared parallel corpus, such as WMT14, without downloading anything.

    Args:
      name: TFDS name, such as "wmt14_translate/fr-en".
      languages: columns of source and target.
      split: TFDS split, such as "train[:50000]" or "test".
      data_dir: folder of prepared data sets; see `find_prepared`.

    Returns:
      The aligned sentences.

    Raises:
      ValueError: as for `load`, or if a column is missing or is not UTF-8 text.

    References:
      Bojar et al., Findings of the 2014 Workshop on Statistical Machine Translation, 2014 (WMT14).

    Example:
      >>> pairs = load_pairs("wmt14_translate/fr-en", split="train[:9]")  # doctest: +SKIP
      >>> len(pairs)  # doctest: +SKIP
      9
    """
    if languages[0] == languages[1]:
        raise ValueError(f"Expected two languages, got {', '.join(languages)}.")
    opened = _open(name, split, data_dir)
    names = [key for key, _ in _flatten(opened.builder.info.features)]
    for language in languages:
        if language not in names:
            raise ValueError(
                f"Expected one of {', '.join(names)} as a column of {name}, got {language!r}."
            )
    table = _read_columns(opened, languages)
    source, target = (_as_sentences(table, language) for language in languages)
    return Pairs(
        source=source,
        target=target,
        languages=languages,
        name=table.name,
        split=split,
        origin=f"TFDS {table.name}, {table.source}",
    )


def _as_sentences(table: "_Columns", column: str) -> tuple[str, ...]:
    values = table.columns[column]
    if values.ndim != 1 or not all(isinstance(value, bytes) for value in values):
        raise ValueError(
            f"Expected a sentence per record as {column} of {table.name}, "
            f"got {values.dtype} of shape {values.shape}."
        )
    try:
        return tuple(value.decode() for value in values)
    except UnicodeDecodeError as e:
        raise ValueError(f"Expected UTF-8 as {column} of {table.name}: {e.reason}.") from None


def find_prepared(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """Finds the folder of a prepared data set by its name, without importing TFDS.

    The function searches for `DIR/NAME[/CONFIG]/VERSION/features.json`, where DIR is `data_dir`
    or, if that is None, JAXPRIV_DATA, TFDS_DATA_DIR and ~/tensorflow_datasets in turn.

    Args:
      name: "set", "set/config", "set:1.0.0" or "set/config:1.0.0". Without a version, the highest
        version is taken; without a configuration, the data set must not have several.
      data_dir: folder of prepared data sets.

    Returns:
      The folder of the version, or None.

    Raises:
      ValueError: if the name is not a valid TFDS name, or matches several configurations.

    Example:
      >>> import pathlib, tempfile
      >>> with tempfile.TemporaryDirectory() as root:
      ...     for version in ("3.0.1", "10.0.0"):
      ...         folder = pathlib.Path(root, "mnist", version)
      ...         folder.mkdir(parents=True)
      ...         (folder / "features.json").touch()
      ...     found = find_prepared("mnist", data_dir=root)
      >>> found.name
      '10.0.0'
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


class _Columns(NamedTuple):
    """Columns of a TFDS data set by name, and the number of classes of label columns."""

    columns: Mapping[str, Shaped[np.ndarray, "n ..."]]
    num_classes: Mapping[str, int]
    name: str
    source: str


def _as_classification(table: _Columns, x_key: str, y_key: str) -> Classification:
    x, y = (table.columns[key] for key in (x_key, y_key))
    if x.dtype.kind not in "biuf":
        raise ValueError(f"Expected numbers as {x_key} of {table.name}, got {x.dtype}.")
    if y.dtype.kind not in "biu" or y.ndim != 1:
        raise ValueError(
            f"Expected one class per record as {y_key} of {table.name}, got {y.dtype} {y.shape}."
        )
    # TFDS writes -1 in test splits whose labels are not published.
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
    format_name: str
    records: Any


def _open(name: str, split: str, data_dir: str | os.PathLike[str] | None) -> _Opened:
    import tensorflow_datasets as tfds

    folder = find_prepared(name, data_dir=data_dir)
    if folder is None:
        roots = " or ".join(map(str, _roots(data_dir)))
        raise ValueError(
            f"Expected the TFDS set {name} prepared below {roots}, got none: "
            f"tfds.builder({name!r}, file_format='array_record').download_and_prepare() makes it."
        )
    _check_features(folder)
    builder = _guarded(folder, lambda: tfds.builder_from_directory(str(folder)))
    _check_paths(folder, builder)
    _check_split(builder.info.splits, split)
    format_name, records = _open_records(folder, builder, split)
    return _Opened(folder, builder, format_name, records)


def _read_columns(opened: _Opened, keys: tuple[str, str]) -> _Columns:
    """Reads the named columns; other columns may be ragged."""
    records, info = opened.records, opened.builder.info
    return _Columns(
        columns=_guarded(opened.folder, lambda: _stack(records, len(records), keys)),
        num_classes=_label_counts(info.features),
        name=info.full_name,
        source=f"{opened.folder}, {opened.format_name}",
    )


def _roots(data_dir: str | os.PathLike[str] | None) -> list[Path]:
    if data_dir is not None:
        return [Path(data_dir)]
    named = [os.environ.get("JAXPRIV_DATA"), os.environ.get("TFDS_DATA_DIR")]
    return [Path(root).expanduser() for root in (*named, "~/tensorflow_datasets") if root]


def _folders(folder: Path) -> list[Path]:
    return sorted(d for d in folder.iterdir() if d.is_dir()) if folder.is_dir() else []


def _versions(folder: Path, version: str | None) -> list[Path]:
    """Lists prepared versions, the highest last; unfinished versions have other names."""
    prepared = [
        d
        for d in _folders(folder)
        if re.fullmatch(r"\d+\.\d+\.\d+", d.name) and (d / "features.json").is_file()
    ]
    prepared.sort(key=lambda d: [int(part) for part in d.name.split(".")])
    return [d for d in prepared if version in (None, d.name)]


def _check_features(folder: Path) -> None:
    """Refuses features of other modules, since TFDS imports the modules in features.json."""

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
            raise ValueError(f"Expected features of TFDS itself in {folder}, got {cls!r}.")


def _check_paths(folder: Path, builder: Any) -> None:
    home = os.path.realpath(folder)
    for info in _guarded(folder, lambda: list(builder.info.splits.values())):
        for path in _guarded(folder, lambda info=info: info.filepaths):
            if not Path(os.path.realpath(path)).is_relative_to(home):
                raise ValueError(f"Expected the files of {folder} inside it, got {path}.")


def _check_split(splits: Any, split: str) -> None:
    try:
        num_examples = splits[split].num_examples
    except Exception:
        num_examples = 0
    if not num_examples:
        names = ", ".join(splits)
        raise ValueError(f"Expected a split made of {names}, with records in it, got {split!r}.")


def _open_records(folder: Path, builder: Any, split: str) -> tuple[str, Any]:
    """Opens the records through array_record, or else through TensorFlow.

    Returns:
      A description of the format, and an iterable of records.
    """
    import tensorflow_datasets as tfds

    formats = {file_format.value for file_format in builder.info.available_file_formats()}
    if "array_record" in formats:
        source = _guarded(
            folder, lambda: builder.as_data_source(split=split, file_format="array_record")
        )
        # Arrays are allocated for the announced number, so the last record must exist.
        _guarded(folder, lambda: source[len(source) - 1])
        return "array_record without TensorFlow", source
    if importlib.util.find_spec("tensorflow") is None:
        raise ValueError(
            f"Expected array_record in {folder}, got {', '.join(sorted(formats))}, which only "
            "TensorFlow reads: pip install tensorflow, or prepare it with "
            "file_format='array_record'."
        )
    return "by TensorFlow", _guarded(folder, lambda: tfds.as_numpy(builder.as_dataset(split=split)))


def _stack(records: Any, n: int, keys: tuple[str, str]) -> dict[str, Shaped[np.ndarray, "n ..."]]:
    """Fills an array for each column; the first record determines shapes and types."""
    columns: dict[str, np.ndarray] = {}
    i = -1
    for i, record in enumerate(records):
        cells = {key: _cell(value) for key, value in _flatten(record) if key in keys}
        if not columns:
            size = n * sum(cell.nbytes for cell in cells.values())
            if size > _files.MAX_BYTES:
                raise ValueError(f"{size >> 20} MiB are above {_files.MAX_BYTES >> 20} MiB")
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
    """Converts a value to an array; text becomes an object, since NumPy strips trailing zeros."""
    array = np.asarray(value, object) if isinstance(value, (str, bytes)) else np.asarray(value)
    return array if array.dtype.kind in "biufc" else array.astype(object)


def _flatten(record: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, cell in record.items():
        if hasattr(cell, "items"):
            yield from _flatten(cell, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", cell


def _label_counts(features: Any) -> dict[str, int]:
    flat = dict(_flatten(features)) if hasattr(features, "items") else {}
    return {
        key: int(feature.num_classes)
        for key, feature in flat.items()
        if getattr(feature, "num_classes", None) is not None
    }


def _supervised_keys(keys: Any) -> tuple[str, str] | None:
    """Returns the names of input and label; None if the input consists of several columns."""
    if isinstance(keys, tuple) and len(keys) == 2 and all(isinstance(k, str) for k in keys):
        return keys
    return None


def _guarded(folder: Path, read: Callable[[], Any]) -> Any:
    """Runs TFDS and converts its errors, which are of many types for damaged files."""
    try:
        return read()
    except Exception as e:
        lines = str(e).strip().splitlines() or [""]
        reason = lines[0].rstrip(".: ") or type(e).__name__
        raise ValueError(f"Expected a complete TFDS set in {folder}: {reason}.") from None
