"""Bring your own: what is clear is read, what is not is one line."""

import io
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest

from jaxpriv import data
from tests.data import layouts

X = np.random.default_rng(0).normal(size=(6, 3))
Y = np.array([0, 1, 2, 0, 1, 2])


def lay(folder, **arrays):
    return layouts.lay(folder, {"mine.npz": layouts.npz(**arrays)}) / "mine.npz"


def check_refused(said, path, **kwargs):
    with pytest.raises(ValueError, match=r"^Expected") as caught:
        data.load_own(path, **kwargs)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("compress", [True, False])
def test_npz(tmp_path, compress):
    held = data.load(
        str(lay(tmp_path, x=X, y=Y, group=np.array(list("aabbcc")), compress=compress))
    )
    np.testing.assert_allclose(held.x, X, rtol=1e-6)
    assert held.x.dtype == np.float32
    assert held.y.tolist() == Y.tolist()
    assert held.group.tolist() == [0, 0, 1, 1, 2, 2]
    assert (held.name, held.num_classes, held.is_test) == ("mine", 3, None)


def test_npz_with_test_part_images_and_one_hot_labels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 5), np.uint8)
    one_hot = np.eye(3)[Y]
    path = lay(tmp_path, x=pixels, y=one_hot, x_test=pixels[::-1] // 2, y_test=one_hot)
    held = data.load_own(path)
    assert held.x.shape == (12, 4, 5, 1)
    np.testing.assert_allclose(held.x[:6, ..., 0] * 255, pixels, atol=1e-4)
    assert held.y.tolist() == [*Y, *Y]
    assert held.is_test.tolist() == [False] * 6 + [True] * 6
    assert "bytes scaled to [0, 1], one-hot labels taken as numbers" in held.source


BAD = X.copy()
BAD[4, 1] = np.nan


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": X}, "the array 'y'"),
        ({"y": Y}, "the array 'x'"),
        ({"x": BAD, "y": Y}, "NaN or infinity in row 4"),
        ({"x": X * 1e300, "y": Y}, "NaN or infinity"),
        ({"x": X, "y": Y + 1}, "found no 0"),
        ({"x": X, "y": Y * 2}, "found no 1"),
        ({"x": X, "y": np.array([0, 1, 2, 0, 1, 2**40])}, "none left out"),
        ({"x": X, "y": np.zeros(6, int)}, "two classes"),
        ({"x": X, "y": Y - 1}, "Expected y >= 0"),
        ({"x": X, "y": Y.astype(float)}, "whole numbers"),
        ({"x": X, "y": Y + 0.5}, "whole numbers"),
        ({"x": X, "y": np.array(list("abcabc"))}, "whole numbers"),
        ({"x": X, "y": Y[:5]}, "as many y as x"),
        ({"x": X, "y": Y[:, None]}, "shape [n]"),
        ({"x": X, "y": np.ones((6, 3))}, "one-hot rows"),
        ({"x": X, "y": np.full((6, 3), np.nan)}, "one-hot rows"),
        ({"x": X[:, 0], "y": Y}, "of shape [n, d]"),
        ({"x": X[None, None, None], "y": Y}, "of shape [n, d]"),
        ({"x": X[:, :0], "y": Y}, "of shape [n, d]"),
        ({"x": X * 1j, "y": Y}, "x as numbers"),
        ({"x": X, "y": Y, "group": Y[:5]}, "group as whole numbers"),
        ({"x": X, "y": Y, "group": X[:, 0]}, "group as whole numbers"),
        ({"x": X, "y": Y, "x_test": X}, "together"),
        ({"x": X, "y": Y, "x_test": X[:, :2], "y_test": Y}, "x_test like x"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y[:2]}, "as many y_test"),
        ({"x": X, "y": Y, "x_test": X + 9, "y_test": Y, "group": Y}, "of shape (12,)"),
    ],
)
def test_wrong_arrays_are_one_line(tmp_path, arrays, said):
    check_refused(said, lay(tmp_path, **arrays))


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
        data.load_own(path)


