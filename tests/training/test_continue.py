"""Runs that are stopped, continued or resumed: bit-equal, with the guarantee of the plan."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpriv import accounting, grads, sampling, training
from tests import oracles

X = jax.random.normal(jax.random.key(4), (60, 3))
PARAMS = {"w": jnp.ones(3)}
RELATION = "add_or_remove_one"
SAMPLER = sampling.poisson(60, sampling_prob=0.2)
KEY = jax.random.key(11, impl="rbg")  # compiles in half the time


def loss(params, x, key):
    return jnp.sum((params["w"] - x) ** 2)


def private(optimizer=None, *, sampler=SAMPLER, z=1.0):
    grad = grads.clipped_grad(loss, clip_norm=1.0)
    return training.dpsgd(grad, optimizer or optax.adam(0.1), sampler, noise_multiplier=z)


def keyed():
    """The state of this optimiser has a PRNG key."""
    return private(optax.chain(optax.add_noise(0.01, 0.55, seed=1), optax.adam(0.1)))


def adaptive(*, z=1.0):
    return training.adaptive_dpsgd(
        grads.clipped_grad(loss, clip_norm=1.0),
        optax.adam(0.1),
        SAMPLER,
        noise_multiplier=z,
        count_noise=2.0,
        target_quantile=0.5,
    )


ALGORITHMS = {
    "dpsgd": private,
    "keyed optimiser": keyed,
    "averaged adaptive": lambda: training.averaged(adaptive(), decay=0.9),
}


def leaves(tree):
    return [
        np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for x in map(jnp.asarray, jax.tree.leaves(tree))
    ]


def assert_same(a, b):
    """Equal to the bit and of equal types."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert jnp.asarray(x).dtype == jnp.asarray(y).dtype
    for x, y in zip(leaves(a), leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_continued_run_is_the_uninterrupted_one(tmp_path, name):
    """From its state, and from its checkpoints, in pieces that are not a multiple of a chunk."""
    alg = ALGORITHMS[name]()
    uninterrupted, history = training.fit(KEY, alg, PARAMS, X, steps=37)
    first, _ = training.fit(KEY, alg, PARAMS, X, steps=14)
    continued, rest = training.fit(KEY, alg, first, X, steps=37)
    assert_same(continued, uninterrupted)
    assert_same(rest.info, jax.tree.map(lambda leaf: leaf[14:], history.info))
    assert (rest.planned_steps, rest.steps_done) == (37, 37)
    assert rest.evaluated_at[-1] == 37
    checkpoints = training.Checkpoints(directory=tmp_path)
    training.fit(KEY, alg, PARAMS, X, steps=14, checkpoints=checkpoints)
    extended, longer = training.fit(KEY, alg, PARAMS, X, steps=37, checkpoints=checkpoints)
    assert_same(extended, uninterrupted)
    assert_same(longer.info, history.info)


def test_the_noise_of_a_continued_run_is_fresh():
    """Under the same key: a flat loss moves the parameters by the noise alone."""

    def flat(params, x, key):
        return 0.0 * loss(params, x, key)

    grad = grads.clipped_grad(flat, clip_norm=1.0)
    alg = training.dpsgd(grad, optax.sgd(1.0), SAMPLER, noise_multiplier=1.0)
    first, _ = training.fit(KEY, alg, PARAMS, X, steps=1)
    second, _ = training.fit(KEY, alg, first, X, steps=2)
    moves = (first.params["w"] - PARAMS["w"], second.params["w"] - first.params["w"])
    assert np.abs(moves[0] - moves[1]).min() > 1e-3


def test_a_run_that_was_stopped_keeps_its_guarantee_and_can_go_on(tmp_path):
    grad = grads.clipped_grad(loss, clip_norm=1.0)
    full = sampling.full_batch(60)  # its epsilon has a closed form
    alg = training.dpsgd(grad, optax.adam(0.1), full, noise_multiplier=5.0)
    budget = training.Budget(epsilon=50.0, delta=1e-4, relation=RELATION)

    def stop_at_20(params, step):
        assert params["w"].shape == (3,)
        return training.Evaluation({"w0": params["w"][0]}, stop=step >= 20)

    def run(evaluate=stop_at_20, steps=40, checkpoints=None):
        return training.fit(
            KEY,
            alg,
            PARAMS,
            X,
            steps=steps,
            budget=budget,
            evaluate=evaluate,
            checkpoints=checkpoints,
        )

    state, history = run()
    assert (history.planned_steps, history.steps_done, int(state.step)) == (40, 20, 20)
    assert history.evaluated_at.tolist() == [10, 20]
    planned = accounting.epsilon(alg.event(40), delta=1e-4, relation=RELATION)
    assert history.epsilon == pytest.approx(planned, rel=2e-3)
    assert history.epsilon_curve[-1] < 0.8 * planned
    assert history.info.batch_size.shape == (20,)
    assert_same(state, training.fit(KEY, alg, PARAMS, X, steps=20)[0])

    checkpoints = training.Checkpoints(directory=tmp_path)
    for _ in range(2):  # the second call finds the run stopped
        assert_same(run(checkpoints=checkpoints)[0], state)
    longer, history = run(lambda p, s: training.Evaluation({"w0": 0.0}), 50, checkpoints)
    assert_same(longer, training.fit(KEY, alg, PARAMS, X, steps=50)[0])
    assert (history.planned_steps, history.steps_done) == (50, 50)
    assert history.metrics["w0"].shape == (5,)
    assert history.metrics["w0"][-1] == 0


def test_fewer_steps_than_planned_are_refused_even_if_not_done(tmp_path):
    """The number of steps would be chosen after parameters were released."""
    checkpoints = training.Checkpoints(directory=tmp_path)
    stop = lambda params, step: training.Evaluation({}, stop=True)  # noqa: E731
    training.fit(KEY, private(), PARAMS, X, steps=40, evaluate=stop, checkpoints=checkpoints)
    with pytest.raises(ValueError, match=r"steps >= 40, the number planned .* got 30"):
        training.fit(KEY, private(), PARAMS, X, steps=30, checkpoints=checkpoints)


def test_a_state_is_refused_where_it_does_not_fit():
    alg = private()
    state, _ = training.fit(KEY, alg, PARAMS, X, steps=5)
    with pytest.raises(ValueError, match=r"Expected steps > 5, .* got 5"):
        training.fit(KEY, alg, state, X, steps=5)
    with pytest.raises(ValueError, match="state of this algorithm"):
        training.fit(KEY, private(optax.sgd(0.1)), state, X, steps=9)
    with pytest.raises(ValueError, match="state of this algorithm"):
        training.fit(KEY, adaptive(), state, X, steps=9)
    with pytest.raises(ValueError, match="state of this algorithm"):
        training.fit(KEY, alg, training.averaged(alg, decay=0.9).init(PARAMS), X, steps=9)


def test_a_state_is_continued_only_with_the_event_of_its_steps():
    """All steps are counted as steps of the last algorithm."""
    alg = private()
    state = alg.init(PARAMS)
    _, history = training.fit(KEY, private(optax.adam(0.3)), state, X, steps=2)
    assert history.steps_done == 2
    averaged = functools.partial(training.averaged, decay=0.9)
    others = [
        (private(z=2.0), state),
        (private(sampler=sampling.poisson(60, sampling_prob=0.9)), state),
        (alg, training.sgd(loss, optax.adam(0.1), SAMPLER).init(PARAMS)),
        (averaged(private(z=2.0)), averaged(alg).init(PARAMS)),
        (adaptive(z=2.0), adaptive().init(PARAMS)),
    ]
    for other, start in others:
        with pytest.raises(ValueError, match="the same privacy event for each step"):
            training.fit(KEY, other, start, X, steps=9)


@pytest.mark.parametrize(
    "make",
    oracles.slow_after(
        1,
        [
            lambda: optax.noisy_sgd(0.1, key=jax.random.key(3)),
            lambda: optax.add_noise(0.1, 0.5, seed=3),
            lambda: optax.add_noise(0.1, 0.5, key=jax.random.key(3, impl="rbg")),
        ],
    ),
)
def test_optimisers_whose_state_has_a_key_are_saved_and_restored(tmp_path, make):
    alg = training.sgd(loss, make(), SAMPLER)
    expected, _ = training.fit(KEY, alg, PARAMS, X, steps=25)
    checkpoints = training.Checkpoints(directory=tmp_path, seconds=0.0)
    training.fit(KEY, alg, PARAMS, X, steps=12, checkpoints=checkpoints)
    resumed, _ = training.fit(KEY, alg, PARAMS, X, steps=25, checkpoints=checkpoints)
    assert_same(resumed, expected)


def test_evaluations_that_cannot_be_joined_are_refused(tmp_path):
    checkpoints = training.Checkpoints(directory=tmp_path)

    def run(evaluate, steps):
        return training.fit(
            KEY, private(), PARAMS, X, steps=steps, evaluate=evaluate, checkpoints=checkpoints
        )

    run(lambda params, step: training.Evaluation({"accuracy": 0.5}), 10)
    with pytest.raises(ValueError, match=r"metrics \['accuracy'\] as before step 20, got \[\]"):
        run(None, 20)
    with pytest.raises(ValueError, match=r"as before step 20, got \['loss'\]"):
        run(lambda params, step: training.Evaluation({"loss": 0.5}), 20)
