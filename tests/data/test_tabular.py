"""Tables in their published layouts."""

import numpy as np
import pytest

from jaxpriv.data import tabular
from tests.data import layouts


def location(folder):
    return tabular.read_shokri(folder, name="location30", file="bangkok", num_classes=30)


def check_refused(message, read, *args):
    with pytest.raises(ValueError, match=r"^Expected") as caught:
        read(*args)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["plain", "archive", "unquoted"])
def test_location(tmp_path, form):
    files = layouts.bangkok()
    if form == "archive":
        files = {"dataset_location.tgz": layouts.tgz(files)}
    elif form == "unquoted":
        files = {"bangkok": files["bangkok"].replace(b'"', b"").replace(b"\n", b"\r\n")}
    loaded = location(layouts.lay(tmp_path, files))
    assert loaded.x.tolist() == [[0, 1, 1], [1, 0, 0], [0, 0, 1]]
    assert loaded.y.tolist() == [0, 29, 1]
    assert loaded.x.dtype == np.float32


@pytest.mark.parametrize("form", ["pair", "folder", "archive", "one file"])
def test_texas(tmp_path, form):
    files = layouts.texas()
    if form == "archive":
        files = {"dataset_texas.tgz": layouts.tgz(files, "texas/100/")}
    elif form == "folder":
        files = {f"texas/100/{name}": raw for name, raw in files.items()}
    elif form == "one file":
        files = {"dataset_texas": b'"100",0,1,1\n"1",1,0,0\n'}
    loaded = tabular.read_shokri(
        layouts.lay(tmp_path, files), name="texas100", file="dataset_texas", num_classes=100
    )
    assert loaded.x.tolist() == [[0, 1, 1], [1, 0, 0]]
    assert loaded.y.tolist() == [99, 0]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "got none"),
        (b'"1",0,2\n', "record 1"),
        (b'"1",0,1\n"1",0\n', "2 features in record 2"),
        (b'"1",0,1\n"31",0,1\n', "class from 1 to 30 in record 2"),
        (b'"0",0,1\n', "class from 1 to 30"),
        (b'"x",0,1\n', "class from 1 to 30"),
        (b'"1.5",0,1\n', "class from 1 to 30"),
        (b'"1",0,0.5\n', "record 1"),
        (b'"1",0,\n', "record 1"),
        (b'"1"\n', "record 1"),
        (b"1,0" * 2**20, "1 MiB"),
    ],
)
def test_damaged_text_is_one_line(tmp_path, raw, message):
    check_refused(message, location, layouts.lay(tmp_path, {"bangkok": raw}))


def test_missing_files_are_named(tmp_path):
    check_refused("bangkok", location, tmp_path)
    layouts.lay(tmp_path, {"feats": b"0,1\n", "labels": b"1\n2\n"})
    with pytest.raises(ValueError, match="a label for each record"):
        tabular.read_shokri(tmp_path, name="texas100", file="dataset_texas", num_classes=100)


def test_adult_as_uci_publishes_it(tmp_path):
    loaded = tabular.read_adult(layouts.lay(tmp_path, layouts.adult()))
    assert loaded.x.shape == (2, 104)
    assert loaded.y.tolist() == [0, 1]
    assert loaded.is_test.tolist() == [False, True]
    assert loaded.notes == ("Dropped 1 of 3 records with missing values.",)
    assert loaded.class_names == ("<=50K", ">50K")
    age, fnlwgt, years, gain, loss, hours = loaded.x[0, :6]
    assert age == pytest.approx((39 - 17) / (90 - 17))
    assert fnlwgt == pytest.approx((77516 - 12285) / (1490400 - 12285))
    assert years == pytest.approx(12 / 15)
    assert gain == pytest.approx(2174 / 99999)
    assert (loss, hours) == (0, pytest.approx(39 / 98))
    # One dummy of each of the eight categorical columns.
    assert loaded.x[:, 6:].sum(1).tolist() == [8, 8]
    assert set(np.unique(loaded.x[:, 6:])) == {0, 1}


def test_adult_as_one_csv_is_the_same(tmp_path):
    one = tabular.read_adult(layouts.lay(tmp_path / "a", layouts.adult_csv()))
    two = tabular.read_adult(layouts.lay(tmp_path / "b", layouts.adult()))
    assert (one.x == two.x).all()
    assert one.y.tolist() == two.y.tolist()
    assert one.is_test is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Bachelors", "Batchelors", "a known education in line 1"),
        ("39", "old", "a number as age"),
        ("39", "--5", "a number as age"),
        ("<=50K", "50K", "<=50K or >50K"),
        ("39, ", "", "15 columns"),
        ("Male", "M\udce9le", "UTF-8"),
        ("39, ", '39, "', "commas|columns"),
    ],
)
def test_damaged_census_is_one_line(tmp_path, old, new, message):
    files = layouts.adult()
    text = files["adult.data"].decode().replace(old, new)
    layouts.lay(tmp_path, {**files, "adult.data": text.encode(errors="surrogateescape")})
    with pytest.raises(ValueError, match=f"^Expected.*({message})"):
        tabular.read_adult(tmp_path)


def test_a_census_without_complete_records(tmp_path):
    layouts.lay(tmp_path, {"adult.csv": (layouts.HEADER + "\n").encode()})
    check_refused("got none", tabular.read_adult, tmp_path)
    check_refused("adult.data", tabular.read_adult, tmp_path / "none")


def test_the_columns_of_the_census_are_named(tmp_path):
    adult = tabular.read_adult(layouts.lay(tmp_path, layouts.adult()))
    inputs = {column.name: list(column.inputs) for column in adult.columns}
    assert sorted(i for each in inputs.values() for i in each) == list(range(104))
    assert (inputs["age"], len(inputs["native-country"])) == ([0], 41)
    for name in ("sex", "race", "occupation"):
        assert (adult.x[:, inputs[name]].sum(1) == 1).all()
