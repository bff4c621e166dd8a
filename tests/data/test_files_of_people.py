"""Ten files as people have them load to what a person would expect."""

import io

import numpy as np
import pytest
from PIL import Image

from jaxpriv import data
from tests.data import layouts

RNG = np.random.default_rng(0)
N = 40


def lines(*rows):
    return "".join(f"{row}\n" for row in rows)


def test_a_banks_export(tmp_path):
    """Semicolons, decimal commas, thousands with points, a preamble, trailing semicolons."""
    balances = [f"{i + 1}.{100 + i},5{i % 10}" for i in range(N)]
    towns, answers = ["Köln", "Düsseldorf"], ["nein", "ja", "ja"]
    rows = [
        f'K{i:04};{30 + i % 35};{balance};"{towns[i % 2]}";{answers[i % 3]};'
        for i, balance in enumerate(balances)
    ]
    header = "Kundennummer;Alter;Kontostand (EUR);Ort;Kredit zurückgezahlt;"
    text = lines("Export vom 28.11.2026;;;;;", "", header, *rows, ";;;;;")
    (tmp_path / "bank.csv").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    loaded = data.load(tmp_path / "bank.csv", label="Kredit zurückgezahlt")
    assert loaded.class_names == ("ja", "nein")
    expected = [1000 * (i + 1) + 100 + i + 0.5 + (i % 10) / 100 for i in range(N)]
    np.testing.assert_allclose(loaded.x[:, 1], expected, rtol=1e-6)
    assert loaded.x.shape == (N, 4)
    assert loaded.x[:2, 2:].tolist() == [[0, 1], [1, 0]]
    for sentence in (
        "Columns are separated by semicolons.",
        "Skipped 2 lines before the header.",
        "Left out 1 rows of empty cells.",
        "Read the numbers of 'Kontostand (EUR)' with decimal commas.",
        "Left out the column '', which has no values.",
    ):
        assert sentence in loaded.notes
    assert any("Left out the column 'Kundennummer'" in note for note in loaded.notes)


def test_a_hospitals_table_with_gaps(tmp_path):
    """Several kinds of gaps, several rows of each patient, a column of text with gaps."""
    gaps = {3: "NULL", 11: "-", 20: "n.d.", 31: ""}
    rows = [
        f"P{i // 4},{40 + i % 30},{gaps.get(i, str(110 + i % 40))},"
        f"{['A+', 'B-', '0+', 'NA'][i % 4]},{'dead' if i % 5 == 0 else 'alive'}"
        for i in range(N)
    ]
    (tmp_path / "visits.csv").write_text(lines("patient,age,pressure,blood,outcome", *rows))
    with pytest.raises(
        ValueError, match=r"4 in 'pressure' \(.*\), 10 in 'blood', the first in line 5"
    ):
        data.load(tmp_path / "visits.csv", label="outcome", group="patient")
    options = {"label": "outcome", "group": "patient"}
    dropped = data.load(tmp_path / "visits.csv", missing="drop", **options)
    assert len(dropped) == N - 11  # three records have both gaps
    assert dropped.x.shape[1] == 2 + 3
    imputed = data.load(tmp_path / "visits.csv", missing="median", **options)
    assert imputed.x.shape == (N, 2 + 4)
    assert np.bincount(imputed.group).tolist() == [4] * 10
    given = np.array([110 + i % 40 for i in range(N) if i not in gaps])
    assert imputed.x[list(gaps), 1].tolist() == [np.median(given)] * 4
    assert "by the median. The median is not covered by epsilon." in imputed.not_private[0]
    bounded = data.load(
        tmp_path / "visits.csv", missing="median", public_bounds={"pressure": (60, 200)}, **options
    )
    assert bounded.x[list(gaps), 1].tolist() == [130] * 4


def test_a_survey_with_text_and_an_id(tmp_path):
    rows = [
        f'R-{i:05},{["male", "female"][i % 2]},{1 + i % 5},{20 + i},"So, number {i}",{i % 3 + 1}'
        for i in range(N)
    ]
    (tmp_path / "survey.csv").write_text(
        lines("respondent,gender,satisfaction,age,comment,group", *rows)
    )
    loaded = data.load(tmp_path / "survey.csv", label="group")
    assert loaded.x.shape == (N, 4)
    assert loaded.class_names == ("1", "2", "3")
    assert loaded.x[:2].tolist() == [[0, 1, 1, 20], [1, 0, 2, 21]]
    left_out = [note for note in loaded.notes if note.startswith("Left out the column")]
    assert [note.split("'")[1] for note in left_out] == ["respondent", "comment"]


def test_a_log_with_unix_seconds(tmp_path):
    seconds = 1_732_700_000 + RNG.permutation(N) * 3
    rows = [f"{s}\t{s * 1000 + 7}\t{i / 8}\t{i % 2}" for i, s in enumerate(seconds)]
    (tmp_path / "log.tsv").write_text(lines("time\tmillis\tload\tfailed", *rows))
    loaded = data.load(tmp_path / "log.tsv", label="failed")
    np.testing.assert_allclose(loaded.x[:, 0], seconds - seconds.min())
    np.testing.assert_allclose(loaded.x[:, 1], 1000 * (seconds - seconds.min()))
    assert sum("float32 does not resolve" in note for note in loaded.notes) == 2


