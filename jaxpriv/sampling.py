"""Samplers: the records of each batch, and the matching event for the accountant.

Every sampler draws `(indices, mask)` of a static shape, so that a training step compiles once;
rows with mask False are padding. Records of different lengths are drawn whatever their lengths;
`grads.LengthBuckets` cuts the padding of the rows of a batch afterwards. In the shapes below `b` is
the capacity of a batch of records, `n` counts records, `classes` the classes or subclasses and
`rows` the records of the largest one.
"""

import functools
import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from jaxpriv import _check

if TYPE_CHECKING:
    from dp_accounting import DpEvent

__all__ = [
    "ByClass",
    "FixedBatch",
    "Poisson",
    "by_class",
    "by_subclass",
    "fixed_batch",
    "full_batch",
    "poisson",
]

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


@dataclass(frozen=True, kw_only=True, eq=False)
class ByClass:
    """Sampler that includes each class independently; created by `by_class` or `by_subclass`.

    num_examples: number of records.
    classes: sampler of the classes, whose batches are never cut.
    table: records of each class; padded with 0.
    sizes: number of records of each class; may be 0.
    """

    num_examples: int
    classes: Poisson
    table: Int[Array, "classes rows"]
    sizes: Int[Array, " classes"]

    @property
    def num_units(self) -> int:
        """Number of classes K, empty ones included; public."""
        return self.classes.num_examples

    @property
    def capacity(self) -> int:
        """Number of classes of a padded batch: all of them, so that no class is ever cut."""
        return self.num_units

    @property
    def expected_batch_size(self) -> float:
        """Expected number q K of classes in a batch, the divisor of the noisy sum over classes.

        It counts classes, not records, and does not depend on the classes that were drawn or on
        which of them are empty.
        """
        return self.classes.expected_batch_size

    def sample(
        self, key: PRNGKeyArray
    ) -> tuple[Int[Array, "classes rows"], Bool[Array, "classes rows"]]:
        """Draws one batch: all records of each class that enters, one class in each row.

        Args:
          key: PRNG key.

        Returns:
          Indices into the records, and a mask of the real ones. The classes that enter come first,
          so that classes which are processed a few at a time can be skipped after them. A row of
          a class that does not enter, or is empty, has mask False throughout.
        """
        classes, enters = self.classes.sample(key)
        is_real = jnp.arange(self.table.shape[1]) < self.sizes[classes][:, None]
        mask = enters[:, None] & is_real
        return jnp.where(mask, self.table[classes], 0), mask

    def event(self, *, noise_multiplier: float, steps: int) -> "DpEvent":
        """Returns the event of `steps` noisy sums over such batches, for neighbours by class.

        Args:
          noise_multiplier: standard deviation of the noise / clip norm of a class.
          steps: number of noisy sums.

        Returns:
          The Poisson-sampled Gaussian event. Its neighbours differ in all records of one class:
          added or removed under `add_or_remove_one`, other records under `replace_one`.
        """
        return self.classes.event(noise_multiplier=noise_multiplier, steps=steps)


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


def by_class(
    labels: Int[Array | np.ndarray, " n"],
    *,
    num_classes: int,
    sampling_prob: float,
    rows: int | None = None,
) -> ByClass:
    """Creates a sampler that includes each class, with all its records, independently.

    It is the sampler of class-level differential privacy, `training.class_dpsgd`: the unit of
    privacy is a class, of whatever size. The number of classes K is public and so is the divisor
    q K of the noisy sum; which classes have records is not. An empty batch is legal. Each batch
    has the shape of all classes, padded to the largest, which takes the memory of that many
    records.

    Args:
      labels: class of each record, in 0..num_classes-1; classes without records are allowed. They
        may be traced if `rows` is given. Values of traced labels are not checked: the records of
        one outside the range, and those of a class beyond `rows`, may be left out.
      num_classes: number of classes K.
      sampling_prob: probability q with which each class enters a batch, in (0, 1].
      rows: number of rows for the records of a class; at least the size of the largest. Models
        that are trained together need an equal number. Default: the size of the largest class.

    Returns:
      The sampler.

    Raises:
      ValueError: if an argument is out of range, a class has more records than rows, or labels
        are traced and rows is not given.

    References:
      Zhang et al., Broadening Differential Privacy for Deep Learning Against Model Inversion
      Attacks, 2020, Algorithm 2.

    Example:
      >>> import jax
      >>> import numpy as np
      >>> import jaxpriv as jp
      >>> labels = np.array([0, 2, 2, 0, 2])  # class 1 is empty
      >>> sampler = jp.sampling.by_class(labels, num_classes=3, sampling_prob=1.0)
      >>> indices, mask = sampler.sample(jax.random.key(0))
      >>> [row[real].tolist() for row, real in zip(indices, mask)]
      [[0, 3], [], [1, 2, 4]]
      >>> sampler.expected_batch_size, sampler.num_examples
      (3.0, 5)
    """
    _check.positive_int(num_classes=num_classes)
    classes = poisson(num_classes, sampling_prob=sampling_prob, capacity=num_classes)
    if isinstance(labels, core.Tracer):
        if rows is None:
            raise ValueError("Expected rows with traced labels, as in sampling.by_class(rows=...).")
        largest = 0
    else:
        labels = _check.labels(labels, num_classes=num_classes)
        if not len(labels):
            raise ValueError("Expected a label of each record, got none.")
        largest = int(np.bincount(labels).max())
    rows = largest if rows is None else rows
    _check.positive_int(rows=rows)
    if rows < largest:
        raise ValueError(
            f"Expected rows >= {largest}, the number of records of the largest class, got {rows}."
        )
    labels = jnp.asarray(labels, jnp.int32)
    table, sizes = _records_of_classes(labels, num_classes=num_classes, rows=rows)
    return ByClass(num_examples=len(labels), classes=classes, table=table, sizes=sizes)


