"""Reads parallel corpora, with a file for each language in which line i is sentence i.

`data.tfds.load_pairs` reads those that TFDS has prepared, such as WMT14. The layout is
`{split}.{lang}` or `{split}.{lang}.gz`, as published by Multi30K, SATED, IWSLT and most corpora of
machine translation. In the shapes below `n` counts pairs.
"""

import gzip
import importlib.metadata
import os
import re
import sys
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from jaxtyping import Int

from jaxpriv import _files
from jaxpriv.data import _package_files, _translations

__all__ = ["Pairs", "load_pairs"]

_MAX_BYTES = 300 * 2**20
"""Memory for one file; two languages and the names of people stay below one GiB."""

_MAX_INFLATION = 200
"""Text deflates to a third of its size, a repeated sentence to a hundredth, zeros to less."""

_PACKAGE = "humanize"
"""Package whose translation catalogues are a small corpus."""

_MAX_LINE_BYTES = 2**20
_CHUNK_BYTES = 2**16
_MIN_INFLATION_BYTES = 2**20  # shorter contents may inflate by any ratio


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Sentences with their translations; `target[i]` translates `source[i]`.

    source: sentences to translate, with blank lines, so that lines stay aligned.
    target: their translations.
    languages: languages of source and target.
    name: name of the corpus.
    split: split of the corpus, such as "train".
    origin: files from which the pairs were read.
    group: person of each pair, 0, 1, ... in order of appearance; None if the corpus does not
      name people.

    Example:
      >>> pairs = Pairs(
      ...     source=("Un chien.",), target=("A dog.",), languages=("fr", "en"), name="toy",
      ...     split="train", origin="made by hand",
      ... )
      >>> len(pairs)
      1
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    languages: tuple[str, str]
    name: str
    split: str
    origin: str
    group: Int[np.ndarray, " n"] | None = None

    def __len__(self) -> int:
        return len(self.source)


def load_pairs(
    folder_or_name: str | os.PathLike[str],
    *,
    languages: tuple[str, str] = ("fr", "en"),
    split: str = "train",
    data_dir: str | os.PathLike[str] | None = None,
) -> Pairs:
    """Reads a parallel corpus from its published files, without downloading anything.

    The name "humanize", if no folder has it, stands for the translation catalogues of the package
    humanize, which orbax-checkpoint installs: about a hundred short phrases in English and some
    thirty languages, for tests.

    Lines end at newlines only. A plain file takes precedence over a compressed one. An optional
    file `{split}.usr[.gz]` with a person in each line (SATED's speakers) becomes `group`. Files
    that need more than 300 MiB of memory, lines above 1 MiB and archives that inflate more than
    200-fold are refused while they are read. Pairs that occur twice cause a warning.

    Args:
      folder_or_name: folder with the files; or a name, which is looked up in `data_dir`, or else
        in the folder of the environment variable JAXPRIV_DATA and in the current folder.
      languages: file endings of source and target.
      split: beginning of the file names.
      data_dir: folder that contains a folder for each corpus.

    Returns:
      The aligned sentences.

    Raises:
      ValueError: if a file is missing, damaged, not UTF-8, too large, empty, or a link that
        leaves the folder, or if the files differ in their number of lines.

    References:
      Elliott et al., Multi30K: Multilingual English-German Image Descriptions, 2016.
      Michel and Neubig, Extreme Adaptation for Personalized NMT, 2018 (SATED).

    Example:
      >>> import pathlib, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     _ = pathlib.Path(folder, "train.fr").write_text("Un chien.\\nUn chat.\\n")
      ...     _ = pathlib.Path(folder, "train.en").write_text("A dog.\\nA cat.\\n")
      ...     pairs = load_pairs(folder)
      >>> pairs.source[1], pairs.target[1]
      ('Un chat.', 'A cat.')
    """
    _check_names(split, *languages)
    if os.fspath(folder_or_name) == _PACKAGE and not _has_folder(_PACKAGE, data_dir):
        return _read_package(languages, split)
    folder = _find_folder(folder_or_name, data_dir, f"{split}.{languages[0]}")
    paths = [_require_file(folder, f"{split}.{language}") for language in languages]
    source, target = (_read_sentences(path) for path in paths)
    _check_aligned(paths, source, target)
    _check_not_blank(paths, source, target)
    people = _find_file(folder, f"{split}.usr")
    group = None if people is None else _read_groups(people, paths[0], source)
    copies = len(source) - len(set(zip(source, target, strict=True)))
    if copies:
        warnings.warn(
            f"{copies} of {len(source)} pairs in {folder} equal another one: a duplicate between "
            "members and non-members spoils an audit.",
            stacklevel=2,
        )
    return Pairs(
        source=source,
        target=target,
        languages=languages,
        name=Path(os.path.realpath(folder)).name,
        split=split,
        origin=", ".join(map(str, [*paths, people] if people else paths)),
        group=group,
    )


def _check_names(split: str, *languages: str) -> None:
    if len(set(languages)) != 2:
        raise ValueError(f"Expected two languages, got {', '.join(languages)}.")
    for name in (split, *languages):
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise ValueError(f"Expected a split and languages as file names, got {name!r}.")


def _find_folder(
    folder_or_name: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None, file: str
) -> Path:
    """Returns the first folder of that name; a path with a separator is not looked up."""
    tried = _candidates(folder_or_name, data_dir)
    for folder in tried:
        if os.path.isdir(folder):
            return folder
    places = " or ".join(map(str, tried))
    raise ValueError(
        f"Expected a folder with {file}[.gz] and its translation at {places}, got none "
        "(data_dir or JAXPRIV_DATA names the folder that contains it)."
    )


