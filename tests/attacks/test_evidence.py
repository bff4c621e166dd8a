"""Score files: what NumPy writes is read, everything else is one line."""

import io
import zipfile

import numpy as np
import pytest

from jaxpriv import data


def test_reads_what_numpy_writes(tmp_path):
    path = tmp_path / "s.npz"
    np.savez_compressed(
        path,
        scores=np.float16([[1], [np.inf], [-2]]),
        is_member=np.array([1, 0, 1]),
        shadow_scores=np.zeros((2, 3), np.float32),
        shadow_is_member=np.ones((2, 3), bool),
        something_else=np.arange(3),
    )
    held = data.load_scores(path)
    assert held.scores.tolist() == [1.0, np.inf, -2.0]
    assert held.scores.dtype == np.float64
    assert held.is_member.tolist() == [True, False, True]
    assert held.shadow_scores.shape == held.shadow_is_member.shape == (2, 3)


def test_reads_without_shadows(tmp_path):
    np.savez(tmp_path / "s.npz", scores=np.arange(3), is_member=[True, False, True])
    held = data.load_scores(tmp_path / "s.npz")
    assert held.shadow_scores is None
    assert held.shadow_is_member is None


GOOD = {"scores": np.arange(3.0), "is_member": np.array([True, False, True])}


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"scores": np.arange(3.0)}, "'is_member'"),
        ({"is_member": np.arange(3) > 1}, "'scores'"),
        ({**GOOD, "is_member": np.array([0, 1, 2])}, "True/False"),
        ({**GOOD, "is_member": np.array([True, False])}, "shape"),
        ({**GOOD, "scores": np.array(["a", "b", "c"])}, "numbers"),
        ({**GOOD, "scores": np.arange(3) * 1j}, "numbers"),
        ({**GOOD, "shadow_scores": np.zeros((2, 3))}, "together"),
        (
            {**GOOD, "shadow_scores": np.zeros((2, 4)), "shadow_is_member": np.zeros((2, 4), bool)},
            "shape",
        ),
    ],
)
def test_wrong_arrays_are_one_line(tmp_path, arrays, said):
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(ValueError, match="Expected") as caught:
        data.load_scores(tmp_path / "s.npz")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


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
        data.load_scores(path)
    assert "\n" not in str(caught.value)


def test_an_absurd_header_allocates_nothing(tmp_path):
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**13,)}
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, header)
    with zipfile.ZipFile(tmp_path / "s.npz", "w") as archive:
        archive.writestr("scores.npy", out.getvalue())
        archive.writestr("is_member.npy", npy(np.array([True])))
    with pytest.raises(ValueError, match="does not fit"):
        data.load_scores(tmp_path / "s.npz")


def test_files_that_are_not_there_or_not_npz(tmp_path):
    with pytest.raises(ValueError, match="found nothing at"):
        data.load_scores(tmp_path / "none.npz")
    with pytest.raises(ValueError, match="found a folder"):
        data.load_scores(tmp_path)
    (tmp_path / "text.npz").write_text("scores")
    with pytest.raises(ValueError, match=r"Expected an \.npz file"):
        data.load_scores(tmp_path / "text.npz")


def test_every_truncation_of_a_file_is_one_line(tmp_path):
    np.savez(tmp_path / "s.npz", **GOOD)
    whole = (tmp_path / "s.npz").read_bytes()
    for end in range(0, len(whole) - 1, 7):
        (tmp_path / "cut.npz").write_bytes(whole[:end])
        with pytest.raises(ValueError, match="Expected"):
            data.load_scores(tmp_path / "cut.npz")


def test_digits_are_the_published_ones():
    digits = data.load("digits")
    assert digits.x.shape == (1797, 64)
    assert (digits.x.min(), digits.x.max()) == (0, 1)
    assert np.bincount(digits.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert len(digits) == 1797
    with pytest.raises(ValueError, match="Expected data to be one of digits"):
        data.load("nothing")


@pytest.mark.parametrize("shape", [(2, 3), (6, 1, 1), ()])
def test_refuses_scores_that_are_not_a_column(tmp_path, shape):
    n = int(np.prod(shape))
    path = tmp_path / "scores.npz"
    np.savez(path, scores=np.zeros(shape), is_member=np.arange(n) % 2)
    with pytest.raises(ValueError, match=r"^Expected scores as numbers of shape"):
        data.load_scores(path)


def test_takes_columns_and_refuses_a_single_number_as_shadows(tmp_path):
    held = {"scores": np.arange(4.0)[:, None], "is_member": np.array([[0], [1], [1], [0]])}
    path = tmp_path / "scores.npz"
    np.savez(path, **held)
    assert data.load_scores(path).scores.shape == (4,)
    np.savez(path, **held, shadow_scores=np.float64(1), shadow_is_member=np.ones((1, 4)))
    with pytest.raises(ValueError, match=r"^Expected shadow_scores as numbers of shape"):
        data.load_scores(path)
