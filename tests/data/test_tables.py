"""Tables of text: each kind of cell, separator, label and gap is read, or refused in one line."""

import csv
import io

import numpy as np
import pytest

from jaxpriv import data

RNG = np.random.default_rng(0)
N = 60
AGE = [str(a) for a in RNG.permutation(np.arange(20, 20 + N))]
LABEL = ["yes" if i % 3 else "no" for i in range(N)]


def write(path, columns, *, separator=",", encoding="utf-8", before=""):
    """Writes columns of text with a header, quoted where need be."""
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    path.write_bytes((before + out.getvalue()).encode(encoding))
    return path


def column(tmp_path, cells, **options):
    """Loads a table of one interesting column beside an ordinary one."""
    path = write(tmp_path / "a.csv", {"age": AGE, "value": cells, "label": LABEL})
    return data.load(path, label="label", **options)


def assert_refused(expected, path, **options):
    with pytest.raises(ValueError, match=r"^Expected") as caught:
        data.load(path, **options)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", ["None", "-", "#N/A", r"\N", "", "?", "n.d.", "unknown", "NaN"])
def test_a_bad_cell_in_a_column_of_numbers_is_missing(tmp_path, bad):
    cells = [str(i / 4) for i in range(N)]
    cells[7] = bad
    with pytest.raises(ValueError, match="missing values") as caught:
        column(tmp_path, cells)
    assert f"1 in 'value' ({bad!r}), the first in line 9 ({bad!r} in 'value')" in str(caught.value)
    assert "choose missing='drop' or missing='median'" in str(caught.value)
    dropped = column(tmp_path, cells, missing="drop")
    assert dropped.x.shape == (N - 1, 2)
    assert (
        dropped.notes[0]
        == f"Dropped 1 of {N} records with missing values (1 in 'value' ({bad!r}))."
    )
    assert not dropped.not_private
    imputed = column(tmp_path, cells, missing="median")
    rest = np.delete(np.arange(N) / 4, 7)
    assert imputed.x[7, 1] == np.float32(np.median(rest))
    assert (np.delete(imputed.x[:, 1], 7) == rest).all()
    assert "The median is not covered by epsilon" in imputed.not_private[0]
    public = column(tmp_path, cells, missing="median", public_bounds={"value": (0, 100)})
    assert public.x[7, 1] == 50
    assert "middle of its public bounds" in public.notes[0]
    assert not public.not_private


@pytest.mark.parametrize(("gaps", "is_number"), [(1, True), (5, True), (7, False), (40, False)])
def test_nine_of_ten_cells_with_a_value_decide_what_a_column_is(tmp_path, gaps, is_number):
    cells = [str(i % 10) if i >= gaps else "abc" for i in range(N)]
    loaded = column(tmp_path, cells, missing="drop")
    assert loaded.x.shape == ((N - gaps, 2) if is_number else (N, 1 + len(set(cells))))


def test_empty_cells_do_not_make_a_column_of_numbers_one_of_text(tmp_path):
    cells = [str(i % 10) if i % 4 else "" for i in range(N)]
    assert column(tmp_path, cells, missing="drop").x.shape == (45, 2)


