"""SGD for models whose examples share statistics of the batch, such as those with BatchNorm.

In the shapes below `b` counts the rows of a padded batch.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from jaxpriv import _check
from jaxpriv._types import Batch, Params, Sampler
from jaxpriv.training import _arguments, _step
from jaxpriv.training.algorithms import Algorithm, SgdInfo

__all__ = ["BatchLoss", "Variables", "stateful_sgd"]


class Variables(NamedTuple):
    """Variables of a model with state.

    params: trainable leaves, which the optimiser changes.
    model_state: other leaves, such as running means, which the loss changes.

    Example:
      >>> import jax.numpy as jnp
      >>> Variables(params={"w": jnp.ones(2)}, model_state={"mean": jnp.zeros(2)}).params.keys()
      dict_keys(['w'])
    """

    params: Params
    model_state: PyTree


BatchLoss = Callable[
    [Params, PyTree, Batch, Bool[Array, " b"], PRNGKeyArray], tuple[Float[Array, ""], PyTree]
]
"""`loss(params, model_state, batch, mask, key) -> (mean loss, new model_state)`."""


def stateful_sgd(
    loss: BatchLoss, optimizer: optax.GradientTransformation, sampler: Sampler
) -> Algorithm:
    """Minimises a loss of whole batches that also updates the state of the model, without privacy.

    A gradient through the statistics of a batch depends on every example, so it cannot be clipped
    by example: such a model cannot be trained by `dpsgd`. Replace BatchNorm by GroupNorm there.

    Args:
      loss: `loss(params, model_state, batch, mask, key) -> (mean, new model_state)`. Rows where
        mask is False are padding and must not enter the statistics; `sampling.fixed_batch` and
        `sampling.full_batch` have none.
      optimizer: any optax transformation of the params.
      sampler: any sampler.

    Returns:
      The algorithm. Its `init` takes `Variables`, and the params of its state are `Variables`; its
      event is the non-private one.

    Raises:
      ValueError: if an argument is of the wrong kind.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from jaxpriv import sampling
      >>> def loss(w, running_mean, x, mask, key):
      ...     mean = x.mean()
      ...     return jnp.mean((w * (x - mean)) ** 2), 0.5 * running_mean + 0.5 * mean
      >>> alg = stateful_sgd(loss, optax.sgd(0.1), sampling.fixed_batch(4, batch_size=4))
      >>> state = alg.init(Variables(jnp.float32(1), jnp.float32(0)))
      >>> x, mask = jnp.array([1.0, 3.0, 1.0, 3.0]), jnp.ones(4, bool)
      >>> state, info = alg.update(jax.random.key(0), state, x, mask)
      >>> float(state.params.model_state), round(float(state.params.params), 1)
      (1.0, 0.8)
    """
    _arguments.check_optimizer(optimizer)
    _arguments.check_sampler(sampler)
    _check.takes("loss(params, model_state, batch, mask, key)", loss)

    def init(variables):
        if not isinstance(variables, Variables):
            raise ValueError(
                f"Expected Variables(params, model_state), got {type(variables).__name__}."
            )
        variables = jax.tree.map(jnp.asarray, variables)
        return _step.initial_state(optimizer, variables.params)._replace(params=variables)

    def checked_loss(params, model_state, batch, mask, key):
        result = loss(params, model_state, batch, mask, key)
        if not isinstance(result, tuple) or len(result) != 2 or jnp.shape(result[0]) != ():
            raise ValueError(
                "Expected loss(params, model_state, batch, mask, key) to return the mean loss and "
                "the new model_state."
            )
        return result

    def update(key, state, batch, mask):
        params, model_state = state.params
        grad = jax.value_and_grad(checked_loss, has_aux=True)
        (value, model_state), grads = grad(params, model_state, batch, mask, key)
        new = _step.apply_gradient(optimizer, state._replace(params=params), grads)
        num_rows = mask.sum()
        info = SgdInfo(value, num_rows, jnp.where(jnp.isfinite(value), 0, num_rows))
        return new._replace(params=Variables(new.params, model_state)), info

    return Algorithm(init, update, sampler, _step.non_private_event)
