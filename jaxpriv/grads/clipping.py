"""Per-example clipped gradient sums: the one function of DP-SGD that looks at the data.

In the shapes below `b` counts the rows of a padded batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from jaxpriv import _check, _tree
from jaxpriv._types import RELATIONS, Batch, Example, Loss, Params, Relation, Scalar
from jaxpriv.grads import explanation, ghost, per_example

SMALLEST_CLIP_NORM = 1e-12


@dataclass(frozen=True, kw_only=True)
class ClippedGrad:
    """A function `(params, batch, mask, key) -> ClippedSum` that carries its sensitivity.

    loss: of one example.
    clip_norm: C, the largest norm with which an example counts.
    microbatch_size: rows worked on at a time; None: all.
    summed: how the clipped sum of a microbatch is made.
    """

    loss: Loss
    clip_norm: Scalar
    microbatch_size: int | None
    summed: Callable[..., per_example.ClippedSum]

    def sensitivity(self, relation: Relation) -> Scalar:
        """Largest change of the total between neighbours, in the Euclidean norm.

        Args:
          relation: by which data sets are neighbours.

        Returns:
          C when a record is added or removed, 2 C when one is replaced.
        """
        _check.one_of(RELATIONS, relation=relation)
        return self.clip_norm if relation == "add_or_remove_one" else 2 * self.clip_norm

    def explain(
        self, params: Params, example: Example, key: PRNGKeyArray, *, batch_size: int
    ) -> explanation.Explanation:
        """Tells which way each parameter's gradient goes; computes nothing.

        Args:
          params: trainable leaves.
          example: one record, without a batch axis.
          key: any; not consumed.
          batch_size: rows of a batch, which the memory is for.

        Returns:
          One choice a leaf; prints as a table.
        """
        rows = min(batch_size, self.microbatch_size or batch_size)
        return explanation.explain(
            self.loss,
            params,
            example,
            key,
            batch_size=rows,
            by_rules=self.summed is ghost.ghost_sum,
        )

    def __call__(
        self, params: Params, batch: Batch, mask: Bool[Array, " b"], key: PRNGKeyArray
    ) -> per_example.ClippedSum:
        """Sums the clipped gradients of the rows that the mask admits.

        Args:
          params: trainable leaves only, floating point.
          batch: pytree with leading axis b.
          mask: which rows are real.
          key: consumed; split into one key a row before any microbatching.

        Returns:
          The total, of sensitivity C, and the norms, which are not private. An example whose
          gradient is not finite contributes zero.

        Raises:
          ValueError: if shapes disagree, a leaf of params is not floating point, the loss is not
            a scalar, or a BatchNorm would use the statistics of the batch.
        """
        _check_inputs(params, batch, mask)
        with nn.intercept_methods(_refuse_batch_statistics):
            return self._summed(params, batch, mask, key)

    def _summed(
        self, params: Params, batch: Batch, mask: Bool[Array, " b"], key: PRNGKeyArray
    ) -> per_example.ClippedSum:
        rows = mask.shape[0]
        keys = jax.random.split(key, rows)
        size = self.microbatch_size
        if size is None or size >= rows:
            return self.summed(self.loss, params, batch, mask, keys, clip_norm=self.clip_norm)
        count = -(-rows // size)
        wrapped = jnp.arange(count * size) % rows
        pieces = jax.tree.map(
            lambda x: x[wrapped].reshape(count, size, *x.shape[1:]), (batch, keys)
        )
        real = (mask[wrapped] & (jnp.arange(count * size) < rows)).reshape(count, size)

        def add(total, piece):
            (batch, keys), mask = piece
            part = self.summed(self.loss, params, batch, mask, keys, clip_norm=self.clip_norm)
            return jax.tree.map(jnp.add, total, part.total), part.norms

        start = jax.tree.map(lambda x: jnp.zeros(x.shape, _tree.wide_dtype(x.dtype)), params)
        total, norms = jax.lax.scan(add, start, (pieces, real))
        return per_example.ClippedSum(total, norms.reshape(-1)[:rows])


def clipped_grad(
    loss: Loss, *, clip_norm: float, microbatch_size: int | None = None
) -> ClippedGrad:
    """Clips each example's gradient to clip_norm and sums; fast for flax.linen layers.

    sum_i g_i min(1, C / |g_i|) with g_i = grad loss(params, example_i, key_i), over all leaves of
    params jointly. Layers with a ghost rule never form g_i; the rest is explicit.

    Args:
      loss: `loss(params, example, key)` of one example, as `jax.grad` takes it; it may call
        any flax.linen modules, and hold frozen parameters in its closure.
      clip_norm: C; finite, at least 1e-12: below, norms of float32 gradients underflow.
      microbatch_size: rows worked on at a time, to bound memory; the result is the same.

    Returns:
      The clipped-gradient function.

    Raises:
      ValueError: if clip_norm or microbatch_size is out of range.

    References:
      Abadi et al., Deep Learning with Differential Privacy, 2016, Algorithm 1.

    >>> import jax, jax.numpy as jnp
    >>> grad = clipped_grad(lambda w, x, key: w @ x, clip_norm=1.0)
    >>> x = jnp.array([[3.0, 4.0], [0.0, 0.5]])
    >>> grad(jnp.zeros(2), x, jnp.ones(2, bool), jax.random.key(0)).norms.tolist()
    [5.0, 0.5]
    """
    return _make(loss, clip_norm, microbatch_size, ghost.ghost_sum)


def explicit_clipped_grad(
    loss: Loss, *, clip_norm: float, microbatch_size: int | None = None
) -> ClippedGrad:
    """Does what `clipped_grad` does by plain vmap: slow, and its oracle.

    Args:
      loss: as for `clipped_grad`.
      clip_norm: as for `clipped_grad`.
      microbatch_size: as for `clipped_grad`.

    Returns:
      The clipped-gradient function.
    """
    return _make(loss, clip_norm, microbatch_size, per_example.explicit_sum)


def _make(loss, clip_norm, microbatch_size, summed) -> ClippedGrad:
    _check.positive(clip_norm=clip_norm)
    if clip_norm < SMALLEST_CLIP_NORM:
        raise ValueError(f"Expected clip_norm >= {SMALLEST_CLIP_NORM}, got clip_norm={clip_norm}.")
    if microbatch_size is not None:
        _check.positive_int(microbatch_size=microbatch_size)
    return ClippedGrad(
        loss=loss, clip_norm=float(clip_norm), microbatch_size=microbatch_size, summed=summed
    )


def _refuse_batch_statistics(next_fun, args, kwargs, context):
    """BatchNorm in training mixes examples, so clipping one would not bound its influence."""
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


ghost.mark_ours(_refuse_batch_statistics)


def _check_inputs(params: Params, batch: Batch, mask: Bool[Array, " b"]) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            name = jax.tree_util.keystr(path)
            raise ValueError(f"Expected floating-point params, got {leaf.dtype} at {name}.")
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        if jnp.ndim(leaf) == 0 or leaf.shape[0] != mask.shape[0]:
            name, shape = jax.tree_util.keystr(path), jnp.shape(leaf)
            raise ValueError(
                f"Expected {mask.shape[0]} rows as in the mask, got shape {shape} at batch{name}."
            )