def by_subclass(
    labels: Int[Array | np.ndarray, " n"],
    subclasses: Int[Array | np.ndarray, " n"],
    *,
    num_classes: int,
    num_subclasses: int,
    sampling_prob: float,
    rows: int | None = None,
) -> ByClass:
    """Creates a sampler that includes each subclass, with all its records, independently.

    The unit of privacy is a subclass, a fixed part of a class; there are K = num_classes
    num_subclasses of them, empty ones included. The guarantee takes the partition as given:
    subclasses that were computed from the private records, as by `units.subclasses`, depend on
    all records of a class. The partition must then be public or its release be accounted for.

    Args:
      labels: class of each record, in 0..num_classes-1.
      subclasses: subclass of each record within its class, in 0..num_subclasses-1.
      num_classes: number of classes.
      num_subclasses: number of subclasses of each class.
      sampling_prob: probability q with which each subclass enters a batch, in (0, 1].
      rows: as for `by_class`, for the records of a subclass.

    Returns:
      The sampler. Subclass j of class i is unit i * num_subclasses + j.

    Raises:
      ValueError: if the lengths differ, or for the errors of `by_class`.

    References:
      Zhang et al., Broadening Differential Privacy for Deep Learning Against Model Inversion
      Attacks, 2020.

    Example:
      >>> import numpy as np
      >>> import jaxpriv as jp
      >>> sampler = jp.sampling.by_subclass(
      ...     np.array([0, 0, 1, 1]),
      ...     np.array([0, 1, 1, 1]),
      ...     num_classes=2,
      ...     num_subclasses=2,
      ...     sampling_prob=0.25,
      ... )
      >>> sampler.expected_batch_size, sampler.sizes.tolist()
      (1.0, [1, 1, 0, 2])
    """
    _check.positive_int(num_classes=num_classes, num_subclasses=num_subclasses)
    _check.same_length(labels=labels, subclasses=subclasses)
    if not isinstance(labels, core.Tracer):
        labels = _check.labels(labels, num_classes=num_classes)
    if not isinstance(subclasses, core.Tracer):
        subclasses = _check.labels(subclasses, num_classes=num_subclasses, name="subclasses")
    # The unit may exceed the range of the labels' type, such as int8.
    labels, subclasses = (jnp.asarray(values, jnp.int32) for values in (labels, subclasses))
    return by_class(
        labels * num_subclasses + subclasses,
        num_classes=num_classes * num_subclasses,
        sampling_prob=sampling_prob,
        rows=rows,
    )


@functools.partial(jax.jit, static_argnames=("num_classes", "rows"))
def _records_of_classes(
    labels: Int[Array, " n"], *, num_classes: int, rows: int
) -> tuple[Int[Array, "classes rows"], Int[Array, " classes"]]:
    """Lists the records of each class in order, padded with 0, and counts them."""
    # Counts and positions take negative labels as others; those beyond the last class are left out.
    labels = jnp.where(labels < 0, num_classes, labels)
    sizes = jnp.bincount(labels, length=num_classes)
    order = jnp.argsort(labels, stable=True)
    position = jnp.arange(len(labels)) - (jnp.cumsum(sizes) - sizes)[labels[order]]
    table = jnp.zeros((num_classes, rows), order.dtype)
    return table.at[labels[order], position].set(order, mode="drop"), sizes


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
