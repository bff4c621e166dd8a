"""TFDS: a set that this test prepares as array_record is read back without TensorFlow."""

import io
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from jaxpriv.data import tfds

IMAGES = np.random.default_rng(4).integers(0, 256, (12, 5, 4, 1), np.uint8)
LABELS = np.arange(12) % 3
AGES = np.arange(12, dtype=np.float32) / 4


def png(image):
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(image[..., 0]).save(out, "PNG")
    return out.getvalue()


def prepare(folder):
    """Writes the set as TFDS itself does; handing images over as PNG spares it TensorFlow."""
    import tensorflow_datasets as published

    class Tiny(published.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = published.core.Version("1.2.0")
        code_path = None  # TFDS looks for it with importlib_resources, which it does not install

        def _info(self):
            features = published.features.FeaturesDict(
                {
                    "image": published.features.Image(shape=(5, 4, 1)),
                    "label": published.features.ClassLabel(num_classes=3),
                    "hidden": published.features.ClassLabel(num_classes=3),
                    "text": published.features.Text(),
                    "person": {"age": published.features.Scalar(np.float32)},
                    "words": published.features.Sequence(np.int64),
                }
            )
            return published.core.DatasetInfo(
                builder=self, features=features, supervised_keys=("image", "label")
            )

        def _split_generators(self, dl_manager):
            splits = {"train": range(9), "test": range(9, 12)}
            return {split: self._generate_examples(rows) for split, rows in splits.items()}

        def _generate_examples(self, rows):
            for i in rows:
                yield (
                    i,
                    {
                        "image": png(IMAGES[i]),
                        "label": int(LABELS[i]),
                        "hidden": -1,
                        "text": f"é{i}\0",
                        "person": {"age": AGES[i]},
                        "words": [1] * (2 if i < 9 else i),
                    },
                )

    Tiny(data_dir=folder, file_format="array_record").download_and_prepare()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    prepare(folder)
    return folder


@pytest.fixture
def copied(prepared, tmp_path):
    shutil.copytree(prepared, tmp_path / "sets")
    return tmp_path / "sets"


def assert_refused(*args, read=tfds.load, **kwargs):
    with pytest.raises(ValueError, match="Expected") as caught:
        read(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_reads_back_what_was_prepared(prepared):
    loaded = tfds.load("tiny", split="train+test", data_dir=prepared)
    # TFDS shuffles while it prepares.
    order = [int(np.flatnonzero((image == IMAGES).all((1, 2, 3)))[0]) for image in loaded.x]
    assert sorted(order) == list(range(12))
    assert loaded.y.tolist() == LABELS[order].tolist()
    assert (loaded.x.dtype, loaded.y.dtype, loaded.num_classes) == (np.uint8, np.int32, 3)
    assert loaded.name == "tiny/1.2.0"
    assert loaded.source == f"{prepared}/tiny/1.2.0, array_record without TensorFlow"
    assert len(tfds.load("tiny:1.2.0", split="train[:4]", data_dir=prepared).x) == 4
    again = tfds.load("tiny", split="train+test", data_dir=prepared)
    assert (again.x == loaded.x).all()


def test_columns_of_every_kind(prepared):
    both = {"split": "train", "data_dir": prepared}
    images, ages, words = (
        tfds.load("tiny", keys=(key, "label"), **both) for key in ("image", "person/age", "words")
    )
    order = (4 * ages.x).astype(int)
    assert sorted(order) == list(range(9))
    np.testing.assert_array_equal(images.x, IMAGES[order])
    np.testing.assert_array_equal(ages.y, LABELS[order])
    assert words.x.shape == (9, 2)
    assert words.num_classes == 3


def test_pairs_of_a_translation_set(tmp_path):
    import tensorflow_datasets as published

    sentences = [("Un chien.", "A dog."), ("L'été", "Summer"), ("Chat", "Cat")]

    class TinyPairs(published.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = published.core.Version("1.0.0")
        code_path = None

        def _info(self):
            features = published.features.Translation(languages=("en", "fr"))
            return published.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for i, (french, english) in enumerate(sentences):
                yield i, {"en": english, "fr": french}

    TinyPairs(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    pairs = tfds.load_pairs("tiny_pairs", data_dir=tmp_path)
    assert set(zip(pairs.source, pairs.target, strict=True)) == set(sentences)
    assert (pairs.languages, pairs.name, pairs.split) == (("fr", "en"), "tiny_pairs/1.0.0", "train")
    both = {"read": tfds.load_pairs, "data_dir": tmp_path}
    assert "got 'de'" in assert_refused("tiny_pairs", languages=("de", "en"), **both)
    assert "two languages" in assert_refused("tiny_pairs", languages=("en", "en"), **both)
    assert "made of train" in assert_refused("tiny_pairs", split="test", **both)


def test_pairs_of_columns_that_are_no_text_are_refused(prepared):
    message = assert_refused(
        "tiny", languages=("text", "label"), read=tfds.load_pairs, data_dir=prepared
    )
    assert "a sentence per record as label" in message


def test_nothing_of_tensorflow_is_imported(prepared):
    code = (
        "import sys; from jaxpriv.data import tfds;"
        "assert 'tensorflow_datasets' not in sys.modules;"
        f"tfds.load('tiny', split='train', data_dir={str(prepared)!r});"
        "assert 'tensorflow_datasets' in sys.modules;"
        "print([name for name in sys.modules if name.split('.')[0] == 'tensorflow'])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_looks_where_it_is_told(prepared, monkeypatch, tmp_path):
    assert tfds.find_prepared("tiny", data_dir=prepared) == prepared / "tiny/1.2.0"
    assert tfds.find_prepared("tiny:1.0.0", data_dir=prepared) is None
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    assert tfds.find_prepared("tiny") is None
    for name in ("TFDS_DATA_DIR", "JAXPRIV_DATA"):
        with monkeypatch.context() as patch:
            patch.setenv(name, str(prepared))
            assert tfds.find_prepared("tiny") == prepared / "tiny/1.2.0"


def test_the_highest_version_and_the_only_configuration(tmp_path):
    for version in ("9.0.0", "10.0.0", "incomplete.ABC_11.0.0"):
        (tmp_path / "set" / "small" / version).mkdir(parents=True)
        (tmp_path / "set" / "small" / version / "features.json").touch()
    (tmp_path / "set" / "small" / "12.0.0").mkdir()
    highest = tmp_path / "set/small/10.0.0"
    assert tfds.find_prepared("set", data_dir=tmp_path) == highest
    assert tfds.find_prepared("set/small", data_dir=tmp_path) == highest
    assert tfds.find_prepared("set/small:9.0.0", data_dir=tmp_path).name == "9.0.0"
    shutil.copytree(tmp_path / "set/small", tmp_path / "set/large")
    message = assert_refused("set", read=tfds.find_prepared, data_dir=tmp_path)
    assert "set/large, set/small" in message
    assert "TFDS name" in assert_refused("../set", read=tfds.find_prepared, data_dir=tmp_path)


def test_what_is_not_there_or_does_not_fit(prepared, tmp_path):
    message = assert_refused("mnist", split="train", data_dir=tmp_path)
    assert "tfds.builder('mnist', file_format='array_record').download_and_prepare()" in message
    for split in ("val", "train+val", "train[:x]", "train[:0]", ""):
        assert "made of train, test" in assert_refused("tiny", split=split, data_dir=prepared)
    both = {"split": "train", "data_dir": prepared}
    assert "as a column" in assert_refused("tiny", keys=("image", "labels"), **both)
    assert "numbers as text" in assert_refused("tiny", keys=("text", "label"), **both)
    assert "one class per record" in assert_refused("tiny", keys=("image", "words"), **both)
    assert "got -1 to -1" in assert_refused("tiny", keys=("image", "hidden"), **both)
    ragged = assert_refused("tiny", keys=("words", "label"), split="test", data_dir=prepared)
    assert "words has the shape" in ragged


def edited(copied, file, change):
    path = copied / "tiny/1.2.0" / file
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return {"split": "train", "data_dir": copied}


def test_other_formats_ask_for_tensorflow(copied, monkeypatch):
    monkeypatch.setattr(tfds.importlib.util, "find_spec", lambda name: None)
    both = edited(copied, "dataset_info.json", lambda d: d.update(fileFormat="tfrecord"))
    assert "only TensorFlow reads" in assert_refused("tiny", **both)


def test_a_data_file_names_no_code_of_its_own(copied):
    both = edited(copied, "features.json", lambda d: d.update(pythonClassName="antigravity.Fly"))
    assert "'antigravity.Fly'" in assert_refused("tiny", **both)
    assert "antigravity" not in sys.modules


def test_a_data_file_names_no_file_elsewhere(copied):
    def outward(content):
        content["splits"][0]["filepathTemplate"] = (
            "../{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        )

    assert "inside it" in assert_refused("tiny", **edited(copied, "dataset_info.json", outward))


def test_promised_records_allocate_nothing(copied):
    def many(content):
        for split in content["splits"]:
            split["shardLengths"] = ["1000000000000"]

    assert "complete TFDS set" in assert_refused(
        "tiny", **edited(copied, "dataset_info.json", many)
    )


@pytest.mark.parametrize("kind", ["features.json", "dataset_info.json", "tiny-train*"])
def test_damaged_files_are_one_line(copied, kind):
    path: Path = next((copied / "tiny/1.2.0").glob(kind))
    whole = path.read_bytes()
    for share in (0, 0.3, 0.9):
        path.write_bytes(whole[: int(share * len(whole))])
        assert "complete TFDS set" in assert_refused("tiny", split="train", data_dir=copied)
    path.unlink()
    assert_refused("tiny", split="train", data_dir=copied)


MUTATIONS = st.tuples(
    st.sampled_from(["features.json", "dataset_info.json", "tiny-train*"]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=6))),
    st.one_of(st.just(1.0), st.floats(0, 1)),
)


@pytest.mark.parametrize("count", [200, pytest.param(3000, marks=pytest.mark.slow)])
def test_mutated_files_are_a_set_or_one_line(copied, count):
    folder = copied / "tiny/1.2.0"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @hypothesis.settings(max_examples=count)
    @hypothesis.given(MUTATIONS)
    def check(mutation):
        kind, edits, cut = mutation
        path = next(folder.glob(kind))
        whole = path.read_bytes()
        # An array_record is 64 KiB of which all but the ends is padding.
        loaded = bytearray(whole)
        for where, piece in edits:
            at = int(where * len(loaded))
            at = at % 2000 if at % 2 and len(loaded) > 2**16 else at
            loaded[at : at + len(piece)] = piece
        path.write_bytes(loaded[: int(cut * len(loaded))] if cut < 1 else loaded)
        begun = time.monotonic()
        try:
            tfds.load("tiny", split="train", data_dir=copied)
        except ValueError as e:
            message = str(e)
        else:
            message = "Expected, and got, a set"
        finally:
            path.write_bytes(whole)
        assert message.startswith("Expected")
        assert "\n" not in message
        assert time.monotonic() - begun < 10

    check()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB


def test_supervised_keys_that_are_no_pair(copied):
    both = edited(copied, "dataset_info.json", lambda d: d.pop("supervisedKeys"))
    assert "keys (input, label)" in assert_refused("tiny", **both)
    assert tfds.load("tiny", keys=("person/age", "label"), **both).x.shape == (9,)
