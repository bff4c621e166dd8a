"""Agents of reinforcement learning: a policy and a value from one observation.

The network is that of RL-Starter-Files (torch-ac): convolutions, an optional LSTM, and two heads.
In the shapes below `m` counts the numbers of the memory and `a` the actions.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

__all__ = ["ActorCritic", "Decision"]

_CHANNELS = (16, 32, 64)

_SMALLEST = 7
"""Width of the smallest image of which the convolutions leave a cell."""


class Decision(NamedTuple):
    """Output of an agent for one observation.

    memory: memory after the observation; of length 0 without an LSTM.
    logits: logits of the actions.
    value: estimate of the discounted return.
    """

    memory: Float[Array, " m"]
    logits: Float[Array, " a"]
    value: Float[Array, ""]


class ActorCritic(nn.Module):
    """Actor and critic over a shared embedding of one observation.

    An image [h, w, c] is embedded by 2x2 convolutions with 16, 32 and 64 channels, each followed
    by ReLU and the first by 2x2 max-pooling; a vector is its own embedding. Values enter unscaled,
    as integers. With an LSTM its output replaces the embedding, and the memory is its state. The
    heads have tanh between their layers. Dense weights are Gaussian, each unit's scaled to norm 1,
    with biases 0; convolutions and the LSTM are uniform, as by PyTorch's default.

    num_actions: number of actions.
    actor_widths, critic_widths: widths of the hidden layers of the heads.
    lstm_units: width of the LSTM; 0 for an agent without memory.

    Raises:
      ValueError: for an observation that is neither a vector nor an image of at least 7 x 7, when
        the parameters are made or used; of a smaller image the convolutions would leave nothing.

    Example:
      >>> agent = ActorCritic(num_actions=7, lstm_units=8)
      >>> memory, observation = agent.initial_memory(), jnp.zeros((7, 7, 3), jnp.uint8)
      >>> params = agent.init(jax.random.key(0), memory, observation)
      >>> decision = agent.apply(params, memory, observation)
      >>> decision.memory.shape, decision.logits.shape, decision.value.shape
      ((16,), (7,), ())
    """

    num_actions: int
    actor_widths: Sequence[int] = (64,)
    critic_widths: Sequence[int] = (64,)
    lstm_units: int = 0

    def initial_memory(self) -> Float[Array, " m"]:
        """Returns the memory at the start of an episode."""
        return jnp.zeros(2 * self.lstm_units)

    @nn.compact
    def __call__(self, memory: Float[Array, " m"], observation: Shaped[Array, "..."]) -> Decision:
        x = observation.astype(jnp.float32)
        if x.ndim != 1 and (x.ndim != 3 or min(x.shape[:2]) < _SMALLEST):
            raise ValueError(
                f"Expected a vector or an image of at least {_SMALLEST} x {_SMALLEST} as "
                f"observation, got shape {list(x.shape)}."
            )
        x = x if x.ndim == 1 else _convolve(x)
        if self.lstm_units:
            memory = _lstm(memory, x, units=self.lstm_units)
            x = memory[: self.lstm_units]
        logits = _head(x, (*self.actor_widths, self.num_actions), "actor")
        value = _head(x, (*self.critic_widths, 1), "critic")
        return Decision(memory, logits, value[0])


def _convolve(x: Float[Array, "h w c"]) -> Float[Array, " d"]:
    """Embeds an image. Each convolution is a dense layer on windows, which is also fast in loops
    on a CPU and for agents with different weights in parallel.
    """
    for i, channels in enumerate(_CHANNELS):
        x = nn.relu(_uniform_dense(channels, fan_in=4 * x.shape[-1], name=f"conv_{i}")(_windows(x)))
        if i == 0:
            h, w = x.shape[0] // 2, x.shape[1] // 2
            x = x[: 2 * h, : 2 * w].reshape(h, 2, w, 2, channels).max((1, 3))
    return x.reshape(-1)


def _windows(x: Float[Array, "h w c"]) -> Float[Array, "h-1 w-1 4*c"]:
    """Joins the four pixels of each 2x2 window: rows, then columns, then channels."""
    return jnp.concatenate([x[:-1, :-1], x[:-1, 1:], x[1:, :-1], x[1:, 1:]], axis=-1)


def _lstm(memory: Float[Array, " m"], x: Float[Array, " d"], *, units: int) -> Float[Array, " m"]:
    """Updates the memory, the output h followed by the cell c; two biases, as in PyTorch."""
    h, c = memory[:units], memory[units:]
    from_input = _uniform_dense(4 * units, fan_in=units, name="lstm_input")(x)
    from_memory = _uniform_dense(4 * units, fan_in=units, name="lstm_memory")(h)
    i, f, g, o = jnp.split(from_input + from_memory, 4)
    c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
    return jnp.concatenate([nn.sigmoid(o) * jnp.tanh(c), c])


def _head(x: Float[Array, " d"], widths: Sequence[int], name: str) -> Float[Array, " k"]:
    for i, width in enumerate(widths):
        x = jnp.tanh(x) if i else x
        x = nn.Dense(width, kernel_init=_unit_norm, name=f"{name}_{i}")(x)
    return x


def _unit_norm(key: PRNGKeyArray, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    kernel = jax.random.normal(key, shape, dtype)
    return kernel / jnp.linalg.norm(kernel, axis=0, keepdims=True)


def _uniform_dense(features: int, *, fan_in: int, name: str) -> nn.Dense:
    """Makes a layer whose weights and biases are uniform within 1 / sqrt(fan_in)."""
    init: Callable[..., Array] = nn.initializers.uniform(2 * fan_in**-0.5)

    def centred(key: PRNGKeyArray, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        return init(key, shape, dtype) - fan_in**-0.5

    return nn.Dense(features, kernel_init=centred, bias_init=centred, name=name)