def _candidates(
    folder_or_name: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None
) -> list[Path]:
    roots = [data_dir] if data_dir is not None else [os.environ.get("JAXPRIV_DATA"), "."]
    given = Path(folder_or_name)
    if data_dir is None and given.name != str(given):
        roots = ["."]
    return [Path(root) / given for root in roots if root]


def _has_folder(name: str, data_dir: str | os.PathLike[str] | None) -> bool:
    return any(map(os.path.isdir, _candidates(name, data_dir)))


def _read_package(languages: tuple[str, str], split: str) -> Pairs:
    """Reads the catalogue of the language that is not English."""
    if split != "train" or "en" not in languages:
        raise ValueError(
            f"Expected the split train of {_PACKAGE} and English as a language, got {split} "
            f"from {languages[0]} to {languages[1]}."
        )
    foreign = languages[1 - languages.index("en")]
    locales = _package_files.find(_PACKAGE, "locale")
    if locales is None:
        raise ValueError(f"Expected the package {_PACKAGE}: pip install 'jaxpriv[data]'.")
    paths = sorted(locales.glob(f"{foreign}*/LC_MESSAGES/{_PACKAGE}.mo"))
    paths = [path for path in paths if re.fullmatch(f"{foreign}(_.*)?", path.parts[-3])]
    if not paths:
        names = ", ".join(sorted({path.name.split("_")[0] for path in locales.iterdir()}))
        raise ValueError(f"Expected one of {names} beside en in {_PACKAGE}, got {foreign}.")
    english, other = zip(*_translations.read(paths[0]), strict=True)
    version = importlib.metadata.version(_PACKAGE)
    return Pairs(
        source=english if languages[0] == "en" else other,
        target=other if languages[0] == "en" else english,
        languages=languages,
        name=_PACKAGE,
        split=split,
        origin=f"{_PACKAGE} {version}, {paths[0]}",
    )


def _require_file(folder: Path, name: str) -> Path:
    if path := _find_file(folder, name):
        return path
    names = ", ".join(map(repr, sorted(os.listdir(folder))[:8])) or "nothing"
    raise ValueError(
        f"Expected {name} or {name}.gz in {folder}, a UTF-8 sentence in each line; "
        f"the folder has {names}."
    )


def _find_file(folder: Path, name: str) -> Path | None:
    for path in (folder / name, folder / f"{name}.gz"):
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            raise ValueError(f"Expected {path.name} inside {folder}, got a link that leaves it.")
        if os.path.isfile(path):
            return path
    return None


def _read_sentences(path: Path) -> tuple[str, ...]:
    """Reads the lines of a file within the limits, without line ends."""
    sentences, num_bytes = [], 0
    try:
        with open(path, "rb") as raw:
            for number, line in enumerate(_lines(raw, path), 1):
                text = line.removesuffix(b"\r").decode("utf-8-sig" if number == 1 else "utf-8")
                sentences.append(text)
                # Eight bytes per reference in the list, or blank lines would count as nothing.
                num_bytes += sys.getsizeof(text) + 8
                if num_bytes > _MAX_BYTES:
                    raise ValueError(
                        f"Expected {path.name} to fit {_MAX_BYTES >> 20} MiB of memory, "
                        f"stopped after {number} lines."
                    )
    except UnicodeDecodeError as e:
        raise ValueError(
            f"Expected UTF-8 in {path.name}, line {len(sentences) + 1}: {e.reason}."
        ) from None
    except (OSError, EOFError, zlib.error) as e:
        kind = "gzip" if path.suffix == ".gz" else "readable"
        raise ValueError(
            f"Expected a whole {kind} file as {path.name}: {_files.one_line(e)}."
        ) from None
    return tuple(sentences)


def _lines(raw: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yields lines split at newlines only, unlike `splitlines`, which also splits at U+2028."""
    stream = gzip.GzipFile(fileobj=raw, mode="rb") if path.suffix == ".gz" else raw
    rest, inflated = b"", 0
    while chunk := stream.read(_CHUNK_BYTES):
        inflated += len(chunk)
        if inflated > max(_MAX_INFLATION * raw.tell(), _MIN_INFLATION_BYTES):
            raise ValueError(
                f"Expected {path.name} to inflate less than {_MAX_INFLATION}-fold, "
                f"got {inflated} bytes from {raw.tell()}."
            )
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        if len(rest) > _MAX_LINE_BYTES:
            raise ValueError(f"Expected lines of at most 1 MiB in {path.name}.")
    if rest:
        yield rest


def _check_aligned(paths: list[Path], *columns: tuple[str, ...]) -> None:
    if len({len(column) for column in columns}) > 1:
        counts = ", ".join(f"{p.name} has {len(c)}" for p, c in zip(paths, columns, strict=True))
        raise ValueError(f"Expected as many lines in each file, {counts}.")


def _check_not_blank(paths: list[Path], *columns: tuple[str, ...]) -> None:
    for path, column in zip(paths, columns, strict=True):
        if not any(map(str.strip, column)):
            raise ValueError(f"Expected sentences in {path.name}, got none.")


def _read_groups(people: Path, path: Path, source: tuple[str, ...]) -> Int[np.ndarray, " n"]:
    names = tuple(map(str.strip, _read_sentences(people)))
    _check_aligned([path, people], source, names)
    order = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([order[name] for name in names], np.int32)
