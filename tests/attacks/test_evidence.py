"""Evidence: what NumPy writes is read, what does not fit is one line, defences pass through."""

import dataclasses
import io
import stat
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpriv.attacks import Evidence, evidence, suite
from tests.attacks import stored


def test_reads_what_numpy_writes(tmp_path):
    path = tmp_path / "s.npz"
    np.savez_compressed(
        path,
        scores=np.float16([[1], [np.inf], [-2]]),
        is_member=np.array([1, 0, 1]),
        shadow_scores=np.zeros((2, 3), np.float32),
        shadow_is_member=np.ones((2, 3)),
        group=np.array(["ann", "bob", "ann"]),
    )
    loaded, is_member = evidence.load(path)
    assert loaded.signals.tolist() == [1.0, np.inf, -2.0]
    assert is_member.tolist() == [True, False, True]
    assert loaded.shadow_signals.shape == loaded.shadow_is_member.shape == (2, 3)
    assert loaded.shadow_is_member.dtype == bool
    assert loaded.unit_id.tolist() == ["ann", "bob", "ann"]
    assert (len(loaded), loaded.num_shadows, loaded.judged.all()) == (3, 2, True)


def test_the_truth_may_be_left_out(tmp_path):
    np.savez(tmp_path / "s.npz", scores=np.arange(3))
    loaded, is_member = evidence.load(tmp_path / "s.npz")
    assert is_member is loaded.shadow_signals is loaded.shadow_is_member is None


def test_what_is_saved_is_loaded(tmp_path):
    full, is_member = stored.evidence()
    full = dataclasses.replace(
        full,
        inputs=np.zeros((len(full), 2, 2), np.uint8),
        signals=np.arange(len(full)),
        unit_id=np.arange(len(full)) // 2,
        revealed=np.arange(len(full)) < 5,
        revealed_is_member=is_member,
        predict=lambda key, x: x,
    )
    path = tmp_path / "s.npz"
    evidence.save(path, full, is_member)
    loaded, truth = evidence.load(path)
    assert loaded.predict is None
    assert (truth == is_member).all()
    assert not loaded.revealed_is_member[5:].any()  # known for the revealed ones alone
    for left, right in ((loaded, full), (loaded.population, full.population)):
        for field in dataclasses.fields(Evidence):
            if (
                field.name not in ("predict", "population")
                and getattr(right, field.name) is not None
            ):
                actual, saved = getattr(left, field.name), getattr(right, field.name)
                np.testing.assert_array_equal(actual, saved)
                assert actual.dtype == saved.dtype
    assert path.stat().st_mode & stat.S_IRWXO
    evidence.save(path, full, private=True)
    assert not path.stat().st_mode & (stat.S_IRWXO | stat.S_IRWXG)
    assert evidence.load(path)[1] is None
    assert [p.name for p in tmp_path.iterdir()] == ["s.npz"]
    with pytest.raises(ValueError, match="Expected is_member of 40 records, got 3"):
        evidence.save(path, full, np.ones(3, bool))


def test_a_saved_file_is_attacked_as_the_evidence_itself(tmp_path):
    full, is_member = stored.evidence()
    evidence.save(tmp_path / "s.npz", full, is_member)
    loaded, _ = evidence.load(tmp_path / "s.npz")
    for attack in suite.applicable(suite.attacks(), full):
        if not attack.name.startswith("shadow_classifier"):
            key = jax.random.key(0)
            np.testing.assert_array_equal(attack.run(key, loaded), attack.run(key, full))


