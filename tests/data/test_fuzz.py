"""Mutated files: each is read or refused in one line, without a crash, a hang or a large array."""

import io
import time
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxpriv import data
from jaxpriv.attacks import Evidence, evidence
from jaxpriv.data import images, tabular
from tests.data import layouts

Y = np.arange(6) % 3
X = np.random.default_rng(0).normal(size=(6, 3))
ARRAYS = {"x": X, "y": Y, "group": np.arange(12) // 2, "x_test": X + 1, "y_test": Y}
CSV = "age,colour,label\n1.5,red,a\n2,blue,b\n-3e1,red,b\n"


def shokri(name, file):
    return lambda folder: tabular.read_shokri(folder, name=name, file=file, num_classes=100)


def folder_of_images(folder):
    return images.read_folder(folder, name="own")


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def zipped(folder):
    """An .npz whose checksums are right, so that what is mutated is what NumPy parses."""
    with zipfile.ZipFile(folder / "mine.npz", "w") as archive:
        for name in ("x", "y"):
            archive.write(folder / f"{name}.npy", f"{name}.npy")
    return data.load(folder / "mine.npz")


READERS = {
    "idx": (layouts.mnist(), lambda folder: images.read_idx(folder, name="mnist")),
    "idx.gz": (layouts.mnist(zipped=True), lambda folder: images.read_idx(folder, name="mnist")),
    "cifar10": (layouts.cifar(10, n=1), lambda folder: images.read_cifar(folder, num_classes=10)),
    "cifar100": (layouts.cifar(100), lambda folder: images.read_cifar(folder, num_classes=100)),
    "tar.gz": (
        {"cifar-100-binary.tar.gz": layouts.tgz(layouts.cifar(100))},
        lambda folder: images.read_cifar(folder, num_classes=100),
    ),
    "pgm": (layouts.faces(each=1), folder_of_images),
    "plain pgm": (
        {"a/1.pgm": b"P2 2 2 1000\n0 1000\n500 250\n", "b/1.pgm": layouts.pgm([[1, 2], [3, 4]])},
        folder_of_images,
    ),
    "png": (layouts.faces(each=1, suffix="png"), folder_of_images),
    "shokri": (layouts.bangkok(), shokri("location30", "bangkok")),
    "texas": (layouts.texas(), shokri("texas100", "dataset_texas")),
    "adult": (layouts.adult(), tabular.read_adult),
    "adult.csv": (layouts.adult_csv(), tabular.read_adult),
    "npz": (
        {"mine.npz": layouts.npz(compress=False, **ARRAYS)},
        lambda folder: data.load(folder / "mine.npz"),
    ),
    "compressed npz": (
        {"mine.npz": layouts.npz(**ARRAYS)},
        lambda folder: data.load(folder / "mine.npz"),
    ),
    "npy": ({"x.npy": npy(X), "y.npy": npy(Y)}, zipped),
    "csv": (
        {"mine.csv": CSV.encode()},
        lambda folder: data.load(folder / "mine.csv", label="label"),
    ),
    "semicolons": (
        {"mine.csv": CSV.replace(",", ";").replace(".", ",").encode("utf-16")},
        lambda folder: data.load(folder / "mine.csv", label="label", missing="median"),
    ),
    "webp": (
        {"a/1.webp": layouts.picture("webp"), "b/1.webp": layouts.picture("webp", value=9)},
        folder_of_images,
    ),
    "16 bits": (
        {"a/1.png": layouts.picture("png", depth=16), "b/1.png": layouts.picture("png", depth=16)},
        folder_of_images,
    ),
    "scores": (
        {
            "s.npz": layouts.npz(
                compress=False,
                scores=X[:, 0],
                is_member=Y > 0,
                labels=Y,
                logits=X,
                group=Y,
                shadow_scores=X.T,
                shadow_is_member=X.T > 0,
            )
        },
        lambda folder: evidence.load(folder / "s.npz")[0],
    ),
}

PIECES = [
    *(b"\0", b"\xff", b"\xff" * 4, b"\0" * 8, b"\x7f\xff\xff\xff", b"\n", b",", b'"', b"-", b"?"),
    *(b"1", b"9" * 9, b"nan", b"1e999", b"#", b"(", b"'", b"{}", b"|O", b"\x00\x00\x08\x03", b"."),
]
EDITS = st.tuples(
    st.sampled_from(["put", "insert", "cut", "drop", "repeat"]),
    st.floats(0, 1),
    st.integers(1, 40),
    st.one_of(st.sampled_from(PIECES), st.binary(min_size=1, max_size=8)),
)


def mutated(raw, edits):
    for kind, where, length, piece in edits:
        at = int(where * len(raw))
        if kind == "put":
            raw = raw[:at] + piece + raw[at + len(piece) :]
        elif kind == "insert":
            raw = raw[:at] + piece + raw[at:]
        elif kind == "cut":
            raw = raw[:at]
        elif kind == "drop":
            raw = raw[:at] + raw[at + length :]
        else:
            raw = raw[:at] + raw[at : at + length] * 3 + raw[at + length :]
    return raw


def assert_refused(read, folder):
    """The one error that a reader may raise, or None if it read a data set."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*spoils an audit")
            warnings.filterwarnings("ignore", message=".*unused arrays")
            assert isinstance(read(folder), data.Dataset | Evidence)
    except ValueError as e:
        return e
    return None


@pytest.mark.parametrize("examples", [100, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("reader", READERS)
def test_a_mutated_file_is_read_or_refused_in_one_line(tmp_path, reader, examples):
    files, read = READERS[reader]
    layouts.lay(tmp_path, files)
    outcomes = {"read": 0, "refused": 0}

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(sorted(files)), st.lists(EDITS, max_size=4))
    def check(name, edits):
        layouts.lay(tmp_path, {name: mutated(files[name], edits)})
        started = time.monotonic()
        tracemalloc.start()
        refusal = assert_refused(read, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        layouts.lay(tmp_path, {name: files[name]})
        outcomes["read" if refusal is None else "refused"] += 1
        assert refusal is None or type(refusal) is ValueError
        assert refusal is None or str(refusal).startswith("Expected")
        assert "\n" not in str(refusal)
        assert peak < 2**30
        assert time.monotonic() - started < 10

    check()
    assert min(outcomes.values()) > 0, outcomes
