"""fit and fit_many: the same as a loop of steps; budgets, histories, members."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpriv import accounting, grads, sampling, training
from tests import oracles

N = 60
X = jax.random.normal(jax.random.key(4), (N, 3))
PARAMS = {"w": jnp.ones(3)}
RELATION = "add_or_remove_one"
KEY = jax.random.key(20261127, impl="rbg")  # compiles in half the time


def loss(params, x, key):
    return jnp.sum((params["w"] - x) ** 2)


def private(n=N, *, z=1.0, rate=0.1, q=0.2):
    grad = grads.clipped_grad(loss, clip_norm=1.0)
    sampler = sampling.poisson(n, sampling_prob=q)
    return training.dpsgd(grad, optax.adam(rate), sampler, noise_multiplier=z)


def traced_noise(z):
    grad = grads.clipped_grad(loss, clip_norm=1.0)
    make = oracles.unhooked(training.dpsgd)
    return make(grad, optax.sgd(0.1), sampling.full_batch(20), noise_multiplier=z)


def first_weight(params, step):
    return training.Evaluation({"w0": params["w"][0]})


def by_hand(key, alg, params, data, steps):
    """The loop that fit compiles."""
    state, update = alg.init(params), jax.jit(alg.update)
    for step in range(steps):
        sample_key, update_key = jax.random.split(jax.random.fold_in(key, step))
        indices, mask = alg.sampler.sample(sample_key)
        state, _ = update(update_key, state, data[indices], mask)
    return state


def test_fit_equals_a_loop_of_steps(keys):
    (key,) = keys(1)
    alg = private()
    state, history = training.fit(key, alg, PARAMS, X, steps=23)
    np.testing.assert_allclose(
        state.params["w"], by_hand(key, alg, PARAMS, X, 23).params["w"], rtol=1e-5
    )
    assert state.step == 23
    assert history.info.batch_size.shape == (23,)
    assert history.epsilon is None


def test_how_steps_are_cut_into_chunks_changes_nothing(keys):
    (key,) = keys(1)
    alg = private()
    seen = {}
    _, history = training.fit(key, alg, PARAMS, X, steps=25, evaluate=first_weight)
    assert history.evaluated_at.tolist() == [9, 18, 25]
    for end in history.evaluated_at.tolist():
        seen[end] = training.fit(key, alg, PARAMS, X, steps=end)[0].params["w"][0]
    np.testing.assert_allclose(history.metrics["w0"], list(seen.values()), rtol=1e-6)


def test_equal_keys_give_equal_runs_and_other_keys_do_not(keys):
    a, b = keys(2)
    runs = [training.fit(k, private(), PARAMS, X, steps=5)[0].params["w"] for k in (a, a, b)]
    assert (runs[0] == runs[1]).all()
    assert (runs[0] != runs[2]).all()


def test_a_budget_stops_in_time_and_epsilon_so_far_is_never_understated():
    """A full batch, whose epsilon has a closed form."""
    alg = private(z=20.0, q=1.0)
    budget = training.Budget(epsilon=3.0, delta=1e-4, relation=RELATION)
    with pytest.warns(UserWarning, match=r"allows \d+ of the 10000 steps"):
        state, history = training.fit(KEY, alg, PARAMS, X, steps=10_000, budget=budget)
    steps = int(state.step)
    assert history.planned_steps == history.steps_done == steps > 100
    spent = [
        accounting.epsilon(alg.event(s), delta=1e-4, relation=RELATION)
        for s in [steps, steps + 1, *history.evaluated_at.tolist()]
    ]
    assert spent[0] <= 3.0 < spent[1]
    assert history.epsilon == pytest.approx(spent[0], rel=2e-3)
    assert (np.diff(history.epsilon_curve) >= 0).all()
    assert (history.epsilon_curve >= np.array(spent[2:]) * (1 - 2e-3)).all()


def test_a_budget_that_allows_nothing_is_refused(keys):
    budget = training.Budget(epsilon=0.01, delta=1e-6, relation=RELATION)
    with pytest.raises(ValueError, match="One step exceeds the budget"):
        training.fit(keys(1)[0], private(z=0.5), PARAMS, X, steps=10, budget=budget)


def test_delta_of_one_over_n_warns(keys):
    budget = training.Budget(epsilon=50.0, delta=1 / N, relation=RELATION)
    with pytest.warns(UserWarning, match="delta"):
        training.fit(keys(1)[0], private(q=1.0), PARAMS, X, steps=2, budget=budget)


MEMBERS = np.stack([np.arange(0, 40, 2), np.arange(1, 41, 2), np.arange(40, 60)])
RATES = np.array([0.1, 0.2, 0.3], np.float32)


@pytest.fixture(scope="module")
def single_runs():
    """Three models, each by itself: their weights and mean norms."""
    params, keys = np.arange(9.0, dtype=np.float32).reshape(3, 3), jax.random.split(KEY, 3)
    runs = [
        training.fit(keys[i], private(20, rate=RATES[i]), {"w": params[i]}, X[MEMBERS[i]], steps=6)
        for i in range(3)
    ]
    return [(state.params["w"], history.info.mean_norm) for state, history in runs]


@pytest.mark.parametrize("chunk", oracles.slow_after(2, [None, 2, 1]))
def test_many_equal_single_runs(single_runs, chunk):
    states, info = training.fit_many(
        jax.random.split(KEY, 3),
        lambda size, rate: private(size, rate=rate),
        {"w": jnp.arange(9.0).reshape(3, 3)},
        X,
        members=MEMBERS,
        steps=6,
        hyper=jnp.asarray(RATES),
        chunk=chunk,
    )
    assert info.strategy == "map"
    assert info.chunk == (chunk or 3)
    assert info.info.batch_size.shape == (3, 6)
    for i, (w, norms) in enumerate(single_runs):
        np.testing.assert_allclose(states.params["w"][i], w, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(info.info.mean_norm[i], norms, rtol=1e-5)


def test_side_by_side_equals_one_after_the_other(keys):
    members = np.arange(60).reshape(3, 20)
    args = (keys(3), lambda size, _: private(size), {"w": jnp.ones((3, 3))}, X)
    mapped, _ = training.fit_many(*args, members=members, steps=4)
    vmapped, info = training.fit_many(*args, members=members, steps=4, strategy="vmap")
    assert info.strategy == "vmap"
    np.testing.assert_allclose(mapped.params["w"], vmapped.params["w"], rtol=1e-5)


def test_many_refuses_what_does_not_fit(keys):
    params, members = {"w": jnp.ones((2, 3))}, np.arange(40).reshape(2, 20)

    def run(**changes):
        given = {"members": members, "steps": 2, "hyper": None, **changes}
        make = given.pop("make", lambda size, _: private(size))
        return training.fit_many(keys(2), make, given.pop("params", params), X, **given)

    with pytest.raises(ValueError, match="sampler over the 20 members"):
        run(make=lambda size, _: private(60))
    with pytest.raises(ValueError, match=r"members in 0\.\.59"):
        run(members=members + 30)
    with pytest.raises(ValueError, match="listed twice"):
        run(members=np.zeros((2, 20), int))
    with pytest.raises(ValueError, match="equal lengths"):
        run(members=np.arange(60).reshape(3, 20))
    with pytest.raises(ValueError, match="params stacked for 2 models"):
        run(params={"w": jnp.ones((3, 3))})
    with pytest.raises(ValueError, match="finite hyper"):
        run(make=lambda size, rate: private(size, rate=rate), hyper=jnp.array([0.1, jnp.nan]))
    with pytest.raises(ValueError, match="static number for noise_multiplier"):
        run(make=lambda size, z: traced_noise(z), hyper=jnp.array([0.5, 1.0]))


def test_fit_refuses_data_of_another_length(keys):
    with pytest.raises(ValueError, match="Expected 60 records"):
        training.fit(keys(1)[0], private(), PARAMS, X[:50], steps=2)
    with pytest.raises(ValueError, match="steps >= 1"):
        training.fit(keys(1)[0], private(), PARAMS, X, steps=0)


@pytest.mark.parametrize(("n", "models"), [(10, 4), (11, 6)])
def test_halves_are_complementary_and_even(keys, n, models):
    is_member = training.shadows.halves(keys(1)[0], n, num_models=models)
    assert is_member.shape == (models, n)
    assert (is_member.sum(0) == models // 2).all()
    assert (is_member[: models // 2] == ~is_member[models // 2 :]).all()
    assert set(is_member.sum(1)) == {n // 2, (n + 1) // 2}


def test_halves_are_uniform(keys):
    share = training.shadows.halves(keys(1)[0], 7, num_models=800)[:400].mean(axis=0)
    # 4 of 7 records in the first half; standard error of 400 draws.
    assert np.abs(share - 4 / 7).max() < 4.5 * np.sqrt(4 / 7 * 3 / 7 / 400)


def test_halves_of_groups_split_no_group_and_are_half_each(keys):
    group = np.repeat(np.arange(40) * 3, np.random.default_rng(0).integers(1, 8, 40))
    is_member = training.shadows.halves(keys(1)[0], len(group), num_models=20, group=group)
    for g in np.unique(group):
        of_group = is_member[:, group == g]
        assert (of_group == of_group[:, :1]).all()
    assert (is_member.sum(0) == 10).all()
    assert abs(is_member.sum(1) - len(group) / 2).max() < 3
    assert len(np.unique(is_member, axis=0)) == 20


def test_outputs_are_those_of_each_model_on_each_record(keys):
    params = {"w": jax.random.normal(keys(1)[0], (3, 4, 2))}
    x = jax.random.normal(keys(2)[1], (7, 4))
    result = training.shadows.outputs(lambda p, x: x @ p["w"], params, x, batch_size=3)
    np.testing.assert_allclose(result, np.einsum("nd,mdc->mnc", x, params["w"]), rtol=1e-5)
    with pytest.raises(ValueError, match="batch_size"):
        training.shadows.outputs(lambda p, x: x @ p["w"], params, x, batch_size=0)


def test_halves_refuse_one_group(keys):
    with pytest.raises(ValueError, match="at least two groups"):
        training.shadows.halves(keys(1)[0], 3, num_models=2, group=np.zeros(3, int))


def test_halves_refuse_an_odd_number_of_models(keys):
    with pytest.raises(ValueError, match="even num_models"):
        training.shadows.halves(keys(1)[0], 10, num_models=3)


def test_shadows_come_back_in_the_order_of_their_members(keys):
    """With a full batch and plain descent a model ends at the mean of its members."""
    is_member = training.shadows.halves(keys(1)[0], 11, num_models=4)

    def make_alg(size, _):
        return training.sgd(loss, optax.sgd(0.5), sampling.full_batch(size))

    params = training.shadows.train(
        KEY,
        make_alg,
        lambda key: {"w": jax.random.normal(key, (3,))},
        X[:11],
        is_member=is_member,
        steps=2,
    )
    means = [np.asarray(X[:11])[row].mean(0) for row in is_member]
    np.testing.assert_allclose(params["w"], np.stack(means), rtol=1e-4, atol=1e-5)


def test_data_may_be_numpy_arrays(keys):
    """Rows are gathered inside the program, which NumPy arrays would not allow."""

    def make(k, hyper):
        return training.sgd(
            lambda w, x, key: jnp.sum((w - x) ** 2), optax.sgd(0.1), sampling.full_batch(k)
        )

    members, start = np.array([[0, 1], [2, 3]]), jnp.zeros((2, 3))
    args = keys(2), make, start
    results = [
        training.fit_many(*args, data, members=members, steps=2)[0].params
        for data in (np.asarray(X[:4]), jnp.asarray(X[:4]))
    ]
    np.testing.assert_array_equal(*results)
    (key,) = keys(1)
    for data in (np.asarray(X[:2]), jnp.asarray(X[:2])):
        state, _ = training.fit(key, make(2, None), jnp.zeros(3), data, steps=2)
        assert np.isfinite(state.params).all()
