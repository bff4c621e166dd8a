"""Pieces of the experiments on translation: disjoint roles, schedules, intervals, tests."""

import dataclasses
import importlib.util

import numpy as np
import pytest

from experiments import (
    translation,
    translation_corpus,
    translation_measures,
    translation_tables,
)
from experiments.benchmarks import seq2seq
from experiments.rnnmia2022 import table2
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


@pytest.fixture
def corpus_with_users(tmp_path, monkeypatch):
    """Sentences of 30 users; the first has 40 of them, more than are used."""
    users = [f"user{i}" for i in range(30) for _ in range(40 if i == 0 else 5)]
    monkeypatch.setenv("JAXPRIV_DATA", str(tmp_path))
    (tmp_path / "talks").mkdir()
    for ending in ("fr", "en"):
        lines = [f"{ending} {user} says {i}" for i, user in enumerate(users)]
        (tmp_path / "talks" / f"train.{ending}").write_text("\n".join(lines))
    (tmp_path / "talks" / "train.usr").write_text("\n".join(users))
    yield dataclasses.replace(PIECE, corpus="talks", size=25, judged=20, tested=5, shadows=4)
    translation_corpus._load.cache_clear()
    translation.halves.cache_clear()


def test_users_have_one_role_and_one_side_of_every_half(corpus_with_users):
    piece = corpus_with_users
    corpus, roles = translation.load(piece), translation.rows(piece, 0)
    assert corpus.users is not None
    assert len(corpus.users) == len(corpus.pairs.target_length) == 29 * 5 + 16 - 5
    words = corpus.words[0]
    for row, user in zip(corpus.pairs.source[:9], corpus.users[:9], strict=True):
        assert f"user{user} " in words.decode(row)
    people = [set(corpus.users[members]) for members in roles.values()]
    assert [len(members) for members in roles.values()] == [25, 25, 20, 20]
    assert len(set.union(*people)) == sum(map(len, people))
    pool, is_member = translation.halves(piece, 0)
    for user in set(corpus.users[pool]):
        of_user = is_member[:, corpus.users[pool] == user]
        assert (of_user == of_user[:, :1]).all()
        assert of_user[:, 0].sum() == 2


def test_shadow_models_have_halves_of_a_pool_that_the_population_is_not_in():
    piece = dataclasses.replace(PIECE, shadows=4)
    roles = translation.rows(piece, 0)
    pool, is_member = translation.halves(piece, 0)
    assert len(set(pool)) == len(pool) == 2 * piece.size
    assert set(roles["victim"]) | set(roles["victim_nonmembers"]) <= set(pool)
    assert not set(roles["shadow_nonmembers"]) & set(pool)
    assert (is_member.sum(axis=1) == piece.size).all()
    assert (is_member.sum(axis=0) == 2).all()


def test_lira_and_rmia_see_the_shadow_models_of_each_sentence(monkeypatch):
    """A model here answers with what it remembers, so both attacks must find the members."""
    piece = dataclasses.replace(PIECE, shadows=8)
    pool, is_member = translation.halves(piece, 0)
    roles = translation.rows(piece, 0)
    rng = np.random.default_rng(0)
    pool_size = len(translation.load(piece).pairs.target_length)

    def outputs(members, chosen):
        base = np.random.default_rng(1).uniform(0.1, 0.4, size=pool_size)
        p = base[chosen] * rng.uniform(0.9, 1.1, size=len(chosen)) + 0.3 * np.isin(chosen, members)
        return translation.Scored(
            sequence.Outputs(
                largest=p[:, None, None],
                of_reference=p[:, None],
                rank=np.zeros((len(p), 1), int),
                lengths=np.ones(len(p), int),
            ),
            p,
        )

    def train_on_half(piece, kind, seed, number):
        return (pool[is_member[number]],)

    monkeypatch.setattr(translation, "train_on_half", train_on_half)
    monkeypatch.setattr(translation, "train", lambda *args: (roles["victim"],))
    monkeypatch.setattr(
        translation, "score", lambda piece, kind, params, chosen: outputs(params, chosen)
    )
    judged = np.concatenate([roles["victim"], roles["victim_nonmembers"]])
    kind = translation.SMALL_KINDS["RNN"]
    scores = translation.by_shadows(
        piece, kind, 0, judged, outputs(roles["victim"], judged), stage=-1, shadow=kind
    )
    truth = np.isin(judged, roles["victim"])
    assert set(scores) == set(translation.BY_SHADOWS)
    for name, values in scores.items():
        assert translation_measures.measured(values, truth, decides=False)["auc"][0] > 0.9, name
    assert ((scores["lira"] > 0) == truth).mean() > 0.9


