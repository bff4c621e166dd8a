"""Privacy profiles of events, computed from their steps: closed form, PLD, or Renyi moments.

event --count_steps--> Counter of steps --profile--> times -> Profile(epsilon, delta)
                                        --rdp_epsilon--> epsilon
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy import special

from jaxpriv import _check
from jaxpriv._types import Relation
from jaxpriv.accounting import _losses, _pld, gaussian

# Integers only: fractional orders near 1 need a numerical integral. Beyond 64 they matter for
# small epsilons only, so they are spaced more widely.
_ORDERS = np.array([*range(2, 65), *range(72, 129, 8), *range(160, 513, 32)])


class Profile(NamedTuple):
    """epsilon as a function of delta, and delta as a function of epsilon."""

    epsilon: Callable[[float], float]
    delta: Callable[[float], float]


_NOTHING = Profile(lambda delta: 0.0, lambda epsilon: 0.0)
_EVERYTHING = Profile(lambda delta: math.inf, lambda epsilon: 1.0)


def count_steps(event: object) -> Counter[_losses.Step]:
    """Counts the steps of an event; a step without noise stands for any non-private event."""
    import dp_accounting as dp

    match event:
        case dp.NoOpDpEvent():
            return Counter()
        case dp.NonPrivateDpEvent():
            return Counter([_losses.Step(0.0, 1.0)])
        case dp.GaussianDpEvent(noise_multiplier=z):
            return _single_step(z, 1.0)
        case dp.PoissonSampledDpEvent(
            sampling_probability=q, event=dp.GaussianDpEvent(noise_multiplier=z)
        ):
            return _single_step(z, q)
        case dp.dp_event.TruncatedSubsampledGaussianDpEvent():
            sizes = (event.dataset_size, event.truncated_batch_size)
            return _single_step(event.noise_multiplier, event.sampling_probability, sizes)
        case dp.SelfComposedDpEvent():
            if not float(event.count).is_integer() or event.count < 0:
                raise ValueError(f"Expected a whole number >= 0 of steps, got {event.count}.")
            counts = count_steps(event.event)
            return Counter({step: int(event.count) * count for step, count in counts.items()})
        case dp.ComposedDpEvent():
            return sum((count_steps(inner) for inner in event.events), Counter())
    if not isinstance(event, dp.DpEvent):
        raise ValueError(
            "Expected a dp_accounting event, such as alg.event(steps) or sampler.event(...), "
            f"got {type(event).__name__}."
        )
    raise ValueError(
        "Expected Gaussian or Poisson-sampled Gaussian events and their compositions, "
        f"got {type(event).__name__}."
    )


def _single_step(
    noise_multiplier: float, sampling_prob: float, sizes: tuple[int, int] | None = None
) -> Counter[_losses.Step]:
    if noise_multiplier != math.inf:
        _check.non_negative(noise_multiplier=noise_multiplier)
    if sampling_prob == 0 or noise_multiplier == math.inf or (sizes and min(sizes) == 0):
        return Counter()
    _check.probability(sampling_prob=sampling_prob)
    if sizes and sizes[1] >= sizes[0]:
        sizes = None
    return Counter([_losses.Step(float(noise_multiplier), float(sampling_prob), sizes)])


def profile(
    steps: Counter[_losses.Step],
    relation: Relation,
    *,
    max_compositions: int = 1,
    epsilon: float = 0.0,
    delta: float | None = None,
) -> Callable[[int], Profile]:
    """Computes the profile of an event as a function of the number of times that it is composed.

    Args:
      steps: number of each step of the event.
      relation: relation of the neighbours.
      max_compositions: largest argument of the returned function.
      epsilon: epsilon at which the profile is accurate, nats; elsewhere it is an upper bound.
      delta: if given, the profile is accurate at the epsilon of this delta instead.

    Returns:
      A function from a number of compositions to the profile.
    """
    if any(step.noise_multiplier == 0 for step in steps):
        return lambda times: _NOTHING if times == 0 else _EVERYTHING
    # Gaussians without subsampling compose exactly, mu^2 adding up, so they become one step.
    subsampled = {s: n for s, n in steps.items() if s.sampling_prob < 1 or s.overflow}
    full_batch_mu = math.sqrt(
        sum(n / s.noise_multiplier**2 for s, n in steps.items() if s not in subsampled)
    )
    if not subsampled:
        factor = 2 if relation == "replace_one" else 1
        return lambda times: _gaussian_profile(factor * full_batch_mu * math.sqrt(times))
    if full_batch_mu > 0:
        subsampled[_losses.Step(1 / full_batch_mu, 1.0)] = 1
    max_compositions = max(max_compositions, 1)
    if delta is None:
        losses = _pld.discretise(
            subsampled, relation, max_compositions=max_compositions, epsilon=epsilon
        )
        compositions = {}
    else:
        losses, composed = _pld.discretise_for_delta(
            subsampled, relation, max_compositions=max_compositions, delta=delta
        )
        compositions = {max_compositions: composed}

    def after(times: int) -> Profile:
        if times == 0:
            return _NOTHING
        return _pld_profile(compositions.get(times) or _pld.compose(losses, times))

    return after


def _gaussian_profile(mu: float) -> Profile:
    if mu == 0:
        return _NOTHING
    return Profile(
        lambda delta: gaussian.epsilon(delta, mu=mu), lambda epsilon: gaussian.delta(epsilon, mu=mu)
    )


def _pld_profile(pmfs: list[_pld.Pmf]) -> Profile:
    resolution = _pld.resolution(pmfs)

    def epsilon(delta: float) -> float:
        if delta <= resolution:
            raise ValueError(
                f"Expected delta > {resolution:.1e}, which float64 resolves here, "
                f"got delta={delta}."
            )
        return _pld.epsilon(pmfs, delta)

    return Profile(epsilon, lambda epsilon: _pld.delta(pmfs, epsilon))


def rdp_epsilon(
    steps: Counter[_losses.Step], delta: float, relation: Relation, method: str
) -> float:
    """Computes epsilon from Renyi moments, with the improved or the classic conversion."""
    from dp_accounting.rdp import rdp_privacy_accountant

    # At replace_one the sensitivity is 2, which the moments below do not include.
    if relation != "add_or_remove_one":
        raise ValueError(f"Expected method='pld' for {relation}, which RDP understates.")
    if any(step.overflow for step in steps):
        raise ValueError("Expected method='pld' for truncated batches, which RDP does not cover.")
    if any(step.noise_multiplier == 0 for step in steps):
        return math.inf
    delta = float(delta)
    rdp = np.zeros(len(_ORDERS)) + sum(count * _rdp(step) for step, count in steps.items())
    if method == "rdp_classic":
        return float(np.min(rdp + math.log(1 / delta) / (_ORDERS - 1))) if steps else 0.0
    return float(rdp_privacy_accountant.compute_epsilon(_ORDERS.tolist(), rdp.tolist(), delta)[0])


def _rdp(step: _losses.Step) -> Float64[np.ndarray, " orders"]:
    """Computes the RDP of a Poisson-sampled Gaussian at the integer orders.

    A = E[(dP/dQ)^a] - 1 = sum over k of C(a, k) q^k (1-q)^(a-k) (e^(k(k-1)/(2 z^2)) - 1), a sum of
    positive terms, which keeps its relative accuracy where A is tiny.

    References:
      Mironov, Talwar and Zhang, Renyi Differential Privacy of the Sampled Gaussian Mechanism,
      2019, section 3.3.
    """
    z, q, _ = step
    k = np.arange(2, _ORDERS[-1] + 1)
    exponent = k * (k - 1) / (2 * z**2)
    log_expm1 = exponent + np.log(-np.expm1(-exponent))
    a = _ORDERS[:, None]
    log_choose = special.gammaln(a + 1) - special.gammaln(k + 1) - special.gammaln(a - k + 1)
    terms = log_choose + k * math.log(q) + special.xlog1py(np.maximum(a - k, 0), -q) + log_expm1
    log_excess = special.logsumexp(terms, axis=1)
    return np.logaddexp(0.0, log_excess) / (_ORDERS - 1)
