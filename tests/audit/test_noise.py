import math

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest
from scipy import stats

from jaxpriv import grads, sampling, training
from jaxpriv.audit import noise
from jaxpriv.training import _step

LEVEL = 0.01
SHAPES = {"w": (20, 12, 10), "v": (20, 12, 10), "b": (20, 7)}


@pytest.fixture
def unchecked():
    """Calls the function as outside pytest, where only the library checks shapes."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def right(seed=0, std=1.0):
    rng = np.random.default_rng(seed)
    return {name: std * rng.normal(size=shape) for name, shape in SHAPES.items()}


def check(residuals, *, std=1.0, level=LEVEL, batch_sizes=None):
    return noise.check_noise(residuals, std=std, level=level, batch_sizes=batch_sizes)


def test_right_noise_passes_and_wrong_levels_do_not():
    residuals = right(std=2.5)
    findings = check(residuals, std=2.5)
    assert findings.rejected == ()
    assert findings.std_ratio == pytest.approx(1, abs=0.03)
    for factor in (2 / 3, 3 / 2):
        wrong = check(residuals, std=2.5 * factor)
        levels = {f"{test} ['{leaf}']" for test in ("level", "shape") for leaf in ("w", "v")}
        levels |= {"level ['b']", "level of a step"}
        by_size = {"shape ['b']", *(f"level of an entry ['{leaf}']" for leaf in SHAPES)}
        assert levels <= set(wrong.rejected) <= levels | by_size
        assert wrong.std_ratio == pytest.approx(1 / factor, rel=0.03)


def test_the_level_test_is_the_chi_square():
    residuals = right()
    findings = check(residuals)
    for name, leaf in residuals.items():
        below = stats.chi2.cdf((leaf**2).sum(), leaf.size)
        expected = 2 * min(below, 1 - below)
        assert findings.p_values[f"level ['{name}']"] == pytest.approx(expected, rel=1e-9)


def test_correlations_are_tested_as_student_would():
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 40))
    b = b + 0.3 * a
    # Means are not subtracted, so this is the t of a regression through the origin, 39 degrees.
    slope = a @ b / (a @ a)
    t = slope / np.sqrt(((b - slope * a) ** 2).sum() / 39 / (a @ a))
    findings = check({"a": a[None], "b": b[None]}).p_values["leaves"]
    assert findings == pytest.approx(2 * stats.t.sf(abs(t), 39), rel=1e-9)
    pair = check(np.stack([a, b])).p_values
    assert pair["steps"] == pytest.approx(findings, rel=1e-9)
    assert list(pair) == [
        "level noise",
        "level of a step",
        "level of an entry noise",
        "shape noise",
        "steps",
        "lags",
        "entries noise",
    ]


def test_noise_that_is_missing_on_one_entry_of_200_is_caught():
    for seed in range(10):
        residuals = np.random.default_rng(seed).normal(size=(100, 200))
        residuals[:, 7] = 0.0
        assert check(residuals).rejected == ("level of an entry noise",)


def test_weakly_correlated_steps_are_caught():
    for seed in range(10):
        fresh = np.random.default_rng(seed).normal(size=(100, 200))
        residuals = fresh.copy()
        for t in range(1, 100):
            residuals[t] = 0.1 * residuals[t - 1] + math.sqrt(0.99) * fresh[t]
        assert check(residuals).rejected == ("lags",)


@pytest.mark.slow
def test_right_noise_is_rejected_as_rarely_as_stated():
    """The number of rejections of 200 at level 0.05 is above 18 with probability 0.4 %."""
    rejected = sum(
        bool(check(np.random.default_rng(seed).normal(size=(100, 50)), level=0.05).rejected)
        for seed in range(200)
    )
    assert rejected <= 18


def test_one_key_for_equal_shaped_leaves_is_caught():
    residuals = right()
    assert check({**residuals, "v": residuals["w"]}).rejected == ("leaves",)
    assert check({**residuals, "v": -residuals["w"]}).rejected == ("leaves",)


def test_one_key_for_leaves_of_other_shapes_is_caught():
    residuals = right()
    shared = residuals["w"].reshape(20, -1)[:, :7]
    assert check({**residuals, "b": shared}).rejected == ("leaves",)


def test_noise_that_is_repeated_after_a_resume_or_in_another_run_is_caught():
    first, second = right(0), right(1)
    stacked = {name: np.concatenate([first[name], second[name]]) for name in first}
    assert check(stacked).rejected == ()
    again = {name: np.concatenate([leaf, leaf[-3:]]) for name, leaf in first.items()}
    assert check(again).rejected[0] == "steps"
    # Sharing a quarter of the variance between two steps is detected.
    weak = {name: leaf.copy() for name, leaf in first.items()}
    for leaf in weak.values():
        leaf[5] = leaf[4] / 2 + np.sqrt(3) / 2 * leaf[5]
    assert check(weak).rejected == ("steps",)


@pytest.mark.parametrize("axis", [1, 2])
def test_noise_that_is_broadcast_along_an_axis_is_caught(axis):
    residuals = right()
    first = np.take(residuals["w"], [0], axis=axis)
    broadcast = np.broadcast_to(first, SHAPES["w"])
    assert "entries ['w']" in check({**residuals, "w": broadcast}).rejected


def test_two_equal_columns_are_caught():
    residuals = right()
    residuals["w"][:, :, 9] = residuals["w"][:, :, 8]
    assert check(residuals).rejected == ("entries ['w']",)


def test_noise_that_scales_with_the_realised_batch_is_caught():
    sizes = np.random.default_rng(2).binomial(100, 0.2, 20)
    assert check(right(), batch_sizes=sizes).rejected == ()
    scale = sizes / 20
    scaled = {
        name: leaf * scale.reshape(-1, *[1] * (leaf.ndim - 1)) for name, leaf in right().items()
    }
    assert "batch_size" in check(scaled, batch_sizes=sizes).rejected
    assert "batch_size" not in check(scaled).p_values


def test_a_missing_or_constant_noise_is_rejected_without_a_warning():
    zeros = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    findings = check(zeros, batch_sizes=np.arange(20))
    assert {"level ['w']", "level ['v']", "level ['b']"} <= set(findings.rejected)
    assert findings.std_ratio == 0
    ones = {name: np.ones(shape) for name, shape in SHAPES.items()}
    assert {"steps", "leaves"} <= set(check(ones).rejected)


@pytest.mark.parametrize("shape", [{"a": (8, 3), "b": (8, 3)}, {"a": (3, 40), "b": (3, 1)}])
def test_right_noise_is_rejected_no_more_often_than_the_level(shape):
    rng, level, draws, names = np.random.default_rng(7), 0.2, 400, set()
    sizes = rng.integers(1, 30, next(iter(shape.values()))[0])
    rejections = np.zeros(draws)
    smallest: dict[str, list[float]] = {}
    for i in range(draws):
        residuals = {name: rng.normal(size=s) for name, s in shape.items()}
        findings = check(residuals, level=level, batch_sizes=sizes)
        rejections[i] = bool(findings.rejected)
        names |= set(findings.p_values)
        for name, p in findings.p_values.items():
            smallest.setdefault(name, []).append(p)
    assert rejections.sum() <= stats.binom.isf(1e-3, draws, level)
    assert rejections.sum() > 0.4 * level * draws
    for name, values in smallest.items():
        assert np.sum(np.array(values) <= 0.1) <= stats.binom.isf(1e-4, draws, 0.1), name
    # The p-values of these two tests are exact, so they are uniform.
    for name in ("batch_size", "level ['a']"):
        assert stats.kstest(smallest[name], "uniform").pvalue > 1e-3


def test_holm_is_the_step_down_procedure():
    adjusted = noise.holm({"a": 0.04, "b": 0.01, "c": 0.03, "d": 0.9})
    expected = {"a": 0.09, "b": 0.04, "c": 0.09, "d": 0.9}
    assert adjusted == pytest.approx(expected)
    assert list(adjusted) == ["a", "b", "c", "d"]


def released(key, alg, grad, steps):
    """The noise of DP-SGD steps: the noisy sum, computed from plain SGD, minus the clipped sum."""
    x = jax.random.normal(jax.random.key(1), (50, 30))

    def step(state, key):
        sample_key, update_key = jax.random.split(key)
        indices, mask = alg.sampler.sample(sample_key)
        clipped = grad(state.params, x[indices], mask, update_key).total
        new, _ = alg.update(update_key, state, x[indices], mask)
        moved = jax.tree.map(jnp.subtract, state.params, new.params)
        noisy = jax.tree.map(lambda m: m * alg.sampler.expected_batch_size, moved)
        return new, (jax.tree.map(jnp.subtract, noisy, clipped), mask.sum())

    state = alg.init({"w": jnp.zeros((30, 2)), "v": jnp.zeros((30, 2))})
    return jax.lax.scan(step, state, jax.random.split(key, steps))[1]


def test_the_noise_of_dpsgd_passes(keys):
    def loss(params, x, key):
        return jnp.sum((x @ params["w"] - 1) ** 2) + jnp.sum((x @ params["v"] + 1) ** 2)

    grad = grads.clipped_grad(loss, clip_norm=2.0)
    sampler = sampling.poisson(50, sampling_prob=0.2)
    alg = training.dpsgd(grad, optax.sgd(1.0), sampler, noise_multiplier=1.5)
    residuals, sizes = jax.jit(jax.vmap(lambda key: released(key, alg, grad, 8)))(keys(2))
    first = jax.tree.map(lambda leaf: leaf[0], residuals)
    findings = check(first, std=3.0, batch_sizes=sizes[0])
    assert findings.rejected == ()
    assert findings.std_ratio == pytest.approx(1, abs=4 / np.sqrt(2 * 8 * 120))
    assert check(first, std=2.0).rejected
    runs = jax.tree.map(lambda leaf: leaf.reshape(16, *leaf.shape[2:]), residuals)
    assert check(runs, std=3.0).rejected == ()
    same = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf]), first)
    assert "steps" in check(same, std=3.0).rejected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check(right(), std=0.0), "Expected std > 0, got std=0.0."),
        (lambda: check(right(), level=1.0), "Expected 0 < level < 1, got level=1.0."),
        (lambda: check({}), "Expected residuals with a leading axis of steps, got none."),
        (lambda: check({"w": np.zeros((3, 0))}), "Expected residuals with a leading axis"),
        (
            lambda: check({"w": np.zeros((3, 2)), "b": np.zeros((4, 2))}),
            "Expected equally many steps",
        ),
        (
            lambda: check({"w": np.array([[np.nan]])}),
            r"Expected finite residuals, got 1 that are NaN or infinite in \['w'\]",
        ),
        (
            lambda: check(right(), batch_sizes=np.arange(3)),
            "Expected equal lengths, got len",
        ),
        (
            lambda: check(right(), batch_sizes=np.ones(20)),
            "Expected finite batch_sizes that differ.",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_refuses_bad_input_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as info:
        call()
    assert "\n" not in str(info.value)


STD = 3.0
BREAKS = {
    "level of a step": lambda drawn: drawn * np.sqrt([[2.0], [0.0]] * 25),
    "shape": lambda drawn: np.sign(drawn) * STD,
}


@pytest.mark.parametrize("name", BREAKS)
def test_noise_of_the_right_energy_in_the_wrong_shape_is_seen(name):
    drawn = STD * np.random.default_rng(3).normal(size=(50, 400))
    findings = check(BREAKS[name](drawn), std=STD)
    assert any(test.startswith(name) for test in findings.rejected)
    assert not check(drawn, std=STD).rejected


def test_steps_that_repeat_far_inside_a_large_leaf_are_seen():
    drawn = np.random.default_rng(4).normal(size=(4, 40_000))
    drawn[:, 20_000:] = drawn[0, 20_000:]
    assert "steps" in check(drawn).rejected


def test_a_step_function_is_released_and_tested(keys):
    total = {"w": jnp.arange(600.0).reshape(20, 30), "v": jnp.ones((20, 30))}

    def release(key):
        return _step.noisy_mean(key, total, std=2.0, divisor=1.0)

    def one_key_for_all(key):
        return jax.tree.map(lambda x: x + 2.0 * jax.random.normal(key, x.shape), total)

    for step, rejected in ((release, ()), (one_key_for_all, ("leaves",))):
        residuals = noise.collect_residuals(keys(30), step, exact=total)
        assert residuals["w"].shape == (30, 20, 30)
        assert check(residuals, std=2.0).rejected == rejected


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_named(keys, bad):
    residuals = {"w": np.random.default_rng(0).normal(size=(5, 4)), "v": np.zeros((5, 2))}
    residuals["w"][3, 1:3] = bad
    with pytest.raises(ValueError, match=r"2 that are NaN or .* \['w'\], the first in step 3"):
        check(residuals)
    with pytest.raises(ValueError, match=r"finite exact value, got NaN or infinity in \['w'\]"):
        noise.collect_residuals(
            keys(3), lambda key: {"w": jnp.ones(2)}, exact={"w": jnp.array([1.0, bad])}
        )


@pytest.mark.parametrize("exact", [{"w": 1.0}, {"v": np.ones(2)}, np.ones(2), {"w": np.ones(1)}])
def test_an_exact_value_of_another_shape_is_refused(keys, exact):
    """It would be broadcast."""
    with pytest.raises(ValueError, match="structure and shapes of the release"):
        noise.collect_residuals(keys(3), lambda key: {"w": jnp.ones(2)}, exact=exact)


def test_a_sum_without_any_gradient_is_warned_of(keys):
    """All rows are NaN, so the release consists of correct noise only."""
    grad = grads.clipped_grad(lambda params, x, key: jnp.dot(params, x), clip_norm=1.0)
    total, norms = grad(jnp.ones(3), jnp.full((4, 3), jnp.nan), jnp.ones(4, bool), keys(1)[0])
    assert not np.isfinite(norms).any()

    def release(key):
        return _step.noisy_mean(key, total, std=1.0, divisor=1.0)

    with pytest.warns(UserWarning, match="zero everywhere, so the noise alone is tested"):
        noise.collect_residuals(keys(30), release, exact=total)
