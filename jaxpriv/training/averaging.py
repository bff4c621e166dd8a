"""Averages of the parameters over training.

They have no privacy cost: averaging released parameters is post-processing.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from jaxpriv import _check
from jaxpriv._types import Params
from jaxpriv.training import _arguments
from jaxpriv.training.algorithms import Algorithm, AlgorithmState

__all__ = ["AveragedState", "averaged"]


class AveragedState(NamedTuple):
    """State of an averaged algorithm.

    inner: state of the algorithm that is averaged.
    average: average of the parameters so far.
    """

    inner: AlgorithmState
    average: Params

    @property
    def params(self) -> Params:
        """The average, which is evaluated and released."""
        return self.average

    @property
    def step(self) -> Int[Array, ""]:
        """Number of steps done."""
        return self.inner.step

    @property
    def event(self) -> UInt32[Array, ""] | None:
        """Hash of the privacy event of a step, as in `State`; None if `inner` has none."""
        return getattr(self.inner, "event", None)


def averaged(alg: Algorithm, *, decay: float) -> Algorithm:
    """Adds an exponential moving average of the parameters to an algorithm.

    average <- d average + (1 - d) params with d = min(decay, (1 + t) / (10 + t)) at step t, so
    that the initial parameters lose their weight quickly. The average is a function of released
    parameters, so its guarantee is that of the algorithm.

    Args:
      alg: algorithm, such as `dpsgd(...)`.
      decay: decay rate, in (0, 1); the average spans about 1 / (1 - decay) steps.

    Returns:
      The algorithm; `state.params` is the average, `state.inner` the state of `alg`.

    Raises:
      ValueError: if decay is not in (0, 1), or alg is not an algorithm.

    References:
      De et al., Unlocking High-Accuracy Differentially Private Image Classification through
      Scale, 2022, section 4.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from jaxpriv import sampling, training
      >>> sgd = training.sgd(lambda w, x, key: w * x, optax.sgd(1.0), sampling.full_batch(1))
      >>> alg = averaged(sgd, decay=0.99)
      >>> args = jnp.ones(1), jnp.ones(1, bool)
      >>> state, info = alg.update(jax.random.key(0), alg.init(jnp.float32(0)), *args)
      >>> float(state.inner.params), round(float(state.params), 2)
      (-1.0, -0.82)
    """
    _check.open_unit(decay=decay)
    _arguments.check_algorithm(alg=alg)

    def init(params):
        inner = alg.init(params)
        return AveragedState(inner, inner.params)

    def update(key, state, batch, mask):
        inner, info = alg.update(key, state.inner, batch, mask)
        t = inner.step.astype(jnp.float32)
        d = jnp.minimum(decay, (1 + t) / (10 + t))

        def mix(average, new):
            return average + (1 - d).astype(new.dtype) * (new - average)

        return AveragedState(inner, jax.tree.map(mix, state.average, inner.params)), info

    return Algorithm(init, update, alg.sampler, alg.event)
