"""Attacks on sentences: what is reduced, what padding may do, and that members are found."""

import dataclasses
import subprocess
import sys
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from jaxpriv import metrics, models, signals
from jaxpriv.attacks import Training, sequence

V, T = 12, 5


@pytest.fixture
def unchecked():
    """Makes evidence as outside pytest, where only the library checks types and shapes."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def draw(rng, is_member, *, sharpness=1.5):
    """Sentences whose reference tokens are more probable for members."""
    n = len(is_member)
    references = rng.integers(V, size=(n, T))
    lengths = rng.integers(2, T + 1, size=n)
    logits = rng.normal(size=(n, T, V))
    bonus = sharpness * is_member[:, None] * np.ones((n, T))
    np.put_along_axis(
        logits,
        references[..., None],
        np.take_along_axis(logits, references[..., None], 2) + bonus[..., None],
        2,
    )
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return probabilities, references, lengths


def test_a_reduction_keeps_what_a_loop_finds():
    rng = np.random.default_rng(0)
    probabilities, references, lengths = draw(rng, rng.random(70) < 0.5)  # two parts of `reduce`
    outputs = sequence.reduce(probabilities, references, lengths, top=3)
    for i in range(0, 70, 7):
        for j in range(T):
            row = probabilities[i, j].astype(np.float32)
            np.testing.assert_array_equal(outputs.largest[i, j], np.sort(row)[::-1][:3])
            assert outputs.of_reference[i, j] == row[references[i, j]]
            assert outputs.rank[i, j] == sum(p > row[references[i, j]] for p in row)
    np.testing.assert_array_equal(outputs.lengths, lengths)


def test_histograms_of_ranks_are_those_of_a_loop():
    rng = np.random.default_rng(1)
    outputs = sequence.reduce(*draw(rng, rng.random(9) < 0.5), top=1)
    edges = np.expm1(np.linspace(0, np.log1p(V), 5))
    expected = np.zeros((9, 4))
    for i in range(9):
        for j in range(outputs.lengths[i]):
            expected[i, np.flatnonzero(outputs.rank[i, j] >= edges)[-1]] += 1
    expected /= outputs.lengths[:, None]
    found = sequence.rank_histograms(outputs, num_bins=4, num_tokens=V)
    np.testing.assert_allclose(found, expected)
    np.testing.assert_allclose(found.sum(1), 1)


def test_signals_are_those_of_the_tokens_before_the_end():
    rng = np.random.default_rng(2)
    outputs = sequence.reduce(*draw(rng, rng.random(9) < 0.5), top=1)
    for signal, of in (
        (signals.mean_log_probability, np.mean),
        (signals.total_log_probability, np.sum),
        (
            signals.min_k_probability,
            lambda logs: np.sort(logs)[: max(1, int(0.2 * len(logs) + 1e-9))].mean(),
        ),
    ):
        scores = sequence.sequence_signals(outputs, signal)
        for i, length in enumerate(outputs.lengths):
            logs = np.log(outputs.of_reference[i, :length].astype(np.float64))
            assert scores[i] == pytest.approx(of(logs), rel=1e-5)


def test_compressible_text_weighs_less():
    texts = ["the same the same the same the same", "qjx wvk zpy fhg bmt dcl nsr ueo aik"]
    ratios = signals.zlib_ratio(np.array([-30.0, -30.0]), texts)
    for ratio, text in zip(ratios, texts, strict=True):
        assert ratio == -30.0 / (8 * len(zlib.compress(text.encode())))
    assert ratios[0] < ratios[1]
    assert signals.reference_ratio(np.array([-1.0]), np.array([-2.0])) == 1.0


@pytest.fixture(scope="module")
def evidence():
    rng = np.random.default_rng(3)
    is_member, known_is_member = rng.random(200) < 0.5, rng.random(200) < 0.5
    outputs, known = (
        sequence.reduce(*draw(rng, members), top=3) for members in (is_member, known_is_member)
    )
    shadow_is_member = rng.random((8, 200)) < 0.5
    target = sequence.sequence_signals(outputs)
    shadows = rng.normal(size=(8, 200)) * 0.4 + 1.2 * shadow_is_member
    shadows += target.mean() - shadows.mean()
    return is_member, sequence.Evidence(
        outputs=outputs,
        num_tokens=V,
        known=known,
        known_is_member=known_is_member,
        shadow_signals=shadows,
        shadow_is_member=shadow_is_member,
    )


def test_every_attack_finds_members(evidence):
    """With 200 sentences an AUC of 1/2 stays below 0.62 with probability 0.998."""
    is_member, known = evidence
    table = sequence.attacks(
        training=Training(steps=60, batch_size=32, learning_rate=1e-2), width=8
    )
    assert sequence.applicable(table, known) == table
    scores = sequence.run_all(jax.random.key(0), known, table=table)
    assert set(scores) == {attack.name for attack in table}
    for name, values in scores.items():
        assert metrics.membership(values, is_member, confidence=0.95).auc > 0.62, name


def test_what_follows_the_end_changes_no_score(evidence):
    _, known = evidence
    outputs = known.outputs
    after = np.arange(T) >= outputs.lengths[:, None]
    changed = outputs._replace(
        of_reference=np.where(after, 0.5, outputs.of_reference).astype(np.float32),
        largest=np.where(after[..., None], 0.25, outputs.largest).astype(np.float32),
        rank=np.where(after, 1, outputs.rank),
    )
    net = models.RecurrentMembershipNet(width=4)
    tokens = sequence._tokens(outputs)
    params = net.init(jax.random.key(1), jnp.asarray(tokens[0]), jnp.int32(T))
    for score in (
        lambda o: sequence.apply(params, o),
        sequence.sequence_signals,
        lambda o: sequence.rank_histograms(o, num_bins=4, num_tokens=V),
    ):
        np.testing.assert_allclose(score(outputs), score(changed), rtol=1e-5, atol=1e-7)


def test_missing_evidence_is_named(evidence):
    bare = sequence.Evidence(outputs=evidence[1].outputs, num_tokens=V)
    missing = [sequence.missing(attack, bare) for attack in sequence.attacks()]
    assert missing[:2] == ["", ""]
    assert missing[2] == "needs sentences of known membership"
    assert missing[4] == "needs signals of shadow models"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top": V + 1}, "top of at most 12"),
        ({"references": np.full((3, T), V)}, "references in 0..11, got 12"),
        ({"references": np.arange(-1, 14).reshape(3, T)}, "references in 0..11, got -1"),
        ({"references": np.full((3, T), 1.5)}, "whole numbers in references, got 1.5"),
        ({"references": np.zeros((5, T), int)}, r"references \[3, 5\].*got shapes \[5, 5\]"),
        ({"references": np.zeros((1, T), int)}, r"references \[3, 5\].*got shapes \[1, 5\]"),
        ({"references": np.zeros((3, 1), int)}, r"references \[3, 5\].*got shapes \[3, 1\]"),
        ({"lengths": np.array([1, T + 1, 2])}, "lengths in 1..5, got 6"),
        ({"lengths": np.array([0, 1, 2])}, "lengths in 1..5, got 0"),
        ({"lengths": np.array([2.7, 1.2, 4.9])}, "whole numbers in lengths, got 2.7"),
        ({"lengths": np.array([1.0, np.nan, 2.0])}, "lengths without NaN, got 1 NaN"),
        ({"lengths": np.array([1, 2])}, r"lengths \[3\], got shapes \[3, 5\] and \[2\]"),
        ({"lengths": np.ones((3, 1), int)}, r"lengths \[3\], got shapes \[3, 5\] and \[3, 1\]"),
        ({"probabilities": np.full((3, T, V), 1.5)}, r"probabilities in \[0, 1\], got 1.5"),
        ({"probabilities": np.full((3, T, V), -0.5)}, r"probabilities in \[0, 1\], got -0.5"),
        ({"probabilities": np.full((3, T, V), np.nan)}, "probabilities without NaN"),
        ({"probabilities": np.full((3, T, V), 0.25)}, "sum to at most 1 at each token, got 3"),
        ({"probabilities": np.ones((T, V))}, r"probabilities \[n, t, v\].*got shape \[5, 12\]"),
        ({"probabilities": np.ones((0, T, V))}, r"at least one sentence, got shape \[0, 5, 12\]"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_reduced_is_refused(changes, message):
    probabilities, references, lengths = draw(np.random.default_rng(4), np.arange(3) < 2)
    given = {"probabilities": probabilities, "references": references, "lengths": lengths, "top": 2}
    with pytest.raises(ValueError, match=rf"^Expected {message}|^Expected .*{message}"):
        sequence.reduce(**{**given, **changes})


@pytest.mark.usefixtures("unchecked")
def test_references_of_more_sentences_than_there_are_probabilities_are_refused():
    """64 sentences are one part of `reduce`, whose end must not hide the others."""
    probabilities, _, _ = draw(np.random.default_rng(4), np.arange(64) < 32)
    with pytest.raises(ValueError, match=r"references \[64, 5\] and lengths \[64\], got"):
        sequence.reduce(probabilities, np.zeros((100, T), int), np.ones(100, int), top=2)


def test_probabilities_in_half_precision_are_reduced():
    probabilities, references, lengths = draw(np.random.default_rng(5), np.arange(9) < 4)
    for dtype in (jnp.bfloat16, jnp.float16):
        outputs = sequence.reduce(jnp.asarray(probabilities, dtype), references, lengths, top=V)
        np.testing.assert_allclose(outputs.largest.sum(axis=2), 1, atol=1e-2)


def changed(outputs, **changes):
    """Outputs whose named parts have another value in the first sentence."""
    parts = {name: np.array(getattr(outputs, name)) for name in changes}
    for name, value in changes.items():
        parts[name] = parts[name].astype(np.result_type(parts[name], value))
        parts[name][0] = value
    return outputs._replace(**parts)


IMPOSSIBLE = [
    (lambda o: changed(o, lengths=0), "lengths of {} in 1..5, got 0"),
    (lambda o: changed(o, lengths=9), "lengths of {} in 1..5, got 9"),
    (lambda o: changed(o, lengths=1.5), "whole numbers in lengths of {}, got 1.5"),
    (lambda o: changed(o, of_reference=np.nan), "of_reference of {} without NaN"),
    (lambda o: changed(o, of_reference=1.5), "of_reference of {} in [0, 1], got 1.5"),
    (lambda o: changed(o, of_reference=-3.0), "of_reference of {} in [0, 1], got -3"),
    (lambda o: changed(o, largest=np.inf), "largest of {} in [0, 1], got inf"),
    (lambda o: changed(o, largest=0.9), "largest of {} that sum to at most 1 at each token"),
    (lambda o: changed(o, rank=-1), "rank of {} in 0.."),
    (lambda o: changed(o, rank=0.5), "whole numbers in rank of {}, got 0.5"),
    (lambda o: o._replace(lengths=o.lengths[1:]), "shapes [n, t, k], [n, t], [n, t] and [n] in {}"),
    (lambda o: o._replace(rank=o.rank[:, :2]), "shapes [n, t, k], [n, t], [n, t] and [n] in {}"),
    (lambda o: o._replace(largest=o.largest[0]), "shapes [n, t, k], [n, t], [n, t] and [n] in {}"),
    (lambda o: sequence.Outputs(*(part[:0] for part in o)), "at least one sentence in {}"),
]


@pytest.mark.parametrize(("change", "message"), IMPOSSIBLE, ids=[text for _, text in IMPOSSIBLE])
@pytest.mark.usefixtures("unchecked")
def test_impossible_outputs_are_refused(evidence, change, message):
    good = evidence[1]
    bad = change(good.outputs)
    calls = {
        "known": (
            lambda: sequence.Evidence(
                outputs=good.outputs,
                num_tokens=V,
                known=bad,
                known_is_member=good.known_is_member[: len(bad.lengths)],
            ),
            lambda: sequence.fit(jax.random.key(0), bad, good.known_is_member),
        ),
        "outputs": (
            lambda: sequence.Evidence(outputs=bad, num_tokens=V),
            lambda: sequence.apply({}, bad),
            lambda: sequence.sequence_signals(bad),
            lambda: sequence.rank_histograms(bad, num_bins=4, num_tokens=V),
        ),
    }
    for name, functions in calls.items():
        for function in functions:
            with pytest.raises(ValueError, match=r"^Expected ") as caught:
                function()
            assert message.format(name) in str(caught.value)


def test_ranks_outside_the_vocabulary_are_refused(evidence):
    outputs = changed(evidence[1].outputs, rank=V)
    for call in (
        lambda: sequence.Evidence(outputs=outputs, num_tokens=V),
        lambda: sequence.rank_histograms(outputs, num_bins=4, num_tokens=V),
    ):
        with pytest.raises(ValueError, match=r"rank of outputs in 0\.\.11, got 12"):
            call()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_tokens": 0}, "num_tokens >= 1, got num_tokens=0"),
        ({"known_is_member": np.arange(200) % 3}, "only 0 and 1 in known_is_member, got 2"),
        ({"known_is_member": np.full(200, np.nan)}, "known_is_member without NaN"),
        ({"known_is_member": np.zeros((200, 2), bool)}, r"known_is_member of shape \[n\]"),
        ({"known_is_member": np.zeros(9, bool)}, "equal lengths, .*known_is_member.=9"),
        ({"shadow_is_member": np.full((8, 200), 2)}, "only 0 and 1 in shadow_is_member, got 2"),
        ({"shadow_is_member": np.zeros((7, 200), bool)}, r"got \[8, 200\] and \[7, 200\]"),
        ({"shadow_signals": np.full((8, 200), np.nan)}, "shadow_signals without NaN"),
        ({"known_ids": np.arange(200)}, "ids and known_ids together"),
        ({"ids": np.arange(9), "known_ids": np.arange(200)}, "equal lengths, .*ids.=9"),
        ({"ids": np.arange(200), "known_ids": np.arange(9)}, "equal lengths, .*known_ids.=9"),
        (
            {"ids": np.arange(200), "known_ids": np.arange(197, 397)},
            "do not train the attack, got sentence 197 among the known ones",
        ),
        (
            {"known": None, "known_is_member": None, "ids": np.arange(200), "known_ids": None},
            "ids and known_ids together",
        ),
        (
            {
                "known": None,
                "known_is_member": None,
                "ids": np.arange(200),
                "known_ids": np.arange(200, 400),
            },
            "known with known_ids, got none",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_evidence_is_refused(evidence, changes, message):
    with pytest.raises(ValueError, match=rf"^Expected .*{message}|^Expected {message}"):
        dataclasses.replace(evidence[1], **changes)


def test_sentences_may_have_names(evidence):
    names = np.array([f"sentence {i}" for i in range(400)])
    named = dataclasses.replace(evidence[1], ids=names[:200], known_ids=names[200:])
    assert named.known_ids[0] == "sentence 200"


def test_attacks_decide_at_even_priors_whatever_the_share_of_known_members():
    """The threshold 0 is within 2 % of the best one, which has the advantage of choosing."""
    rng = np.random.default_rng(6)
    is_member, known_is_member = np.arange(600) < 300, np.arange(600) < 60
    outputs, known = (
        sequence.reduce(*draw(rng, members), top=3) for members in (is_member, known_is_member)
    )
    evidence = sequence.Evidence(
        outputs=outputs, num_tokens=V, known=known, known_is_member=known_is_member
    )
    options = Training(steps=60, batch_size=32, learning_rate=1e-2)
    table = [each for each in sequence.attacks(training=options, width=8) if "known" in each.needs]
    for name, scores in sequence.run_all(jax.random.key(0), evidence, table=table).items():
        at_zero = np.mean([(scores[is_member] > 0).mean(), (scores[~is_member] <= 0).mean()])
        best = metrics.membership(scores, is_member).balanced_accuracy
        assert best > 0.75, name
        assert at_zero > best - 0.02, name


def test_attacks_that_learn_need_members_and_nonmembers(evidence):
    one_sided = dataclasses.replace(evidence[1], known_is_member=np.ones(200, bool))
    for attack in sequence.attacks():
        if attack.trains:
            with pytest.raises(ValueError, match="members and non-members, got 200 and 0"):
                attack.run(jax.random.key(0), one_sided)


def test_parts_of_different_sizes_are_not_joined(evidence):
    outputs = evidence[1].outputs
    for parts, message in (
        ([], "got no parts"),
        ([outputs, outputs._replace(largest=outputs.largest[..., :2])], r"got \[5, 2\], \[5, 3\]"),
    ):
        with pytest.raises(ValueError, match=rf"Expected parts with equal numbers .*{message}"):
            sequence.join(parts)


def test_evidence_with_half_of_a_part_is_refused(evidence):
    outputs = evidence[1].outputs
    with pytest.raises(ValueError, match="known and known_is_member together"):
        sequence.Evidence(outputs=outputs, num_tokens=V, known=outputs)
    with pytest.raises(ValueError, match=r"shadow_signals and shadow_is_member \[m, 200\]"):
        sequence.Evidence(
            outputs=outputs,
            num_tokens=V,
            shadow_signals=np.zeros((2, 3)),
            shadow_is_member=np.zeros((2, 3), bool),
        )


MEMORY = """
import sys
from pathlib import Path

