"""Types of defences: hooks on training, on the released parameters and on the outputs.

In the shapes below `c` counts classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxpriv._names import Relation, UnitKind
from jaxpriv._types import Params
from jaxpriv.training.algorithms import Algorithm

Predict = Callable[[PRNGKeyArray, np.ndarray], Float[Array | np.ndarray, "b c"]]
"""`predict(key, inputs [b, ...]) -> logits [b, c]`."""

MakeAlgorithm = Callable[[int], Algorithm]
"""`make_algorithm(num_records) -> Algorithm`."""

Release = Callable[[PRNGKeyArray, Params], Params]
"""`release(key, params) -> params`, applied once after training."""

Respond = Callable[[PRNGKeyArray, Float[Array, " c"]], Float[Array, " c"]]
"""`respond(key, logits) -> logits` of one record, applied at every query."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Differential privacy guarantee.

    epsilon: in nats; infinite if epsilon is unbounded.
    delta: delta of the (epsilon, delta) guarantee.
    relation: how neighbouring data sets differ.
    unit: unit in which neighbouring data sets differ.
    advantage_bound: upper bound on TPR - FPR of any membership attack; None if unknown.

    Example:
      >>> Promise(epsilon=2.0, delta=1e-5, relation="add_or_remove_one").unit
      'record'
    """

    epsilon: float
    delta: float
    relation: Relation
    unit: UnitKind = "record"
    advantage_bound: float | None = None


@dataclass(frozen=True, kw_only=True)
class Defence:
    """Defence against membership inference; unused hooks are None.

    The shadow models of an adaptive attacker pass through the same hooks.

    name: key in JSON files and on the command line.
    title: name on pages, with the settings.
    guarantee: differential privacy guarantee; None for a heuristic.
    algorithm: `algorithm(num_records) -> Algorithm`, which replaces plain training.
    release: `release(key, params) -> params`, applied once after training.
    respond: `respond(key, logits) -> logits` of one record, applied at every query inside jit.

    Example:
      >>> import jax.numpy as jnp
      >>> def respond(key, logits):
      ...     return logits + jax.random.normal(key, logits.shape)
      >>> defence = Defence(name="noise", title="noise of std 1", respond=respond)
      >>> predict = defence.wrap(lambda key, inputs: jnp.zeros((len(inputs), 3)))
      >>> predict(jax.random.key(0), np.zeros((2, 5))).shape
      (2, 3)
    """

    name: str
    title: str
    guarantee: Promise | None = None
    algorithm: MakeAlgorithm | None = None
    release: Release | None = None
    respond: Respond | None = None

    def wrap(self, predict: Predict) -> Predict:
        """Defends the outputs of a model.

        Args:
          predict: `predict(key, inputs [b, ...]) -> logits [b, c]` of the undefended model.

        Returns:
          A function of the same kind; each record has its own key.
        """
        respond = self.respond
        if respond is None:
            return predict
        batched = jax.jit(jax.vmap(respond))

        def defended(key: PRNGKeyArray, inputs: np.ndarray) -> Float[np.ndarray, "b c"]:
            predict_key, respond_key = jax.random.split(key)
            logits = jax.numpy.asarray(predict(predict_key, inputs))
            return np.asarray(batched(jax.random.split(respond_key, len(logits)), logits))

        return defended
