"""Model inversion equals loops over its printed equations, and returns its best iterate."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpriv.attacks import inversion
from tests import oracles

SHAPE = (5, 4, 1)
WEIGHTS = np.random.default_rng(0).normal(size=(3, 20))
"""A softmax regression of three classes on images of 5 x 4 pixels."""


def predict(x):
    return jnp.asarray(WEIGHTS, jnp.float32) @ x.reshape(-1)


def settings(steps=30, penalty=inversion.l1_norm, weight=0.1):
    return inversion.Settings(
        steps=steps, learning_rate=0.1, penalty=penalty, penalty_weight=weight
    )


@functools.cache
def compiled(steps=30, penalty=inversion.l1_norm, early_stop=None):
    attack = functools.partial(
        inversion.enhanced, predict, settings=settings(steps, penalty), early_stop=early_stop
    )
    return jax.jit(attack)


def variation(radius, decay):
    penalty = inversion.bilateral_total_variation
    return oracles.quick_jit(functools.partial(penalty, radius=radius, decay=decay))


def slow_variation(x, radius, decay):
    """The formula, one shift and one pixel after the other."""
    total = 0.0
    for m in range(radius + 1):
        for shift in range(-radius, radius + 1):
            if m + shift < 0:
                continue
            for i in range(x.shape[0]):
                for j in range(x.shape[1]):
                    if 0 <= i - m < x.shape[0] and 0 <= j - shift < x.shape[1]:
                        difference = np.abs(x[i, j] - x[i - m, j - shift]).sum()
                        total += decay ** (abs(m) + abs(shift)) * difference
    return total


@pytest.mark.parametrize(("channels", "radius", "decay"), [(1, 1, 1.0), (3, 2, 0.9), (1, 3, 0.5)])
def test_variation_is_the_sum_over_shifts(channels, radius, decay):
    x = np.random.default_rng(1).random((5, 4, channels)).astype(np.float32)
    value = variation(radius, decay)(x)
    assert float(value) == pytest.approx(slow_variation(x, radius, decay), rel=1e-5)


def test_penalties_of_bytes_are_those_of_their_numbers():
    pixels = np.array([[0, 1, 0], [2, 0, 255], [1, 0, 0]], np.uint8)[:, :, None]
    expected = slow_variation(pixels.astype(float), 1, 0.5)
    for x in (pixels, jnp.asarray(pixels), jnp.asarray(pixels, jnp.int16)):
        value = inversion.bilateral_total_variation(x, radius=1, decay=0.5)
        assert float(value) == expected
    assert float(inversion.l1_norm(jnp.array([-128, 3], jnp.int8))) == 131.0


def test_variation_does_not_wrap_round_and_weighs_by_absolute_shifts():
    x = jnp.zeros((3, 3, 1)).at[0, 0].set(1.0)
    # From a corner, the shifts (0, 1), (1, 0) and (1, 1) reach another pixel; (1, -1) does not.
    value = variation(1, 0.5)(x)
    assert float(value) == 0.5 + 0.5 + 0.25
    corner = jnp.zeros((3, 3, 1)).at[0, 2].set(1.0)
    value = variation(2, 0.5)(corner)
    # (0, 1), (0, 2), (1, 0), (2, 0), (1, -1), (2, -1), (2, -2); the last has weight 1/16, not 1.
    assert float(value) == 2 * (0.5 + 0.25) + 0.25 + 0.125 + 0.0625
    assert float(variation(2, 0.9)(jnp.ones((4, 4, 3)))) == 0.0


def slow_algorithm_1(label, steps, weight):
    """Algorithm 1 with the l1 norm, as printed, in float64, with gradients by hand."""
    w, m, v = np.zeros(20), np.zeros(20), np.zeros(20)
    losses = []
    for t in range(steps + 1):
        x = (np.tanh(w) + 1) / 2
        z = WEIGHTS @ x
        f = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        losses.append(1 - f[label] + weight * np.abs(x).sum())
        if t == steps:
            return x, losses
        by_x = -f[label] * (WEIGHTS[label] - f @ WEIGHTS) + weight * np.sign(x)
        g = by_x * (1 - np.tanh(w) ** 2) / 2
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        w = w - 0.1 * m / np.sqrt(v + 1e-8)
    raise AssertionError


def test_enhanced_is_algorithm_1_as_printed():
    result = compiled()(1, jnp.zeros(SHAPE))
    x, losses = slow_algorithm_1(1, 30, 0.1)
    np.testing.assert_allclose(result.last.reshape(-1), x, atol=2e-5)
    np.testing.assert_allclose(result.losses, losses, atol=2e-5)
    assert int(result.steps_done) == 30


def test_projection_and_cross_entropy_are_a_loop_over_steps():
    x, m, v = np.zeros(20), np.zeros(20), np.zeros(20)
    for _ in range(30):
        z = WEIGHTS @ x
        f = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        g = f @ WEIGHTS - WEIGHTS[1]
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        x = np.clip(x - 0.1 * m / np.sqrt(v + 1e-8), 0, 1)
    options = dataclasses.replace(settings(weight=0.0), loss="cross_entropy", box="projection")
    result = inversion.enhanced(predict, 1, jnp.zeros(SHAPE), settings=options)
    np.testing.assert_allclose(result.last.reshape(-1), x, atol=1e-4)
    assert {0.0, 1.0} <= set(np.asarray(result.last).ravel().tolist())


def test_a_model_that_is_certain_of_another_class_hides_from_the_loss_of_the_paper():
    def certain(x):
        return jnp.stack([8 * x[0, 0, 0], 60 * x.mean() - 2])

    printed, own = (
        inversion.enhanced(certain, 0, jnp.zeros(SHAPE), settings=each)
        for each in (inversion.FACES, inversion.FACES_PROJECTED)
    )
    assert float(printed.confidence) < 1e-6
    assert float(own.confidence) > 0.9


def test_the_best_iterate_is_the_result():
    start = jnp.full(SHAPE, 0.3)
    result = compiled()(0, start)
    losses = np.asarray(result.losses)
    assert losses[-1] > losses.min()  # the confidence falls again, so that best and last differ
    assert float(result.loss) == losses.min()
    assert int(result.step) == losses.argmin()
    again = compiled(steps=int(result.step))(0, start)
    np.testing.assert_allclose(again.last, result.best, atol=1e-6)
    confidence = jax.nn.softmax(predict(result.best))[0]
    assert float(result.confidence) == pytest.approx(float(confidence), abs=1e-6)
    assert float(result.loss) == pytest.approx(
        1 - float(confidence) + 0.1 * float(result.best.sum()), abs=1e-5
    )


def test_gradient_descent_is_a_loop_over_steps():
    x = np.full(20, 0.5)
    for _ in range(25):
        z = WEIGHTS @ x
        f = np.exp(z) / np.exp(z).sum()
        x = np.clip(x + 0.5 * f[0] * (WEIGHTS[0] - f @ WEIGHTS), 0, 1)
    result = inversion.gradient_descent(
        predict, 0, jnp.full(SHAPE, 0.5), steps=25, learning_rate=0.5
    )
    np.testing.assert_allclose(result.last.reshape(-1), x, atol=1e-5)
    assert result.best.min() >= 0
    assert result.best.max() <= 1
    free = inversion.gradient_descent(
        predict, 0, jnp.full(SHAPE, 0.5), steps=25, learning_rate=0.5, bounds=None
    )
    assert free.best.min() < 0


def test_many_labels_and_starts_are_vmapped(keys):
    starts = 0.1 * jax.random.normal(keys(1)[0], (2, *SHAPE))
    labels = jnp.arange(3)
    attack = compiled()
    many = jax.vmap(jax.vmap(attack, (None, 0)), (0, None))(labels, starts)
    assert many.best.shape == (3, 2, *SHAPE)
    alone = attack(labels[2], starts[1])
    for a, b in zip(jax.tree.leaves(many), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(a[2, 1], b, atol=1e-5)


def test_the_optimisation_is_one_scan_that_lowers_for_accelerators():
    text = str(
        jax.make_jaxpr(compiled(early_stop=inversion.EarlyStop(patience=3)))(1, jnp.zeros(SHAPE))
    )
    assert text.count("scan[") == 1
    assert "while[" not in text
    oracles.assert_lowers(compiled(), 1, jnp.zeros(SHAPE))


@pytest.mark.parametrize(
    "early_stop", [inversion.EarlyStop(max_loss=0.9), inversion.EarlyStop(patience=2)]
)
def test_early_stops(early_stop):
    start = jnp.full(SHAPE, 0.3)
    full, early = compiled()(0, start), compiled(early_stop=early_stop)(0, start)
    done = int(early.steps_done)
    assert 0 < done < 30
    np.testing.assert_allclose(early.losses[: done + 1], full.losses[: done + 1], rtol=1e-5)
    assert (early.losses[done:] == early.losses[done]).all()
    losses = np.asarray(full.losses)
    if early_stop.max_loss is not None:
        assert done == np.flatnonzero(losses <= 0.9)[0] == int(early.step)
    else:
        assert done == int(early.step) + 2
        assert (losses[done - 1 : done + 1] >= losses[done - 2]).all()


def test_a_diverging_model_leaves_the_best_finite_iterate():
    def diverging(x):
        return jnp.stack([jnp.log(0.6 - x[0]), 0.0])  # NaN once x[0] exceeds 0.6

    result = inversion.gradient_descent(
        lambda x: -diverging(x), 0, jnp.array([0.5]), steps=40, learning_rate=0.1
    )
    assert np.isfinite(result.best).all()
    assert np.isfinite(result.loss)
    assert float(result.confidence) >= float(jax.nn.softmax(-diverging(jnp.array([0.5])))[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: inversion.EarlyStop(), "Expected patience or max_loss"),
        (lambda: inversion.EarlyStop(patience=0), "Expected patience >= 1"),
        (lambda: settings(steps=0), "Expected steps >= 1"),
        (lambda: settings(weight=-1.0), "Expected penalty_weight >= 0"),
        (lambda: inversion.attacks(restarts=0), "Expected restarts >= 1"),
        (lambda: inversion.attacks(steps=0), "Expected steps >= 1"),
        (lambda: faces(loss="log"), "Expected loss "),
        (lambda: faces(box="clip"), "Expected box "),
        (lambda: inversion.attacks(penalty_weight=-1.0), "Expected penalty_weight >= 0"),
        (lambda: descend(steps=0), "Expected steps >= 1"),
        (lambda: descend(learning_rate=0.0), "Expected learning_rate > 0"),
        (lambda: descend(bounds=(1.0, 0.0)), "low < high"),
        (lambda: descend(label=3), "Expected label in 0..2"),
        (
            lambda: descend(model=lambda x: x.sum()),
            r"Expected logits \[c\] of one input",
        ),
        (lambda: vary(radius=4), "Expected radius < 4"),
        (lambda: vary(radius=0), "Expected radius >= 1"),
        (lambda: vary(decay=0.0), "Expected 0 < decay <= 1"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def descend(model=predict, label=0, **options):
    options = {"steps": 2, "learning_rate": 0.1} | options
    attack = oracles.unhooked(inversion.gradient_descent)
    return attack(model, label, jnp.zeros(SHAPE), **options)


def faces(**options):
    made = object.__new__(inversion.Settings)
    oracles.unhooked(inversion.Settings.__init__)(made, **(vars(inversion.FACES) | options))


def vary(**options):
    options = {"radius": 1, "decay": 0.5} | options
    return inversion.bilateral_total_variation(jnp.zeros(SHAPE), **options)


def test_the_start_of_gradient_descent_is_within_the_bounds():
    result = inversion.gradient_descent(
        lambda x: jnp.stack([x.sum(), -x.sum()]), 0, jnp.full(2, 5.0), steps=1, learning_rate=0.1
    )
    assert result.best.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("labels", "model", "message"),
    [
        ([1, -1], predict, r"labels in 0\.\.2, got -1"),
        ([0, 3], predict, r"labels in 0\.\.2, got 3"),
        ([0, 1], lambda x: predict(x) * jnp.nan, "finite outputs of predict"),
    ],
)
def test_labels_and_outputs_are_checked(labels, model, message):
    attack = inversion.attacks(restarts=1, steps=1)[0]
    target = inversion.Target(predict=model, shape=SHAPE)
    with pytest.raises(ValueError, match=message):
        attack.run(jax.random.key(0), target, np.array(labels))


def test_the_settings_are_those_of_the_paper():
    assert (inversion.MNIST.steps, inversion.MNIST.learning_rate) == (5000, 0.1)
    assert (inversion.MNIST.penalty, inversion.MNIST.penalty_weight) == (inversion.l1_norm, 0.05)
    faces = inversion.FACES
    assert (faces.steps, faces.learning_rate, faces.penalty_weight) == (100, 0.05, 0.001)
    assert faces.penalty.keywords == {"radius": 2, "decay": 0.9}


def test_restarts_of_the_table_do_not_make_a_result_worse(keys):
    target = inversion.Target(predict=predict, shape=SHAPE)
    labels = jnp.arange(3)
    first, more = (
        inversion.attacks(restarts=restarts, steps=20)[1].run(keys(1)[0], target, labels)
        for restarts in (1, 4)
    )
    assert (more.loss <= first.loss + 1e-6).all()
    assert (more.loss < first.loss - 1e-4).any()
    paper = dataclasses.replace(inversion.MNIST, steps=20)
    plain = inversion.enhanced(predict, 2, jnp.zeros(SHAPE), settings=paper)
    np.testing.assert_allclose(first.losses[2], plain.losses, atol=1e-6)


def test_a_penalty_weight_replaces_that_of_the_paper(keys):
    target = inversion.Target(predict=predict, shape=SHAPE)
    (key,) = keys(1)
    run = inversion.attacks(steps=20, penalty_weight=0.01)[1].run(key, target, jnp.arange(3))
    weighted = dataclasses.replace(inversion.MNIST, steps=20, penalty_weight=0.01)
    expected = inversion.enhanced(predict, 2, jnp.zeros(SHAPE), settings=weighted)
    np.testing.assert_allclose(run.losses[2], expected.losses, atol=1e-6)


def test_images_whose_channels_come_first_are_not_taken_for_narrow_ones():
    """Shifts of two pixels do not fit into one row, which would stop the run of the table."""
    target = inversion.Target(predict=predict, shape=(1, 28, 28))
    names = [attack.name for attack in inversion.applicable(inversion.attacks(), target)]
    assert names == ["gradient_descent", "enhanced_l1", "projected_l1"]


def test_penalties_of_half_precision_do_not_overflow():
    x = jnp.ones((400, 400, 1), jnp.float16).at[::2].set(0)
    assert float(inversion.l1_norm(x)) == 80_000
    assert (
        float(inversion.bilateral_total_variation(x, radius=1, decay=1.0)) == (400 + 2 * 399) * 399
    )
