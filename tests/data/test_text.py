"""Parallel corpora and vocabularies: the published layout is read, everything else is one line."""

import gettext
import gzip
import json
import os
import resource
import struct
import subprocess
import sys
import time
import warnings

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from jaxpriv import data
from jaxpriv.data import _translations, text, vocabulary
from tests.data import layouts

FR = ["Un chien, l'eau !", "", "Deux\u2028chats\x0b\x85dorment.", "Été"]
EN = ["A dog, the water!", "Nobody says it.", "Two cats sleep.", "Summer"]


def write(folder, name, lines):
    folder.mkdir(parents=True, exist_ok=True)
    content = "".join(f"{line}\n" for line in lines).encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


@pytest.fixture
def corpus(tmp_path):
    write(tmp_path / "tiny", "train.fr.gz", FR)
    write(tmp_path / "tiny", "train.en", EN)
    return tmp_path / "tiny"


def assert_refused(*args, **kwargs):
    with pytest.raises(ValueError, match="Expected") as caught:
        text.load_pairs(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def most_memory():
    """Bytes this process has loaded at its fullest; Linux counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10


def test_reads_the_published_layout(corpus):
    loaded = text.load_pairs(corpus)
    assert (list(loaded.source), list(loaded.target)) == (FR, EN)
    assert (loaded.name, loaded.split, loaded.languages, len(loaded)) == (
        "tiny",
        "train",
        ("fr", "en"),
        4,
    )
    assert "train.fr.gz" in loaded.origin
    assert loaded.group is None
    assert text.load_pairs(corpus, languages=("en", "fr")).source == loaded.target


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_line_ends_byte_order_marks_and_a_missing_last_newline(tmp_path, ending):
    (tmp_path / "val.fr").write_bytes(f"\ufeffun{ending}deux{ending}".encode())
    (tmp_path / "val.en").write_bytes(f"one{ending}two".encode())
    loaded = text.load_pairs(tmp_path, split="val")
    assert (loaded.source, loaded.target) == (("un", "deux"), ("one", "two"))


def test_several_gzip_members_and_lines_across_chunks(tmp_path):
    lines = [f"{i} " + "é" * (i % 700) for i in range(2000)]
    content = "\n".join(lines).encode()
    (tmp_path / "a.fr.gz").write_bytes(
        gzip.compress(content[:9000]) + gzip.compress(content[9000:])
    )
    write(tmp_path, "a.en", lines)
    loaded = text.load_pairs(tmp_path, split="a")
    assert list(loaded.source) == list(loaded.target) == lines


def test_people_become_groups(corpus):
    write(corpus, "train.usr.gz", ["ann", "bob", "ann", "cid"])
    assert text.load_pairs(corpus).group.tolist() == [0, 1, 0, 2]
    write(corpus, "train.usr.gz", ["ann", "bob", "ann ", "cid"])
    assert text.load_pairs(corpus).group.tolist() == [0, 1, 0, 2]
    write(corpus, "train.usr.gz", ["ann", "bob"])
    assert "train.fr.gz has 4, train.usr.gz has 2" in assert_refused(corpus)


def test_names_are_looked_up_in_data_dir_then_the_environment(corpus, monkeypatch):
    assert text.load_pairs("tiny", data_dir=corpus.parent).name == "tiny"
    monkeypatch.setenv("JAXPRIV_DATA", str(corpus.parent))
    assert text.load_pairs("tiny").name == "tiny"
    assert "data_dir or JAXPRIV_DATA" in assert_refused("tiny", data_dir=corpus)
    monkeypatch.delenv("JAXPRIV_DATA")
    monkeypatch.chdir(corpus)
    assert "tiny" in assert_refused("tiny")
    assert text.load_pairs(".").name == "tiny"


def test_missing_files_are_named_with_their_layout(corpus, tmp_path):
    message = assert_refused(corpus, split="val")
    assert "val.fr or val.fr.gz" in message
    assert "'train.en', 'train.fr.gz'" in message
    assert "train.fr[.gz]" in assert_refused(tmp_path / "none")
    assert "two languages" in assert_refused(corpus, languages=("fr", "fr"))
    assert "file names" in assert_refused(corpus, split="../train")
    assert "file names" in assert_refused(corpus, languages=("fr", "en/../fr"))


def test_content_that_is_no_corpus(corpus):
    write(corpus, "train.en", EN[:3])
    assert "train.fr.gz has 4, train.en has 3" in assert_refused(corpus)
    (corpus / "train.en").write_bytes(b"ok\n\xff\xfe\nok\nok\n")
    assert "UTF-8 in train.en, line 2" in assert_refused(corpus)
    (corpus / "train.fr.gz").write_bytes(gzip.compress(b" \n\n"))
    (corpus / "train.en").write_bytes(b"\n\n")
    assert "got none" in assert_refused(corpus)
    write(corpus, "train.fr.gz", FR[:2])  # a language without a sentence is no corpus
    assert "sentences in train.en, got none" in assert_refused(corpus)
    (corpus / "train.fr.gz").write_bytes(gzip.compress(b""))
    (corpus / "train.en").write_bytes(b"")
    assert "got none" in assert_refused(corpus)


def test_every_truncation_of_a_compressed_file_is_one_line(corpus):
    whole = (corpus / "train.fr.gz").read_bytes()
    for end in range(1, len(whole)):
        (corpus / "train.fr.gz").write_bytes(whole[:end])
        assert "whole gzip file as train.fr.gz" in assert_refused(corpus)
    (corpus / "train.fr.gz").write_bytes(b"not compressed at all")
    assert "whole gzip file" in assert_refused(corpus)


def test_links_out_of_the_folder_and_what_is_no_file(corpus, tmp_path):
    (tmp_path / "secret").write_text("one\ntwo\nthree\nfour\n")
    (corpus / "train.en").unlink()
    (corpus / "train.en").symlink_to(tmp_path / "secret")
    assert "link that leaves" in assert_refused(corpus)
    (corpus / "train.en").unlink()
    os.mkfifo(corpus / "train.en")
    assert "train.en or train.en.gz" in assert_refused(corpus)
    (corpus / "train.en").unlink()
    (corpus / "train.en").symlink_to("train.en")
    assert "train.en or train.en.gz" in assert_refused(corpus)
    (corpus / "train.en").unlink()
    write(corpus, "kept.txt", EN)
    (corpus / "train.en").symlink_to("kept.txt")
    assert len(text.load_pairs(corpus)) == 4


@pytest.mark.parametrize(
    ("block", "message"),
    [(b"\n", "200-fold"), (b"a word\n", "200-fold"), (b"\0", "at most 1 MiB")],
    ids=["blank", "repeated", "one_line"],
)
def test_bombs_are_refused_while_they_are_read(corpus, block, message):
    bomb = gzip.compress(block * (2**24 // len(block))) * 64  # a GiB, in members
    (corpus / "train.fr.gz").write_bytes(bomb)
    before = most_memory()
    assert message in assert_refused(corpus)
    assert most_memory() - before < 2**28


def test_what_does_not_fit_in_memory_is_refused(corpus, monkeypatch):
    monkeypatch.setattr(text, "_MAX_BYTES", 2**20)
    (corpus / "train.fr.gz").write_bytes(gzip.compress(b"\n" * 20_000))
    assert "1 MiB of memory" in assert_refused(corpus)


def test_tokens_are_words_and_single_signs():
    listed = vocabulary.tokenise("L'Été_2: <pad> e\u0301te\u0301…", lower=False)
    assert listed == ["L", "'", "Été_2", ":", "<", "pad", ">", "été", "…"]
    assert vocabulary.tokenise("ÉTÉ", lower=True) == ["été"]
    assert vocabulary.tokenise(" \t ", lower=True) == []


@pytest.mark.parametrize("words", ["नमस्ते दुनिया", "สวัสดี", "مَرْحَبًا", "x\u0302y z", "i\u0307stanbul"])
def test_marks_do_not_split_their_word(words):
    assert vocabulary.tokenise(f"({words}!)", lower=True) == ["(", *words.split(), "!", ")"]
    assert vocabulary.tokenise("İstanbul", lower=True) == ["i\u0307stanbul"]


def test_one_text_is_not_taken_for_sentences():
    """Its letters would be the words."""
    built = vocabulary.Vocabulary.build(["a dog"], min_count=1, lower=True)
    for call in (
        lambda: vocabulary.Vocabulary.build("a dog", min_count=1, lower=True),
        lambda: vocabulary.pad("a dog", built, max_length=4),
        lambda: vocabulary.pad_word_pieces("a dog", "tokenizer.json", max_length=4),
    ):
        with pytest.raises(ValueError, match="Expected a list of sentences as sentences, got one"):
            call()


def test_words_stand_by_count_then_letters():
    built = vocabulary.Vocabulary.build(["b a c c", "C a b", "d"], min_count=2, lower=True)
    assert built.words == (*vocabulary.SPECIAL, "c", "a", "b")
    again = vocabulary.Vocabulary.build(["d", "C a b", "b a c c"], min_count=2, lower=True)
    assert (again, hash(again), again.digest) == (built, hash(built), built.digest)
    cased = vocabulary.Vocabulary.build(["b a c c", "C a b", "d"], min_count=2, lower=False)
    assert cased != built
    assert len(vocabulary.Vocabulary.build([], min_count=1, lower=True)) == 4


def test_the_digest_is_the_same_in_every_process():
    built = vocabulary.Vocabulary.build(["é a"], min_count=1, lower=True)
    code = (
        "from jaxpriv.data import vocabulary as v;"
        "print(v.Vocabulary.build(['a é'], min_count=1, lower=True).digest)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == built.digest


def test_encodes_decodes_and_survives_json():
    built = vocabulary.Vocabulary.build(EN, min_count=1, lower=True)
    ids = built.encode("A dog, the unicorn!")
    assert (ids[0], ids[-1], ids.dtype) == (vocabulary.BOS, vocabulary.EOS, np.int32)
    assert built.decode(ids) == "a dog , the <unk> !"
    assert built.decode(np.array([1, 2, 5])) == ""
    assert built.decode(np.zeros(0, np.int32)) == ""
    kept = json.loads(json.dumps(built.to_list()))
    assert vocabulary.Vocabulary.from_list(kept, lower=True) == built
    for ids in ([len(built)], [-1]):
        with pytest.raises(ValueError, match="Expected ids in 0 to"):
            built.decode(np.array(ids))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*vocabulary.SPECIAL, "a", "a"], "one twice"),
        (["a"], "begin with <pad>"),
        ("<pad>", "list of strings"),
    ],
)
def test_lists_that_are_no_vocabulary(words, message):
    with pytest.raises(ValueError, match=f"Expected.*{message}"):
        vocabulary.Vocabulary.from_list(words, lower=True)
    with pytest.raises(ValueError, match="min_count >= 1"):
        vocabulary.Vocabulary.build(EN, min_count=0, lower=True)


def test_padded_rows_are_static_masked_and_say_what_was_cut():
    built = vocabulary.Vocabulary.build(["a b c d"], min_count=1, lower=True)
    loaded = vocabulary.pad(["a", "a b c d", ""], built, max_length=4)
    assert loaded.tokens.tolist() == [[1, 4, 2, 0], [1, 4, 5, 2], [1, 2, 0, 0]]
    assert loaded.tokens.dtype == np.int32
    assert loaded.mask.sum(1).tolist() == [3, 4, 2]
    assert loaded.is_cut.tolist() == [False, True, False]
    assert vocabulary.pad([], built, max_length=4).tokens.shape == (0, 4)
    with pytest.raises(ValueError, match="max_length >= 2"):
        vocabulary.pad(["a"], built, max_length=1)


@hypothesis.given(
    st.lists(st.integers(0, 40), max_size=60), st.integers(1, 7), st.sets(st.integers(1, 39))
)
def test_batches_hold_everyone_once_by_length(lengths, batch_size, bounds):
    bounds = [*sorted(bounds), 40]
    made = vocabulary.batches_by_length(
        np.array(lengths, np.int64), batch_size=batch_size, boundaries=bounds
    )
    taken = [batch.indices[batch.mask] for batch in made]
    assert sorted(int(i) for part in taken for i in part) == list(range(len(lengths)))
    assert all(batch.indices.shape == batch.mask.shape == (batch_size,) for batch in made)
    for batch, part in zip(made, taken, strict=True):
        below = max([b for b in bounds if b < batch.max_length], default=-1)
        assert all(below < lengths[i] <= batch.max_length for i in part)
    order = [(lengths[i], i) for part in taken for i in part]
    assert order == sorted(order)


@pytest.mark.parametrize(("lengths", "bounds"), [([5], [4]), ([1], []), ([1], [4, 4]), ([1], [0])])
def test_boundaries_that_do_not_hold_everyone(lengths, bounds):
    with pytest.raises(ValueError, match="Expected"):
        vocabulary.batches_by_length(np.array(lengths), batch_size=2, boundaries=bounds)


def mutated(content, edits, cut):
    """Overwrites, inserts, deletes and doubles at places given as shares of the length."""
    loaded = bytearray(content)
    for kind, where, piece in edits:
        at = int(where * len(loaded))
        if kind == "over":
            loaded[at : at + len(piece)] = piece
        elif kind == "insert":
            loaded[at:at] = piece
        elif kind == "delete":
            del loaded[at : at + len(piece)]
        else:
            loaded[at:at] = loaded[at : at + 40 * len(piece)]
    return bytes(loaded[: int(cut * len(loaded))]) if cut < 1 else bytes(loaded)


SHARE = st.floats(0, 1, exclude_max=True)
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["over", "insert", "delete", "double"]),
        SHARE,
        st.one_of(st.binary(min_size=1, max_size=12), st.sampled_from([b"\n", b"\x1f\x8b", b"\r"])),
    ),
    max_size=4,
)
FILES = {
    f"train.{end}": "".join(f"{line}\n" for line in lines * 3).encode()
    for end, lines in {"fr": FR, "en": EN, "usr": ["ann", "bob", "ann", "cid"]}.items()
}


def fuzz(folder, ending, zipped, before, after, cut):
    for name, content in FILES.items():
        (folder / f"{name}.gz").unlink(missing_ok=True)
        (folder / name).write_bytes(content)
    name = f"train.{ending}"
    content = mutated(FILES[name], before, 1.0 if zipped else cut)
    if zipped:
        (folder / name).unlink()
        content = mutated(gzip.compress(content), after, cut)
    (folder / (f"{name}.gz" if zipped else name)).write_bytes(content)
    begun = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*spoils an audit")
            loaded = text.load_pairs(folder)
        assert len(loaded.source) == len(loaded.target) == len(loaded.group) > 0
    except ValueError as e:
        message = str(e)
    else:
        message = "Expected, and got, a corpus"
    assert message.startswith("Expected")
    assert "\n" not in message
    assert time.monotonic() - begun < 10


MUTATIONS = st.tuples(
    st.sampled_from(["fr", "en", "usr"]),
    st.booleans(),
    EDITS,
    EDITS,
    st.one_of(st.just(1.0), SHARE),
)


@pytest.mark.parametrize("count", [200, pytest.param(3000, marks=pytest.mark.slow)])
def test_mutated_files_are_a_corpus_or_one_line(tmp_path, count):
    before = most_memory()

    @hypothesis.settings(max_examples=count)
    @hypothesis.given(MUTATIONS)
    def check(mutation):
        fuzz(tmp_path, *mutation)

    check()
    assert most_memory() - before < 2**30


def test_warns_of_pairs_that_occur_twice(tmp_path):
    write(tmp_path, "train.fr", ["un", "un", "un"])
    write(tmp_path, "train.en", ["a", "one", "a"])
    with pytest.warns(UserWarning, match="1 of 3 pairs"):
        text.load_pairs(tmp_path)


def catalogue_file(folder, entries, order="<"):
    """Writes a .mo file: a header, two tables of lengths and positions, and the texts."""
    strings = [entry.encode() + b"\0" for column in zip(*entries, strict=True) for entry in column]
    start = 28 + 8 * len(strings)
    tables = b""
    for string in strings:
        tables += struct.pack(f"{order}2I", len(string) - 1, start)
        start += len(string)
    n = len(entries)
    header = struct.pack(f"{order}7I", 0x950412DE, 0, n, 28, 28 + 8 * n, 0, 0)
    path = folder / "some.mo"
    path.write_bytes(header + tables + b"".join(strings))
    return path


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_catalogue_gives_both_numbers_without_context_and_once(tmp_path, order):
    entries = [
        (
            "",
            "Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; plural=(n > 1);\n",
        ),
        ("%d day\0%d days", "%d jour\0%d jours"),
        ("month\x04May", "mai"),
        ("now", "maintenant"),
        ("other\x04now", "maintenant"),
        ("untranslated", ""),
    ]
    path = catalogue_file(tmp_path, entries, order)
    assert _translations.read(path) == [
        ("%d day", "%d jour"),
        ("%d days", "%d jours"),
        ("May", "mai"),
        ("now", "maintenant"),
    ]
    with open(path, "rb") as file:  # the standard library reads the same translations
        oracle = gettext.GNUTranslations(file)
    assert oracle.ngettext("%d day", "%d days", 2) == "%d jours"
    assert oracle.pgettext("month", "May") == "mai"


@pytest.mark.parametrize("damage", [b"text", b"\xde\x12\x04\x95", None, "cut"])
def test_a_damaged_catalogue_is_refused(tmp_path, damage):
    path = catalogue_file(tmp_path, [("a", "b"), ("c", "d")])
    if isinstance(damage, bytes):
        path.write_bytes(damage)
    elif damage is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match="Expected") as caught:
        _translations.read(path)
    assert "\n" not in str(caught.value)


def test_phrases_of_a_package_serve_without_data(tmp_path, monkeypatch):
    monkeypatch.delenv("JAXPRIV_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    french = data.load_pairs("humanize")
    assert (french.languages, french.name, french.split) == (("fr", "en"), "humanize", "train")
    pairs = dict(zip(french.source, french.target, strict=True))
    assert pairs["hier"] == "yesterday"
    assert len(french) == len(set(zip(french.source, french.target, strict=True))) > 80
    english = data.load_pairs("humanize", languages=("en", "fr"))
    assert english.source == french.target
    for given, message in (
        ({"split": "test"}, "the split train of humanize"),
        ({"languages": ("fr", "de")}, "English as a language"),
        ({"languages": ("xx", "en")}, "got xx"),
    ):
        with pytest.raises(ValueError, match=message):
            data.load_pairs("humanize", **given)
    layouts.lay(tmp_path / "humanize", {"train.en": b"a\n", "train.fr": b"un\n"})
    assert data.load_pairs("humanize").source == ("un",)


def test_word_pieces_are_padded_and_cut_with_their_end(tmp_path):
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "BertProcessing",
            "sep": ["[SEP]", 2],
            "cls": ["[CLS]", 1],
        },
        "decoder": None,
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "dog": 4, "##s": 5, "run": 6},
        },
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    rows = data.pad_word_pieces(["dogs run", "run", "cat dogs dogs"], path, max_length=5)
    assert rows.tokens.tolist() == [[1, 4, 5, 6, 2], [1, 6, 2, 0, 0], [1, 3, 4, 5, 2]]
    assert rows.mask.sum(axis=1).tolist() == [5, 3, 5]
    assert rows.is_cut.tolist() == [False, False, True]
    with pytest.raises(ValueError, match="max_length >= 2"):
        data.pad_word_pieces(["run"], path, max_length=1)
    for damaged in (b"{}", b"\xff", None):
        path.write_bytes(damaged) if damaged is not None else path.unlink()
        with pytest.raises(ValueError, match="Expected") as caught:
            data.pad_word_pieces(["run"], path, max_length=5)
        assert "\n" not in str(caught.value)
