"""Shared by the attacks on sentences and on agents: a recurrent network on rows of any length.

In the shapes below `n` counts rows, `t` steps and `d` features of a step.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxpriv import _check
from jaxpriv._types import Params
from jaxpriv.attacks import _networks
from jaxpriv.attacks._networks import Training
from jaxpriv.models import RecurrentMembershipNet

_BLOCK = 1024
"""Number of rows that are scored at a time, to bound memory."""


def fit(
    key: PRNGKeyArray,
    steps: Float[np.ndarray, "n t d"],
    lengths: Int[np.ndarray, " n"],
    is_member: Bool[np.ndarray, " n"],
    *,
    net: RecurrentMembershipNet,
    training: Training,
) -> Params:
    """Maximises the attacker's gain by Adam; half of every batch are members.

    Args:
      key: PRNG key.
      steps: features of each step of each row.
      lengths: number of steps of each row.
      is_member: whether each row belongs to a member.
      net: the network.
      training: options of the training.

    Returns:
      The parameters of the network, for `score`.

    Raises:
      ValueError: for unequal lengths, or without members or non-members.
    """
    truth = _check.membership(_check.scores(is_member, name="is_member"))
    _check.same_length(known=lengths, is_member=truth)
    _check.both_sides(truth)
    sides = tuple(np.flatnonzero(side) for side in (truth, ~truth))
    return _train(key, steps, lengths, sides, net, training)


def score(
    params: Params, steps: Float[np.ndarray, "n t d"], lengths: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Computes the log odds of membership of each row, by a network from `fit`."""
    blocks = [
        _log_odds(params, steps[i : i + _BLOCK], lengths[i : i + _BLOCK])
        for i in range(0, len(lengths), _BLOCK)
    ]
    return np.concatenate(blocks).astype(np.float64)


@jax.jit
def _log_odds(
    params: Params, steps: Float[Array, "n t d"], lengths: Int[Array, " n"]
) -> Float[Array, " n"]:
    dense = [leaf for name, leaf in params["params"].items() if name.startswith("Dense")]
    net = RecurrentMembershipNet(width=dense[0]["kernel"].shape[0], num_layers=len(dense) - 1)
    return jax.vmap(net.apply, (None, 0, 0))(params, steps, lengths)  # pyright: ignore[reportReturnType]


@functools.partial(jax.jit, static_argnames=("net", "training"))
def _train(
    key: PRNGKeyArray,
    steps: Float[Array, "n t d"],
    lengths: Int[Array, " n"],
    sides: tuple[Array, Array],
    net: RecurrentMembershipNet,
    training: Training,
) -> Params:
    steps, lengths = jnp.asarray(steps), jnp.asarray(lengths)
    init_key, train_key = jax.random.split(key)

    def draw(key: PRNGKeyArray, side: Array, params: Params) -> Array:
        rows = jnp.asarray(side)[jax.random.randint(key, (training.batch_size // 2,), 0, len(side))]
        return _log_odds(params, steps[rows], lengths[rows])

    def loss(params: Params, key: PRNGKeyArray) -> Array:
        in_key, out_key = jax.random.split(key)
        return -_networks.gain(draw(in_key, sides[0], params), draw(out_key, sides[1], params))

    params = net.init(init_key, steps[0], lengths[0])
    return _networks.minimise(train_key, loss, params, training=training)
