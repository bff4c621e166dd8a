"""Attacks on sentences: what is reduced, what padding may do, and that members are found."""

import subprocess
import sys
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpriv import metrics, models, signals
from jaxpriv.attacks import Training, sequence

V, T = 12, 5


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
        ({"references": np.full((2, T), V)}, r"references in 0..11, got 12"),
        ({"lengths": np.array([1, T + 1])}, "lengths in 1..5, got 6"),
        ({"probabilities": np.full((2, T, V), 1.5)}, r"probabilities in \[0, 1\]"),
        ({"probabilities": np.full((2, T, V), np.nan)}, r"probabilities in \[0, 1\]"),
    ],
)
@pytest.mark.filterwarnings("ignore:All-NaN")
def test_impossible_outputs_are_refused(changes, message):
    probabilities, references, lengths = draw(np.random.default_rng(4), np.array([True, False]))
    given = {"probabilities": probabilities, "references": references, "lengths": lengths, "top": 2}
    with pytest.raises(ValueError, match=message):
        sequence.reduce(**{**given, **changes})


def test_evidence_with_half_of_a_part_is_refused(evidence):
    outputs = evidence[1].outputs
    with pytest.raises(ValueError, match="known and known_is_member together"):
        sequence.Evidence(outputs=outputs, num_tokens=V, known=outputs)
    with pytest.raises(ValueError, match=r"shadow_signals \[m, 200\]"):
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
