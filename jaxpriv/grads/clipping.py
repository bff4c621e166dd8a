"""Sums of per-example clipped gradients, the only data-dependent step of DP-SGD.

`clipped_grad` computes them by ghost norms, without per-example gradients (planned in
`_ghost_plan`); `explicit_clipped_grad` forms each gradient.

In the shapes below `b` counts the rows of a padded batch.
"""

import functools
from dataclasses import dataclass
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxpriv import _check, _tree
from jaxpriv._types import RELATIONS, Batch, Example, Loss, Params, Relation, Scalar
from jaxpriv.grads import (
    _explanation,
    _ghost,
    _ghost_cost,
    _ghost_plan,
    _microbatching,
    _per_example,
)
from jaxpriv.grads._microbatching import MicrobatchSize
from jaxpriv.grads._per_example import SMALLEST_CLIP_NORM, ClippedSum
from jaxpriv.grads.buckets import LengthBuckets

__all__ = ["ClippedGrad", "clipped_grad", "explicit_clipped_grad"]


@dataclass(frozen=True, kw_only=True)
class ClippedGrad:
    """Function `(params, batch, mask, key) -> ClippedSum` with its sensitivity.

    loss: `loss(params, example, key)` of one example.
    clip_norm: C, the largest norm with which an example counts.
    microbatch_size: number of rows processed at a time; None processes all, "auto" chooses by the
      memory that an example takes and the caches of the platform.
    method: "ghost", or "explicit" for per-example gradients of every leaf.
    buckets: widths to which rows are cut; None processes all rows at full width.

    Example:
      >>> import jax.numpy as jnp
      >>> grad = clipped_grad(lambda w, x, key: jnp.dot(w, x), clip_norm=1.5)
      >>> grad.sensitivity("add_or_remove_one"), grad.sensitivity("replace_one")
      (1.5, 3.0)
    """

    loss: Loss
    clip_norm: Scalar
    microbatch_size: MicrobatchSize
    method: Literal["ghost", "explicit"]
    buckets: LengthBuckets | None = None

    def sensitivity(self, relation: Relation) -> Scalar:
        """Returns the sensitivity of the total, in the Euclidean norm.

        Args:
          relation: how neighbouring data sets differ.

        Returns:
          C when a record is added or removed, 2 C when one is replaced.
        """
        _check.one_of(RELATIONS, relation=relation)
        return self.clip_norm if relation == "add_or_remove_one" else 2 * self.clip_norm

    def explain(
        self, params: Params, example: Example, key: PRNGKeyArray, *, batch_size: int
    ) -> _explanation.Explanation:
        """Reports, for each parameter, how its clipped gradient will be computed.

        The loss is traced once and not evaluated.

        Args:
          params: trainable leaves.
          example: one record, without a batch axis.
          key: any PRNG key; not consumed.
          batch_size: number of rows of a batch, on which the memory depends.

        Returns:
          The method and cost for each leaf and, where gradients are explicit, the reason; prints
          as a table.
        """
        _check.positive_int(batch_size=batch_size)
        params = jax.tree.map(jnp.asarray, params)
        plan = _ghost_plan.make_plan(self.loss, params, example, key)
        rows = self._rows_at_a_time(plan, batch_size)
        return _explanation.explain(
            plan, params, example, key, batch_size=rows, by_factors=self.method == "ghost"
        )

    def __call__(
        self, params: Params, batch: Batch, mask: Bool[Array, " b"], key: PRNGKeyArray
    ) -> ClippedSum:
        """Sums the clipped gradients of the rows that the mask admits.

        Args:
          params: trainable leaves only, floating point.
          batch: pytree with leading axis b.
          mask: which rows are real.
          key: PRNG key, split into one key for each row before any microbatching.

        Returns:
          The total, whose sensitivity is C, and the norms, which are not private. An example whose
          gradient is not finite contributes zero.

        Raises:
          ValueError: if shapes disagree, a leaf of params is not real floating point, the loss is
            not a scalar, or a BatchNorm would use the statistics of the batch.
        """
        return self.with_values(params, batch, mask, key)[0]

    def with_values(
        self, params: Params, batch: Batch, mask: Bool[Array, " b"], key: PRNGKeyArray
    ) -> tuple[ClippedSum, Float[Array, " b"]]:
        """Sums the clipped gradients, and returns the losses of the same pass.

        Args:
          params: as for a call.
          batch: as for a call.
          mask: as for a call.
          key: as for a call.

        Returns:
          The clipped sum, as from a call, and the loss of each example, 0 at padding. The losses
          are not private.

        Raises:
          ValueError: as for a call.
        """
        params = jax.tree.map(jnp.asarray, params)
        _check_inputs(params, batch, mask)
        if mask.shape[0] == 0:
            zeros = jax.tree.map(
                lambda p: jnp.zeros(p.shape, _tree.accumulation_dtype(p.dtype)), params
            )
            return ClippedSum(zeros, jnp.zeros(0)), jnp.zeros(0)
        keys = jax.random.split(key, mask.shape[0])
        with nn.intercept_methods(_refuse_batch_statistics):
            total, (norms, values) = self._accumulate(params, batch, mask, keys)
        return ClippedSum(total, norms), jnp.where(mask, values, 0)

    def _accumulate(self, params, batch, mask, keys):
        def sum_rows(batch, mask, keys, plan=None):
            # The plan depends on the shapes of an example.
            plan = plan or _ghost_plan.make_plan(self.loss, params, *_ghost.one_row(batch, keys))
            clipped, values = self._sum_clipped(plan, params, batch, mask, keys)
            return clipped.total, (clipped.norms, values)

        if self.buckets is not None:
            return _microbatching.accumulate_by_length(
                sum_rows, batch, mask, keys, buckets=self.buckets
            )
        plan = _ghost_plan.make_plan(self.loss, params, *_ghost.one_row(batch, keys))
        sum_rows = functools.partial(sum_rows, plan=plan)
        size = self._rows_at_a_time(plan, mask.shape[0])
        return _microbatching.accumulate(sum_rows, batch, mask, keys, size=size)

    def _rows_at_a_time(self, plan: _ghost_plan.Plan, rows: int) -> int:
        if self.buckets is not None:
            return min(self.buckets.rows, rows)
        if self.microbatch_size == "auto":
            return _ghost_cost.microbatch_size(plan.working_set, rows)
        return min(self.microbatch_size or rows, rows)

    def _sum_clipped(self, plan, params, batch, mask, keys):
        if self.method == "ghost":
            return _ghost.ghost_sum(
                plan, self.loss, params, batch, mask, keys, clip_norm=self.clip_norm
            )
        return _per_example.explicit_sum(
            self.loss, params, batch, mask, keys, clip_norm=self.clip_norm
        )


