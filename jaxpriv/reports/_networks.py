"""Networks of a report: presets chosen by the shape of the inputs, and modules of the user's.

    settings, data set --network_for--> Network --_training--> target and shadow models

A network takes the inputs in their own shape. It is always called on a batch with one leading
axis, which is how Flax modules are written. In the shapes below `n` counts records and `c` classes.
"""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from jaxpriv import models, training
from jaxpriv._types import Loss, Params
from jaxpriv.data import Dataset
from jaxpriv.reports import _user_code
from jaxpriv.reports.settings import Settings

_COMPRESSED = "inputs x beyond 1 enter as 1 + log x, a fixed function of the record"
_TOKENS = "token ids"

_WIDTH, _WIDTHS = 64, {"mlp": 256}
"""Default width of a preset."""

_LEARNING_RATES = {
    "mlp": (0.01, 0.003),
    "cnn": (0.005, 0.001),
    "rnn": (0.01, 0.005),
    "transformer": (0.002, 0.001),
}
"""Default learning rates of Adam of a preset, with and without DP."""

_TRAINING_FLAGS = ("train", "training", "is_training")
"""Arguments of a linen module that are True in training."""

_EVALUATION_FLAGS = ("deterministic", "use_running_average")
"""Arguments of a linen module that are True in evaluation."""


class Network(NamedTuple):
    """A network and how it is trained.

    description, inputs: the network and its inputs, in words.
    init: `init(key) -> params`.
    apply: `apply(params, x [b, ...]) -> logits [b, c]`, in evaluation.
    predict: `predict(params, x, key) -> logits [c]` of one example, in training.
    batch_loss: loss of a batch for `training.stateful_sgd`, whose params are then `Variables`; None
      for modules without state. `predict` and `loss` are not used then.
    learning_rate, plain_learning_rate: defaults for Adam with and without DP.
    optimizer, steps: options that came with the user's module; None takes those of the settings.
    """

    description: str
    inputs: str
    init: Callable[[PRNGKeyArray], Params]
    apply: Callable[[Params, Array], Float[Array, "b c"]]
    predict: Callable[[Params, Array, PRNGKeyArray], Float[Array, " c"]]
    learning_rate: float = 0.002
    plain_learning_rate: float = 0.001
    optimizer: optax.GradientTransformation | None = None
    steps: int | None = None
    batch_loss: training.BatchLoss | None = None

    @property
    def loss(self) -> Loss:
        """`loss(params, (x, y), key)` of one example, in training."""
        return functools.partial(_cross_entropy, self.predict)


def inputs(dataset: Dataset, settings: Settings) -> Shaped[np.ndarray, "n ..."]:
    """Converts records to inputs of a network, in their own shape.

    Token ids become integers. Other numbers beyond 1 are compressed to 1 + log x. The function is
    fixed: standardising by the mean and deviation of the members would be a release that epsilon
    does not cover.

    Args:
      dataset: the records.
      settings: settings of the report.

    Raises:
      ValueError: if the records are not ids of the vocabulary.
    """
    x = dataset.x
    if settings.tokens is None:
        large = np.sign(x) * (1 + np.log(np.maximum(np.abs(x), 1)))
        return np.where(np.abs(x) <= 1, x, large).astype(np.float32)
    if x.ndim != 2 or not (x == np.floor(x)).all():
        raise ValueError(
            f"Expected rows of whole numbers in {dataset.name} for --tokens, got an array of shape "
            f"{list(x.shape)}{'' if x.ndim != 2 else ' with fractions'}."
        )
    if x.min() < 0 or x.max() >= settings.tokens:
        raise ValueError(
            f"Expected token ids from 0 to {settings.tokens - 1} in {dataset.name}, "
            f"got {x.min():g} to {x.max():g}."
        )
    return x.astype(np.int32)


def network_for(dataset: Dataset, settings: Settings) -> Network:
    """Makes the network that the settings name, or the preset for the shape of the inputs.

    Args:
      dataset: records, of which the first gives the shape of the inputs.
      settings: settings of the report.

    Raises:
      ValueError: if the network does not fit the inputs or the classes, or the user's file fails.
    """
    example = jnp.asarray(inputs(dataset.subset(np.arange(1)), settings)[0])
    name = settings.model or _preset_for(example, settings)
    if _user_code.names_file(name):
        if settings.width is not None:
            raise ValueError("Expected no --width with a model file, which sets its own widths.")
        network = _from_file(name, example)
    else:
        _check_preset(name, example, settings)
        network = _preset(name, example, dataset.num_classes, settings)
    _check_outputs(network, example, dataset.num_classes, name)
    return network


