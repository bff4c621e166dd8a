"""Converts text to arrays: tokeniser, vocabularies, padding, batches of similar length.

In the shapes below `n` counts sentences, `t` tokens and `b` rows of a batch.
"""

import functools
import hashlib
import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from jaxpriv import _check, _files

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "SPECIAL",
    "UNK",
    "Batch",
    "Padded",
    "Vocabulary",
    "batches_by_length",
    "pad",
    "pad_word_pieces",
    "tokenise",
]

PAD, BOS, EOS, UNK = range(4)
"""Ids of the special tokens: padding, beginning and end of a sentence, unknown word."""

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
"""Words of the special tokens in the order of their ids."""

_TOKEN = re.compile(r"\w+|[^\w\s]")


def tokenise(sentence: str, *, lower: bool) -> list[str]:
    """Splits a sentence into runs of letters, digits and underscores, and single other signs.

    The text is first normalised to Unicode's composed form (NFC). Combining marks, such as other
    accents and the vowel signs of Hindi and Thai, do not split their word. White space is dropped.
    Every other sign is a token, so "l'eau" becomes three tokens and a text cannot contain a special
    token.

    Args:
      sentence: text.
      lower: whether to convert to lower case.

    Returns:
      The tokens in order.

    Example:
      >>> tokenise("Un chien, l'eau!", lower=True)
      ['un', 'chien', ',', 'l', "'", 'eau', '!']
    """
    text = unicodedata.normalize("NFC", sentence.lower() if lower else sentence)
    marks = "" if text.isascii() else "".join(sorted(filter(_is_mark, set(text))))
    return (re.compile(rf"[\w{marks}]+|[^\w\s]") if marks else _TOKEN).findall(text)


def _is_mark(sign: str) -> bool:
    return unicodedata.category(sign).startswith("M")


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Maps words to ids; hashable, and equal if words and tokenisation are equal.

    A vocabulary built from private sentences is a function of them: the presence of a rare word
    shows that someone wrote it. Noise in the training does not hide this, and an accountant does
    not count it. For a differential-privacy guarantee, build the vocabulary from public text.

    words: word of each id; `SPECIAL` first.
    lower: whether sentences are converted to lower case before the look-up.

    Raises:
      ValueError: if the special tokens are not the first, or if a word is repeated.

    Example:
      >>> vocabulary = Vocabulary.build(["a dog", "a cat"], min_count=1, lower=True)
      >>> vocabulary.words[4:]
      ('a', 'cat', 'dog')
      >>> vocabulary.encode("A bird")
      array([1, 4, 3, 2], dtype=int32)
    """

    words: tuple[str, ...]
    lower: bool

    def __post_init__(self) -> None:
        if self.words[: len(SPECIAL)] != SPECIAL:
            raise ValueError(f"Expected words to begin with {' '.join(SPECIAL)}.")
        if len(self._ids) != len(self.words):
            raise ValueError("Expected distinct words, got one twice.")

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def build(cls, sentences: Iterable[str], *, min_count: int, lower: bool) -> "Vocabulary":
        """Numbers the words of a corpus by decreasing frequency, and ties alphabetically.

        Args:
          sentences: the corpus; it must be public for a differential-privacy guarantee.
          min_count: smallest number of occurrences; rarer words become unknown.
          lower: whether to convert to lower case.

        Returns:
          The vocabulary, which does not depend on the order of the sentences.

        Raises:
          ValueError: if min_count is not an integer >= 1, or sentences is one text.

        Example:
          >>> Vocabulary.build(["a b a", "c a b"], min_count=2, lower=True).words[4:]
          ('a', 'b')
        """
        _check.positive_int(min_count=min_count)
        _check.sentences(sentences=sentences)
        counts = Counter(word for s in sentences for word in tokenise(s, lower=lower))
        counted = sorted((-count, word) for word, count in counts.items() if count >= min_count)
        return cls(words=(*SPECIAL, *(word for _, word in counted)), lower=lower)

    @classmethod
    def from_list(cls, words: Sequence[str], *, lower: bool) -> "Vocabulary":
        """Restores a vocabulary from the result of `to_list`, for instance from JSON.

        Args:
          words: word of each id, special tokens first.
          lower: casing with which the vocabulary was built.

        Returns:
          The vocabulary.

        Raises:
          ValueError: if an entry is not a string or is repeated, or if the special tokens are
            not the first.

        Example:
          >>> built = Vocabulary.build(["a b"], min_count=1, lower=True)
          >>> Vocabulary.from_list(built.to_list(), lower=True) == built
          True
        """
        if isinstance(words, str) or not all(isinstance(word, str) for word in words):
            raise ValueError("Expected a list of strings as words.")
        return cls(words=tuple(words), lower=lower)

    def to_list(self) -> list[str]:
        """Returns the words in the order of their ids, for JSON."""
        return list(self.words)

    @property
    def digest(self) -> str:
        """SHA-256 of words and casing, equal in all processes, for records of runs."""
        content = json.dumps([self.lower, *self.words], ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def encode(self, sentence: str) -> Int[np.ndarray, " t"]:
        """Returns the ids of a sentence's tokens between BOS and EOS."""
        ids = self._ids
        words = tokenise(sentence, lower=self.lower)
        return np.array([BOS, *(ids.get(word, UNK) for word in words), EOS], np.int32)

    def decode(self, ids: Int[np.ndarray, " t"]) -> str:
        """Returns the words of a sentence joined by spaces, up to EOS, without PAD and BOS.

        Args:
          ids: token ids, padded or not.

        Returns:
          The text; unknown words become "<unk>".

        Raises:
          ValueError: if an id is outside the vocabulary.

        Example:
          >>> vocabulary = Vocabulary.build(["a dog"], min_count=1, lower=True)
          >>> vocabulary.decode(vocabulary.encode("a grey dog"))
          'a <unk> dog'
        """
        if ids.size and not 0 <= ids.min() <= ids.max() < len(self):
            raise ValueError(f"Expected ids in 0 to {len(self) - 1}, got {ids.min()}, {ids.max()}.")
        end = np.flatnonzero(ids == EOS)
        sentence = ids[: end[0]] if end.size else ids
        return " ".join(self.words[i] for i in sentence if i not in (PAD, BOS))

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}