def clipped_grad(
    loss: Loss,
    *,
    clip_norm: float,
    microbatch_size: MicrobatchSize = None,
    buckets: LengthBuckets | None = None,
) -> ClippedGrad:
    """Clips the gradient of each example to clip_norm and sums them, for any JAX loss.

    sum_i g_i min(1, C / |g_i|) with g_i = grad loss(params, example_i, key_i), over all leaves of
    params jointly. For parameters of products, convolutions and lookups g_i is formed only where
    that is cheaper; the gradients of all others are explicit, in the same backward pass.

    The loss is that of one example. Three mistakes raise no error, since their shapes are valid:

    - A batch given as one example (`batch[None]`): the batch is then the unit of privacy.
    - A contrastive loss over the rows of an example: the rows are protected only jointly.
    - Batch statistics computed by the loss, `(x - x.mean(0)) / x.std(0)`: they are statistics of
      a single example.

    A loss that mixes examples has no per-example gradient.

    Args:
      loss: `loss(params, example, key)` of one example, as `jax.grad` takes it: flax.linen,
        flax.nnx, Equinox, Haiku or plain JAX. Close over frozen parameters; rebuild the random
        state of flax.nnx from the key.
      clip_norm: C; finite and at least 1e-12, below which norms of float32 gradients underflow.
      microbatch_size: number of rows processed at a time, which bounds memory; "auto" chooses by
        the caches, which on a CPU is often faster than the full batch. The result is the same.
      buckets: widths to which rows of different lengths are cut, instead of microbatch_size.

    Returns:
      The clipped-gradient function.

    Raises:
      ValueError: if clip_norm or microbatch_size is out of range, if both microbatch_size and
        buckets are given, or if loss does not take three arguments.

    References:
      Abadi et al., Deep Learning with Differential Privacy, 2016, Algorithm 1.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> grad = clipped_grad(lambda w, x, key: jnp.dot(w, x), clip_norm=1.0)
      >>> x = jnp.array([[3.0, 4.0], [0.0, 0.5]])
      >>> clipped = grad(jnp.zeros(2), x, jnp.ones(2, bool), jax.random.key(0))
      >>> clipped.norms.tolist()  # 5 is clipped to 1, 0.5 is not clipped
      [5.0, 0.5]
      >>> [round(float(entry), 3) for entry in clipped.total]
      [0.6, 1.3]
    """
    return _clipped_grad(loss, clip_norm, microbatch_size, "ghost", buckets)


