"""Sizes of the experiments on translation, their corpora, and the pairs of each role.

In the shapes below `n` counts pairs of sentences.
"""

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import translation_measures as measures
from jaxpriv import data, training
from jaxpriv.attacks import Training
from jaxpriv.training import translation

ATTACK_TRAINING = Training(steps=600, batch_size=64)
"""About the paper's 20 epochs over 2,000 outputs."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Sizes of an experiment.

    corpus: name of the pairs, for `data.load_pairs`.
    test_split: split for BLEU; None reserves pairs of the training split.
    size: number of pairs of the training of each model.
    stages: increasing numbers of epochs after which a model can be attacked; the training is
      stored after each, so pieces with equal first stages share it.
    judged: largest number of members, and of non-members, that an attack judges or learns from.
    tested: number of sentences for BLEU.
    batch_size, learning_rate, weight_decay: of Adam; the decay is an L2 penalty.
    max_length: number of tokens of the longest sentences; pairs with longer ones are left out.
    min_count: number of occurrences below which a word is unknown.
    widths: widths of the length buckets; none for one width.
    top: number of largest probabilities that an attack reads.
    beams: number of beams of the search.
    shadows: number of shadow models of LiRA and RMIA, even; 0 leaves these attacks out.
    parts: number of parts of the training set that are trained on one after the other, `stages`
      epochs each; 1 mixes all pairs.
    attack, attack_width: options of the network of PVMIA.
    resumable: whether trained models are stored below build/translation.
    """

    corpus: str = "multi30k"
    test_split: str | None = "test_2016_flickr"
    size: int = 2000
    stages: tuple[int, ...] = (10, 20)
    judged: int = 1000
    tested: int = 500
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    max_length: int = 40
    min_count: int = 3
    widths: tuple[int, ...] = (16, 24)
    top: int = 50
    beams: int = 1
    shadows: int = 0
    parts: int = 1
    attack: Training = ATTACK_TRAINING
    attack_width: int = 64
    resumable: bool = True

    @property
    def epoch(self) -> int:
        """Number of steps of an epoch over the pairs, or over a part of them."""
        return max(1, round(self.size / self.parts / self.batch_size))


class Corpus(NamedTuple):
    """Pairs of sentences as tokens.

    pairs: pairs of the training split, [n].
    tested: pairs for BLEU.
    words: vocabularies of source and target.
    num_left_out: number of pairs with a sentence that is empty, too long or a repetition, or of a
      user who has enough others.
    users: user of each of the `pairs`, [n]; None if the corpus does not name them.
    """

    pairs: translation.SentencePair
    tested: translation.SentencePair
    words: tuple[data.Vocabulary, data.Vocabulary]
    num_left_out: int
    users: np.ndarray | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        """Sizes of the vocabularies."""
        return len(self.words[0]), len(self.words[1])


@functools.cache
def _load(
    corpus: str, test_split: str | None, max_length: int, min_count: int, tested: int
) -> Corpus:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # repeated pairs are left out
        read = data.load_pairs(corpus)
        test = None if test_split is None else data.load_pairs(corpus, split=test_split)
    words = (
        data.Vocabulary.build(read.source, min_count=min_count, lower=True),
        data.Vocabulary.build(read.target, min_count=min_count, lower=True),
    )
    first = dict(reversed(list(zip(read.source, read.target, strict=True))))
    unique = list(reversed(first.items()))
    pairs, is_cut = _encode(unique, words, max_length)
    rows = np.random.default_rng(0).permutation(np.flatnonzero(~is_cut))
    users = None
    if read.group is not None:
        person = dict(reversed(list(zip(read.source, read.group, strict=True))))
        users = np.array([person[source] for source, _ in unique])
        rows = rows[_occurrence(users[rows]) < max(measures.SENTENCES)]
        users = users[rows]
    pairs = take(pairs, rows)
    if test is None:
        reserved, pairs = take(pairs, slice(0, tested)), take(pairs, slice(tested, None))
        users = None if users is None else users[tested:]
    else:
        sentences = list(zip(test.source, test.target, strict=True))
        encoded, is_cut = _encode(sentences, words, max_length)
        reserved = take(encoded, np.flatnonzero(~is_cut)[:tested])
    return Corpus(pairs, reserved, words, len(read) - len(rows), users)


def _occurrence(values: np.ndarray) -> np.ndarray:
    """Returns how often each value has occurred before it."""
    order = np.argsort(values, kind="stable")
    _, starts, counts = np.unique(values[order], return_index=True, return_counts=True)
    result = np.empty(len(values), int)
    result[order] = np.arange(len(values)) - np.repeat(starts, counts)
    return result


def load(piece: Piece) -> Corpus:
    """Reads the corpus of a piece; those without data of their own need JAXPRIV_DATA."""
    return _load(piece.corpus, piece.test_split, piece.max_length, piece.min_count, piece.tested)


def _encode(
    sentences: Sequence[tuple[str, str]], words: tuple[Any, ...], max_length: int
) -> tuple[translation.SentencePair, np.ndarray]:
    """Encodes pairs; also returns which of them have an empty sentence or one that was cut."""
    sides = [
        data.pad(side, vocabulary, max_length=max_length)
        for side, vocabulary in zip(zip(*sentences, strict=True), words, strict=True)
    ]
    pairs = translation.make_pairs(sides[0].tokens, sides[0].mask, sides[1].tokens, sides[1].mask)
    is_empty = (pairs.source_length <= 2) | (pairs.target_length <= 2)
    return pairs, sides[0].is_cut | sides[1].is_cut | is_empty


def take(pairs: Any, rows: Any) -> Any:
    """Takes rows of every leaf."""
    return jax.tree.map(lambda leaf: leaf[rows], pairs)


def rows(piece: Piece, seed: int) -> dict[str, np.ndarray]:
    """Draws the pairs of each role: members of victim and shadow model, and their non-members.

    The pairs of a user have one role, so that a user is a member or not.
    """
    corpus = load(piece)
    count = len(corpus.pairs.source_length)
    rng = np.random.default_rng(seed)
    order = rng.permutation(count)
    if corpus.users is not None:
        place = rng.permutation(corpus.users.max() + 1)[corpus.users]
        order = order[np.argsort(place[order], kind="stable")]
    sizes = {
        "victim": piece.size,
        "shadow": piece.size,
        "victim_nonmembers": piece.judged,
        "shadow_nonmembers": piece.judged,
    }
    roles, start = {}, 0
    for name, size in sizes.items():
        roles[name] = order[start : start + size]
        start += size
        if corpus.users is not None and start < count:  # leaves out the others of the last user
            start += int((corpus.users[order[start:]] == corpus.users[order[start - 1]]).sum())
    if start > count:
        needed = sum(sizes.values())
        raise ValueError(f"Expected at least {needed} pairs in {piece.corpus}, got {count}.")
    return roles


@functools.cache
def halves(piece: Piece, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws the members of the shadow models of LiRA and RMIA.

    Returns:
      The pairs of the pool, which contains those that are judged, and whether each is a member of
      each model. Every model has half of them, as many as the victim has; those of a user stay
      together.
    """
    roles, users = rows(piece, seed), load(piece).users
    added = roles["shadow"][: max(0, piece.size - piece.judged)]
    pool = np.concatenate([roles["victim"], roles["victim_nonmembers"], added])
    is_member = training.shadows.halves(
        jax.random.key(seed),
        len(pool),
        num_models=piece.shadows,
        group=None if users is None else users[pool],
    )
    return pool, is_member
