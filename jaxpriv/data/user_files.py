"""Reads data sets of the user: an .npz, a table of text, or a folder of images by class.

In shapes `n` counts records and `d` features.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from jaxpriv import _check
from jaxpriv.data import _columns, _delimited, _files, _labels, images
from jaxpriv.data.dataset import Dataset, row_digests

Bounds = tuple[float | int, float | int]
_KEYS = ("x", "y", "group", "x_test", "y_test")
_MAX_FLOAT32_INT = 2**24


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a file of the user is read; see `catalogue.load`."""

    label: str | None = None
    group: str | None = None
    exclude: Sequence[str] = ()
    missing: str = "refuse"
    public_bounds: Mapping[str, Bounds] | None = None

    def __post_init__(self) -> None:
        _check.one_of(("refuse", "drop", "median"), missing=self.missing)
        if isinstance(self.exclude, str):
            raise ValueError(f"Expected exclude as a list of columns, got {self.exclude!r}.")
        for name, bounds in (self.public_bounds or {}).items():
            if len(bounds) != 2 or not -np.inf < bounds[0] < bounds[1] < np.inf:
                raise ValueError(
                    f"Expected public_bounds of {name!r} as (low, high), got {bounds}."
                )

    def check_defaults(self, source: object, *names: str) -> None:
        """Raises ValueError if options were given that a source does not use."""
        for name in names:
            value = getattr(self, name)
            if value != getattr(type(self), name):
                raise ValueError(f"Expected no {name} for {source}, got {name}={value!r}.")


def load(path: Path, options: Options) -> Dataset:
    """Reads a file or folder of the user. Never unpickles; warns of duplicate records.

    Args:
      path: a table of text, an .npz, or a folder with a folder of images for each class.
      options: how it is read.

    Returns:
      The data set.

    Raises:
      ValueError: if anything in it is missing, damaged or ambiguous.
    """
    tables = ("label", "group", "exclude", "public_bounds")
    if path.is_dir():
        options.check_defaults(f"the folder {path}", *tables, "missing")
        dataset = images.read_folder(path, name=path.resolve().name)
        duplicates = _count_duplicates(dataset.x, dataset.y)
    elif path.suffix.lower() in _delimited.SUFFIXES:
        dataset, duplicates = _read_table(path, options)
    elif path.suffix.lower() == ".npz":
        options.check_defaults(f"{path}, which has the arrays y and group", *tables)
        dataset, duplicates = _read_npz(path, options)
    else:
        raise ValueError(
            f"Expected a folder, an .npz file or a table ({', '.join(_delimited.SUFFIXES)}), "
            f"got {path}."
        )
    if dataset.num_classes < 2:
        raise ValueError(f"Expected at least two classes in {path}, got {dataset.class_names[0]}.")
    if duplicates:
        warnings.warn(
            f"{duplicates} of {len(dataset)} records in {path} equal another one: a duplicate "
            "between members and non-members spoils an audit.",
            stacklevel=3,
        )
    return dataset


def _count_duplicates(x: Shaped[np.ndarray, "n ..."], y: Shaped[np.ndarray, "n ..."]) -> int:
    """Counts records that equal an earlier one, as the file has them."""
    return len(x) - len(set(row_digests(x, y)))


def _read_npz(path: Path, options: Options) -> tuple[Dataset, int]:
    with _files.open_npz(path, "data") as archive:
        names = archive.namelist()
        arrays = {k: _files.npz_array(archive, k) for k in _KEYS if f"{k}.npy" in names}
    present = [name.removesuffix(".npy") for name in sorted(names)]
    for key in _KEYS[:2]:
        if key not in arrays:
            raise ValueError(f"Expected the array {key!r} in {path}, got {present[:20]}.")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise ValueError(f"Expected x_test and y_test together in {path}, got one of them.")
    if unused := set(present) - set(_KEYS):
        raise ValueError(f"Expected arrays {', '.join(_KEYS)} in {path}, got {sorted(unused)} too.")
    raw_x, raw_y, is_test = _joined(arrays)
    if raw_x.dtype.kind not in "bfiu":
        raise ValueError(f"Expected x of {path} as numbers, got {raw_x.dtype}.")
    if raw_x.ndim not in (2, 3, 4) or raw_x.size == 0:
        raise ValueError(
            f"Expected x of shape [n, d], [n, h, w] or [n, h, w, c] in {path}, got {raw_x.shape}."
        )
    group = _group_of(arrays["group"], len(raw_x)) if "group" in arrays else None
    x, keep, notes, not_private = _features(raw_x, options.missing)
    classes = _labels.from_array("y", raw_y[keep])
    dataset = Dataset(
        x=x[keep],
        y=classes.numbers,
        name=path.stem,
        num_classes=len(classes.names),
        class_names=classes.names,
        source=str(path),
        notes=(*notes, *classes.notes),
        not_private=not_private,
        group=None if group is None else _renumbered(group[keep]),
        is_test=None if is_test is None else is_test[keep],
    )
    return dataset, _count_duplicates(raw_x[keep], dataset.y)