GOOD = {"scores": np.arange(3.0), "is_member": np.array([True, False, True])}
SHADOWS = {"shadow_scores": np.zeros((2, 3)), "shadow_is_member": np.eye(2, 3)}
LOGITS = {"logits": np.zeros((3, 2)), "labels": np.array([0, 1, 0])}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"is_member": np.arange(3) > 1},
            "the arrays 'is_member' and 'scores' or 'logits' in s.npz, got is_member",
        ),
        ({**GOOD, "is_member": np.array([0, 1, 2])}, "only 0 and 1 in is_member, got 2"),
        ({**GOOD, "is_member": np.array([True, False])}, "is_member of 3 records, got 2"),
        ({**GOOD, "scores": np.array(["a", "b", "c"])}, "real numbers in scores, got <U1"),
        ({**GOOD, "scores": np.arange(3) * 1j}, "real numbers in scores, got complex128"),
        ({**GOOD, "scores": np.array([np.nan, 1, 2])}, "scores without NaN, got 1 NaN"),
        ({**GOOD, "scores": np.array([2**60, 2**60 + 1, 0])}, "integers in scores of at most"),
        ({**GOOD, "scores": np.zeros((2, 3))}, "scores of shape [n], got [2, 3]"),
        ({**GOOD, "scores": np.float64(1)}, "scores of shape [n], got []"),
        ({**GOOD, "shadow_scores": np.zeros((2, 3))}, "shadow_is_member together with"),
        ({**GOOD, "shadow_is_member": np.eye(2, 3)}, "shadow_is_member together with"),
        ({**GOOD, **SHADOWS, "shadow_scores": np.zeros((2, 4))}, "shadow_scores of shape [m, 3]"),
        ({**GOOD, **SHADOWS, "shadow_is_member": np.eye(2, 4)}, "shadow_is_member of shape"),
        ({**GOOD, **SHADOWS, "shadow_scores": np.float64(1)}, "shadow_scores of shape [m, n]"),
        (
            {**GOOD, "shadow_scores": np.zeros((0, 3)), "shadow_is_member": np.zeros((0, 3))},
            "shadow_scores of shape [m, n] of at least one shadow model, got [0, 3]",
        ),
        ({**GOOD, **LOGITS, "labels": np.array([0, 1, 10])}, "labels in 0..1, got 10"),
        ({**GOOD, **LOGITS, "labels": np.array([0, 1.7, 0])}, "whole numbers in labels, got 1.7"),
        ({**GOOD, **LOGITS, "labels": np.array(list("aba"))}, "class indices in labels, got text"),
        ({**GOOD, **LOGITS, "labels": np.eye(3)}, "labels of shape [n], [n, 1] or [n, 2], got"),
        ({**GOOD, **LOGITS, "logits": np.zeros((3, 1))}, "logits [n, c] of at least two classes"),
        ({**GOOD, **LOGITS, "logits": np.zeros((4, 2))}, "logits of shape [3, 2], got [4, 2]"),
        ({**GOOD, "inputs": np.zeros((4, 2))}, "inputs of shape [3, ...], got [4, 2]"),
        ({**GOOD, "group": np.array([0.5, 1, 2])}, "group as whole numbers or text, got float64"),
        ({**GOOD, "revealed": np.array([0, 1, 1])}, "revealed and revealed_is_member together"),
        ({**GOOD, **LOGITS, "population_logits": np.zeros((5, 3))}, "one number of classes"),
        (
            {**GOOD, **SHADOWS, "population_shadow_scores": np.zeros((3, 5))},
            "a population under 2 shadow models, got 3",
        ),
        ({**GOOD, "population_shadow_score": np.zeros((3, 5))}, "the array 'population_shadow_sc"),
    ],
)
def test_wrong_arrays_are_one_line(tmp_path, arrays, message):
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(ValueError, match="Expected") as caught:
        evidence.load(tmp_path / "s.npz")
    assert str(caught.value).startswith(f"Expected {message}")
    assert "\n" not in str(caught.value)


def test_evidence_in_memory_is_checked_as_a_file_is():
    for parts, message in (
        ({}, "evidence with at least one array"),
        ({"logits": np.array([[np.nan, 0.0]])}, "logits without NaN"),
        ({"signals": np.zeros(3), "labels": np.zeros(2, int)}, "labels of shape [3], got [2]"),
        ({"logits": np.zeros((2, 3)), "labels": np.eye(4)[:2]}, "labels of shape [n], [n, 1] or"),
    ):
        with pytest.raises(ValueError, match="Expected") as caught:
            Evidence(**parts)
        assert str(caught.value).startswith(f"Expected {message}")
    with pytest.raises(ValueError, match="a population that no model was trained on"):
        Evidence(signals=np.zeros(3), population=stored.evidence()[0])
    with pytest.raises(ValueError, match="Expected logits in the evidence, got none"):
        Evidence(signals=np.zeros(3)).require("signals", "logits")


