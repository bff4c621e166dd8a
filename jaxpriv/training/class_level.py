"""Class-level DP-SGD: the unit of privacy is a class of records, of whatever size.

In the shapes below `rows` counts the records of a class.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxpriv import _check, _tree
from jaxpriv._types import Batch, Loss, Params
from jaxpriv.grads import ClippedGrad
from jaxpriv.sampling import ByClass
from jaxpriv.training import _arguments, _step, algorithms
from jaxpriv.training.algorithms import Algorithm

__all__ = ["class_dpsgd"]


def class_dpsgd(
    clipped_grad: ClippedGrad,
    optimizer: optax.GradientTransformation,
    sampler: ByClass,
    *,
    noise_multiplier: float,
) -> Algorithm:
    """Minimises a loss by noisy sums of the clipped mean gradients of classes (class-level DP-SGD).

    g = (sum_c clip(mean_i g_ci) + N(0, (z S)^2 I)) / (q K), over the sampled classes c and the
    records i of each. The gradient of a class depends on no record of another class, so the sum
    changes by at most S if a class is added or removed, and by at most 2 S if its records are
    replaced, however many they are. The set of classes, K and the output layer are public and
    fixed. A class without records contributes zero; a batch without classes is noised, applied
    and counted like any other. A step is the sampler's event with noise multiplier z.

    A class-level epsilon is to be stated under both relations, see
    `accounting.epsilon_by_relation`.

    Args:
      clipped_grad: result of `grads.clipped_grad(loss, clip_norm=S)` with the loss of one record.
        Here its clip norm bounds the mean gradient of a class, and its microbatch size counts the
        classes that are processed at a time, which bounds memory. Microbatches after the last
        sampled class are skipped, so a size well below q K also saves time.
      optimizer: any optax transformation; it receives private gradients only.
      sampler: `sampling.by_class` or `sampling.by_subclass`.
      noise_multiplier: z, the standard deviation of the noise on the sum divided by S; 0 gives no
        privacy (epsilon is infinite).

    Returns:
      The algorithm. In its diagnostics, norms, batch size and the number of non-finite gradients
      are those of sampled classes with records; a class whose gradient is not finite contributes
      zero.

    Raises:
      ValueError: if an argument is of the wrong kind, or noise_multiplier is negative or not
        finite.

    References:
      Zhang et al., Broadening Differential Privacy for Deep Learning Against Model Inversion
      Attacks, 2020, Algorithm 2.

    Example:
      >>> import jax, jax.numpy as jnp, numpy as np, optax
      >>> from jaxpriv import grads, sampling
      >>> def loss(w, x, key):
      ...     return jnp.dot(w, x)
      >>> x, labels = jnp.array([[6.0, 0.0], [0.0, 8.0], [0.3, 0.4]]), np.array([0, 0, 1])
      >>> sampler = sampling.by_class(labels, num_classes=2, sampling_prob=1.0)
      >>> grad = grads.clipped_grad(loss, clip_norm=1.0)
      >>> alg = class_dpsgd(grad, optax.sgd(1.0), sampler, noise_multiplier=0.0)
      >>> indices, mask = sampler.sample(jax.random.key(0))
      >>> state, info = alg.update(jax.random.key(1), alg.init(jnp.zeros(2)), x[indices], mask)
      >>> [round(float(w), 2) for w in state.params]  # -((0.6, 0.8) + (0.3, 0.4)) / 2
      [-0.45, -0.6]
    """
    _check.attributes(
        ("loss", "clip_norm", "sensitivity"),
        "grads.clipped_grad(loss, clip_norm=...)",
        clipped_grad=clipped_grad,
    )
    _arguments.check_class_sampler(sampler)
    class_grad = dataclasses.replace(clipped_grad, loss=_mean_loss(clipped_grad.loss))
    inner = algorithms.dpsgd(
        class_grad, optimizer, sampler.classes, noise_multiplier=noise_multiplier
    )

    def update(
        key: PRNGKeyArray, state: _step.State, batch: Batch, mask: Bool[Array, "classes rows"]
    ) -> tuple[_step.State, _step.DpsgdInfo]:
        return inner.update(key, state, (batch, mask), mask.any(axis=1))

    return Algorithm(inner.init, update, sampler, inner.event)


def _mean_loss(loss: Loss) -> Loss:
    """Returns the mean loss of the records of a class, as the loss of one example.

    The example is `(records, mask)`, both with the leading axis `rows`.
    """

    def mean_loss(
        params: Params, example: tuple[Batch, Bool[Array, " rows"]], key: PRNGKeyArray
    ) -> Float[Array, ""]:
        records, mask = example
        # Padding holds records of other classes, and a gradient of 0 times inf is NaN: the class
        # would depend on them. Its own first record takes their place.
        first = jnp.argmax(mask)
        records = jax.tree.map(
            lambda x: jnp.where(jnp.expand_dims(mask, range(1, x.ndim)), x, x[first]), records
        )
        keys = jax.random.split(key, mask.shape[0])
        losses = jax.vmap(loss, in_axes=(None, 0, 0))(params, records, keys)
        if getattr(losses, "shape", None) != mask.shape:
            raise ValueError(
                "Expected loss(params, example, key) to return a scalar, "
                f"got {_arguments.describe_losses(losses)} for one example."
            )
        total = jnp.where(mask, _tree.at_least_float32(losses), 0).sum()
        return total / jnp.maximum(mask.sum(), 1).astype(total.dtype)

    return mean_loss
