import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import jaxtyping
import ml_dtypes
import numpy as np
import pytest
from scipy.spatial import distance

from jaxpriv import sensitivity


def slow_negative_ssim(x, y):
    """The formula, one window and one channel after the other."""
    taps = np.exp(-0.5 * ((np.arange(11) - 5) / 1.5) ** 2)
    weight = np.outer(taps, taps) / taps.sum() ** 2
    c1, c2 = 0.01**2, 0.03**2
    values = []
    for i in range(x.shape[0] - 10):
        for j in range(x.shape[1] - 10):
            for k in range(x.shape[2]):
                a, b = x[i : i + 11, j : j + 11, k], y[i : i + 11, j : j + 11, k]
                ma, mb = (weight * a).sum(), (weight * b).sum()
                va, vb = (weight * (a - ma) ** 2).sum(), (weight * (b - mb) ** 2).sum()
                cov = (weight * (a - ma) * (b - mb)).sum()
                top = (2 * ma * mb + c1) * (2 * cov + c2)
                values.append(top / ((ma**2 + mb**2 + c1) * (va + vb + c2)))
    return -np.mean(values)


ORACLES = {
    "hamming": lambda x, y: (x != y).sum(),
    "manhattan": lambda x, y: np.abs(x - y).sum(),
    "euclidean": lambda x, y: np.sqrt(np.square(x - y).sum()),
    "cosine": lambda x, y: 1 - (x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()),
    "negative_ssim": slow_negative_ssim,
}
SUMS = [name for name in ORACLES if name != "negative_ssim"]
BLOCKS = [*((name, None) for name in SUMS), *((name, 5) for name in ORACLES)]
SCIPY = {
    "hamming": lambda x, y: distance.hamming(x, y) * len(x),
    "manhattan": distance.cityblock,
    "euclidean": distance.euclidean,
    "cosine": distance.cosine,
}


@pytest.fixture
def unchecked():
    """Calls the function as outside pytest, where only the library checks shapes."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def records(name, n, seed=0):
    rng = np.random.default_rng(seed)
    if name == "negative_ssim":
        return rng.random((n, 13, 12, 2), dtype=np.float32)
    x = rng.normal(size=(n, 3, 8)).astype(np.float32)
    return np.round(x) if name == "hamming" else x


def matrix(name, x, y):
    """Dissimilarities of all pairs, in float64 and one after the other."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    return np.array([[ORACLES[name](a, b) for b in y] for a in x])


def oracle_removals(d):
    sums = np.array([math.fsum(np.delete(row, i)) for i, row in enumerate(d)])
    order = np.argsort(-sums, kind="stable")
    return order, sums[order]


def oracle_replacements(d):
    order = np.argsort(-d, axis=None, kind="stable")
    return *np.divmod(order, d.shape[1]), d.ravel()[order]


def remove(name, x, *, largest, smallest=0, block_size=None):
    measure = getattr(sensitivity, name) if isinstance(name, str) else name
    return sensitivity.removals(
        x, measure=measure, largest=largest, smallest=smallest, block_size=block_size
    )


def replace(name, x, candidates, *, largest, smallest=0, block_size=None):
    measure = getattr(sensitivity, name) if isinstance(name, str) else name
    return sensitivity.replacements(
        x, candidates, measure=measure, largest=largest, smallest=smallest, block_size=block_size
    )


def assert_same(ranking, expected, **tolerance):
    for values, right in zip(ranking[:-1], expected[:-1], strict=True):
        np.testing.assert_array_equal(values, right)
    np.testing.assert_allclose(ranking[-1], expected[-1], **{"rtol": 1e-12, **tolerance})


@pytest.mark.parametrize("name", ORACLES)
def test_a_measure_of_one_pair(name):
    x, y = records(name, 2)
    measure = jax.jit(getattr(sensitivity, name))
    value = measure(x, y)
    assert value.shape == ()
    expected = ORACLES[name](x.astype(np.float64), y.astype(np.float64))
    assert float(value) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    if name in SCIPY:
        assert expected == pytest.approx(SCIPY[name](x.ravel(), y.ravel()), rel=1e-5)
    # Compiled code may fuse x / |x| - x / |x| into one operation that leaves its rounding error.
    rounding = {"cosine": 1e-13, "negative_ssim": 1e-6}.get(name, 0)
    assert float(measure(x, x)) == pytest.approx(-1.0 * (name == "negative_ssim"), abs=rounding)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_a_cosine_of_records_whose_squares_float32_does_not_represent(scale):
    x, y = (np.array(record, np.float32) * np.float32(scale) for record in ([1, 0], [0, 1]))
    assert float(sensitivity.cosine(x, y)) == pytest.approx(1)


def test_unsigned_integers_do_not_wrap_around():
    a, b = np.array([3, 250], np.uint8), np.array([5, 0], np.uint8)
    assert float(sensitivity.manhattan(a, b)) == 252


