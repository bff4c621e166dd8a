"""Gaussian privacy module: noise on the parameters, once, after training.

In the shapes below `b` counts the rows of a batch and `c` classes.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxpriv import _check, _tree
from jaxpriv._types import Params
from jaxpriv.defences._defence import Defence

__all__ = ["GaussianModule", "noised_parameters", "release", "utility_loss"]


def noised_parameters(*, sigma: float, pairs: int = 0, delta: float = 1e-5) -> Defence:
    """Adds N(0, sigma^2) to every parameter and statistic once, before any query.

    All later queries are post-processing of the noised parameters, so their number does not matter.
    sigma alone carries no guarantee, as the sensitivity of a training has no useful bound. With
    `pairs`, a report trains that many pairs of neighbouring data sets and states the
    (epsilon, delta, gamma)-random differential privacy of the largest distance, see
    `accounting.random_dp` for what is assumed. Vocabularies and normalisation constants must be
    fixed beforehand.

    Args:
      sigma: standard deviation of the noise; > 0.
      pairs: number of pairs of trainings that estimate the sensitivity; 0 gives no guarantee.
      delta: delta of the guarantee, in (0, 1).

    Returns:
      The defence.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Yang et al., On the Privacy Risks of Deploying Recurrent Neural Networks in Machine Learning
      Models, 2023, Algorithm 1.

    Example:
      >>> import jax.numpy as jnp
      >>> defence = noised_parameters(sigma=0.01)
      >>> released = defence.release(jax.random.key(0), {"w": jnp.zeros(1000)})
      >>> round(float(released["w"].std()), 3)
      0.01
    """
    _check.positive(sigma=sigma)
    _check.open_unit(delta=delta)
    if pairs != 0:
        _check.positive_int(pairs=pairs)
    return Defence(
        name="gaussian",
        title=f"Gaussian privacy module, sigma {sigma:g}",
        release=functools.partial(release, sigma=sigma),
        parameter_noise=sigma,
        num_pairs=pairs,
        delta=delta if pairs else None,
    )


def release(key: PRNGKeyArray, params: Params, *, sigma: float) -> Params:
    """Adds independent N(0, sigma^2) to every number of a tree, in at least float32.

    Args:
      key: PRNG key; anyone who has it can remove the noise.
      params: parameters and all buffers that depend on the data, such as running statistics.
      sigma: standard deviation; > 0.

    Returns:
      The noised tree, in the types of its leaves.

    Raises:
      ValueError: if sigma is not positive, or a leaf is not of a float type.

    Example:
      >>> import jax.numpy as jnp
      >>> noised = release(jax.random.key(0), jnp.ones(4), sigma=0.1)
      >>> bool(jnp.all(noised != 1))
      True
    """
    _check.positive(sigma=sigma)
    _tree.check_float(params)
    params = jax.tree.map(jnp.asarray, params)
    noise = _tree.normal_like(key, params, std=sigma)
    return jax.tree.map(lambda p, z: (_tree.at_least_float32(p) + z).astype(p.dtype), params, noise)


class GaussianModule(NamedTuple):
    """A noised model that answers any number of queries.

    params: the noised parameters, which may be published.
    apply: `apply(params, x)`, the outputs of the model.

    Example:
      >>> import jax.numpy as jnp
      >>> module = GaussianModule.of(
      ...     jax.random.key(0), lambda w, x: w * x, jnp.ones(()), sigma=0.1
      ... )
      >>> bool(module(jnp.array([2.0]))[0] == 2 * module(jnp.array([1.0]))[0])  # one draw
      True
    """

    params: Params
    apply: Callable[[Params, Any], Array]

    @classmethod
    def of(
        cls,
        key: PRNGKeyArray,
        apply: Callable[[Params, Any], Array],
        params: Params,
        *,
        sigma: float,
    ) -> "GaussianModule":
        """Noises the parameters of a model once.

        Args:
          key: PRNG key.
          apply: `apply(params, x)`, the outputs of the model.
          params: trained parameters.
          sigma: standard deviation of the noise.

        Returns:
          The module; the parameters without noise are not part of it.
        """
        return cls(release(key, params, sigma=sigma), apply)

    def __call__(self, x: Any) -> Array:
        """Answers a query from the noised parameters."""
        return self.apply(self.params, x)


def utility_loss(noised: float, clean: float) -> float:
    """Computes the utility loss 1 - M(noised) / M(clean).

    Args:
      noised: metric of the noised model, such as its accuracy; higher = better.
      clean: metric of the same model without noise; > 0.

    Returns:
      The loss; negative if the noise improved the metric.

    Raises:
      ValueError: if the metric without noise is not positive.

    References:
      Yang et al., On the Privacy Risks of Deploying Recurrent Neural Networks in Machine Learning
      Models, 2023, Definition 4.

    Example:
      >>> round(utility_loss(0.81, 0.9), 3)
      0.1
    """
    _check.positive(clean=clean)
    _check.non_negative(noised=noised)
    return 1 - noised / clean