def test_labels_come_in_any_layout():
    logits, labels = np.zeros((4, 3)), np.array([2, 0, 1, 1])
    for layout in (labels, labels[:, None], np.eye(3)[labels], labels.astype(float)):
        assert Evidence(logits=logits, labels=layout).labels.tolist() == labels.tolist()


def test_shadow_models_of_one_kind_are_known():
    arrays = {"signals": np.zeros(3), "shadow_signals": np.zeros((2, 3))}
    for is_member, vary in (
        (np.ones((2, 3)), False),
        (np.zeros((2, 3)), False),
        (np.eye(2, 3), True),
    ):
        assert Evidence(**arrays, shadow_is_member=is_member).shadows_vary is vary


def npy(array):
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array), allow_pickle=True)
    return out.getvalue()


@pytest.mark.parametrize(
    "member",
    [
        npy(np.array([1, None, 3], object)),
        npy(np.arange(3.0))[:-8],
        npy(np.arange(3.0)).replace(b"(3,)", b"(300"),
        b"not an array at all",
        b"",
    ],
)
def test_objects_and_damage_are_refused(tmp_path, member):
    path = tmp_path / "s.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("scores.npy", member)
        archive.writestr("is_member.npy", npy(np.array([True, False, True])))
    with pytest.raises(ValueError, match="Expected") as caught:
        evidence.load(path)
    assert "\n" not in str(caught.value)


def test_an_absurd_header_allocates_nothing(tmp_path):
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**13,)}
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, header)
    with zipfile.ZipFile(tmp_path / "s.npz", "w") as archive:
        archive.writestr("scores.npy", out.getvalue())
        archive.writestr("is_member.npy", npy(np.array([True])))
    with pytest.raises(ValueError, match="does not fit"):
        evidence.load(tmp_path / "s.npz")


def test_files_that_are_not_there_or_not_npz(tmp_path):
    with pytest.raises(ValueError, match="found nothing at"):
        evidence.load(tmp_path / "none.npz")
    with pytest.raises(ValueError, match="found a folder"):
        evidence.load(tmp_path)
    (tmp_path / "text.npz").write_text("scores")
    with pytest.raises(ValueError, match=r"Expected an \.npz file"):
        evidence.load(tmp_path / "text.npz")


def test_every_truncation_of_a_file_is_one_line(tmp_path):
    np.savez(tmp_path / "s.npz", **GOOD)
    content = (tmp_path / "s.npz").read_bytes()
    for end in range(0, len(content) - 1, 7):
        (tmp_path / "cut.npz").write_bytes(content[:end])
        with pytest.raises(ValueError, match="Expected"):
            evidence.load(tmp_path / "cut.npz")


def test_a_defence_passes_over_every_output_with_a_key_of_its_own(keys):
    full, _ = stored.evidence()
    full = dataclasses.replace(
        full,
        inputs=np.zeros((len(full), 2)),
        signals=np.zeros(len(full)),
        predict=lambda key, x: np.zeros((len(x), 3), np.float32),
    )

    def respond(key, logits):
        return jnp.full_like(logits, jax.random.uniform(key))

    result = evidence.defended(keys(1)[0], full, respond)
    answers = np.concatenate(
        [
            result.logits[:, 0],
            result.shadow_logits[..., 0].ravel(),
            result.population.logits[:, 0],
            result.population.shadow_logits[..., 0].ravel(),
            result.predict(keys(2)[1], full.inputs)[:, 0],
        ]
    )
    assert len(np.unique(answers)) == len(answers)
    assert result.signals is None
    np.testing.assert_array_equal(result.labels, full.labels)
    same = evidence.defended(keys(1)[0], full, lambda key, logits: 2 * logits)
    shifted = full.logits - full.logits.max(axis=1, keepdims=True)
    np.testing.assert_allclose(same.logits, 2 * shifted, rtol=1e-6)
    with pytest.raises(ValueError, match="Expected evidence with logits"):
        evidence.defended(keys(1)[0], Evidence(signals=np.zeros(3)), respond)