@pytest.mark.parametrize(("name", "block_size"), BLOCKS)
def test_removals_equal_the_slow_loop(name, block_size):
    x = records(name, 12)
    order, sums = oracle_removals(matrix(name, x, x))
    assert_same(remove(name, x, largest=12, block_size=block_size), (order, sums))
    ranking = remove(name, x, largest=3, smallest=2, block_size=block_size)
    ends = [0, 1, 2, 10, 11]
    assert_same(ranking, (order[ends], sums[ends]))


@pytest.mark.parametrize(("name", "block_size"), BLOCKS)
def test_replacements_equal_the_slow_loop(name, block_size):
    x, candidates = records(name, 12), records(name, 12 if block_size is None else 9, seed=1)
    expected = oracle_replacements(matrix(name, x, candidates))
    ranking = replace(name, x, candidates, largest=3, smallest=4, block_size=block_size)
    ends = [0, 1, 2, -4, -3, -2, -1]
    assert_same(ranking, [part[ends] for part in expected], atol=1e-15)


@pytest.mark.parametrize(("largest", "smallest"), [(2, 0), (0, 2), (24, 0), (7, 17)])
def test_counts_may_exceed_the_records_of_either_side(largest, smallest):
    x, candidates = records("manhattan", 12), records("manhattan", 2, seed=1)
    expected = oracle_replacements(matrix("manhattan", x, candidates))
    ranking = replace("manhattan", x, candidates, largest=largest, smallest=smallest)
    ends = np.r_[0:largest, 24 - smallest : 24]
    assert_same(ranking, [part[ends] for part in expected])


@pytest.mark.parametrize("name", ["euclidean", "hamming"])
def test_many_records_equal_scipy(name):
    """With 300 records of 100 entries the two passes select few records."""
    rng = np.random.default_rng(2)
    x = rng.integers(0, 50, size=(300, 100)).astype(np.float32)
    d = distance.cdist(x, x, name) * (100 if name == "hamming" else 1)
    order, sums = oracle_removals(d)
    ends = np.r_[0:3, 297:300]
    assert_same(remove(name, x, largest=3, smallest=3), (order[ends], sums[ends]))
    assert_same(
        replace(name, x[:200], x[200:], largest=3, smallest=3),
        [part[np.r_[0:3, 19997:20000]] for part in oracle_replacements(d[:200, 200:])],
    )


def test_near_records_have_all_their_digits():
    """In float32 the expansion |x|^2 + |y|^2 - 2 x.y has errors of 256, and picks other records."""
    step = 1 + np.arange(12, dtype=np.float32)[:, None, None] * 5 % 12
    x = 1e4 + 100 * step + records("euclidean", 12)
    candidates = x + np.float32(2**-10) * step
    nearest = np.argsort(-step.ravel())[-3:]
    ranking = replace("euclidean", x, candidates, largest=0, smallest=3)
    assert_same(ranking, (nearest, nearest, 2**-10 * np.sqrt(24) * np.array([3, 2, 1])))


@pytest.mark.parametrize("name", SUMS)
def test_equal_records_have_distance_zero(name):
    twins = np.repeat(records(name, 1), 12, axis=0)
    assert (remove(name, twins, largest=12).dissimilarities == 0).all()


def test_float32_alone_would_rank_wrongly():
    """The squared distances are 2e6 plus a number below 1, which float32 rounds to eighths."""
    small = np.random.default_rng(8).random(40)
    x = np.concatenate([1000 * np.eye(40), small[:, None]], axis=1).astype(np.float32)
    order, sums = oracle_removals(matrix("euclidean", x, x))
    ends = [0, 1, 2, -3, -2, -1]
    assert_same(remove("euclidean", x, largest=3, smallest=3), (order[ends], sums[ends]))
    distances = np.sqrt(np.square(x[:, None] - x[None]).sum(axis=2))
    rounded = distances.astype(np.float64).sum(axis=1)
    assert rounded[order[:3]].min() < np.sort(rounded)[-3]
    assert rounded[order[-3:]].max() > np.sort(rounded)[2]


@pytest.mark.parametrize("name", SUMS)
def test_the_order_of_the_records_changes_indices_only(name):
    x, candidates = records(name, 12), records(name, 9, seed=1)
    rng = np.random.default_rng(4)
    p, q = rng.permutation(12), rng.permutation(9)
    before = remove(name, x, largest=4, smallest=4, block_size=5)
    after = remove(name, x[p], largest=4, smallest=4, block_size=5)
    np.testing.assert_array_equal(after.dissimilarities, before.dissimilarities)
    if name != "hamming":  # whose sums tie
        np.testing.assert_array_equal(p[after.records], before.records)
    before = replace(name, x, candidates, largest=4, smallest=4, block_size=5)
    after = replace(name, x[p], candidates[q], largest=4, smallest=4, block_size=5)
    np.testing.assert_array_equal(after.dissimilarities, before.dissimilarities)
    if name != "hamming":
        np.testing.assert_array_equal(p[after.records], before.records)
        np.testing.assert_array_equal(q[after.candidates], before.candidates)