NUMBERS = {
    "thousands": ([f"{1000 * i + 234:,}" for i in range(N)], [1000 * i + 234 for i in range(N)]),
    "percent": ([f"{i / 2}%" for i in range(N)], [i / 2 for i in range(N)]),
    "currency": ([f"${i}.50" for i in range(N)], [i + 0.5 for i in range(N)]),
    "euro": ([f"{i},25 €" for i in range(N)], [i + 0.25 for i in range(N)]),
    "swiss": ([f"{i + 1}'000.5" for i in range(N)], [1000 * (i + 1) + 0.5 for i in range(N)]),
    "spaces": ([f"{i + 1}\u00a0000" for i in range(N)], [1000 * (i + 1) for i in range(N)]),
    "signs": ([f"\u2212{i}.5" for i in range(N)], [-i - 0.5 for i in range(N)]),
    "decimal comma": ([f"{i},5" for i in range(N)], [i + 0.5 for i in range(N)]),
    "both": ([f"{i + 1}.000,5" for i in range(N)], [1000 * (i + 1) + 0.5 for i in range(N)]),
    "scientific": ([f"{i}.5e2" for i in range(N)], [100 * i + 50 for i in range(N)]),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_as_people_write_them(tmp_path, kind):
    cells, values = NUMBERS[kind]
    np.testing.assert_allclose(column(tmp_path, cells).x[:, 1], list(values), rtol=1e-6)


def test_an_open_reading_is_said(tmp_path):
    """1,234 alone: thousands where the separator is a comma, a decimal comma elsewhere."""
    columns = {"age": AGE, "value": ["1,234", "2,345"] * 30, "label": LABEL}
    loaded = data.load(write(tmp_path / "a.csv", columns), label="label")
    assert loaded.x[0, 1] == 1234
    assert loaded.notes[0] == "Read '1,234' in 'value' as 1234."
    loaded = data.load(write(tmp_path / "a.csv", columns, separator=";"), label="label")
    assert loaded.x[0, 1] == np.float32(1.234)
    assert "Read the numbers of 'value' with decimal commas." in loaded.notes
    columns["price"] = [f"{i},5" for i in range(N)]
    columns["value"] = ["1.234", "2.345"] * 30
    loaded = data.load(write(tmp_path / "a.csv", columns, separator=";"), label="label")
    assert loaded.x[0, 1] == 1234


@pytest.mark.parametrize("separator", [";", "\t", "|", ","])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_separators_and_encodings_are_found_and_said(tmp_path, separator, encoding):
    columns = {"höhe": [f"{i},5" for i in range(N)], "ort": ["Köln", "Bonn"] * 30, "art": LABEL}
    path = write(tmp_path / "a.tsv", columns, separator=separator, encoding=encoding)
    loaded = data.load(path, label="art")
    np.testing.assert_allclose(loaded.x[:, 0], np.arange(N) + 0.5)
    assert loaded.x[:2, 1:].tolist() == [[0, 1], [1, 0]]
    names = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
    message = f"Columns are separated by {names.get(separator)}."
    assert (message in loaded.notes) == (separator != ",")


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (["0.0", "1.0"], ("0", "1")),
        (["-1", "1"], ("-1", "1")),
        (["2", "10"], ("2", "10")),
        (["<=50K", ">50K"], ("<=50K", ">50K")),
        (["1.5", "0.5"], ("0.5", "1.5")),
        (["1", "one"], ("1", "one")),
        (["True", "False"], ("False", "True")),
    ],
)
def test_labels_of_any_kind(tmp_path, cells, names):
    path = write(tmp_path / "a.csv", {"age": AGE, "label": cells * 30})
    loaded = data.load(path, label="label")
    assert loaded.class_names == names
    assert [names[y] for y in loaded.y[:2]] == [c.removesuffix(".0") for c in cells]


def test_missing_labels_and_groups_are_dropped_whatever_is_imputed(tmp_path):
    columns = {
        "age": ["" if i == 4 else a for i, a in enumerate(AGE)],
        "household": ["" if i == 2 else f"h{i // 3}" for i in range(N)],
        "label": ["?" if i == 8 else t for i, t in enumerate(LABEL)],
    }
    path = write(tmp_path / "a.csv", columns)
    loaded = data.load(path, label="label", group="household", missing="median")
    assert len(loaded) == N - 2
    assert loaded.x.shape == (N - 2, 1)
    assert loaded.group[:4].tolist() == [0, 0, 1, 1]
    assert len(np.unique(loaded.group)) == 20
    assert_refused("1 in 'household'", path, label="label", group="household")


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("mail", [f"p{i}@example.org" for i in range(N)]),
        ("comment", [f"I liked it {i} times" if i % 7 else "fine" for i in range(N)]),
        ("patient_id", [str(90000 + 7 * i) for i in range(N)]),
        ("customerID", [str(90000 + 7 * i) for i in range(N)]),
        ("", [str(i) for i in range(N)]),
        ("anything", [str(i + 1) for i in range(N)]),
        ("account", [str(10**17 + i) for i in range(N)]),
        ("empty", [""] * N),
    ],
)
def test_identifiers_free_text_and_empty_columns_are_left_out_by_name(tmp_path, name, cells):
    path = write(tmp_path / "a.csv", {"age": AGE, name: cells, "label": LABEL})
    loaded = data.load(path, label="label")
    assert loaded.x.shape == (N, 1)
    assert f"Left out the column {name!r}" in loaded.notes[0]