def _preset_for(example: Array, settings: Settings) -> str:
    if settings.tokens is not None:
        return "transformer"
    return {2: "rnn", 3: "cnn"}.get(example.ndim, "mlp")


def _check_preset(name: str, example: Array, settings: Settings) -> None:
    wanted = {"cnn": 3, "rnn": 2}.get(name)
    if wanted is not None and (example.ndim != wanted or settings.tokens is not None):
        axes = {"cnn": "[height, width, channels]", "rnn": "[time, features]"}[name]
        raise ValueError(
            f"Expected inputs of shape {axes} for --model {name}, got {list(example.shape)}."
        )
    if name == "transformer" and settings.tokens is None:
        raise ValueError("Expected --tokens, the size of the vocabulary, for --model transformer.")
    if name == "mlp" and settings.tokens is not None:
        raise ValueError("Expected --model transformer or a file for --tokens, got mlp.")


def _preset(name: str, example: Array, num_classes: int, settings: Settings) -> Network:
    width = settings.width or _WIDTHS.get(name, _WIDTH)
    if name == "mlp":
        module = models.MLP(widths=(width,), num_classes=num_classes)
        text = f"multilayer perceptron with one hidden layer of {width} units"
    elif name == "cnn":
        module = models.CNN(num_classes=num_classes, width=width)
        channels = " and ".join(map(str, module.channels))
        text = f"convolutional network with {channels} channels and a layer of {width} units"
    elif name == "rnn":
        module = models.RNN(num_classes=num_classes, width=width)
        text = f"LSTM of width {width}"
    else:
        assert settings.tokens is not None
        module = models.Classifier(num_tokens=settings.tokens, num_classes=num_classes, width=width)
        text = f"transformer with {module.num_layers} layers of width {width}"
    network = _of_linen(module, example, text)
    # Chosen on public and generated data, see experiments/report/learning_rates.
    private_rate, plain_rate = _LEARNING_RATES[name]
    network = network._replace(learning_rate=private_rate, plain_learning_rate=plain_rate)
    if name != "mlp":
        return network
    # The records of a multilayer perceptron are rows of numbers.
    flat = _of_linen(module, example.reshape(-1), text)
    return flat._replace(
        apply=lambda params, x: flat.apply(params, x.reshape(len(x), -1)),
        predict=lambda params, x, key: flat.predict(params, x.reshape(-1), key),
        learning_rate=private_rate,
        plain_learning_rate=plain_rate,
    )


def _from_file(text: str, example: Array) -> Network:
    """Calls the user's function, which returns a module, or a module, an optimiser and steps."""
    path = Path(text.rpartition(":")[0])
    make = _user_code.load_function(text)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return make(*args, **kwargs)
        except Exception as e:
            raise ValueError(f"Expected {text} to run, got {_user_code.describe(e, path)}.") from e

    takes_rngs = bool(inspect.signature(make).parameters)
    module, optimizer, steps = _unpacked(call(nnx.Rngs(0)) if takes_rngs else call(), text)
    if isinstance(module, nn.Module):
        network = _of_linen(module, example, f"{type(module).__name__} of {path.name}")
    elif takes_rngs:
        make_module = lambda key: _unpacked(call(nnx.Rngs(key)), text)[0]  # noqa: E731
        network = _of_nnx(make_module, example, f"{type(module).__name__} of {path.name}")
    else:
        raise ValueError(
            f"Expected {text} to take the nnx.Rngs of the module that it makes, as each model has "
            "its own initial parameters."
        )
    return network._replace(optimizer=optimizer, steps=steps)


def _unpacked(made: Any, text: str) -> tuple[Any, optax.GradientTransformation | None, int | None]:
    parts = made if isinstance(made, tuple) else (made,)
    module, optimizer, steps = (*parts, None, None)[:3]
    if not isinstance(module, nn.Module | nnx.Module) or len(parts) > 3:
        raise ValueError(
            f"Expected {text} to return a flax.linen or flax.nnx module, and optionally an "
            f"optimiser and a number of steps, got {type(made).__name__}."
        )
    if optimizer is not None and not isinstance(optimizer, optax.GradientTransformation):
        raise ValueError(
            f"Expected an optax optimiser as the second result of {text}, "
            f"got {type(optimizer).__name__}."
        )
    if steps is not None and (type(steps) is not int or steps < 1):
        raise ValueError(f"Expected a number of steps >= 1 from {text}, got {steps!r}.")
    return module, optimizer, steps