def test_addresses_with_zip_codes(tmp_path):
    """A code is no quantity: 01067 is not 1067, and 01067 and 1067 are not the same."""
    codes = ["01067", "80331", "04109", "10115"]
    rows = [f"{i},{codes[i % 4]},{50_000 + 100 * i},{i % 4 < 2}" for i in range(N)]
    (tmp_path / "homes.csv").write_text(lines("house_id,zip,price,sold", *rows))
    loaded = data.load(tmp_path / "homes.csv", label="sold")
    assert loaded.class_names == ("False", "True")
    assert loaded.x.shape == (N, 5)  # four codes in sorted order, and the price
    assert loaded.x[:, :4].argmax(1).tolist() == [
        sorted(codes).index(codes[i % 4]) for i in range(N)
    ]
    assert "Left out the column 'house_id', which numbers the records." in loaded.notes


def test_two_classes_as_floats(tmp_path):
    """As pandas writes a column of 0 and 1 that once had gaps, with its index."""
    rows = [f"{i},{RNG.normal():.4f},{float(i % 2)}" for i in range(N)]
    (tmp_path / "frame.csv").write_text(lines(",feature,target", *rows))
    loaded = data.load(tmp_path / "frame.csv", label="target")
    assert (loaded.x.shape, loaded.class_names) == ((N, 1), ("0", "1"))
    assert loaded.y.tolist() == [0, 1] * (N // 2)


def test_a_spreadsheet_with_money_and_percentages(tmp_path):
    """As a spreadsheet saves it: UTF-16, tabs, quoted thousands."""
    rows = [f'"${1000 * i + 500:,}"\t{i / 4}%\t{"yes" if i % 2 else "no"}' for i in range(N)]
    text = lines("Revenue\tGrowth\tRenewed", *rows)
    (tmp_path / "sales.txt").write_bytes(text.encode("utf-16"))
    loaded = data.load(tmp_path / "sales.txt", label="Renewed")
    np.testing.assert_allclose(loaded.x, [[1000 * i + 500, i / 4] for i in range(N)])
    assert "Decoded from UTF-16." in loaded.notes


def test_arrays_with_text_labels_and_a_column_of_them(tmp_path):
    """As scikit-learn users save them: y of shape [n, 1], text, float64 features."""
    x = RNG.normal(size=(N, 4))
    y = np.array(["cat", "dog"] * (N // 2))[:, None]
    layouts.lay(tmp_path, {"mine.npz": layouts.npz(x=x, y=y)})
    loaded = data.load(tmp_path / "mine.npz")
    assert loaded.class_names == ("cat", "dog")
    np.testing.assert_allclose(loaded.x, x, rtol=1e-6)


def encoded(image, suffix, **options):
    out = io.BytesIO()
    image.save(out, suffix, **options)
    return out.getvalue()


def test_pictures_of_mixed_modes_in_folders_with_hidden_ones(tmp_path):
    """Grey, colour, palette, transparent and 16-bit pictures are the same picture here."""
    grey = (np.arange(12).reshape(3, 4) * 20).astype(np.uint8)
    colour = Image.fromarray(np.stack([grey] * 3, -1))
    palette = Image.fromarray(grey).convert("P")
    files = {
        "cats/grey.png": encoded(Image.fromarray(grey), "png"),
        "cats/colour.png": encoded(colour, "png"),
        "cats/palette.gif": encoded(palette, "gif"),
        "dogs/deep.png": encoded(Image.fromarray(grey.astype(np.uint16) * 257), "png"),
        "dogs/see-through.png": encoded(colour.convert("RGBA"), "png"),
        "dogs/web.webp": encoded(colour, "webp", lossless=True),
        "dogs/notes.txt": b"not a picture",
        "dogs/._web.webp": b"not a picture either",
        "cats/.DS_Store": b"\0",
        ".ipynb_checkpoints/grey-checkpoint.png": encoded(Image.fromarray(grey), "png"),
        "__MACOSX/cats/grey.png": b"",
    }
    with pytest.warns(UserWarning, match="4 of 6 records"):
        loaded = data.load(layouts.lay(tmp_path / "pets", files))
    assert loaded.class_names == ("cats", "dogs")
    assert loaded.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert loaded.x.shape == (6, 3, 4, 3)
    np.testing.assert_allclose(
        loaded.x,
        np.stack([grey / 255] * 18, -1).reshape(3, 4, 6, 3).transpose(2, 0, 1, 3),
        atol=1e-6,
    )
    assert loaded.notes == (
        "Left out 1 files that are not images: dogs/notes.txt.",
        "Made 3 grey images coloured, as the other images are.",
    )


def test_photographs_of_a_phone(tmp_path):
    """JPEGs that lie on their side, with the orientation in EXIF."""
    upright = Image.fromarray(np.repeat(np.arange(0, 240, 30, np.uint8), 16).reshape(8, 16))
    turned = upright.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6
    files = {
        "day/1.jpg": encoded(upright, "jpeg", quality=100),
        "night/1.JPG": encoded(turned, "jpeg", quality=100, exif=exif),
    }
    loaded = data.load(layouts.lay(tmp_path / "photos", files))
    assert loaded.x.shape == (2, 8, 16, 1)
    np.testing.assert_allclose(loaded.x[0], loaded.x[1], atol=0.02)