def test_codes_with_leading_zeros_are_categories(tmp_path):
    loaded = column(tmp_path, ["01067", "80331", "04109"] * 20)
    assert loaded.x.shape == (N, 4)
    assert "One input for each value of value." in loaded.notes
    assert "not covered by epsilon" in loaded.not_private[0]


@pytest.mark.parametrize(
    "cells",
    [
        [str(1_700_000_000 + 7 * i) for i in RNG.permutation(N)],
        [f"{1_700_000_000 + i}.25" for i in RNG.permutation(N)],
        [str(9_000_000_000 + i * i) for i in RNG.permutation(N)],
    ],
)
def test_columns_that_float32_cannot_hold_are_shifted(tmp_path, cells):
    loaded = column(tmp_path, cells)
    values = np.array([float(c) for c in cells])
    np.testing.assert_allclose(loaded.x[:, 1], values - np.floor(values.min()))
    assert "whose values float32 does not resolve" in loaded.notes[0]
    bounds = (1_600_000_000, 2_000_000_000)
    public = column(tmp_path, cells, public_bounds={"value": bounds})
    np.testing.assert_allclose(public.x[:, 1], values - bounds[0])
    assert (len(loaded.not_private), len(public.not_private)) == (1, 0)


def test_duplicates_are_counted_as_the_file_has_them(tmp_path):
    """Two records that float32 alone makes equal are not duplicates."""
    cells = [str(1.0 + i * 1e-12) for i in range(N)]
    path = write(tmp_path / "a.csv", {"value": cells, "label": LABEL})
    assert len(data.load(path, label="label")) == N
    write(path, {"value": [*cells[:-3], *cells[:3]], "label": LABEL})
    with pytest.warns(UserWarning, match="3 of 60 records .* spoils an audit"):
        data.load(path, label="label")


def test_columns_that_are_excluded(tmp_path):
    path = write(tmp_path / "a.csv", {"age": AGE, "value": AGE[::-1], "label": LABEL})
    loaded = data.load(path, label="label", exclude=["value"])
    assert loaded.x.shape == (N, 1)
    assert loaded.notes[0] == "Left out value as requested."


def lines(*rows):
    return "".join(f"{row}\n" for row in rows)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a table with a header in"),
        ("age,colour\n1,red\n", "one column 'income' in"),
        ("age,colour\n1,red\n", "whose columns are 'age', 'colour'"),
        ("income,income\n1,0\n", "one column 'income'"),
        ("age:income\n1:0\n", "whose only column is 'age:income': separate columns by commas, sem"),
        ("age  income\n1  0\n", "semicolons, tabs or vertical bars"),
        ("age,income\n", "records below the header"),
        ("income\n1\n0\n", "at least one input column"),
        ("age,income\n1,0\n\n2\n3,1\n", "2 values in line 4 of"),
        ("age,income\n1,0\n2,1,5\n", "2 values in line 3 of"),
        ('age,income\n"1\n2",0\n2\n', "2 values in line 4 of"),
        ("age,income\n1,0\n,1\n", "1 in 'age' (''), the first in line 3 ('' in 'age')"),
        ("age,income\n1,0\n\n\n?,1\n", "the first in line 5 ('?' in 'age')"),
        ("age,income\ninf,1\n1,0\n", "finite float32 numbers in"),
        ("age,income\n1,0\n1e99,1\n", "got '1e99' in line 3, column 'age'"),
        ("age,income\n1,0\n2,\n", "1 in 'income'"),
        ("age,income\n1,0\n2,0\n", "two classes in 'income', got 1"),
        (
            lines("age,income", *(f"{i * i},{i / 7}" for i in range(N))),
            "60 different values in 60",
        ),
        (
            lines("a,b,income", *(f"n{i % 1001},{i},{i % 2}" for i in range(1500))),
            "at most 1000 values in the column 'a' of",
        ),
    ],
)
def test_wrong_tables_are_one_line(tmp_path, text, expected):
    (tmp_path / "a.csv").write_text(text)
    assert_refused(expected, tmp_path / "a.csv", label="income")