def _of_linen(module: nn.Module, example: Array, text: str) -> Network:
    names = set(inspect.signature(type(module).__call__).parameters)
    in_training: dict[str, Any] = dict.fromkeys(names & set(_TRAINING_FLAGS), True)
    in_training |= dict.fromkeys(names & set(_EVALUATION_FLAGS), False)
    in_evaluation: dict[str, Any] = {n: not value for n, value in in_training.items()}

    def variables(key: PRNGKeyArray) -> Any:
        return module.init(key, example[None], **in_evaluation)

    collections = sorted(set(jax.eval_shape(variables, jax.random.key(0))) - {"params"})

    def init(key):
        made = variables(key)
        if not collections:
            return made
        return training.Variables(made["params"], {name: made[name] for name in collections})

    def apply(params, x):
        if collections:
            params = {"params": params.params, **params.model_state}
        return jnp.asarray(module.apply(params, x, **in_evaluation))

    def predict(params, x, key):
        logits = module.apply(params, x[None], rngs={"dropout": key}, **in_training)
        return jnp.asarray(logits)[0]

    def batch_loss(params, model_state, batch, mask, key):
        del mask  # batches have no padding
        x, y = batch
        logits, model_state = module.apply(
            {"params": params, **model_state},
            x,
            rngs={"dropout": key},
            mutable=collections,
            **in_training,
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(jnp.asarray(logits), y)
        return losses.mean(), model_state

    return Network(
        description=text,
        inputs=_inputs_text(example),
        init=init,
        apply=apply,
        predict=predict,
        batch_loss=batch_loss if collections else None,
    )


def _of_nnx(
    make_module: Callable[[PRNGKeyArray], nnx.Module], example: Array, text: str
) -> Network:
    def split(key: PRNGKeyArray) -> Any:
        return nnx.split(make_module(key), nnx.Param, nnx.RngState, ...)

    graph, _, _, other = split(jax.random.key(0))
    is_stateful = bool(jax.tree.leaves(other))

    def module_of(params: Params, model_state: Any, key: PRNGKeyArray, *, train: bool) -> Any:
        # The random state is made from the key: it may not be closed over by a traced loss.
        module = nnx.merge(graph, params, split(key)[2], model_state, copy=True)
        if train:
            module.train()
        else:
            module.eval()
        return module

    def init(key):
        _, params, _, model_state = split(key)
        return training.Variables(params, model_state) if is_stateful else params

    def apply(params, x):
        params, model_state = params if is_stateful else (params, other)
        module = module_of(params, model_state, jax.random.key(0), train=False)
        return jnp.asarray(module(x))

    def predict(params, x, key):
        return jnp.asarray(module_of(params, other, key, train=True)(x[None]))[0]

    def batch_loss(params, model_state, batch, mask, key):
        del mask  # batches have no padding
        x, y = batch
        module = module_of(params, model_state, key, train=True)
        losses = optax.softmax_cross_entropy_with_integer_labels(jnp.asarray(module(x)), y)
        return losses.mean(), nnx.split(module, nnx.Param, nnx.RngState, ...)[3]

    return Network(
        description=text,
        inputs=_inputs_text(example),
        init=init,
        apply=apply,
        predict=predict,
        batch_loss=batch_loss if is_stateful else None,
    )


def _cross_entropy(
    predict: Callable[..., Array], params: Params, record: Any, key: PRNGKeyArray
) -> Float[Array, ""]:
    x, y = record
    return optax.softmax_cross_entropy_with_integer_labels(predict(params, x, key), y)


def _inputs_text(example: Array) -> str:
    return _TOKENS if jnp.issubdtype(example.dtype, jnp.integer) else _COMPRESSED


def _check_outputs(network: Network, example: Array, num_classes: int, name: str) -> None:
    """Evaluates shapes alone, so that a wrong width is found before training."""
    try:
        params = jax.eval_shape(network.init, jax.random.key(0))
        shape = jax.eval_shape(network.apply, params, example[None]).shape
        if network.batch_loss is None:
            jax.eval_shape(network.loss, params, (example, jnp.int32(0)), jax.random.key(0))
        else:
            batch = jnp.stack([example] * 2), jnp.zeros(2, jnp.int32)
            ones = jnp.ones(2, bool)
            jax.eval_shape(network.batch_loss, *params, batch, ones, jax.random.key(0))
    except Exception as e:  # of any kind: the module is the user's
        text = " ".join(str(e).split())
        raise ValueError(
            f"Expected a network for inputs of shape {list(example.shape)}, got from {name}: "
            f"{type(e).__name__}: {text[:200]}"
        ) from e
    if shape != (1, num_classes):
        raise ValueError(
            f"Expected {num_classes} outputs of {name}, one for each class, got shape "
            f"{list(shape)} for one record."
        )