class Padded(NamedTuple):
    """Sentences as an array of fixed width.

    tokens: ids from BOS to EOS, then PAD.
    mask: True at tokens, False at padding.
    is_cut: whether a sentence was longer; it then consists of its first tokens and EOS.
    """

    tokens: Int[np.ndarray, "n t"]
    mask: Bool[np.ndarray, "n t"]
    is_cut: Bool[np.ndarray, " n"]


def pad(sentences: Sequence[str], vocabulary: Vocabulary, *, max_length: int) -> Padded:
    """Encodes sentences into an array of `max_length` columns.

    The width does not depend on the sentences, so one compilation suffices and a record cannot
    change the shape of other records.

    Args:
      sentences: texts.
      vocabulary: ids of the words.
      max_length: number of tokens per row, including BOS and EOS; >= 2.

    Returns:
      Ids, mask, and which sentences were cut.

    Raises:
      ValueError: if max_length is below 2, or sentences is one text.

    Example:
      >>> vocabulary = Vocabulary.build(["a dog"], min_count=1, lower=True)
      >>> rows = pad(["dog", "a dog a dog"], vocabulary, max_length=4)
      >>> rows.tokens.tolist(), rows.is_cut.tolist()
      ([[1, 5, 2, 0], [1, 4, 5, 2]], [False, True])
    """
    _check.sentences(sentences=sentences)
    _check.positive_int(max_length=max_length)
    if max_length < 2:
        raise ValueError(f"Expected max_length >= 2 (BOS and EOS), got max_length={max_length}.")
    tokens = np.full((len(sentences), max_length), PAD, np.int32)
    is_cut = np.zeros(len(sentences), bool)
    for i, sentence in enumerate(sentences):
        ids = vocabulary.encode(sentence)
        is_cut[i] = len(ids) > max_length
        tokens[i, : len(ids)] = ids[:max_length]
    tokens[is_cut, -1] = EOS
    return Padded(tokens, tokens != PAD, is_cut)