@pytest.mark.parametrize("name", SUMS)
def test_ties_are_in_the_order_of_the_index(name):
    x = np.eye(24, dtype=np.float32)
    assert remove(name, x[:12], largest=3, smallest=2).records.tolist() == [0, 1, 2, 10, 11]
    ranking = replace(name, x[:12], x[12:], largest=13, smallest=2)
    assert ranking.records.tolist() == [0] * 12 + [1] + [11] * 2
    assert ranking.candidates.tolist() == [*range(12), 0, 10, 11]


def test_copies_of_the_most_dissimilar_record_are_next_to_each_other():
    x = records("euclidean", 12)
    x[[4, 7, 11]] = 10 * x[3]
    ranking = remove("euclidean", x, largest=3, block_size=5)
    assert ranking.records.tolist() == [4, 7, 11]
    assert len(set(ranking.dissimilarities)) == 1


def test_candidates_equal_to_a_record_are_left_out():
    x = np.array([[0.0, 1.0], [2.0, 3.0]], np.float32)
    universe = np.array([[2, 3], [-0.0, 1], [0, 1 + 1e-12], [5, 5]], np.float64)
    ranking = replace("manhattan", x, universe, largest=2, smallest=2)
    assert ranking.candidates.tolist() == [3, 3, 2, 2]
    assert ranking.dissimilarities == pytest.approx([9, 5, 4, 1e-12], rel=1e-3)


def test_the_memory_layout_of_records_is_arbitrary():
    x = records("manhattan", 12)
    ranking = replace("manhattan", x[:3], np.asfortranarray(x), largest=2, smallest=2)
    assert_same(ranking, replace("manhattan", x[:3], x, largest=2, smallest=2), rtol=0)
    numbers = np.array([1.0, 2.0, 4.0])
    assert replace("manhattan", numbers[:1], numbers, largest=1).candidates.tolist() == [2]


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float16, ml_dtypes.bfloat16])
def test_types_of_records(dtype):
    x = np.random.default_rng(5).integers(0, 200, size=(12, 24)).astype(dtype)
    x32 = x.astype(np.float32)
    for name in SUMS:
        assert_same(remove(name, x, largest=4), remove(name, x32, largest=4), rtol=0)
    assert_same(remove("hamming", jnp.asarray(x32), largest=4), remove("hamming", x, largest=4))


def test_differences_that_float32_does_not_represent():
    x = np.ones((12, 24))
    x[3, 5], x[7, 2] = 1 + 1e-12, 1 - 1e-9
    ranking = remove("hamming", x, largest=3)
    assert ranking.records.tolist() == [3, 7, 0]
    assert ranking.dissimilarities.tolist() == [12, 12, 2]
    assert remove("manhattan", x, largest=2).records.tolist() == [7, 3]


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_squares_that_float32_does_not_represent(scale):
    x = records("euclidean", 12)
    expected = remove("euclidean", x, largest=12)
    ranking = remove("euclidean", x * np.float32(scale), largest=12)
    assert_same(ranking, (expected.records, scale * expected.dissimilarities), rtol=1e-6)
    cosines = remove("cosine", x.astype(np.float64) * scale**9, largest=12)
    assert_same(cosines, remove("cosine", x, largest=12), rtol=1e-9)


def test_a_function_of_the_user_in_the_default_type():
    weights = jnp.arange(24, dtype=jnp.float32).reshape(3, 8)
    types = set()

    def farthest_ahead(x, y):
        """Is asymmetric, and its constant has a type that strict promotion would refuse to mix."""
        types.add(x.dtype)
        return jnp.max(weights * (x - y)) - 1000

    x, candidates = records("euclidean", 12).astype(np.float64), records("euclidean", 5, seed=1)
    w = np.arange(24.0).reshape(3, 8)
    d = np.array([[(w * (a - b)).max() - 1000 for b in x] for a in x])
    order, sums = oracle_removals(d)
    ends = [0, 1, -2, -1]
    ranking = remove(farthest_ahead, x, largest=2, smallest=2, block_size=5)
    assert_same(ranking, (order[ends], sums[ends]), rtol=1e-6)
    e = np.array([[(w * (a - b)).max() - 1000 for b in candidates] for a in x])
    expected = [part[ends] for part in oracle_replacements(e)]
    ranking = replace(farthest_ahead, x, candidates, largest=2, smallest=2, block_size=5)
    assert_same(ranking, expected, rtol=1e-6)
    assert types == {jnp.dtype(jnp.float32)}