CSV = "age,colour,income\n1.5,red,high\n2,blue,low\n-3e1,red,low\n"


def test_csv(tmp_path):
    path = layouts.lay(tmp_path, {"mine.csv": CSV.encode("utf-8-sig")}) / "mine.csv"
    held = data.load(str(path), label="income")
    # Values of a text column in sorted order: blue, red.
    assert held.x.tolist() == [[1.5, 0, 1], [2, 1, 0], [-30, 0, 1]]
    assert held.y.tolist() == [0, 1, 1]
    assert "classes in sorted order, one input for each value of colour" in held.source
    numbered = CSV.replace("high", "1").replace("low", "0")
    layouts.lay(tmp_path, {"mine.csv": numbered.encode()})
    assert data.load_own(path, label="income").y.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "one column 'income'"),
        ("age,colour\n1,red\n", "one column 'income' in mine.csv, found ['age', 'colour']"),
        ("income,income\n1,0\n", "one column 'income'"),
        ("age,income\n", "Expected records"),
        ("income\n1\n0\n", "at least one input column"),
        ("age,income\n1,0\n2\n", "2 values in row 3"),
        ("age,income\n1,0\n,1\n", "a value in column 'age', found '' in record 2"),
        ("age,income\n1,0\nnan,1\n", "found 'nan' in record 2"),
        ("age,income\n1,0\n?,1\n", "found '?' in record 2"),
        ("age,income\n1,0\ninf,1\n", "NaN or infinity in row 1"),
        ("age,income\n1,0\n1e99,1\n", "NaN or infinity in row 1"),
        ("age,income\n1,0\n2,\n", "a value in column 'income'"),
        ("age,income\n1,0\n2,0\n", "two classes"),
        ("age,income\n1,0\n2,2\n", "found no 1"),
        ("age,income\n1,0\n2,-1\n", "income >= 0"),
        ("age,income\n1,0\n2,1.5\n", "got fractions"),
        ("age,income\n1,0\n2,1.0\n", "got fractions"),
        ("age,income\n" + "".join(f"n{i},{i % 2}\n" for i in range(1001)), "at most 1000 values"),
        ("age,income\n1,0\n2," + "x" * 200_000, "field larger"),
    ],
)
def test_wrong_csv_is_one_line(tmp_path, text, said):
    layouts.lay(tmp_path, {"mine.csv": text.encode()})
    check_refused(said, tmp_path / "mine.csv", label="income")


def test_csv_that_is_no_text(tmp_path):
    layouts.lay(tmp_path, {"mine.csv": b"age,income\n\xff\xfe,1\n"})
    check_refused("UTF-8", tmp_path / "mine.csv", label="income")
    check_refused("found nothing", tmp_path / "none.csv", label="income")


def test_one_input_a_value_does_not_explode(tmp_path):
    """1,000 values in each of 40 columns would make 4 bytes of text 1,000 times as many."""
    n, d = 9000, 40
    row = ",".join(["{0}"] * d) + ",{1}\n"
    text = ",".join(f"c{i}" for i in range(d)) + ",y\n"
    text += "".join(row.format(f"v{i % 1000}", i % 2) for i in range(n))
    layouts.lay(tmp_path, {"mine.csv": text.encode()})
    check_refused("at most 20 times its size", tmp_path / "mine.csv", label="y")


def test_a_folder(tmp_path):
    held = data.load(str(layouts.lay(tmp_path / "faces", layouts.faces(suffix="png"))))
    assert held.x.shape == (6, 4, 3, 1)
    assert (held.name, held.num_classes) == ("faces", 3)
    layouts.lay(tmp_path / "one", layouts.faces(people=("s1",)))
    check_refused("two classes", tmp_path / "one")


def test_label_is_for_csv_alone(tmp_path):
    check_refused("the label column of", layouts.lay(tmp_path, {"a.csv": CSV.encode()}) / "a.csv")
    check_refused("no label column for", lay(tmp_path, x=X, y=Y), label="y")
    check_refused("a folder, an .npz or a .csv", tmp_path / "a.txt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_refused("found nothing", tmp_path / "none.npz")