def pad_word_pieces(
    sentences: Sequence[str], tokenizer: str | os.PathLike[str], *, max_length: int
) -> Padded:
    """Encodes sentences by the tokeniser of a pretrained model, such as BERT's word pieces.

    Args:
      sentences: texts.
      tokenizer: file tokenizer.json of the tokenizers library; its special tokens start and end a
        sentence. Its padding and truncation are not used.
      max_length: number of tokens per row; >= 2.

    Returns:
      Ids, mask, and which sentences were cut, as from `pad`; the padding is 0.

    Raises:
      ValueError: if max_length is below 2, sentences is one text, the file is missing or damaged,
        or tokenizers is not installed.

    Example:
      >>> rows = pad_word_pieces(["A dog."], "tokenizer.json", max_length=6)  # doctest: +SKIP
      >>> rows.tokens.tolist()  # doctest: +SKIP
      [[101, 1037, 3899, 1012, 102, 0]]
    """
    _check.sentences(sentences=sentences)
    _check.positive_int(max_length=max_length)
    if max_length < 2:
        raise ValueError(f"Expected max_length >= 2, got max_length={max_length}.")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ValueError("Expected the package tokenizers: pip install 'jaxpriv[text]'.") from None
    try:
        model = Tokenizer.from_str(_files.read_bytes(Path(tokenizer)).decode())
    except Exception as e:  # tokenizers raises Exception itself
        raise ValueError(f"Expected a tokenizer at {tokenizer}: {_files.one_line(e)}.") from None
    model.no_padding()
    model.no_truncation()
    encoded = [encoding.ids for encoding in model.encode_batch(list(sentences))]
    tokens = np.zeros((len(encoded), max_length), np.int32)
    lengths = np.array([len(ids) for ids in encoded], np.int32)
    for row, ids in zip(tokens, encoded, strict=True):
        row[: len(ids)] = ids[:max_length]
        if len(ids) > max_length:
            row[-1] = ids[-1]
    mask = np.arange(max_length) < lengths[:, None]
    return Padded(tokens, mask, lengths > max_length)


class Batch(NamedTuple):
    """Indices of the sentences of a batch, and its width.

    indices: positions of the sentences; 0 where the mask is False.
    mask: False at rows that fill up the last batch of a bucket.
    max_length: upper bound of the bucket on the number of tokens.
    """

    indices: Int[np.ndarray, " b"]
    mask: Bool[np.ndarray, " b"]
    max_length: int


def batches_by_length(
    lengths: Int[np.ndarray, " n"], *, batch_size: int, boundaries: Sequence[int]
) -> list[Batch]:
    """Groups sentences of similar length into batches, each sentence exactly once.

    Bucket k contains the lengths above boundary k - 1 up to boundary k. Sentences of a bucket are
    sorted by length and index, so the result is deterministic.

    The composition of a batch depends on the lengths, so amplification by sampling does not apply:
    use these batches for evaluation and for training without a guarantee, and `jaxpriv.sampling`
    for private training.

    Args:
      lengths: number of tokens of each sentence.
      batch_size: number of rows per batch.
      boundaries: increasing upper bounds, of which the last is at least the largest length.

    Returns:
      Batches of equal shape, short sentences first.

    Raises:
      ValueError: if the boundaries do not increase, or if a length exceeds the last one.

    Example:
      >>> import numpy as np
      >>> batches = batches_by_length(np.array([3, 9, 2]), batch_size=2, boundaries=[4, 16])
      >>> [(batch.indices.tolist(), batch.mask.tolist()) for batch in batches]
      [([2, 0], [True, True]), ([1, 0], [True, False])]
    """
    _check.positive_int(batch_size=batch_size)
    bounds = np.asarray(boundaries)
    if not bounds.size or bounds[0] < 1 or (np.diff(bounds) <= 0).any():
        raise ValueError(f"Expected increasing boundaries >= 1, got {list(boundaries)}.")
    if lengths.size and lengths.max() > bounds[-1]:
        raise ValueError(
            f"Expected lengths up to the last boundary {bounds[-1]}, got {lengths.max()}."
        )
    order = np.argsort(lengths, kind="stable")
    bucket = np.searchsorted(bounds, lengths[order])
    batches = []
    for k, bound in enumerate(bounds):
        in_bucket = order[bucket == k]
        for start in range(0, len(in_bucket), batch_size):
            selected = in_bucket[start : start + batch_size]
            indices = np.zeros(batch_size, np.int32)
            indices[: len(selected)] = selected
            batches.append(Batch(indices, np.arange(batch_size) < len(selected), int(bound)))
    return batches
