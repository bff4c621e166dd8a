"""BLEU against its definition, word by word."""

import collections
import math
import sys

import pytest

from jaxpriv.metrics import text


def slow_bleu(translations, references):
    matched, total = collections.Counter(), collections.Counter()
    for translation, reference in zip(translations, references, strict=True):
        for n in range(1, 5):
            grams, truth = (
                collections.Counter(zip(*(words[i:] for i in range(n)), strict=False))
                for words in (translation.split(), reference.split())
            )
            total[n] += sum(grams.values())
            matched[n] += sum(min(count, truth[gram]) for gram, count in grams.items())
    lengths = [sum(len(s.split()) for s in side) for side in (translations, references)]
    penalty = min(1.0, math.exp(1 - lengths[1] / lengths[0]))
    return 100 * penalty * math.prod(matched[n] / total[n] for n in range(1, 5)) ** 0.25


def test_bleu_is_the_geometric_mean_of_clipped_precisions():
    translations = ["the the man rides a horse on hills", "two dogs run in the snow"]
    references = [
        "the man rides a horse on a green hill",
        "two dogs run through the snow quickly now",
    ]
    result = text.bleu(translations, references)
    assert result.score == pytest.approx(slow_bleu(translations, references), rel=1e-6)
    assert "tok:13a" in result.signature
    assert text.bleu(references, references).score == pytest.approx(100)


def test_no_sentences_and_unequal_numbers_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="at least one translation"):
        text.bleu([], [])
    with pytest.raises(ValueError, match="references"):
        text.bleu(["a"], [])
    for sides, name in ((("abc", "abd"), "translations"), ((["abc"], "a"), "references")):
        with pytest.raises(ValueError, match=f"Expected a list of sentences as {name}, got one"):
            text.bleu(*sides)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(ValueError, match=r"pip install 'jaxpriv\[text\]'"):
        text.bleu(["a"], ["a"])


def test_bleu_is_at_most_100():
    sentence = "the cat sat on the mat today"  # sacrebleu gives 100.00000000000004
    assert text.bleu([sentence], [sentence]).score == 100
