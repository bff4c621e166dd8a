"""Dirichlet outputs: each answer is a random vector of probabilities around that of the model.

The guarantee is local differential privacy of ONE vector of probabilities against vectors that
differ in two entries by a small distance. It is not membership privacy, because the outputs of a
model with and without a record may differ by more; every attack has to be run as well.

In the shapes below `c` counts classes.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxpriv import _check, _tree
from jaxpriv.accounting import dirichlet as accounting
from jaxpriv.defences._defence import Defence, OutputGuarantee

__all__ = ["floored_log_probabilities", "noised_answer", "noised_outputs"]


def noised_outputs(*, k: float, eta: float, b: float, delta: float, queries: int = 1) -> Defence:
    """Answers with a draw of Dir(k p), where p is floored at eta.

    p <- eta + (1 - n eta) p for n classes, which shrinks distances by 1 - n eta, and then a draw of
    Dir(k p) in log space. The defence takes logits and returns log-probabilities, so it wraps
    classifiers, the steps of a sequence model and the actions of a policy.

    Guarantee: (epsilon, delta)-local differential privacy of the model's probabilities for vectors
    that differ in two entries and have an L1 distance of at most b, for `queries` answers together.
    It is NOT membership privacy. An adaptive attacker averages the log-probabilities of the
    `queries` answers, which is a sufficient statistic.

    Args:
      k: concentration; small values are noisy.
      eta: smallest probability before the noise; below 1 / number of classes.
      b: L1 distance of neighbouring vectors of the model, in (0, 2].
      delta: delta of the guarantee, in (0, 1).
      queries: number of answers to each query that the guarantee covers and attackers average.

    Returns:
      The defence. Its `output_guarantee` takes the number of classes.

    Raises:
      ValueError: if an argument is out of range; at the first query, if eta is not below
        1 / number of classes.

    References:
      On the Vulnerability of Recurrent Neural Networks to Membership Inference Attacks, 2022,
      section 4; the printed bound is not used, see `accounting.dirichlet`.

    Example:
      >>> defence = noised_outputs(k=1000.0, eta=0.01, b=0.1, delta=1e-5)
      >>> answer = defence.respond(jax.random.key(0), jnp.log(jnp.array([0.7, 0.2, 0.1])))
      >>> bool(jnp.abs(jnp.exp(answer) - jnp.array([0.7, 0.2, 0.1])).max() < 0.1)
      True
      >>> round(defence.output_guarantee(3).epsilon, 1)
      174.6
    """
    _check.positive(k=k, eta=eta, b=b)
    _check.open_unit(delta=delta)
    _check.positive_int(queries=queries)
    if b > 2:
        raise ValueError(f"Expected b of at most 2, got b={b}.")

    def guarantee(num_classes: int) -> OutputGuarantee:
        mechanism = accounting.Dirichlet(
            concentration=k,
            floor=eta,
            distance=b * _rest(num_classes, eta),
            num_classes=num_classes,
        )
        return OutputGuarantee(
            epsilon=accounting.epsilon(mechanism, delta=delta, queries=queries),
            delta=delta,
            distance=b,
            queries=queries,
        )

    answers = "" if queries == 1 else f", {queries} answers"
    return Defence(
        name="dirichlet",
        title=f"Dirichlet outputs, k {k:g}, eta {eta:g}{answers}",
        respond=functools.partial(noised_answer, k=k, eta=eta),
        queries=queries,
        output_guarantee=guarantee,
    )


def noised_answer(
    key: PRNGKeyArray, logits: Float[Array, " c"], *, k: float, eta: float
) -> Float[Array, " c"]:
    """Draws log Dir(k p) in log space, where p are the floored probabilities.

    If G_i ~ Gamma(k p_i), G / sum(G) ~ Dir(k p); its smallest entries underflow for a small k, and
    their logarithms do not.

    Args:
      key: PRNG key, which a second answer must not share.
      logits: outputs of the model before the softmax.
      k: concentration; > 0.
      eta: smallest probability before the noise; below 1 / c.

    Returns:
      Log-probabilities.

    Raises:
      ValueError: if eta is not below 1 / c.

    Example:
      >>> answer = noised_answer(jax.random.key(1), jnp.zeros(3), k=10.0, eta=0.01)
      >>> round(float(jnp.exp(answer).sum()), 5)
      1.0
    """
    concentrations = k * jnp.exp(floored_log_probabilities(logits, eta=eta))
    gamma_key, exponential_key = jax.random.split(key)
    # If G ~ Gamma(a + 1) and E is exponential, G e^(-E / a) ~ Gamma(a).
    log_gammas = jax.random.loggamma(gamma_key, concentrations + 1)
    log_gammas -= _exponential_like(exponential_key, concentrations) / concentrations
    return jax.nn.log_softmax(log_gammas)


def _exponential_like(key: PRNGKeyArray, x: Float[Array, " c"]) -> Float[Array, " c"]:
    """Draws -ln U of uniform numbers U without a largest value.

    `jax.random.loggamma` ends at U = 2^-23, a log-probability of -16 / concentration. A smaller one
    would prove that the concentration is smaller, with a probability above delta. If the first 32
    bits of U are zero, it is 2^-32 times another uniform number.
    """

    def is_open(state: tuple[Array, Array, Array, Array]) -> Bool[Array, ""]:
        return (state[1] == 0).any()

    def draw(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        key, high, low, offset = state
        key, bits_key = jax.random.split(key)
        new_high, new_low = jax.random.bits(bits_key, (2, *x.shape), jnp.uint32)
        is_zero = high == 0
        offset = jnp.where(is_zero, offset + 32 * math.log(2), offset)
        return key, jnp.where(is_zero, new_high, high), jnp.where(is_zero, new_low, low), offset

    nothing = jnp.zeros(x.shape, jnp.uint32)
    start = key, nothing, nothing, jnp.full_like(x, -32 * math.log(2))
    _, high, low, offset = jax.lax.while_loop(is_open, draw, start)
    return offset - jnp.log(_tree.uniform_of_bits(high, low, x.dtype))


def floored_log_probabilities(logits: Float[Array, " c"], *, eta: float) -> Float[Array, " c"]:
    """Computes log(eta + (1 - c eta) softmax(logits)).

    Args:
      logits: outputs of the model before the softmax.
      eta: smallest probability; below 1 / c.

    Returns:
      Log-probabilities of at least log eta, in at least float32.

    Raises:
      ValueError: if eta is not below 1 / c.

    Example:
      >>> floored = floored_log_probabilities(jnp.array([100.0, 0.0]), eta=0.25)
      >>> jnp.exp(floored).round(4).tolist()
      [0.75, 0.25]
    """
    rest = _rest(len(logits), eta)
    logits = _tree.at_least_float32(jnp.asarray(logits))  # bfloat16 would round below eta
    return jnp.log(eta + rest * jax.nn.softmax(logits))


def _rest(num_classes: int, eta: float) -> float:
    """Returns 1 - n eta, by which flooring shrinks distances."""
    rest = 1 - num_classes * eta
    if rest <= 0:
        raise ValueError(
            f"Expected eta below 1 / {num_classes} for {num_classes} classes, got eta={eta}."
        )
    return rest
