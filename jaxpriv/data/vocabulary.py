"""Text as arrays: tokeniser, vocabularies, padding, batches of similar length.

In shapes `n` counts sentences, `t` tokens, `b` the places of a batch.
"""

import functools
import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from jaxpriv import _check

PAD, BOS, EOS, UNK = range(4)
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")

_TOKEN = re.compile(r"\w+|[^\w\s]")


def tokenise(sentence: str, *, lower: bool) -> list[str]:
    """Splits a sentence into runs of letters, digits and underscores, and single other signs.

    The text is brought to Unicode's composed form (NFC) first, so that an accent written apart
    does not split its word. White space goes; every other sign is a token of its own, so
    "l'eau" is three tokens, and no text can spell a special token.

    Args:
      sentence: any text.
      lower: whether to lower the case.

    Returns:
      The tokens, in order.

    >>> tokenise("Un chien, l'eau!", lower=True)
    ['un', 'chien', ',', 'l', "'", 'eau', '!']
    """
    text = unicodedata.normalize("NFC", sentence.lower() if lower else sentence)
    return _TOKEN.findall(text)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A numbering of words; hashable, equal when the words and the tokenising are.

    A vocabulary that is built from private sentences is itself a function of them: the mere
    presence of a rare word shows that someone wrote it, which no noise of the training hides and
    no accountant counts. Where a guarantee is claimed (DP-SGD, and the GPM's proofs, which ask
    for vocabularies that are fixed beforehand), build it from public text.

    words: word of each id; `SPECIAL` first.
    lower: whether sentences are lowered before they are looked up.
    """

    words: tuple[str, ...]
    lower: bool

    def __post_init__(self) -> None:
        if self.words[: len(SPECIAL)] != SPECIAL:
            raise ValueError(f"Expected words to begin with {' '.join(SPECIAL)}.")
        if len(self._ids) != len(self.words):
            raise ValueError("Expected words that differ, got one twice.")

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def build(cls, sentences: Iterable[str], *, min_count: int, lower: bool) -> "Vocabulary":
        """Numbers the words of a corpus, frequent first, ties in the order of their letters.

        Args:
          sentences: the corpus; public where privacy is claimed.
          min_count: words seen less often become unknown.
          lower: whether to lower the case.

        Returns:
          The vocabulary; it depends on the counts alone, not on the order of the sentences.

        Raises:
          ValueError: if min_count is not a whole number >= 1.
        """
        _check.positive_int(min_count=min_count)
        counts = Counter(word for s in sentences for word in tokenise(s, lower=lower))
        counted = sorted((-count, word) for word, count in counts.items() if count >= min_count)
        return cls(words=(*SPECIAL, *(word for _, word in counted)), lower=lower)

    @classmethod
    def from_list(cls, words: Sequence[str], *, lower: bool) -> "Vocabulary":
        """Restores a vocabulary from the result of `to_list`, for instance from JSON.

        Args:
          words: word of each id, special tokens first.
          lower: as it was built.

        Returns:
          The same vocabulary.

        Raises:
          ValueError: if an entry is not a string or repeated, or the special tokens are not
            the first.
        """
        if isinstance(words, str) or not all(isinstance(word, str) for word in words):
            raise ValueError("Expected a list of strings as words.")
        return cls(words=tuple(words), lower=lower)

    def to_list(self) -> list[str]:
        """Returns the words in the order of their ids, for JSON."""
        return list(self.words)

    @property
    def digest(self) -> str:
        """SHA-256 of words and casing, the same in every process: for records of runs."""
        content = json.dumps([self.lower, *self.words], ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def encode(self, sentence: str) -> Int[np.ndarray, " t"]:
        """Returns the ids of a sentence's tokens between BOS and EOS."""
        ids = self._ids
        words = tokenise(sentence, lower=self.lower)
        return np.array([BOS, *(ids.get(word, UNK) for word in words), EOS], np.int32)

    def decode(self, ids: Int[np.ndarray, " t"]) -> str:
        """Writes ids as words with spaces between them, up to EOS, without PAD and BOS.

        Args:
          ids: token ids, padded or not.

        Returns:
          The text; unknown words read "<unk>".

        Raises:
          ValueError: if an id is outside the vocabulary.
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
    """Sentences as one array.

    tokens: ids from BOS to EOS, then PAD.
    mask: True at tokens, False at padding.
    is_cut: which sentences were longer; their first tokens are kept and they still end in EOS.
    """

    tokens: Int[np.ndarray, "n t"]
    mask: Bool[np.ndarray, "n t"]
    is_cut: Bool[np.ndarray, " n"]


def padded(sentences: Sequence[str], vocabulary: Vocabulary, *, max_length: int) -> Padded:
    """Encodes sentences into one array of `max_length` columns.

    The width is the argument, not the longest sentence, so that shapes are static: one
    compilation, and no record changes the shape of its neighbours.

    Args:
      sentences: any texts.
      vocabulary: numbers their words.
      max_length: tokens a row, BOS and EOS among them; >= 2.

    Returns:
      Ids, mask and what was cut.

    Raises:
      ValueError: if max_length is below 2.
    """
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


class Batch(NamedTuple):
    """Indices of the sentences of a batch, and its width.

    indices: of the sentences; 0 where the mask is False.
    mask: False at the places that fill up a bucket's last batch.
    max_length: the bucket's bound on tokens.
    """

    indices: Int[np.ndarray, " b"]
    mask: Bool[np.ndarray, " b"]
    max_length: int


def batches_by_length(
    lengths: Int[np.ndarray, " n"], *, batch_size: int, boundaries: Sequence[int]
) -> list[Batch]:
    """Groups sentences of similar length; every sentence comes exactly once, without chance.

    Bucket k holds the lengths above boundary k - 1 up to boundary k. Inside a bucket sentences
    stand by (length, index), so equal inputs give equal batches.

    Which sentences meet depends on their lengths, so no amplification by sampling holds: for
    evaluation and for training without a guarantee. Private training draws its batches from
    `jaxpriv.sampling`.

    Args:
      lengths: tokens of each sentence.
      batch_size: places a batch.
      boundaries: rising upper bounds; the last >= every length.

    Returns:
      Batches, short sentences first; all of one shape.

    Raises:
      ValueError: if the boundaries do not rise or do not reach every length.

    >>> [b.indices.tolist() for b in batches_by_length(np.array([3, 9, 2]), batch_size=2,
    ...                                                boundaries=[4, 16])]
    [[2, 0], [1, 0]]
    """
    _check.positive_int(batch_size=batch_size)
    bounds = np.asarray(boundaries)
    if not bounds.size or bounds[0] < 1 or (np.diff(bounds) <= 0).any():
        raise ValueError(f"Expected rising boundaries >= 1, got {list(boundaries)}.")
    if lengths.size and lengths.max() > bounds[-1]:
        raise ValueError(
            f"Expected lengths up to the last boundary {bounds[-1]}, got {lengths.max()}."
        )
    order = np.argsort(lengths, kind="stable")
    bucket = np.searchsorted(bounds, lengths[order])
    batches = []
    for k, bound in enumerate(bounds):
        members = order[bucket == k]
        for start in range(0, len(members), batch_size):
            taken = members[start : start + batch_size]
            indices = np.zeros(batch_size, np.int32)
            indices[: len(taken)] = taken
            batches.append(Batch(indices, np.arange(batch_size) < len(taken), int(bound)))
    return batches
