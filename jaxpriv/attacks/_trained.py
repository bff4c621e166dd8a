"""What the attacks that train a network share: the objective, the loop, the border."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from jaxpriv import _check
from jaxpriv._types import Params, Scalar
from jaxpriv.attacks import _shadows
from jaxpriv.training import algorithms


def gain(members: Float[Array, " a"], others: Float[Array, " b"]) -> Float[Array, ""]:
    """The attacker's gain, E[log h | member] / 2 + E[log(1 - h) | other] / 2, from log odds of h.

    It is -log 2 for an attack without evidence and 0 for a perfect one.
    """
    return (jax.nn.log_sigmoid(members).mean() + jax.nn.log_sigmoid(-others).mean()) / 2


def minimise(
    key: PRNGKeyArray,
    loss: Callable[[Params, PRNGKeyArray], Float[Array, ""]],
    params: Params,
    *,
    steps: int,
    learning_rate: Scalar,
) -> Params:
    """Follows Adam on `loss(params, key)`, which draws its own batch. The caller jits."""
    optimizer = optax.adam(learning_rate)

    def step(state, step_key):
        grads = jax.grad(loss)(state.params, step_key)
        return algorithms.apply_gradient(optimizer, state, grads), None

    start = algorithms.State(params, optimizer.init(params), jnp.int32(0))
    end, _ = jax.lax.scan(step, start, jax.random.split(key, steps))
    return end.params


def spread(values: Float[np.ndarray, "n *d"]) -> Float[np.ndarray, "*d"]:
    """The standard deviation over rows; 1 where nothing varies, so that dividing is safe."""
    deviation = values.std(axis=0)
    return np.where(deviation > 1e-6 * np.abs(values).max(axis=0), deviation, 1.0)


def real(name: str, values: Shaped[Array | np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The values in float64; NaN is refused, infinities are not."""
    return _shadows.without_nan(name, values).astype(np.float64)


def finite(name: str, values: Shaped[Array | np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The values in float64; NaN and infinities are refused."""
    array = real(name, values)
    if np.isinf(array).any():
        raise ValueError(f"Expected finite {name}, got {np.isinf(array).sum()} infinite.")
    return array


def even(**values: int) -> None:
    """Refuses batches that cannot be halved."""
    _check.positive_int(**values)
    for name, value in values.items():
        if value % 2:
            raise ValueError(f"Expected an even {name}, got {name}={value}.")


def classes(labels: Shaped[Array | np.ndarray, " n"], num_classes: int) -> Int[np.ndarray, " n"]:
    """The labels in int32; those outside 0..num_classes-1 are refused."""
    array = np.asarray(labels).astype(np.int64)
    wrong = array[(array < 0) | (array >= num_classes)]
    if wrong.size:
        raise ValueError(f"Expected labels in 0..{num_classes - 1}, got {wrong[0]}.")
    return array.astype(np.int32)
