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

MakeAlgorithm = Callable[..., Algorithm]
"""`algorithm(predict, optimizer, sampler, *, reference, attacker_key) -> Algorithm`, with the
arguments of `adversarial.algorithm`."""

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
class OutputGuarantee:
    """Local differential privacy of vectors of probabilities; it is not membership privacy.

    Neighbours are vectors of the model's probabilities that differ in two entries and have an L1
    distance of at most `distance`.

    epsilon: in nats, for all answers together; infinite if the delta is not resolved.
    delta: delta of the guarantee.
    distance: largest L1 distance of neighbours.
    queries: number of answers that the guarantee covers.

    Example:
      >>> OutputGuarantee(epsilon=56.3, delta=1e-5, distance=0.1, queries=1).queries
      1
    """

    epsilon: float
    delta: float
    distance: float
    queries: int


MakeOutputGuarantee = Callable[[int], OutputGuarantee]
"""`output_guarantee(num_classes) -> OutputGuarantee`."""


@dataclass(frozen=True, kw_only=True)
class Defence:
    """Defence against membership inference; unused hooks are None.

    The shadow models of an adaptive attacker pass through the same hooks.

    name: key in JSON files and on the command line.
    title: name on pages, with the settings.
    guarantee: differential privacy guarantee for records; None for a heuristic.
    algorithm: `algorithm(predict, optimizer, sampler, reference=..., attacker_key=...)`, which
      replaces plain training. The reference records are records that the model is not trained on.
    reference_share: share of the units that such records are taken from. Attacks are judged on the
      other units, which are in no reference set.
    release: `release(key, params) -> params`, applied once after training.
    respond: `respond(key, logits) -> logits` of one record, applied at every query inside jit.
    queries: number of answers to each query that an attacker averages, as log-probabilities; more
      than one only for a random `respond`.
    output_guarantee: `output_guarantee(num_classes)`, local differential privacy of the outputs,
      which does not bound membership inference; None without one.
    parameter_noise: standard deviation of the noise that `release` adds; None for other defences.
    num_pairs: number of pairs of trainings that estimate the sensitivity of the parameters to one
      record, from which a report states a guarantee at `delta`; 0 states none.
    delta: delta of that guarantee; None without one.

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
    reference_share: float | None = None
    release: Release | None = None
    respond: Respond | None = None
    queries: int = 1
    output_guarantee: MakeOutputGuarantee | None = None
    parameter_noise: float | None = None
    num_pairs: int = 0
    delta: float | None = None

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
