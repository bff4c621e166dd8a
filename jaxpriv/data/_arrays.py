"""Reads data sets from .npz files.

In the shapes below `n` counts records.
"""

from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from jaxpriv import _check, _files
from jaxpriv.data import _digests, _labels, _preprocessing
from jaxpriv.data.dataset import Dataset

_KEYS = ("x", "y", "group", "x_test", "y_test")


def read(path: Path, options: _preprocessing.Options) -> tuple[Dataset, int]:
    """Reads a data set.

    Args:
      path: an .npz file.
      options: treatment of NaN.

    Returns:
      The data set, and the number of records that equal an earlier record in the file.

    Raises:
      ValueError: if an array is missing, damaged or of the wrong kind.
    """
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
    raw_x, raw_y, is_test = _concatenated(arrays)
    if raw_x.dtype.kind not in "bfiu":
        raise ValueError(f"Expected x of {path} as numbers, got {raw_x.dtype}.")
    if raw_x.ndim not in (2, 3, 4) or raw_x.size == 0:
        raise ValueError(
            f"Expected x of shape [n, d], [n, t, d] or [n, h, w, c] in {path}, got {raw_x.shape}."
        )
    group = _groups(arrays["group"], len(raw_x)) if "group" in arrays else None
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
        group=None if group is None else _preprocessing.renumber(group[keep]),
        is_test=None if is_test is None else is_test[keep],
    )
    return dataset, _digests.count_duplicates(raw_x[keep], dataset.y)


def _concatenated(
    arrays: dict[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, Bool[np.ndarray, " n"] | None]:
    """Concatenates the training records and the test records, in this order."""
    x, y, is_test = arrays["x"], arrays["y"], None
    _check_lengths("y", y, "x", x)
    if "x_test" in arrays:
        x_test, y_test = arrays["x_test"], arrays["y_test"]
        _check_lengths("y_test", y_test, "x_test", x_test)
        for name, first, second in (("x", x, x_test), ("y", y, y_test)):
            if first.dtype.kind != second.dtype.kind or first.shape[1:] != second.shape[1:]:
                raise ValueError(
                    f"Expected {name}_test like {name}, {first.dtype} of {first.shape[1:]}, "
                    f"got {second.dtype} of {second.shape[1:]}."
                )
        is_test = np.repeat([False, True], [len(x), len(x_test)])
        x, y = np.concatenate([x, x_test]), np.concatenate([y, y_test])
    return x, y, is_test


def _check_lengths(first: str, a: np.ndarray, second: str, b: np.ndarray) -> None:
    lengths = [len(array) if array.ndim else 0 for array in (a, b)]
    if lengths[0] != lengths[1]:
        raise ValueError(
            f"Expected as many {first} as {second}, got {lengths[0]} and {lengths[1]}."
        )


def _groups(group: Shaped[np.ndarray, "..."], n: int) -> Int[np.ndarray, " n"]:
    if group.shape not in ((n,), (n, 1)) or group.dtype.kind not in "biuUS":
        raise ValueError(
            f"Expected group as whole numbers or text of shape ({n},), with any test rows last, "
            f"got {group.dtype} of {group.shape}."
        )
    return _preprocessing.renumber(group.reshape(n))


def _features(
    raw: Shaped[np.ndarray, "n ..."], missing: str
) -> tuple[Float[np.ndarray, "n ..."], Bool[np.ndarray, " n"], list[str], tuple[str, ...]]:
    """Converts features to float32.

    Returns:
      The features, a mask of the records to use, notes, and sentences on what is not private.
    """
    notes: list[str] = []
    not_private: list[str] = []
    is_image = raw.ndim > 2
    has_pixels = is_image and raw.dtype in (np.uint8, np.uint16)
    x = raw[..., None] if has_pixels and raw.ndim == 3 else raw
    keep = np.ones(len(x), bool)
    if raw.ndim == 3 and not has_pixels:
        notes.append("Took x [n, t, d] as series; images have the shape [n, h, w, c].")
    if has_pixels:
        top = np.iinfo(x.dtype).max
        notes.append(f"Scaled pixels of 0 to {top} to [0, 1].")
        return x.astype(np.float32) / np.float32(top), keep, notes, ()
    if x.dtype.kind in "iu":
        _check.real_array("x", x)
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
                x[is_gap[:, j], j] = _preprocessing.median(f"column {j} of x", x[:, j])
            note = f"Replaced NaN by the median of its column in {count} records: {columns[:20]}."
            notes.append(note)
            not_private.append(f"{note} The medians are not covered by epsilon.")
    if not keep.any():
        raise ValueError("Expected a record without NaN in x, got none.")
    if not np.can_cast(x.dtype, np.float32):
        x = x.astype(np.float64, order="C")
        table = x.reshape(-1, x.shape[-1])
        part = "channel" if is_image else "column"
        for j in range(table.shape[1]):
            _preprocessing.centre(f"{part} {j} of x", table[:, j], None, notes, not_private)
    x = x.astype(np.float32)
    return np.where(np.isnan(x), np.float32(0), x), keep, notes, tuple(not_private)