def _joined(
    arrays: dict[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, Bool[np.ndarray, " n"] | None]:
    """The records of the training part, then those of the test part."""
    x, y, is_test = arrays["x"], arrays["y"], None
    _check_lengths("y", y, "x", x)
    if "x_test" in arrays:
        more, labels = arrays["x_test"], arrays["y_test"]
        _check_lengths("y_test", labels, "x_test", more)
        for name, first, second in (("x", x, more), ("y", y, labels)):
            if first.dtype.kind != second.dtype.kind or first.shape[1:] != second.shape[1:]:
                raise ValueError(
                    f"Expected {name}_test like {name}, {first.dtype} of {first.shape[1:]}, "
                    f"got {second.dtype} of {second.shape[1:]}."
                )
        is_test = np.repeat([False, True], [len(x), len(more)])
        x, y = np.concatenate([x, more]), np.concatenate([y, labels])
    return x, y, is_test


def _check_lengths(first: str, a: np.ndarray, second: str, b: np.ndarray) -> None:
    lengths = [len(array) if array.ndim else 0 for array in (a, b)]
    if lengths[0] != lengths[1]:
        raise ValueError(
            f"Expected as many {first} as {second}, got {lengths[0]} and {lengths[1]}."
        )


def _group_of(group: Shaped[np.ndarray, "..."], n: int) -> Int[np.ndarray, " n"]:
    if group.shape not in ((n,), (n, 1)) or group.dtype.kind not in "biuUS":
        raise ValueError(
            f"Expected group as whole numbers or text of shape ({n},), with any test rows last, "
            f"got {group.dtype} of {group.shape}."
        )
    return _renumbered(group.reshape(n))


def _renumbered(values: Shaped[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    return np.unique(values, return_inverse=True)[1].astype(np.int32)


def _features(
    raw: Shaped[np.ndarray, "n ..."], missing: str
) -> tuple[Float[np.ndarray, "n ..."], Bool[np.ndarray, " n"], list[str], tuple[str, ...]]:
    """Features as float32, which records to keep, and what was done."""
    notes: list[str] = []
    not_private: list[str] = []
    is_image = raw.ndim > 2
    x = raw[..., None] if raw.ndim == 3 else raw
    keep = np.ones(len(x), bool)
    if is_image and x.dtype in (np.uint8, np.uint16):
        top = np.iinfo(x.dtype).max
        notes.append(f"Scaled pixels of 0 to {top} to [0, 1].")
        return x.astype(np.float32) / np.float32(top), keep, notes, ()
    with np.errstate(over="ignore", invalid="ignore"):
        is_gap = np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
        is_infinite = ~np.isfinite(x.astype(np.float32)) & ~is_gap
    if is_infinite.any():
        row = int(np.argwhere(is_infinite)[0][0])
        raise ValueError(f"Expected finite float32 numbers in x, got another one in row {row}.")
    has_gap = is_gap.reshape(len(x), -1).any(axis=1)
    if has_gap.any():
        row, count = int(np.argmax(has_gap)), int(has_gap.sum())
        if missing == "refuse" or (missing == "median" and is_image):
            remedy = "missing='drop'" + ("" if is_image else " or missing='median'")
            raise ValueError(
                f"Expected no NaN in x, got {count} records with NaN, the first in row {row}: "
                f"choose {remedy} (--missing)."
            )
        if missing == "drop":
            keep = np.logical_not(has_gap)
            notes.append(f"Dropped {count} of {len(x)} records with NaN.")
        else:
            x = x.astype(np.float64)
            columns = np.flatnonzero(is_gap.any(axis=0)).tolist()
            for j in columns:
                x[is_gap[:, j], j] = _median(f"column {j} of x", x[:, j])
            note = f"Replaced NaN by the median of its column in {count} records: {columns[:20]}."
            notes.append(note)
            not_private.append(f"{note} The medians are not covered by epsilon.")
    if not keep.any():
        raise ValueError("Expected a record without NaN in x, got none.")
    if not is_image:
        x = x.copy() if x.dtype == np.float64 else x.astype(np.float64)
        for j in range(x.shape[1]):
            _centre(f"column {j} of x", x[:, j], None, notes, not_private)
    x = x.astype(np.float32)
    return np.where(np.isnan(x), np.float32(0), x), keep, notes, tuple(not_private)


def _median(name: str, values: Float[np.ndarray, " n"]) -> float:
    present = values[~np.isnan(values)]
    if not len(present):
        raise ValueError(f"Expected values in {name}, got none: leave it out.")
    return float(np.median(present))


def _centre(
    name: str,
    values: Float[np.ndarray, " n"],
    bounds: Bounds | None,
    notes: list[str],
    not_private: list[str],
) -> None:
    """Shifts a column, in place, if float32 would make different values of it equal."""
    finite = values[~np.isnan(values)]
    if not len(finite):
        return
    low, high = float(finite.min()), float(finite.max())
    largest = max(abs(low), abs(high))
    if not (low < high and (largest > _MAX_FLOAT32_INT or high - low < 1e-3 * largest)):
        return
    count = len(np.unique(finite))
    with np.errstate(over="ignore"):
        narrow = finite.astype(np.float32)
    if not np.isfinite(narrow).all() or len(np.unique(narrow)) == count:
        return
    offset = np.floor(low) if bounds is None else bounds[0]
    values -= offset
    remaining = len(np.unique((finite - offset).astype(np.float32)))
    note = f"Subtracted {offset:.17g} from {name}, whose values float32 does not resolve"
    equal = count - remaining
    note += f"; {equal} of {count} values are still equal." if equal else "."
    notes.append(note)
    if bounds is None:
        not_private.append(f"{note} The offset is not covered by epsilon.")


def _read_table(path: Path, options: Options) -> tuple[Dataset, int]:
    table = _delimited.read(path, options.label)
    assert options.label is not None
    special = [name for name in (options.label, options.group) if name is not None]
    for name in [*special, *options.exclude, *(options.public_bounds or {})]:
        if table.names.count(name) != 1:
            raise ValueError(
                f"Expected one column {name!r} in {path}, got the columns {table.names[:20]}."
            )
    if len({*special, *options.exclude}) < len(special) + len(options.exclude):
        raise ValueError("Expected different columns as label, group and exclude.")
    skipped = {*special, *options.exclude}
    inputs = [i for i, name in enumerate(table.names) if name not in skipped]
    columns, notes = _columns.interpret(table, inputs)
    notes = [*table.notes, *notes, *(c.reason for c in columns if isinstance(c, _columns.LeftOut))]
    if options.exclude:
        notes.append(f"Left out {', '.join(options.exclude)} as asked.")
    columns = [c for c in columns if not isinstance(c, _columns.LeftOut)]
    _check_columns(path, columns, len(table.record))
    keys = [_columns.categories(table, table.names.index(name)) for name in special]
    keep, not_private = _handle_missing(table, [*columns, *keys], special, options, notes)
    label = keys[0]._replace(codes=np.where(keep, keys[0].codes, -1))
    classes = _labels.from_text(options.label, label)
    for column in columns:
        if isinstance(column, _columns.Numbers):
            bounds = (options.public_bounds or {}).get(column.name)
            _centre(repr(column.name), column.values, bounds, notes, not_private)
    text = [c.name for c in columns if isinstance(c, _columns.Categories)]
    if text:
        notes.append(f"One input for each value of {', '.join(text)}.")
        not_private.append(
            f"The lists of values of {', '.join(text)} come from the records and are not covered "
            "by epsilon."
        )
    x = np.concatenate([_inputs(column)[keep] for column in columns], axis=1)
    y = classes.numbers[keep]
    dataset = Dataset(
        x=_float32(x, columns, table, keep),
        y=y,
        name=path.stem,
        num_classes=len(classes.names),
        class_names=classes.names,
        source=f"{path}, label {options.label}",
        notes=(*notes, *classes.notes),
        not_private=tuple(not_private),
        group=_renumbered(keys[1].codes[keep]) if len(keys) > 1 else None,
    )
    return dataset, _count_duplicates(x, y)


def _check_columns(path: Path, columns: list, n: int) -> None:
    """Refuses a table without inputs, and text that would make too many of them."""
    if not columns:
        raise ValueError(f"Expected at least one input column beside the label in {path}.")
    for column in columns:
        size = len(column.values) if isinstance(column, _columns.Categories) else 1
        if size > _columns.MAX_CATEGORIES:
            raise ValueError(
                f"Expected numbers or at most {_columns.MAX_CATEGORIES} values in the column "
                f"{column.name!r} of {path}, got {size} values: leave it out by "
                f"exclude=[{column.name!r}]."
            )
    width = sum(len(c.values) + 1 if isinstance(c, _columns.Categories) else 1 for c in columns)
    if n * width * 4 > max(_files.GIB, 20 * _files.require(path)):
        raise ValueError(
            f"Expected at most 20 times its size from {path}, got {n} rows of {width} inputs."
        )


def _handle_missing(
    table: _delimited.Table,
    columns: list,
    special: list[str],
    options: Options,
    notes: list[str],
) -> tuple[Bool[np.ndarray, " n"], list[str]]:
    """Refuses, drops or fills missing cells; says which records stay and what is not private."""
    n = len(table.record)
    gaps = {c.name: c.is_missing() for c in columns if c.is_missing().any()}
    if not gaps:
        return np.ones(n, bool), []
    counts = ", ".join(_count_missing(c) for c in [c for c in columns if c.name in gaps][:10])
    if options.missing == "refuse":
        name, gap = next(iter(gaps.items()))
        row = int(np.argmax(gap))
        cell = table.columns[table.names.index(name)][row].as_py()
        raise ValueError(
            f"Expected no missing values in {table.path}, got {counts}, the first in line "
            f"{table.line(row)} ({cell!r} in {name!r}): choose missing='drop' or missing='median' "
            "(--missing)."
        )
    dropping = gaps if options.missing == "drop" else {k: gaps[k] for k in special if k in gaps}
    keep = ~np.logical_or.reduce([*dropping.values(), np.zeros(n, bool)])
    if dropping:
        notes.append(f"Dropped {int((~keep).sum())} of {n} records with missing values ({counts}).")
    if not keep.any():
        raise ValueError(f"Expected a record without missing values in {table.path}, got none.")
    not_private: list[str] = []
    for column in columns:
        if column.name in gaps and column.name not in dropping:
            _fill(column, keep, options.public_bounds or {}, notes, not_private)
    return keep, not_private


def _count_missing(column: _columns.Numbers | _columns.Categories) -> str:
    """Words how many cells are missing, and for numbers what they look like."""
    text = f"{int(column.is_missing().sum())} in {column.name!r}"
    if not isinstance(column, _columns.Numbers):
        return text
    cells = [repr(cell) for cell in column.examples]
    return f"{text} ({', '.join(cells[:3])}{', ...' if len(cells) > 3 else ''})"


def _fill(
    column: _columns.Numbers | _columns.Categories,
    keep: Bool[np.ndarray, " n"],
    public_bounds: Mapping[str, Bounds],
    notes: list[str],
    not_private: list[str],
) -> None:
    """Fills the gaps of a column in place."""
    gap, name = column.is_missing(), column.name
    count = int((gap & keep).sum())
    if isinstance(column, _columns.Categories):
        column.codes[gap] = len(column.values)
        column.values.append("missing")
        notes.append(f"Gave {count} missing values of {name!r} a value of their own, 'missing'.")
        return
    shown = ", ".join(repr(cell) for cell in list(column.examples)[:5])
    if name in public_bounds:
        low, high = public_bounds[name]
        column.values[gap] = (low + high) / 2
        notes.append(
            f"Replaced {count} missing values of {name!r} ({shown}) by {(low + high) / 2:g}, the "
            "middle of its public bounds."
        )
        return
    column.values[gap] = _median(name, column.values)
    note = f"Replaced {count} missing values of {name!r} ({shown}) by the median."
    notes.append(note)
    not_private.append(f"{note} The median is not covered by epsilon.")


def _inputs(column: _columns.Numbers | _columns.Categories) -> Float[np.ndarray, "n d"]:
    if isinstance(column, _columns.Numbers):
        return column.values[:, None]
    return (column.codes[:, None] == np.arange(len(column.values))).astype(np.float64)


def _float32(
    x: Float[np.ndarray, "k d"],
    columns: list,
    table: _delimited.Table,
    keep: Bool[np.ndarray, " n"],
) -> Float[np.ndarray, "k d"]:
    """Narrows the inputs of the records that are kept; refuses those that float32 has not."""
    with np.errstate(over="ignore"):
        narrow = x.astype(np.float32)
    bad = ~np.isfinite(narrow)
    if bad.any():
        row, position = (int(i) for i in np.argwhere(bad)[0])
        widths = [_inputs(column).shape[1] for column in columns]
        column = columns[int(np.searchsorted(np.cumsum(widths), position, side="right"))]
        row = int(np.flatnonzero(keep)[row])
        cell = table.columns[table.names.index(column.name)][row].as_py()
        raise ValueError(
            f"Expected finite float32 numbers in {table.path}, got {cell!r} in line "
            f"{table.line(row)}, column {column.name!r}."
        )
    return narrow
