"""Networks of a report: presets by the shape of the inputs, modules of the user's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpriv import data, training
from jaxpriv.reports import _networks, _training, _user_code, partition
from jaxpriv.reports.settings import Settings
from tests import oracles

KEY = jax.random.key(0)
NUM_CLASSES = 3

MODULES = """
import flax.linen as nn
import jax
import optax
from flax import nnx


class Dropped(nn.Module):
    width: int = 3

    @nn.compact
    def __call__(self, x, train):
        x = nn.relu(nn.Dense(4)(x.reshape(len(x), -1)))
        return nn.Dense(self.width)(nn.Dropout(0.5, deterministic=not train)(x))


class Switched(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic=True):
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=deterministic)(x.reshape(len(x), -1)))


class Normal(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(3)(nn.BatchNorm(use_running_average=not train)(x.reshape(len(x), -1)))


class Mutable(nnx.Module):
    def __init__(self, rngs, norm=False):
        self.dense = nnx.Linear(48, 3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.norm = nnx.BatchNorm(48, rngs=rngs) if norm else lambda x: x

    def __call__(self, x):
        return self.dense(self.dropout(self.norm(x.reshape(len(x), -1))))


def dropped():
    return Dropped()


def switched():
    return Switched(), optax.sgd(0.1), 7


def mutable(rngs):
    return Mutable(rngs)


def normal():
    return Normal()


def normal_mutable(rngs):
    return Mutable(rngs, norm=True)


def wide():
    return Dropped(width=5)


def fixed():
    return Mutable(nnx.Rngs(0))


def number():
    return 3


def steps():
    return Dropped(), optax.sgd(0.1), 1.5


def optimizer():
    return Dropped(), "adam"


def fails():
    raise RuntimeError("no weights")


class Noisy(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(3)(x.reshape(len(x), -1))
        return x + jax.random.normal(self.make_rng("noise"), x.shape) if train else x


def noisy():
    return Noisy()
"""


def dataset(*shape, integers=False, count=6):
    rng = np.random.default_rng(0)
    x = rng.integers(9, size=(count, *shape)) if integers else rng.normal(size=(count, *shape))
    return data.Dataset(
        x=x.astype(np.float32),
        y=np.arange(count) % NUM_CLASSES,
        name="toy",
        num_classes=NUM_CLASSES,
        source="made by hand",
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_model.py"
    path.write_text(MODULES)
    return path


@pytest.mark.parametrize(
    ("shape", "settings", "text"),
    [
        ((5,), {}, "multilayer perceptron with one hidden layer of 256 units"),
        ((4, 4, 3), {}, "convolutional network with 16 and 32 channels and a layer of 64 units"),
        ((7, 2), {}, "LSTM of width 64"),
        ((7,), {"tokens": 9, "width": 8}, "transformer with 2 layers of width 8"),
        ((4, 4, 3), {"model": "mlp", "width": 2}, "one hidden layer of 2 units"),
    ],
)
def test_the_shape_chooses_the_preset(shape, settings, text):
    records = dataset(*shape, integers="tokens" in settings)
    network = _networks.network_for(records, Settings(no_dp=True, **settings))
    assert text in network.description
    x = _networks.inputs(records, Settings(no_dp=True, **settings))
    assert x.shape == (6, *shape)
    params = jax.eval_shape(network.init, KEY)
    assert jax.eval_shape(network.apply, params, jnp.asarray(x)).shape == (6, NUM_CLASSES)
    loss = jax.eval_shape(network.loss, params, (jnp.asarray(x)[0], jnp.int32(1)), KEY)
    assert loss.shape == ()


@pytest.mark.parametrize(
    ("shape", "settings", "message"),
    [
        ((5,), {"model": "cnn"}, r"shape \[height, width, channels\] for --model cnn, got \[5\]"),
        ((5,), {"model": "rnn"}, r"shape \[time, features\] for --model rnn"),
        ((5,), {"model": "transformer"}, "Expected --tokens, the size of the vocabulary"),
        ((5,), {"tokens": 9}, "whole numbers in toy for --tokens"),
        ((4, 4, 3), {"tokens": 9}, "whole numbers in toy for --tokens"),
    ],
)
def test_a_preset_that_does_not_fit_is_refused(shape, settings, message):
    with pytest.raises(ValueError, match=message) as error:
        _networks.network_for(dataset(*shape), Settings(no_dp=True, **settings))
    assert "\n" not in str(error.value)


def test_ids_beyond_the_vocabulary_are_refused():
    with pytest.raises(ValueError, match="Expected token ids from 0 to 7 in toy, got 0 to 8"):
        _networks.inputs(dataset(40, integers=True), Settings(no_dp=True, tokens=8))


@pytest.mark.parametrize("name", ["dropped", "switched", "mutable"])
def test_modules_drop_units_in_training_alone(file, name):
    """The loss depends on its key; outputs in evaluation do not."""
    records = dataset(4, 4, 3)
    settings = Settings(no_dp=True, model=f"{file}:{name}")
    network = _networks.network_for(records, settings)
    assert network.description.endswith("of my_model.py")
    x = jnp.asarray(_networks.inputs(records, settings))
    params = oracles.quick_jit(network.init)(KEY)
    other = oracles.quick_jit(network.init)(jax.random.key(1))
    assert not np.array_equal(*(jax.tree.leaves(p)[-1] for p in (params, other)))
    loss = oracles.quick_jit(network.loss)
    losses = [float(loss(params, (x[0], jnp.int32(1)), k)) for k in jax.random.split(KEY, 6)]
    assert len(set(losses)) > 1
    apply = oracles.quick_jit(network.apply)
    np.testing.assert_array_equal(apply(params, x), apply(params, x))
    assert (network.steps == 7) == (name == "switched")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wide", r"Expected 3 outputs of .*:wide, one for each class, got shape \[1, 5\]"),
        ("fixed", "to take the nnx.Rngs of the module that it makes"),
        ("number", "got int"),
        ("steps", "Expected a number of steps >= 1 from .*, got 1.5"),
        ("optimizer", "Expected an optax optimiser as the second result of .*, got str"),
        ("fails", r"got RuntimeError: no weights in my_model.py, line \d+"),
        ("noisy", "got from .*: InvalidRngError"),
        ("nothing", "Expected the function 'nothing' in my_model.py, got .*dropped"),
    ],
)
def test_a_wrong_module_is_one_line(file, name, message):
    with pytest.raises(ValueError, match=message) as error:
        _networks.network_for(dataset(4, 4, 3), Settings(no_dp=True, model=f"{file}:{name}"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["normal", "normal_mutable"])
def test_batch_norm_is_trained_without_dp_and_refused_with_it(file, name):
    settings = Settings(no_dp=True, model=f"{file}:{name}", plain_steps=3, shadows=4)
    records = partition.partition_records(KEY, dataset(4, 4, 3, count=60), unit=None)
    network = _networks.network_for(records.pool, settings)
    (recipe,) = _training.recipes(network, records, settings, log=print)
    size = int(records.is_member.sum())
    variables = oracles.quick_jit(network.init)(KEY)
    x, y = jnp.asarray(records.pool.x), jnp.asarray(records.pool.y)
    state, _ = training.fit(
        KEY, recipe.make_alg(size, None), variables, (x[:size], y[:size]), steps=3
    )
    for before, after in zip(*map(jax.tree.leaves, (variables, state.params)), strict=True):
        assert not np.array_equal(before, after)
    # In evaluation the running means are used, so that an example does not depend on the others.
    apply = oracles.quick_jit(network.apply)
    np.testing.assert_allclose(
        apply(state.params, x[:8])[:4], apply(state.params, x[:4]), rtol=1e-5, atol=1e-6
    )
    private = {"epsilon": (2.0,), "delta": 1e-5, "relation": "add_or_remove_one"}
    with pytest.raises(ValueError, match="replace BatchNorm by GroupNorm for DP-SGD") as error:
        _training.recipes(network, records, Settings(model=settings.model, **private), log=print)
    assert "\n" not in str(error.value)


def test_a_width_for_a_model_file_is_refused(file):
    given = Settings(no_dp=True, model=f"{file}:dropped", width=8)
    with pytest.raises(ValueError, match="Expected no --width with a model file"):
        _networks.network_for(dataset(4, 4, 3), given)


def test_a_module_for_other_inputs_is_one_line(file):
    with pytest.raises(ValueError, match=r"Expected a network for inputs of shape \[5\]") as error:
        _networks.network_for(dataset(5), Settings(no_dp=True, model=f"{file}:mutable"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def make(:\n", "SyntaxError: .* in broken.py, line 1"),
        ("x = 1\nimport nothing_of_that_name\n", "ModuleNotFoundError: .* in broken.py, line 2"),
        ("make = 3\n", "Expected the function 'make' in broken.py, got none"),
    ],
)
def test_a_file_that_does_not_run_is_one_line(tmp_path, text, message):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        _user_code.load_function(f"{path}:make")
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"Expected a file at .*none\.py, got none"):
        _user_code.load_function(f"{tmp_path / 'none.py'}:make")


def test_a_file_may_import_its_neighbours(tmp_path):
    (tmp_path / "neighbour_of_model.py").write_text("VALUE = 5\n")
    path = tmp_path / "model.py"
    path.write_text("import neighbour_of_model as n\ndef make():\n    return n.VALUE\n")
    assert _user_code.load_function(f"{path}:make")() == 5


def test_inputs_are_a_fixed_function_of_the_record():
    x = np.array([[0.5, -1.0, 1.0, -np.e, 1e6]], np.float32)
    one = dataclasses.replace(dataset(5), x=np.repeat(x, 6, 0))
    expected = [0.5, -1, 1, -2, 1 + np.log(1e6)]
    found = _networks.inputs(one, Settings(no_dp=True))
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