def explicit_clipped_grad(
    loss: Loss,
    *,
    clip_norm: float,
    microbatch_size: MicrobatchSize = None,
    buckets: LengthBuckets | None = None,
) -> ClippedGrad:
    """Clips as `clipped_grad` does, but forms every per-example gradient.

    It needs the memory of one gradient for each row and is usually slower. It is the oracle of
    `clipped_grad`.

    Args:
      loss: as for `clipped_grad`.
      clip_norm: as for `clipped_grad`.
      microbatch_size: as for `clipped_grad`.
      buckets: as for `clipped_grad`.

    Returns:
      The clipped-gradient function.

    Raises:
      ValueError: as for `clipped_grad`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> grad = explicit_clipped_grad(lambda w, x, key: jnp.dot(w, x), clip_norm=1.0)
      >>> x = jnp.array([[3.0, 4.0], [0.0, 0.5]])
      >>> grad(jnp.zeros(2), x, jnp.ones(2, bool), jax.random.key(0)).norms.tolist()
      [5.0, 0.5]
    """
    return _clipped_grad(loss, clip_norm, microbatch_size, "explicit", buckets)


def _clipped_grad(loss, clip_norm, microbatch_size, method, buckets) -> ClippedGrad:
    _check.positive(clip_norm=clip_norm)
    if clip_norm < SMALLEST_CLIP_NORM:
        raise ValueError(f"Expected clip_norm >= {SMALLEST_CLIP_NORM}, got clip_norm={clip_norm}.")
    _microbatching.check_size(microbatch_size)
    _microbatching.check_buckets(buckets, microbatch_size)
    _check.takes("loss(params, example, key)", loss)
    return ClippedGrad(
        loss=loss,
        clip_norm=float(clip_norm),
        microbatch_size=microbatch_size,
        method=method,
        buckets=buckets,
    )


def _refuse_batch_statistics(next_fun, args, kwargs, context):
    """Refuses BatchNorm in training mode: it mixes examples, so clipping bounds no influence."""
    module = context.module
    if isinstance(module, nn.BatchNorm) and context.method_name == "__call__":
        given = args[1] if len(args) > 1 else kwargs.get("use_running_average")
        running = module.use_running_average if given is None else given
        if not running:
            raise ValueError(
                f"Expected no batch statistics under per-example clipping, got BatchNorm at "
                f"{'/'.join(module.path)!r}: use GroupNorm, or use_running_average=True."
            )
    return next_fun(*args, **kwargs)


def _check_inputs(params: Params, batch: Batch, mask: Bool[Array, " b"]) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            name = jax.tree_util.keystr(path)
            hint = (
                ": give real and imaginary parts as two leaves"
                if jnp.issubdtype(leaf.dtype, jnp.complexfloating)
                else ""
            )
            raise ValueError(
                f"Expected real floating-point params, got {leaf.dtype} at {name}{hint}."
            )
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        if jnp.ndim(leaf) == 0 or leaf.shape[0] != mask.shape[0]:
            name, shape = jax.tree_util.keystr(path), jnp.shape(leaf)
            raise ValueError(
                f"Expected {mask.shape[0]} rows as in the mask, got shape {shape} at batch{name}."
            )