def test_wrong_options_are_one_line(tmp_path):
    path = write(tmp_path / "a.csv", {"age": AGE, "label": LABEL})
    assert_refused("a label column, as label='COLUMN' (--label COLUMN), in", path)
    assert_refused("whose columns are 'age', 'label'", path)
    assert_refused("one column 'who'", path, label="label", group="who")
    assert_refused("one column 'who'", path, label="label", exclude=["who"])
    assert_refused("one column 'who'", path, label="label", public_bounds={"who": (0, 1)})
    for bounded in ("label", "town"):
        towns = {"age": AGE, "town": ["A", "B"] * 30, "label": LABEL}
        path = write(tmp_path / "a.csv", towns)
        options = {"label": "label", "public_bounds": {bounded: (0, 1)}}
        assert_refused(f"a column of numbers in public_bounds, got {bounded!r}", path, **options)
    assert_refused(
        "different columns as label, group and exclude", path, label="label", group="label"
    )
    assert_refused("different columns as", path, label="label", exclude=["label"])
    assert_refused("found nothing", tmp_path / "none.csv", label="label")
    assert_refused(
        "a record without missing values",
        write(path, {"a": ["1", "x"] * 30, "b": [""] * N, "label": ["?"] * N}),
        label="label",
        missing="drop",
    )


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"age,income\n1,0\n\xe4,1\n", "UTF-8 text in"),
        (b"age,income\n1,0\n\xe4,1\n", "the byte 0xe4 in line 3: save it as UTF-8"),
        (b"\xff\xfea\x00\xd8", "whole UTF-16 text"),
        (b'age,income\n1,0\n"2,1\n', "2 values in line 3 of"),
    ],
)
def test_what_is_not_text_is_one_line(tmp_path, raw, expected):
    (tmp_path / "a.csv").write_bytes(raw)
    assert_refused(expected, tmp_path / "a.csv", label="income")


def test_one_input_a_value_does_not_explode(tmp_path):
    """1,000 values in each of 40 columns would make 4 bytes of text 1,000 times as many."""
    columns = {f"c{j}": [f"v{i % 1000}" for i in range(9000)] for j in range(40)}
    path = write(tmp_path / "a.csv", {**columns, "y": ["0", "1"] * 4500})
    assert_refused("at most 20 times its size", path, label="y")


def test_columns_name_the_inputs_that_they_occupy(tmp_path):
    colours = ["red", "green", "blue"] * (N // 3)
    ids = [f"patient {i}" for i in range(N)]
    path = write(tmp_path / "a.csv", {"c": colours, "who": ids, "age": AGE, "label": LABEL})
    table = data.load(path, label="label")
    assert table.columns == (data.Column("c", (0, 1, 2)), data.Column("age", (3,)))
    assert table.x[:, 2].tolist() == [c == "red" for c in colours]  # values are sorted
    assert data.load("digits").columns == ()


@pytest.mark.parametrize("name", ["a", ""])
def test_columns_of_equal_names_are_numbered(tmp_path, name):
    path = tmp_path / "t.csv"
    rows = [f"{'uv'[i % 2]},{'wz'[i % 3 > 0]},{i / 7},{i % 2}" for i in range(20)]
    rows[5], rows[3] = ",w,0.1,1", "u,,0.2,1"
    path.write_text("\n".join([f"{name},{name},c,y", *rows]))
    first, second = f"{name} (1)".strip(), f"{name} (2)".strip()
    dataset = data.load(path, label="y", missing="drop")
    assert len(dataset) == 18
    assert [each.name for each in dataset.columns] == [first, second, "c"]
    assert (dataset.x[:, :4].sum(axis=1) == 2).all()
    assert f"Numbered columns of equal names: {first!r}, {second!r}." in dataset.notes
    assert_refused(f"1 in {second!r}, the first in line 7 ('' in {first!r})", path, label="y")
    assert_refused(f"Expected one column {name!r}", path, label="y", exclude=(name,))
    dataset = data.load(path, label="y", missing="drop", exclude=(first,))
    assert [each.name for each in dataset.columns] == [second, "c"]


def test_a_table_whose_columns_are_all_left_out_is_refused_with_the_reasons(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["id,empty,y", *(f"{i},,{i % 2}" for i in range(30))]))
    assert_refused("Left out the column 'id', which numbers the records. Left", path, label="y")
