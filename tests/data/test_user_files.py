"""Arrays of the user, and what every path has in common: read, or refused in one line."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest

from jaxpriv import data
from tests import oracles
from tests.data import layouts

X = np.random.default_rng(0).normal(size=(6, 3))
Y = np.array([0, 1, 2, 0, 1, 2])


def lay(folder, **arrays):
    return layouts.lay(folder, {"mine.npz": layouts.npz(**arrays)}) / "mine.npz"


def check_refused(expected, path, **options):
    with pytest.raises(ValueError, match=r"^Expected") as caught:
        oracles.unhooked(data.load)(path, **options)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("compress", [True, False])
def test_npz(tmp_path, compress):
    loaded = data.load(
        str(lay(tmp_path, x=X, y=Y, group=np.array(list("aabbcc")), compress=compress))
    )
    np.testing.assert_allclose(loaded.x, X, rtol=1e-6)
    assert loaded.x.dtype == np.float32
    assert loaded.y.tolist() == Y.tolist()
    assert loaded.group.tolist() == [0, 0, 1, 1, 2, 2]
    assert (loaded.name, loaded.num_classes, loaded.is_test) == ("mine", 3, None)


def test_npz_with_test_part_images_and_one_hot_labels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 5), np.uint8)
    one_hot = np.eye(3)[Y]
    path = lay(tmp_path, x=pixels, y=one_hot, x_test=pixels[::-1] // 2, y_test=one_hot)
    loaded = data.load(path)
    assert loaded.x.shape == (12, 4, 5, 1)
    np.testing.assert_allclose(loaded.x[:6, ..., 0] * 255, pixels, atol=1e-4)
    assert loaded.y.tolist() == [*Y, *Y]
    assert loaded.is_test.tolist() == [False] * 6 + [True] * 6
    assert loaded.notes == ("Scaled pixels of 0 to 255 to [0, 1].", "Read y as one-hot rows.")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_series_keep_their_shape(tmp_path, dtype):
    series = np.arange(6 * 4 * 5).reshape(6, 4, 5).astype(dtype)
    loaded = data.load(lay(tmp_path, x=series, y=Y))
    np.testing.assert_array_equal(loaded.x, series)
    assert loaded.x.dtype == np.float32
    assert "Took x [n, t, d] as series" in loaded.notes[0]


BAD = X.copy()
BAD[4, 1] = np.nan


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"x": X}, "the array 'y' in"),
        ({"y": Y}, "the array 'x' in"),
        ({"x": BAD, "y": Y}, "1 records with NaN, the first in row 4: choose missing='drop'"),
        ({"x": X * 1e300, "y": Y}, "another one in row 0"),
        ({"x": np.where(X[2, 2] == X, np.inf, X), "y": Y}, "another one in row 2"),
        ({"x": X, "y": np.zeros(6, int)}, "two classes"),
        ({"x": X, "y": np.array([0, 1, 2, 0, 1, np.nan])}, "a label for each record, got nan in"),
        ({"x": X, "y": Y[:5]}, "as many y as x"),
        ({"x": X, "y": np.ones((6, 3))}, "one-hot rows"),
        ({"x": X, "y": np.full((6, 3), np.nan)}, "one-hot rows"),
        ({"x": X, "y": Y * 1j}, "y as numbers or text"),
        ({"x": X, "y": np.zeros((6, 1, 1))}, "y of shape [n]"),
        ({"x": X[:, 0], "y": Y}, "of shape [n, d]"),
        ({"x": X[:, None, None, None], "y": Y}, "of shape [n, d]"),
        ({"x": X[:, :0], "y": Y}, "of shape [n, d]"),
        ({"x": X * 1j, "y": Y}, "as numbers"),
        ({"x": X, "y": Y, "group": Y[:5]}, "group as whole numbers"),
        ({"x": X, "y": Y, "group": X[:, 0]}, "group as whole numbers"),
        ({"x": X, "y": Y, "groups": Y}, "got ['groups'] too"),
        ({"x": X, "y": Y, "x_test": X}, "together"),
        ({"x": X, "y": Y, "x_test": X[:, :2], "y_test": Y}, "x_test like x"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y[:2]}, "as many y_test"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y.astype(str)}, "y_test like y"),
        ({"x": X, "y": Y, "x_test": X + 9, "y_test": Y, "group": Y}, "of shape (12,)"),
        ({"x": np.ones((30, 1)), "y": np.arange(30)}, "30 different values in 30 records"),
        ({"x": np.ones((300, 1)), "y": np.arange(300) % 101 + 0.5}, "101 different fractions"),
    ],
)
def test_wrong_arrays_are_one_line(tmp_path, arrays, expected):
    check_refused(expected, lay(tmp_path, **arrays))


@pytest.mark.parametrize(
    ("y", "names"),
    [
        ([0.0, 1.0, 1.0, 0.0, 1.0, 1.0], ("0", "1")),
        ([-1, 1, 1, -1, 1, 1], ("-1", "1")),
        ([1, 2, 3, 1, 2, 3], ("1", "2", "3")),
        ([10, 2**40, -7, 10, 2**40, -7], ("-7", "10", str(2**40))),
        ([0.5, 1.5, 1.5, 0.5, 1.5, 1.5], ("0.5", "1.5")),
        ([True, False, True, True, False, True], ("0", "1")),
        (["no", "yes", "yes", "no", "yes", "maybe"], ("maybe", "no", "yes")),
        ([b"no", b"yes", b"yes", b"no", b"yes", b"no"], ("no", "yes")),
    ],
)
@pytest.mark.parametrize("is_column", [False, True])
def test_labels_of_any_kind_become_classes_by_sorted_value(tmp_path, y, names, is_column):
    y = np.array(y)
    loaded = data.load(lay(tmp_path, x=X, y=y[:, None] if is_column else y))
    assert loaded.class_names == names
    assert loaded.num_classes == len(names)
    assert loaded.y.tolist() == np.unique(y, return_inverse=True)[1].tolist()


def test_missing_numbers_of_an_npz_are_dropped_or_imputed(tmp_path):
    path = lay(tmp_path, x=BAD, y=Y, group=np.arange(6))
    dropped = data.load(path, missing="drop")
    np.testing.assert_allclose(dropped.x, np.delete(X, 4, axis=0), rtol=1e-6)
    assert (dropped.y.tolist(), dropped.group.tolist()) == ([0, 1, 2, 0, 2], [0, 1, 2, 3, 4])
    assert dropped.notes == ("Dropped 1 of 6 records with NaN.",)
    assert not dropped.not_private
    imputed = data.load(path, missing="median")
    assert imputed.x[4, 1] == np.float32(np.median(np.delete(X[:, 1], 4)))
    assert "medians are not covered by epsilon" in imputed.not_private[0]
    images = lay(tmp_path, x=np.where(np.arange(6) == 2, np.nan, X[:, :1].T).T[..., None], y=Y)
    check_refused("choose missing='drop' (--missing)", images, missing="median")
    check_refused("missing to be one of refuse, drop, median", path, missing="mean")


SECONDS = 1_700_000_000 + np.arange(200) * 7


@pytest.mark.parametrize(
    "column",
    [SECONDS, SECONDS.astype(np.float64), 2**40 + np.arange(200), 1e6 + np.arange(200) / 1e3],
)
def test_columns_that_float32_cannot_hold_are_shifted(tmp_path, column):
    """No false duplicates either: warnings are errors here."""
    loaded = data.load(lay(tmp_path, x=np.stack([column, column * 0], 1), y=np.arange(200) % 2))
    np.testing.assert_allclose(loaded.x[:, 0], column - np.floor(column[0]), atol=1e-4)
    assert len(np.unique(loaded.x[:, 0])) == 200
    assert "from column 0 of x, whose values float32 does not resolve" in loaded.notes[0]
    assert "offset is not covered by epsilon" in loaded.not_private[0]


def test_ordinary_columns_are_not_shifted(tmp_path):
    x = np.stack([np.arange(50) * 1e6, np.random.default_rng(0).normal(size=50), np.ones(50)], 1)
    loaded = data.load(lay(tmp_path, x=x, y=np.arange(50) % 2))
    assert (loaded.x == x.astype(np.float32)).all()
    assert loaded.notes == loaded.not_private == ()


def test_pixels_of_16_bits_are_scaled(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 2**16, (6, 4, 5), np.uint16)
    loaded = data.load(lay(tmp_path, x=pixels, y=Y))
    np.testing.assert_allclose(loaded.x[..., 0] * 65535, pixels, rtol=1e-6)


def test_objects_are_never_unpickled(tmp_path):
    check_refused("Expected an array of numbers", lay(tmp_path, x=np.array([None, {}]), y=Y))


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    """Zeros deflate a thousandfold: a GiB of them would fit a file of some MiB."""
    header = io.BytesIO()
    about = {"descr": "<f8", "fortran_order": False, "shape": (9 * 2**24, 1)}
    np.lib.format.write_array_header_1_0(header, about)
    with (
        zipfile.ZipFile(
            tmp_path / "mine.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1
        ) as archive,
        archive.open("x.npy", "w", force_zip64=True) as stream,
    ):
        stream.write(header.getvalue())
        for _ in range(9 * 2**7):
            stream.write(bytes(2**20))
    tracemalloc.start()
    check_refused("does not fit", tmp_path / "mine.npz")
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_duplicates_are_warned_about(tmp_path):
    path = lay(tmp_path, x=np.repeat(X[:3], 2, 0), y=np.repeat(Y[:3], 2))
    with pytest.warns(UserWarning, match="3 of 6 records .* spoils an audit"):
        data.load(path)


def test_options_that_do_not_apply_are_refused(tmp_path):
    path = lay(tmp_path, x=X, y=Y)
    for option in ({"label": "y"}, {"group": "g"}, {"exclude": ["a"]}, {"public_bounds": {}}):
        if option != {"public_bounds": {}}:
            check_refused(f"no {next(iter(option))} for", path, **option)
            check_refused(f"no {next(iter(option))} for digits", "digits", **option)
    check_refused("no missing for digits", "digits", missing="drop")
    check_refused("exclude as a list", path, exclude="age")
    check_refused("public_bounds of 'age' as (low, high)", path, public_bounds={"age": (3, 1)})
    check_refused("a folder, an .npz file or a table (.csv, .tsv, .txt)", tmp_path / "a.xlsx")
    check_refused("found nothing at", tmp_path / "none.npz")


def test_a_folder(tmp_path):
    loaded = data.load(layouts.lay(tmp_path / "faces", layouts.faces(suffix="png")))
    assert loaded.x.shape == (6, 4, 3, 1)
    assert (loaded.name, loaded.class_names) == ("faces", ("s1", "s2", "s10"))
    layouts.lay(tmp_path / "one", layouts.faces(people=("s1",)))
    check_refused("two classes in", tmp_path / "one")
    check_refused("no label for", tmp_path / "faces", label="y")


@pytest.mark.parametrize("shape", [(6, 4, 1), (6, 2, 2, 1)])
def test_series_and_images_that_float32_cannot_hold_are_shifted(tmp_path, shape):
    """Unix seconds, which float32 rounds to multiples of 128."""
    seconds = 1_600_000_000 + np.arange(24).reshape(shape)
    loaded = data.load(lay(tmp_path, x=seconds, y=Y))
    assert loaded.x.ravel().tolist() == list(range(24))
    (note,) = loaded.not_private
    assert note.startswith("Subtracted 1600000000 from channel 0 of x")


def test_whole_numbers_that_float64_rounds_are_refused(tmp_path):
    path = lay(tmp_path, x=2**60 + np.arange(18).reshape(6, 3), y=Y)
    check_refused("integers in x of at most 2^53", path)


def test_labels_of_bytes_that_are_no_text_are_refused(tmp_path):
    path = lay(tmp_path, x=X, y=np.array([b"\xe9", b"\xe8", b"a"] * 2))
    check_refused(r"Expected y as text in UTF-8, got b'\xe9'", path)
