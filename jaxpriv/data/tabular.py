"""Reads tables in published raw layouts: text files of Shokri et al., and the Adult census.

Tables of the user are read by `user_files`.

In the shapes below `n` counts records and `d` features.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, UInt8

from jaxpriv import _files
from jaxpriv.data.dataset import Column, Dataset

__all__ = ["archive_of", "read_adult", "read_shokri"]

_MAX_LINE_BYTES = 2**20


def read_shokri(folder: Path, *, name: str, file: str, num_classes: int) -> Dataset:
    """Reads Purchase-100, Texas-100 or Location-30 as published by Shokri et al.

    A line contains the class (from 1, quoted or not) and then 0 or 1 for each feature, separated
    by commas. Texas-100 is also published as two files, `feats` and `labels`, with the classes in
    the second.

    Args:
      folder: folder that contains the files, or the published archive of them.
      name: name of the data set.
      file: name of the published file.
      num_classes: number of classes.

    Returns:
      Binary features.

    Raises:
      ValueError: if the file is missing, or if a line is damaged.

    References:
      Shokri, Stronati, Song, Shmatikov, Membership Inference Attacks Against Machine Learning
      Models, 2017.

    Example:
      >>> import pathlib, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     _ = pathlib.Path(folder, "bangkok").write_text('"1",0,1,1\\n"30",1,0,0\\n')
      ...     dataset = read_shokri(
      ...         pathlib.Path(folder), name="location30", file="bangkok", num_classes=30
      ...     )
      >>> dataset.x.tolist(), dataset.y.tolist()
      ([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]], [0, 29])
    """
    archive = archive_of(name)
    if name == "texas100" and not (folder / file).exists():
        files = _files.read_named(
            folder, ["feats", "labels"], subfolder="texas/100", archive=archive
        )
        x = _bits(_lines(files["feats"], "feats"), "feats")
        labels = list(_lines(files["labels"], "labels"))
    else:
        raw = _files.read_named(folder, [file], archive=archive)[file]
        x = _bits((line.partition(b",")[2] for line in _lines(raw, file)), file)
        labels = [line.partition(b",")[0] for line in _lines(raw, file)]
    y = _classes(labels, num_classes, name)
    if len(x) != len(y):
        raise ValueError(f"Expected a label for each record of {name}, got {len(y)} and {len(x)}.")
    return Dataset(
        x=x.astype(np.float32),
        y=y,
        name=name,
        num_classes=num_classes,
        class_names=tuple(str(c) for c in range(1, num_classes + 1)),
        source=f"text in {folder}",
    )


def archive_of(name: str) -> str:
    """Returns the name of the archive in which Shokri et al. publish a data set.

    Args:
      name: "purchase100", "texas100" or "location30".

    Returns:
      File name of the archive.

    Example:
      >>> archive_of("purchase100")
      'dataset_purchase.tgz'
    """
    return f"dataset_{name.rstrip('0123456789')}.tgz"


def _lines(raw: bytes, name: str) -> Iterator[bytes]:
    """Yields the lines that are not blank, without line ends."""
    stream = io.BytesIO(raw)
    while line := stream.readline(_MAX_LINE_BYTES):
        if len(line) == _MAX_LINE_BYTES:
            raise ValueError(f"Expected lines of less than 1 MiB in {name}.")
        if line.strip():
            yield line.rstrip(b"\r\n")


def _bits(lines: Iterator[bytes], name: str) -> UInt8[np.ndarray, "n d"]:
    """Parses lines such as "0,1,1", with digits at even and commas at odd positions."""
    rows = []
    for number, line in enumerate(lines, 1):
        row = np.frombuffer(line, np.uint8)
        bits = row[::2] - ord("0")
        if len(row) % 2 == 0 or (row[1::2] != ord(",")).any() or (bits > 1).any():
            raise ValueError(f"Expected 0 and 1 between commas in record {number} of {name}.")
        if rows and len(bits) != len(rows[0]):
            raise ValueError(
                f"Expected {len(rows[0])} features in record {number} of {name}, got {len(bits)}."
            )
        rows.append(bits)
    if not rows:
        raise ValueError(f"Expected records in {name}, got none.")
    return np.stack(rows)


def _classes(texts: list[bytes], num_classes: int, name: str) -> Int[np.ndarray, " n"]:
    y = []
    for number, text in enumerate(texts, 1):
        word = text.strip().strip(b'"')
        if not (word.isdigit() and len(word) < 6 and 1 <= int(word) <= num_classes):
            raise ValueError(
                f"Expected a class from 1 to {num_classes} in record {number} of {name}, "
                f"got {word[:20]!r}."
            )
        y.append(int(word) - 1)
    return np.array(y, np.int32)


# Columns of the census, with the range of a number as documented by UCI, or with the values of
# text in complete records ("Never-worked" occurs in incomplete records only).
_ADULT: dict[str, tuple[int, int] | str] = {
    "age": (17, 90),
    "workclass": "Federal-gov Local-gov Private Self-emp-inc Self-emp-not-inc State-gov "
    "Without-pay",
    "fnlwgt": (12285, 1490400),
    "education": "10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc Bachelors "
    "Doctorate HS-grad Masters Preschool Prof-school Some-college",
    "education-num": (1, 16),
    "marital-status": "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent "
    "Never-married Separated Widowed",
    "occupation": "Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing "
    "Handlers-cleaners Machine-op-inspct Other-service Priv-house-serv Prof-specialty "
    "Protective-serv Sales Tech-support Transport-moving",
    "relationship": "Husband Not-in-family Other-relative Own-child Unmarried Wife",
    "race": "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White",
    "sex": "Female Male",
    "capital-gain": (0, 99999),
    "capital-loss": (0, 4356),
    "hours-per-week": (1, 99),
    "native-country": "Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador "
    "El-Salvador England France Germany Greece Guatemala Haiti Holand-Netherlands Honduras "
    "Hong Hungary India Iran Ireland Italy Jamaica Japan Laos Mexico Nicaragua "
    "Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico Scotland South "
    "Taiwan Thailand Trinadad&Tobago United-States Vietnam Yugoslavia",
}


def read_adult(folder: Path) -> Dataset:
    """Reads the Adult census income data: UCI's `adult.data` and `adult.test`, or `adult.csv`.

    Incomplete records ("?") are dropped. The eight categorical columns become 98 dummy variables
    and the six numbers are scaled to [0, 1], which gives 104 inputs as in Bernau et al. They do
    not state their normalisation; here numbers are clipped to the ranges documented by UCI and
    scaled by these ranges, so the scaling does not depend on the records.

    Args:
      folder: folder that contains the files; the CSV has a header and the 15 columns in UCI's
        order.

    Returns:
      The records; class 1 earns more than 50,000 dollars. `is_test` is set for UCI's files only.

    Raises:
      ValueError: if a file is missing, or if a value does not occur in the census.

    References:
      Becker, Kohavi, Adult, UCI Machine Learning Repository, 1996. Bernau, Eibl, Grassal, Keller,
      Kerschbaum, Quantifying identifiability to choose and audit epsilon in differentially
      private deep learning, 2021, section 6.

    Example:
      >>> import pathlib, tempfile
      >>> person = (
      ...     "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, "
      ...     "White, Male, 2174, 0, 40, United-States, <=50K"
      ... )
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     _ = pathlib.Path(folder, "adult.data").write_text(person)
      ...     _ = pathlib.Path(folder, "adult.test").write_text(f"{person}.")
      ...     adult = read_adult(pathlib.Path(folder))
      >>> adult.x.shape, adult.class_names, adult.is_test.tolist()
      ((2, 104), ('<=50K', '>50K'), [False, True])
      >>> adult.columns[-2]
      Column(name='sex', inputs=(61, 62))
    """
    names = ["adult.csv"] if (folder / "adult.csv").exists() else ["adult.data", "adult.test"]
    files = _files.read_named(folder, names)
    x, y, sizes, num_rows = [], [], [], 0
    for name, raw in files.items():
        num_before = len(y)
        for where, row in _records(raw, name):
            num_rows += 1
            if "?" not in row:
                x.append(_census(row[:-1], where))
                y.append(_income(row[-1], where))
        sizes.append(len(y) - num_before)
    if not y:
        raise ValueError(f"Expected complete records in {folder}, got none.")
    return Dataset(
        x=np.stack(x),
        y=np.array(y, np.int32),
        name="adult",
        num_classes=2,
        class_names=("<=50K", ">50K"),
        source=f"{', '.join(names)} in {folder}",
        notes=(f"Dropped {num_rows - len(y)} of {num_rows} records with missing values.",),
        is_test=None if len(names) == 1 else np.repeat([False, True], sizes),
        columns=_adult_columns(),
    )


def _adult_columns() -> tuple[Column, ...]:
    """Returns the inputs of each column: first the numbers, then the dummy variables."""
    names = sorted(_ADULT, key=lambda name: isinstance(_ADULT[name], str))
    result, start = [], 0
    for name in names:
        allowed = _ADULT[name]
        width = len(allowed.split()) if isinstance(allowed, str) else 1
        result.append(Column(name, tuple(range(start, start + width))))
        start += width
    return tuple(result)


def _records(raw: bytes, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the rows of a census file with their line numbers, without header and comments."""
    try:
        text = raw.decode("utf8")
    except UnicodeDecodeError:
        raise ValueError(f"Expected text in {name}, got bytes that are not UTF-8.") from None
    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    try:
        for number, row in enumerate(rows, 1):
            where = f"line {number} of {name}"
            is_header = number == 1 and name.endswith(".csv")
            if not row or row[0].startswith("|") or is_header:
                continue
            if len(row) != len(_ADULT) + 1:
                raise ValueError(f"Expected {len(_ADULT) + 1} columns in {where}, got {len(row)}.")
            yield where, [value.strip() for value in row]
    except csv.Error as e:
        raise ValueError(f"Expected commas in {name}: {_files.one_line(e)}.") from None


def _census(row: list[str], where: str) -> Float[np.ndarray, " d"]:
    """Converts a row to numbers in [0, 1], followed by dummy variables."""
    numbers, dummies = [], []
    for value, (column, allowed) in zip(row, _ADULT.items(), strict=True):
        if isinstance(allowed, str):
            values = allowed.split()
            if value not in values:
                raise ValueError(f"Expected a known {column} in {where}, got {value[:30]!r}.")
            dummies += [float(v == value) for v in values]
        else:
            if not (value.removeprefix("-").isdecimal() and len(value) < 10):
                raise ValueError(f"Expected a number as {column} in {where}, got {value[:30]!r}.")
            low, high = allowed
            numbers.append(min(max((int(value) - low) / (high - low), 0.0), 1.0))
    return np.array(numbers + dummies, np.float32)


def _income(value: str, where: str) -> int:
    # UCI's test file, unlike the training file, ends its labels with a full stop.
    if value.rstrip(".") not in ("<=50K", ">50K"):
        raise ValueError(f"Expected <=50K or >50K in {where}, got {value[:30]!r}.")
    return int(value.startswith(">"))