def test_a_judged_sentence_may_not_train_the_attack(monkeypatch):
    def score(piece, kind, params, chosen):
        rows = np.full((len(chosen), 1), 0.5)
        rank, lengths = np.zeros_like(rows, int), np.ones(len(chosen), int)
        return translation.Scored(sequence.Outputs(rows[..., None], rows, rank, lengths), rows)

    roles = {
        "victim": np.arange(4),
        "shadow": np.arange(4, 8),
        "victim_nonmembers": np.arange(8, 12),
        "shadow_nonmembers": np.arange(11, 15),
    }
    monkeypatch.setattr(translation, "rows", lambda *args: roles)
    monkeypatch.setattr(translation, "train", lambda *args: (None,))
    monkeypatch.setattr(translation, "score", score)
    piece = dataclasses.replace(PIECE, judged=4)
    with pytest.raises(ValueError, match="got sentence 11 among the known ones"):
        translation.judge.__wrapped__(piece, translation.SMALL_KINDS["RNN"], 0)


def test_users_are_judged_by_the_mean_of_their_sentences():
    rng = np.random.default_rng(0)
    truth = np.arange(320) < 160
    scores = {"rank_histogram": rng.normal(size=320) + np.where(truth, 0.5, -0.5)}
    rows = translation_measures.by_user(scores, truth, None)
    assert [(row["sentences"], row["members"]) for row in rows] == [(1, 160), (4, 40), (16, 10)]
    accuracies = [row["attacks"]["rank_histogram"]["accuracy"][0] for row in rows]
    sentences = translation_measures.by_sentence(scores, truth)["rank_histogram"]["accuracy"][0]
    assert accuracies[0] == pytest.approx(sentences)
    # The mean of 4 has half the deviation: Phi(0.5), Phi(1), Phi(2).
    np.testing.assert_allclose(accuracies, [0.69, 0.84, 0.98], atol=0.12)
    assert accuracies == sorted(accuracies)


def test_a_user_has_enough_sentences_of_one_side_or_is_left_out():
    truth = np.arange(20) < 10
    users = np.repeat([7, 8, 9, 3], [6, 4, 5, 5])
    group = translation_measures.grouped(truth, users, count=5)
    assert sorted(group[group >= 0].tolist()) == [3] * 5 + [7] * 5 + [9] * 5
    assert (users[group >= 0] == group[group >= 0]).all()
    synthetic = translation_measures.grouped(truth, None, count=4)
    for number in set(synthetic[synthetic >= 0]):
        assert (synthetic == number).sum() == 4
        assert len(set(truth[synthetic == number])) == 1
    assert (synthetic < 0).sum() == 4


@pytest.mark.slow
@pytest.mark.skipif(
    not (importlib.util.find_spec("torch") and importlib.util.find_spec("opacus")),
    reason="needs the extra `bench`",
)
@pytest.mark.parametrize("name", translation.SMALL_KINDS)
def test_the_benchmark_and_its_peers_have_the_same_loss_and_gradients(name):
    kinds = {name: translation.SMALL_KINDS[name]}
    rows = seq2seq.run(dataclasses.replace(seq2seq.PRESETS["smoke"], kinds=kinds))["rows"]
    assert {row["method"] for row in rows} == {"DP-SGD", "PyTorch", "Opacus", "Opacus ghost"}
    assert max(row["difference"] for row in rows if row["method"] != "DP-SGD") < 1e-5


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
    mean, low, high = translation_measures.balanced_accuracy(right, truth)
    assert mean == pytest.approx(0.75)
    assert low < 0.65
    assert 0.85 < high < 1


@pytest.mark.parametrize(("k", "queries"), [(3.0, 1), (0.01, 4)])
def test_some_entries_of_an_answer_are_those_of_a_dirichlet_vector(k, queries):
    p = np.array([0.6, 0.3, 0.0])  # the other entries have 0.1 together
    n = 40_000
    drawn = table2.mean_answer(np.random.default_rng(0), np.tile(p, (n, 1, 1)), k, queries)[:, 0]
    variance = p * (1 - p) / (k + 1) / queries
    assert (np.abs(drawn.mean(axis=0) - p) <= 4 * np.sqrt(variance / n)).all()
    np.testing.assert_allclose(drawn.var(axis=0), variance, rtol=0.05)
