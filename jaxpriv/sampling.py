"""Samplers: the records of each batch, and the matching event for the accountant.

Every sampler draws `(indices, mask)` of a static length, its `capacity`, so that a training step
compiles once; rows with mask False are padding. In the shapes below `b` is the capacity.
"""

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from jaxpriv import _check

if TYPE_CHECKING:
    from dp_accounting import DpEvent

__all__ = ["FixedBatch", "Poisson", "fixed_batch", "full_batch", "poisson"]

_WARN_OVERFLOW_PROB = 1e-7
"""Overflow probability per step above which `poisson` warns.

At this value a run of 1e5 steps has an overflow with a probability of about one in a hundred.
"""


@dataclass(frozen=True, kw_only=True)
class Poisson:
    """Sampler that includes each record independently; created by `poisson` or `full_batch`.

    num_examples: number of records.
    sampling_prob: probability with which each record enters a batch.
    capacity: number of rows of a padded batch.
    """

    num_examples: int
    sampling_prob: float
    capacity: int

    @property
    def expected_batch_size(self) -> float:
        """Expected number of records in a batch, the divisor of the noisy sum.

        The realised batch size is private. The expected one is public if the number of records
        is; under `add_or_remove_one` a private number of records would show in the update.
        """
        return self.num_examples * self.sampling_prob

    def sample(self, key: PRNGKeyArray) -> tuple[Int[Array, " b"], Bool[Array, " b"]]:
        """Draws one batch.

        A record enters if its 32 random bits are below floor(sampling_prob 2^32), so its
        probability is at most sampling_prob. If more than `capacity` records enter, those with
        the smallest bits remain: a uniformly random subset, as the truncated event assumes.

        Args:
          key: PRNG key.

        Returns:
          Indices into the records, and a mask of the real rows.
        """
        if self.sampling_prob == 1:
            return jnp.arange(self.num_examples), jnp.ones(self.num_examples, bool)
        n, q = self.num_examples, self.sampling_prob
        threshold = jnp.uint32(math.floor(q * 2**32))
        bits = jax.random.bits(key, (n,), jnp.uint32)
        # Sorting all n numbers would cost more than the training step. More records than are
        # gathered here enter with probability below e^-72.
        num_gathered = min(n, max(self.capacity, math.ceil(n * q + 12 * math.sqrt(n * q) + 72)))
        (entered,) = jnp.nonzero(bits < threshold, size=num_gathered, fill_value=n)
        rank = bits.at[entered].get(mode="fill", fill_value=2**32 - 1)
        largest, chosen = jax.lax.top_k(~rank, self.capacity)
        mask = ~largest < threshold
        return jnp.where(mask, entered[chosen], 0), mask

    def event(self, *, noise_multiplier: float, steps: int) -> "DpEvent":
        """Returns the event of `steps` noisy sums over such batches.

        Args:
          noise_multiplier: standard deviation of the noise / clip norm.
          steps: number of noisy sums.

        Returns:
          The truncated event if a batch can overflow, otherwise the Poisson-sampled one.
        """
        import dp_accounting

        gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
        if self.sampling_prob == 1:
            step: DpEvent = gaussian
        elif self.capacity >= self.num_examples:
            step = dp_accounting.PoissonSampledDpEvent(self.sampling_prob, gaussian)
        else:
            step = dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent(
                dataset_size=self.num_examples,
                sampling_probability=self.sampling_prob,
                truncated_batch_size=self.capacity,
                noise_multiplier=noise_multiplier,
            )
        return dp_accounting.SelfComposedDpEvent(step, steps)


@dataclass(frozen=True, kw_only=True)
class FixedBatch:
    """Sampler of batches of a fixed size; created by `fixed_batch`.

    num_examples: number of records.
    capacity: batch size.
    """

    num_examples: int
    capacity: int

    @property
    def expected_batch_size(self) -> float:
        """The batch size."""
        return float(self.capacity)

    def sample(self, key: PRNGKeyArray) -> tuple[Int[Array, " b"], Bool[Array, " b"]]:
        """Draws one batch without padding.

        Args:
          key: PRNG key.

        Returns:
          Distinct indices into the records, and a mask of True.
        """
        indices = jax.random.choice(key, self.num_examples, (self.capacity,), replace=False)
        return indices, jnp.ones(self.capacity, bool)

    def event(self, *, noise_multiplier: float, steps: int) -> "DpEvent":
        """Raises ValueError, since batches of a fixed size have no Poisson amplification."""
        raise ValueError(
            "Expected a sampler with a privacy guarantee, got fixed_batch: "
            "use sampling.poisson (or full_batch) for private training."
        )