def test_a_function_of_the_user_is_not_called_for_a_record_and_itself():
    x = np.array([[1.0], [2.0], [4.0]], np.float32)
    ranking = remove(lambda a, b: jnp.log(jnp.abs(a - b)).sum(), x, largest=1)
    assert ranking.records.tolist() == [2]
    assert ranking.dissimilarities == pytest.approx([np.log(6)])


def test_with_64_bit_types_enabled():
    x = records("euclidean", 12)
    expected = remove("euclidean", x, largest=3)
    with jax.enable_x64(True):
        assert_same(remove("euclidean", x, largest=3), expected, rtol=0)
        precise = remove(lambda a, b: jnp.sqrt(jnp.square(a - b).sum()), x, largest=3)
    assert_same(precise, expected, rtol=1e-14)


def test_a_vector_of_numbers_is_a_set_of_records():
    ranking = remove("manhattan", np.array([1.0, 2.0, 4.0]), largest=1)
    assert (ranking.records.tolist(), ranking.dissimilarities.tolist()) == ([2], [5])


X = np.arange(12.0).reshape(4, 3)
IMAGES = np.zeros((2, 12, 12, 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"largest": 0}, r"Expected largest \+ smallest >= 1, got largest \+ smallest=0\."),
        ({"largest": -1}, "Expected largest >= 0, got largest=-1."),
        ({"smallest": 1.5}, "Expected a whole number for smallest, got smallest=1.5."),
        ({"largest": 5}, r"Expected largest \+ smallest <= 4 records, got 5\."),
        ({"block_size": 0}, "Expected block_size >= 1, got block_size=0."),
        ({"x": X[:0]}, r"Expected records in x, got shape \[0, 3\]\."),
        ({"x": X[:, :0]}, r"Expected records in x, got shape \[4, 0\]\."),
        ({"x": np.array(1.0)}, r"Expected records in x, got shape \[\]\."),
        ({"x": np.where(X == 5, np.nan, X)}, "Expected x without NaN, got 1 NaN."),
        ({"x": np.where(X == 5, np.inf, X)}, "Expected finite x, got infinity."),
        ({"x": np.array([["a"], ["b"]])}, "Expected real numbers in x, got <U1."),
        ({"measure": "euclidean"}, "Expected measure such as euclidean, got str without __call__."),
        ({"measure": lambda a, b: a - b}, r"Expected a number from measure, got shape \[3\]\."),
        (
            {"measure": lambda a, b: jnp.log(a - b).sum()},
            "Expected finite dissimilarities, got nan for record 0 of x.",
        ),
        (
            {"measure": sensitivity.cosine, "x": X * (X > 2)},
            "Expected records with a non-zero norm, got zeros in record 0.",
        ),
        (
            {"measure": sensitivity.negative_ssim, "x": IMAGES + 2},
            r"Expected pixels in \[0, 1\], got 2 to 2\.",
        ),
        (
            {"measure": sensitivity.negative_ssim, "x": IMAGES[:, 2:]},
            r"Expected images \[h, w, c\] of at least 11 x 11 pixels, got shape \[10, 12, 1\]\.",
        ),
        (
            {"measure": sensitivity.negative_ssim, "x": IMAGES[..., 0]},
            r"Expected images \[h, w, c\] of at least 11 x 11 pixels, got shape \[12, 12\]\.",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_rejects(arguments, message):
    right = {"x": X, "measure": sensitivity.euclidean, "largest": 1, "smallest": 0}
    arguments = right | arguments
    x = arguments.pop("x")
    with pytest.raises(ValueError, match=message) as error:
        sensitivity.removals(x, **arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        (X[1:3], r"Expected largest \+ smallest <= 0 pairs of x and a candidate, got 1\."),
        (X[:, :2], r"Expected candidates of shape \[3\], got shape \[2\]\."),
        (X * np.nan, "Expected candidates without NaN, got 12 NaN."),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_rejects_candidates(candidates, message):
    with pytest.raises(ValueError, match=message):
        replace("euclidean", X, candidates, largest=1)


@pytest.mark.slow
def test_memory_of_all_pairs_of_many_records():
    """40,000 x 784 in about a minute, where all distances would take 6 GiB in float32.

    60,000 x 784 took 127 s on two cores that other work shared, and 0.55 GiB.
    """
    code = """
import numpy as np
from jaxpriv import sensitivity
x = np.random.default_rng(0).random((40_000, 784), dtype=np.float32)
x[1234] *= -1
ranking = sensitivity.removals(x, measure=sensitivity.euclidean, largest=1, smallest=1)
assert ranking.records[0] == 1234
# ru_maxrss would contain the peak of the process that started this one.
(line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(line.split()[1]) / 2**20)
"""
    # As a user has it: the settings of conftest compile sooner and run at a fifth of the speed.
    env = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": ""}
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) < 1
