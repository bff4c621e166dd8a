"""Wrong kinds of arguments, and runs in which something is off, are answered in one line."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpriv import accounting, grads, sampling, training
from tests import oracles

N = 30
X = jax.random.normal(jax.random.key(4), (N, 3))
PARAMS = {"w": jnp.ones(3)}
SAMPLER = sampling.poisson(N, sampling_prob=0.5)
KEY = jax.random.key(0, impl="rbg")
RELATION = "add_or_remove_one"


def loss(params, x, key):
    return jnp.sum((params["w"] - x) ** 2)


GRAD = grads.clipped_grad(loss, clip_norm=1.0)
ALG = training.dpsgd(GRAD, optax.sgd(0.1), SAMPLER, noise_multiplier=1.0)


class Uniform:
    """A sampler without an event."""

    num_examples = N
    expected_batch_size = 5.0

    def sample(self, key):
        return jax.random.randint(key, (5,), 0, N), jnp.ones(5, bool)


def refused(function, *args, **kwargs):
    """The message that a user without the tests' type checks gets."""
    with pytest.raises(ValueError, match=r"^Expected ") as caught:
        oracles.unhooked(function)(*args, **kwargs)
    assert "\n" not in str(caught.value)
    assert " object at 0x" not in str(caught.value)
    return str(caught.value)


def fit(**changes):
    given = {"key": KEY, "alg": ALG, "params": PARAMS, "data": X, "steps": 12, **changes}
    return refused(training.fit, *(given.pop(n) for n in ("key", "alg", "params", "data")), **given)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"budget": 4.0},
            "budget=training.Budget(epsilon=..., delta=..., relation=...), got f",
        ),
        ({"budget": (4.0, 1e-5)}, "got tuple"),
        ({"budget": {"epsilon": 4.0}}, "got dict"),
        ({"evaluate": lambda params, step: None}, "training.Evaluation(metrics={...}, stop=False)"),
        ({"evaluate": lambda params, step: {"accuracy": 0.5}}, "got dict"),
        ({"evaluate": lambda params, step: training.Evaluation(0.5)}, "Evaluation(metrics={...}"),
        ({"evaluate": lambda params, step: training.Evaluation({"a": "b"})}, "numbers, got 'b' as"),
        ({"evaluate": lambda params: None}, "evaluate(params, step), got evaluate(params)"),
        ({"evaluate": {"accuracy": 0.5}}, "evaluate(params, step) as a function, got dict"),
        ({"alg": GRAD}, "alg such as training.dpsgd(...), got ClippedGrad without init"),
        ({"alg": optax.adam(0.1)}, "got GradientTransformationExtraArgs without sampler, event"),
        ({"alg": None}, "got NoneType without"),
        ({"key": 0}, "key=jax.random.key(seed), got int"),
        ({"key": jax.random.split(KEY, 2)}, "key=jax.random.key(seed), got key<rbg>[2]"),
        ({"key": jnp.zeros(())}, "key=jax.random.key(seed), got float32[]"),
        ({"data": [1.0, 2.0]}, "arrays as data, got float as data[0]"),
        ({"data": X[:5]}, "30 records as in the sampler, got shape (5, 3)"),
        ({"data": (X, jnp.float32(0))}, "got shape () as data[1]"),
        ({"checkpoints": "folder"}, "training.Checkpoints(directory=...), got str"),
        ({"steps": 2.5}, "a whole number for steps"),
        ({"steps": None}, "a static number for steps, got NoneType"),
    ],
)
def test_fit(changes, expected):
    assert expected in fit(**changes)


@pytest.mark.parametrize(
    ("grad", "optimizer", "sampler", "expected"),
    [
        (jax.grad(loss), optax.sgd(0.1), SAMPLER, "as grads.clipped_grad(loss, clip_norm=...)"),
        (loss, optax.sgd(0.1), SAMPLER, "got function without clip_norm, sensitivity"),
        (None, optax.sgd(0.1), SAMPLER, "got NoneType"),
        (GRAD, 0.1, SAMPLER, "optimizer such as optax.adam(...), got float"),
        (GRAD, optax.sgd, SAMPLER, "got function without init, update"),
        (GRAD, optax.sgd(0.1), Uniform(), "sampling.poisson(...), got Uniform without ev"),
        (GRAD, optax.sgd(0.1), 0.1, "got float without num_examples"),
        (GRAD, optax.sgd(0.1), sampling.poisson, "got function without num_examples"),
    ],
)
def test_dpsgd(grad, optimizer, sampler, expected):
    assert expected in refused(training.dpsgd, grad, optimizer, sampler, noise_multiplier=1.0)


def test_sgd():
    optimizer = optax.sgd(0.1)
    assert "loss(params, example, key) as a function" in refused(
        training.sgd, 1.0, optimizer, SAMPLER
    )
    assert "got Uniform without event" in refused(training.sgd, loss, optimizer, Uniform())
    without_key = refused(training.sgd, lambda params, x: 0.0, optimizer, SAMPLER)
    assert "loss(params, example, key), got loss(params, x)" in without_key
    for bad, expected in (
        (lambda p, x, key: (loss(p, x, key), x), "got a tuple for one example"),
        (lambda p, x, key: (p["w"] - x) ** 2, r"got shape (3,) for one example"),
        (lambda p, x, key: {"loss": 0.0}, "got a dict for one example"),
    ):
        assert expected in fit(alg=training.sgd(bad, optimizer, SAMPLER))