def poisson(n: int, *, sampling_prob: float, capacity: int | None = None) -> Poisson:
    """Creates a sampler that includes each of n records independently in every batch.

    Privacy amplification by subsampling holds for this sampler. A batch that overflows `capacity`
    is cut to a random subset, which the event takes into account.

    Args:
      n: number of records.
      sampling_prob: probability with which each record enters a batch, in (0, 1]; 1 is the full
        batch.
      capacity: number of rows of a padded batch. Default: mean + 6 standard deviations, a little
        more for small means, at most n. A warning is issued if overflows are so likely that they
        increase epsilon.

    Returns:
      The sampler.

    Raises:
      ValueError: if n, sampling_prob or capacity is out of range.

    References:
      Abadi et al., Deep Learning with Differential Privacy, 2016. The truncated event:
      arXiv:2508.15089.

    Example:
      >>> import jax
      >>> import jaxpriv as jp
      >>> sampler = jp.sampling.poisson(1000, sampling_prob=0.05)
      >>> indices, mask = sampler.sample(jax.random.key(0))
      >>> sampler.expected_batch_size, sampler.capacity, indices.shape
      (50.0, 93, (93,))
      >>> bool((indices[mask] < 1000).all())
      True
    """
    _check.positive_int(n=n)
    _check.probability(sampling_prob=sampling_prob)
    mean = n * sampling_prob
    if capacity is None:
        std = math.sqrt(mean * (1 - sampling_prob))
        capacity = min(n, math.ceil(mean + 6 * std))
        while capacity < n and _overflow_bound(n, sampling_prob, capacity) > _WARN_OVERFLOW_PROB:
            capacity += 1
    _check.positive_int(capacity=capacity)
    if sampling_prob == 1 and capacity < n:
        raise ValueError(f"Expected capacity >= n at sampling_prob=1, got capacity={capacity}.")
    capacity = min(capacity, n)
    overflow = _overflow_bound(n, sampling_prob, capacity)
    if overflow > _WARN_OVERFLOW_PROB:
        warnings.warn(
            f"A Poisson batch overflows capacity={capacity} with probability up to "
            f"{overflow:.1e} in each step, which increases epsilon; leave capacity out for a "
            "safe default.",
            stacklevel=2,
        )
    return Poisson(num_examples=n, sampling_prob=float(sampling_prob), capacity=capacity)


def full_batch(n: int) -> Poisson:
    """Creates a sampler whose batches contain all n records.

    Training is then the Gaussian mechanism without amplification.

    Args:
      n: number of records.

    Returns:
      The sampler, whose event is the plain Gaussian one.

    Raises:
      ValueError: if n is not positive.

    Example:
      >>> import jaxpriv as jp
      >>> sampler = jp.sampling.full_batch(1000)
      >>> sampler.capacity
      1000
      >>> sampler.event(noise_multiplier=4.0, steps=1).event
      GaussianDpEvent(noise_multiplier=4.0)
    """
    return poisson(n, sampling_prob=1.0)


def fixed_batch(n: int, *, batch_size: int) -> FixedBatch:
    """Creates a sampler of batches of distinct records, for non-private training only.

    Args:
      n: number of records.
      batch_size: number of records in a batch, in 1..n.

    Returns:
      The sampler. Its `event` method raises ValueError, since batches of a fixed size have no
      Poisson amplification.

    Raises:
      ValueError: if batch_size is not in 1..n.

    Example:
      >>> import jax
      >>> import jaxpriv as jp
      >>> sampler = jp.sampling.fixed_batch(1000, batch_size=50)
      >>> indices, mask = sampler.sample(jax.random.key(0))
      >>> len(set(indices.tolist())), bool(mask.all())
      (50, True)
    """
    _check.positive_int(n=n, batch_size=batch_size)
    if batch_size > n:
        raise ValueError(f"Expected batch_size <= n, got batch_size={batch_size}, n={n}.")
    return FixedBatch(num_examples=n, capacity=batch_size)


def _overflow_bound(n: int, sampling_prob: float, capacity: int) -> float:
    """Bounds P[Binomial(n, q) > capacity] by Chernoff's inequality.

    scipy.stats has the exact tail, but its import takes seconds.
    """
    if capacity >= n:
        return 0.0
    share = (capacity + 1) / n
    if share <= sampling_prob:
        return 1.0
    divergence = share * math.log(share / sampling_prob)
    if share < 1:
        divergence += (1 - share) * math.log((1 - share) / (1 - sampling_prob))
    return math.exp(-n * divergence)
