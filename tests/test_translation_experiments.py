"""Pieces of the experiments on translation: disjoint roles, schedules, intervals, tests."""

import dataclasses

import numpy as np
import pytest

from experiments import translation, translation_tables
from jaxpriv.attacks import sequence

PIECE = translation.SMOKE


def test_roles_are_disjoint_and_no_sentence_occurs_twice():
    corpus, roles = translation.load(PIECE), translation.rows(PIECE, 3)
    drawn = np.concatenate(list(roles.values()))
    assert len(set(drawn)) == len(drawn) == 2 * (PIECE.size + PIECE.judged)
    assert [len(roles[role]) for role in ("victim", "shadow")] == [PIECE.size] * 2
    sources = [tuple(row) for row in (*corpus.pairs.source, *corpus.tested.source)]
    assert len(set(sources)) == len(sources)
    assert (translation.rows(PIECE, 4)["victim"] != roles["victim"]).any()
    with pytest.raises(ValueError, match="pairs in humanize"):
        translation.rows(dataclasses.replace(PIECE, size=100), 0)


def test_parts_are_trained_on_in_the_order_of_the_members():
    piece = dataclasses.replace(PIECE, size=20, parts=2, stages=(3,), batch_size=5)
    members = np.arange(100, 120)
    schedule = translation._schedule(piece, members)
    assert [(part.tolist(), steps) for _, part, steps in schedule] == [
        (list(range(100, 110)), 6),
        (list(range(110, 120)), 12),
    ]
    staged = dataclasses.replace(piece, parts=1, stages=(1, 4))
    assert [(name, steps) for name, _, steps in translation._schedule(staged, members)] == [
        ("epochs-0-to-1", 4),
        ("epochs-1-to-4", 16),
    ]


def judged(first, second, truth):
    """Attacks that are right where they should be."""
    scores = {
        name: np.where(right == truth, 1.0, -1.0)
        for name, right in zip(translation.DECIDED, (first, second), strict=True)
    }
    outputs = sequence.Outputs(*(np.zeros(0) for _ in range(4)))
    return translation.Judged(scores, truth, translation.Scored(outputs, np.zeros(0)))


def test_the_paired_test_names_the_better_attack_or_none():
    truth = np.arange(200) < 100
    first, second = np.ones(200, bool), np.arange(200) % 4 > 0
    better = translation.compare([judged(first, second, truth)], *translation.DECIDED)
    assert better["winner"] == translation.DECIDED[0]
    assert better["difference"][0] == pytest.approx(0.25)
    assert better["p_value"] == pytest.approx(2 * 0.5**50, rel=1e-6)
    swapped = translation.compare([judged(second, first, truth)], *translation.DECIDED)
    assert swapped["winner"] == translation.DECIDED[1]
    equal = translation.compare([judged(second, second, truth)], *translation.DECIDED)
    assert (equal["winner"], equal["p_value"]) == (None, 1.0)
    assert "neither wins" in translation_tables.test_line(equal)


def test_the_balanced_accuracy_weighs_both_sides_alike():
    truth = np.arange(110) < 10
    right = np.concatenate([np.ones(5, bool), np.zeros(5, bool), np.ones(100, bool)])
    mean, low, high = translation.balanced_accuracy(right, truth)
    assert mean == pytest.approx(0.75)
    assert low < 0.65
    assert 0.85 < high < 1