import jax
import numpy as np

from jaxpriv.attacks import Training, sequence

BLOCK, T, V = 50, 40, 10_000
num_blocks, rng = int(sys.argv[1]) // BLOCK, np.random.default_rng(0)


def outputs():
    parts = []
    for _ in range(num_blocks):
        rows = rng.random((BLOCK, T, V), np.float32) ** 8
        rows /= rows.sum(axis=2, keepdims=True)
        references, lengths = rng.integers(V, size=(BLOCK, T)), rng.integers(5, T + 1, size=BLOCK)
        parts.append(sequence.reduce(rows, references, lengths, top=50))
    return sequence.join(parts)


evidence = sequence.Evidence(
    outputs=outputs(),
    num_tokens=V,
    known=outputs(),
    known_is_member=np.arange(num_blocks * BLOCK) % 2 == 0,
)
table = sequence.attacks(training=Training(steps=600, batch_size=64))
scores = sequence.run_all(jax.random.key(0), evidence, table=table)
assert {"probability_vectors", "rank_histogram"} <= set(scores)
assert all(np.isfinite(each).all() for each in scores.values())
(line,) = [x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM")]
print(int(line.split()[1]) / 2**20)
"""
"""Attacks that learn from n sentences and judge n others; prints the peak of the memory in GiB.

VmHWM is that of this program; `ru_maxrss` would also count what the process was before it.
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_2_000_outputs_over_10_000_tokens_are_attacked_in_2_gib():
    command = [sys.executable, "-c", MEMORY, "2000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) < 2.0


def test_probabilities_in_half_precision_are_floored_as_others_are(unchecked):
    """In float16 the floor of 1e-13 is 0, whose logarithm would be the score of the sentence."""
    rows = np.array([[0.9, 0.0]])
    outputs = sequence.Outputs(rows[..., None], rows, np.zeros((1, 2), int), np.array([2]))
    half = outputs._replace(
        largest=outputs.largest.astype(np.float16), of_reference=np.float16(rows)
    )
    expected = sequence.sequence_signals(outputs)
    np.testing.assert_allclose(sequence.sequence_signals(half), expected, rtol=1e-4)
    assert expected == pytest.approx((np.log(0.9) + np.log(1e-13)) / 2)
    net = models.RecurrentMembershipNet(width=4)
    params = net.init(jax.random.key(0), jnp.zeros((2, 3)), jnp.int32(2))
    assert np.isfinite(sequence.apply(params, half)).all()
