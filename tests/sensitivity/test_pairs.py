"""Sampled pairs against two trainings by hand, and the order of their batches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpriv import sampling, training
from jaxpriv.sensitivity import pairs, sample_pairs

X = jnp.asarray(np.random.default_rng(3).normal(size=(60, 3)), jnp.float32)
PARAMS = {"w": jnp.zeros(3), "b": jnp.zeros(())}


def loss(params, x, key):
    return (jnp.dot(params["w"], x) + params["b"] - x[0]) ** 2 + 0.1 * jax.random.normal(key)


def make_alg(k, hyper):
    assert hyper is None
    return training.sgd(loss, optax.adam(0.05), sampling.fixed_batch(k, batch_size=4))


def sample(data=X, **changes):
    options = {"num_pairs": 3, "num_records": 9, "steps": 5, **changes}
    return sample_pairs(jax.random.key(1), make_alg, PARAMS, data, **options)


def test_distances_are_those_of_two_trainings():
    result = sample()
    keys = jax.random.split(jax.random.split(jax.random.key(1))[1], 3)
    for i in range(3):
        first, new = result.records[i, :9], result.records[i, 9]
        second = first.copy()
        second[result.slots[i]] = new
        one, two = (
            training.fit(keys[i], make_alg(9, None), PARAMS, X[rows], steps=5)[0].params
            for rows in (first, second)
        )
        squares = jax.tree.map(lambda a, b: float(jnp.sum((a - b) ** 2)), one, two)
        distance = np.sqrt(sum(jax.tree.leaves(squares)))
        assert distance > 0
        assert distance * (1 - 1e-5) <= result.distances[i] <= distance * (1 + 1e-3)
    assert result.sensitivity == result.distances.max()


def test_equal_records_give_exactly_zero():
    result = sample(jnp.tile(X[:1], (40, 1)))
    assert result.distances.tolist() == [0, 0, 0]


def test_the_new_record_takes_the_slot_of_the_old_one():
    sampler = pairs._PairedSampler(sampler=sampling.fixed_batch(9, batch_size=4), slot=5)
    changed = 0
    for key in jax.random.split(jax.random.key(0), 20):
        indices, mask = sampler.sample(key)
        plain, plain_mask = sampling.fixed_batch(9, batch_size=4).sample(key)
        assert (mask == plain_mask).all()
        assert (indices[:, 0] == plain).all()
        assert (jnp.where(plain == 5, 9, plain) == indices[:, 1]).all()
        changed += int((indices[:, 0] != indices[:, 1]).sum())
    assert changed > 0


def test_pairs_are_disjoint_where_the_data_suffice():
    result = sample()
    assert result.are_disjoint
    assert len(np.unique(result.records)) == result.records.size == 30
    shared = sample(num_pairs=7)
    assert not shared.are_disjoint
    assert all(len(set(rows)) == 10 for rows in shared.records.tolist())


def test_running_statistics_count():
    def batch_loss(params, mean, batch, mask, key):
        values = jax.vmap(loss, in_axes=(None, 0, None))(params, batch - mean, key)
        return values.mean() * 0, 0.5 * mean + 0.5 * batch.mean(axis=0)

    def with_state(k, hyper):
        sampler = sampling.full_batch(k)
        return training.stateful_sgd(batch_loss, optax.sgd(0.1), sampler)

    start = training.Variables(PARAMS, jnp.zeros(3))
    result = sample_pairs(
        jax.random.key(0), with_state, start, X, num_pairs=2, num_records=4, steps=1
    )
    old = np.asarray(X)[result.records[np.arange(2), result.slots]]
    expected = np.linalg.norm(old - np.asarray(X)[result.records[:, 4]], axis=1) / 8
    np.testing.assert_allclose(result.distances, expected, rtol=1e-3)


def test_an_interrupted_call_continues(tmp_path, monkeypatch):
    folder = training.Checkpoints(directory=tmp_path)
    whole = sample(chunk=1)
    saved = training.Checkpoints.save
    calls = []

    def save_once(self, step, *args, **kwargs):
        if calls:
            raise KeyboardInterrupt
        calls.append(step)
        saved(self, step, *args, **kwargs)

    monkeypatch.setattr(training.Checkpoints, "save", save_once)
    with pytest.raises(KeyboardInterrupt):
        sample(chunk=1, checkpoints=folder)
    monkeypatch.setattr(training.Checkpoints, "save", saved)
    again = sample(chunk=1, checkpoints=folder)
    np.testing.assert_array_equal(again.distances, whole.distances)
    with pytest.raises(ValueError, match="these differ"):
        sample(chunk=1, checkpoints=folder, steps=6)


def test_impossible_pairs_are_refused():
    with pytest.raises(ValueError, match=r"num_records \+ 1 = 61 records, got 60"):
        sample(num_records=60)
    with pytest.raises(ValueError, match="num_pairs >= 1"):
        sample(num_pairs=0)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.float32(2e-38), np.float32(1.9e-38)),  # differ by less than the smallest normal number
        (np.float32(1 + 2.0**-23), np.float32(1)),
        (np.float32([2e38, 1]), np.float32([0, 1])),  # the reciprocal of 2^127 is flushed to 0
    ],
)
def test_no_difference_is_rounded_to_zero(first, second):
    assert measured(first, second) >= np.linalg.norm(np.float64(first) - np.float64(second))


def test_differences_are_those_of_the_type_of_the_parameters():
    with jax.enable_x64(True):
        assert measured(1.5, 1.5 - 2.0**-40) == pytest.approx(2.0**-40, rel=1e-3)


def measured(first, second):
    """Measures the distance of two leaves, as the ends of two trainings."""
    ends = jnp.stack([jnp.asarray(first), jnp.asarray(second)])
    return float(pairs._distance(pairs._PairState(training.State(ends, (), 0, 0))))


def test_parameters_that_noise_cannot_hide_are_refused():
    options = {"num_pairs": 1, "num_records": 9, "steps": 1}
    for params in (jnp.zeros(3, jnp.int32), jnp.zeros(3, jnp.complex64)):
        with pytest.raises(ValueError, match="Expected float parameters"):
            sample_pairs(jax.random.key(0), make_alg, params, X, **options)


def test_leaves_with_different_numbers_of_rows_are_refused():
    with pytest.raises(
        ValueError, match=r"equal numbers of rows in data, got shapes \[60, 3\], \[12\]"
    ):
        sample((X, np.zeros(12)))


def test_a_sampler_of_classes_is_refused():
    def by_class(k, hyper):
        sampler = sampling.by_class(np.arange(k) % 3, num_classes=3, sampling_prob=0.5)
        return make_alg(k, None)._replace(sampler=sampler)

    with pytest.raises(ValueError, match="sampler of records for pairs"):
        sample_pairs(jax.random.key(0), by_class, PARAMS, X, num_pairs=1, num_records=9, steps=1)