def test_averaged():
    for alg in (GRAD, 0.1, optax.adam(0.1)):
        assert "training.dpsgd(...)" in refused(training.averaged, alg, decay=0.9)


@pytest.mark.parametrize("sampler", [Uniform(), 0.1, SAMPLER.sample])
def test_calibrate(sampler):
    target = {"steps": 10, "epsilon": 1.0, "delta": 1e-5, "relation": RELATION}
    assert "without event" in refused(accounting.calibrate, sampler, **target)


@pytest.mark.parametrize("event", [1.0, ALG, SAMPLER])
def test_epsilon_of_something_else(event):
    message = refused(accounting.epsilon, event, delta=1e-5, relation=RELATION)
    assert "dp_accounting event, such as alg.event(steps)" in message


@pytest.mark.parametrize("count", [-3, 2.5, float("inf")])
def test_event_counts(count):
    import dp_accounting

    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(1.0), count)
    assert "a whole number >= 0 of steps" in refused(
        accounting.epsilon, event, delta=1e-5, relation=RELATION
    )


def test_many():
    members = np.arange(20).reshape(2, 10)

    def run(**changes):
        given = {
            "keys": jax.random.split(KEY, 2),
            "make": lambda size, _: training.sgd(loss, optax.sgd(0.1), sampling.full_batch(size)),
            "members": members,
            **changes,
        }
        keys, make = given.pop("keys"), given.pop("make")
        return refused(training.fit_many, keys, make, {"w": jnp.ones((2, 3))}, X, steps=2, **given)

    for impl in ("threefry2x32", "rbg"):
        keys = jax.random.split(jax.random.key(5, impl=impl), 2)
        assert "the key of model 0 again for model 1" in run(keys=keys[jnp.array([0, 0])])
    legacy = jnp.stack([jax.random.PRNGKey(1)] * 2)
    assert "the key of model 0 again for model 1" in run(keys=legacy)
    assert "strategy to be one of auto, vmap, map" in run(strategy="loop")
    assert "members [models, records]" in run(members=np.arange(10))
    assert "members [models, records]" in run(members=members > 3)
    assert "got NoneType without" in run(make=lambda size, _: None)


def test_shadows_refuse_masks_of_another_shape():
    for is_member in (np.ones((2, 9), bool), np.ones((2, N), int), np.zeros((2, N), bool)):
        assert f"is_member of bool [models, {N}]" in refused(
            training.shadows.train,
            KEY,
            lambda size, _: ALG,
            lambda key: PARAMS,
            X,
            is_member=is_member,
            steps=2,
        )


BAD_ROWS = {"one": np.arange(N) == 3, "half": np.arange(N) < 15, "all": np.ones(N, bool)}


@pytest.mark.parametrize("rows", BAD_ROWS)
def test_gradients_that_are_not_finite_are_counted_and_warned_of_once(rows):
    bad = jnp.asarray(BAD_ROWS[rows])
    x = jnp.where(bad[:, None], jnp.nan, X)
    alg = training.dpsgd(GRAD, optax.sgd(0.1), sampling.full_batch(N), noise_multiplier=1.0)
    count = int(bad.sum())
    with pytest.warns(UserWarning, match="per-example") as caught:
        _, history = training.fit(KEY, alg, PARAMS, x, steps=25)
    (warning,) = caught
    assert f"{9 * count} of {9 * N} per-example gradients" in str(warning.message)
    assert history.info.num_nonfinite.tolist() == [count] * 25
    clipped = history.info.clipped_share
    assert (clipped == 0).all() if count == N else (clipped > 0.5).all()


def test_losses_that_are_not_finite_are_warned_of_by_sgd_and_by_many():
    x = X.at[0].set(jnp.inf)
    make = lambda size, _: training.sgd(loss, optax.sgd(0.1), sampling.full_batch(size))  # noqa: E731
    with pytest.warns(UserWarning, match="of 60 per-example gradients or losses"):
        training.fit(KEY, make(N, None), PARAMS, x, steps=2)
    members = np.stack([np.arange(15), np.arange(15, 30)])
    with pytest.warns(UserWarning, match="of 60 per-example gradients or losses"):
        training.fit_many(
            jax.random.split(KEY, 2), make, {"w": jnp.ones((2, 3))}, x, members=members, steps=2
        )


@pytest.mark.parametrize("steps", [20, 300, 9000])
def test_a_budget_that_cuts_the_steps_warns_and_one_that_does_not_is_silent(steps):
    """Warnings are errors here."""
    alg = training.dpsgd(GRAD, optax.sgd(0.1), sampling.full_batch(N), noise_multiplier=5.0)
    epsilon = accounting.epsilon(alg.event(20), delta=1e-4, relation=RELATION)
    budget = training.Budget(epsilon=1.0001 * epsilon, delta=1e-4, relation=RELATION)
    if steps == 20:
        _, history = training.fit(KEY, alg, PARAMS, X, steps=20, budget=budget)
    else:
        with pytest.warns(UserWarning, match=f"allows 20 of the {steps} steps"):
            _, history = training.fit(KEY, alg, PARAMS, X, steps=steps, budget=budget)
    assert history.planned_steps == 20
    assert history.epsilon <= budget.epsilon
