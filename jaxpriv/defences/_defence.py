"""What a defence is: hooks on training, on the released parameters and on the outputs.

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
"""`release(key, params) -> params`, once after training."""

Respond = Callable[[PRNGKeyArray, Float[Array, " c"]], Float[Array, " c"]]
"""`respond(key, logits) -> logits` of one record, at every query."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """A differential privacy guarantee.

    epsilon: in nats; infinite where there is no bound.
    delta: of the (epsilon, delta) guarantee.
    relation: how neighbouring data sets differ.
    unit: what they differ in.
    advantage_bound: largest TPR - FPR of any membership attack; None where it is not known.
    """

    epsilon: float
    delta: float
    relation: Relation
    unit: UnitKind = "record"
    advantage_bound: float | None = None


@dataclass(frozen=True, kw_only=True)
class Defence:
    """A defence against membership inference; hooks that it does not use are None.

    An adaptive attacker trains shadow models that pass through the same hooks.

    name: key in JSON files and on the command line.
    title: name on pages, with the settings.
    guarantee: what it promises; None for a heuristic.
    algorithm: `algorithm(num_records) -> Algorithm` in place of plain training.
    release: `release(key, params) -> params`, once after training.
    respond: `respond(key, logits) -> logits` of one record, at every query; runs inside jit.
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
          A function of the same kind; every record is answered with a key of its own.
        """
        respond = self.respond
        if respond is None:
            return predict
        each = jax.jit(jax.vmap(respond))

        def defended(key: PRNGKeyArray, inputs: np.ndarray) -> Float[np.ndarray, "b c"]:
            predict_key, respond_key = jax.random.split(key)
            logits = jax.numpy.asarray(predict(predict_key, inputs))
            return np.asarray(each(jax.random.split(respond_key, len(logits)), logits))

        return defended
