"""Trainings with a defence in the place of plain training, and their reference records.

    pool --reserve--> judged records, on which the models are attacked
                 \\--> reserve: reference records of the models that are not trained on them

Each unit is in the reserve by chance alone, so the membership of a judged unit is still a fair
coin, and no judged record is in a reference set. In the shapes below `n` counts the records of the
pool, `m` shadow models, `g` models, `k` the records of each and `r` its reference records.
"""

import functools
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int, PRNGKeyArray, Shaped

from jaxpriv import _keys, sampling, training, units
from jaxpriv.defences import Defence
from jaxpriv.reports import _networks, _training
from jaxpriv.reports._networks import Network
from jaxpriv.reports.partition import Partition
from jaxpriv.reports.settings import Settings

_FEWEST = 5
"""Smallest number of judged members and non-members, and of the reference records of a model."""


def recipe(
    key: PRNGKeyArray,
    defence: Defence,
    *,
    network: Network,
    records: Partition,
    shadow_is_member: Bool[np.ndarray, "m n"],
    settings: Settings,
) -> _training.Recipe:
    """Makes the recipe of a training with a defence.

    Every model has as many reference records as the model with the fewest could have; they are
    records of the reserve that it is not trained on.

    Args:
      key: PRNG key of the reserve and of the attackers in the trainings.
      defence: defence with `algorithm`.
      network: network that is trained.
      records: members and non-members.
      shadow_is_member: whether each shadow model is trained on each record of the pool.
      settings: settings of the report.

    Returns:
      The recipe; its hyper-parameters are the reference records of each model.

    Raises:
      ValueError: if the network has batch statistics, the unit is a class, or there are too few
        records.
    """
    make = defence.algorithm
    assert make is not None
    assert defence.reference_share is not None
    _check(defence, network, records)
    reserve_key, order_key, attacker_key = jax.random.split(key, 3)
    is_reserve = units.draw_share(reserve_key, records.units, share=defence.reference_share)
    is_member = np.concatenate([records.is_member[None], shadow_is_member])
    num_reference = int((is_reserve & ~is_member).sum(axis=1).min())
    sides = [int((~is_reserve & side).sum()) for side in (records.is_member, ~records.is_member)]
    if min(num_reference, *sides) < _FEWEST:
        raise ValueError(
            f"Expected at least {_FEWEST} reference records of each model and {_FEWEST} members "
            f"and non-members outside of them for {defence.name}, got {num_reference}, {sides[0]} "
            f"and {sides[1]}: use more records, or another reference_share."
        )
    order = _keys.numpy_rng(order_key).permutation(np.flatnonzero(is_reserve))
    x, y = (
        jnp.asarray(part) for part in (_networks.inputs(records.pool, settings), records.pool.y)
    )
    schedule = _training.plain_schedule(network, settings)

    def make_alg(size: int, hyper: Any) -> training.Algorithm:
        rows, code = hyper
        batch_size = _training.batch_size(size, settings)
        return make(
            network.predict,
            schedule.optimizer,
            sampling.fixed_batch(size, batch_size=batch_size),
            reference=(x[rows], y[rows]),
            attacker_key=jax.random.fold_in(attacker_key, code),
        )

    return _training.Recipe(
        name=f"Without DP, {defence.title}",
        target_epsilon=None,
        noise_multiplier=None,
        schedule=schedule,
        make_alg=make_alg,
        hyper=functools.partial(_hyper, order, num_reference),
        defence=defence.title,
        is_judged=~is_reserve,
        num_reference=num_reference,
    )


def _hyper(
    order: Int[np.ndarray, " s"], count: int, members: Int[np.ndarray, "g k"]
) -> tuple[Int[np.ndarray, "g r"], Shaped[np.ndarray, " g"]]:
    """Returns the reference records of each model, and a number of its own for its attacker."""
    rows = np.stack([order[~np.isin(order, row)][:count] for row in members])
    codes = [zlib.crc32(np.ascontiguousarray(row, np.int64).tobytes()) for row in members]
    return rows, np.asarray(codes, np.uint32)


def _check(defence: Defence, network: Network, records: Partition) -> None:
    """Refuses models that the defence cannot train, before any is trained."""
    if network.batch_loss is not None:
        raise ValueError(
            f"Expected no {defence.name} defence for {network.description}, whose state mixes the "
            "examples of a batch."
        )
    if records.units.kind == "class":
        raise ValueError(
            f"Expected the unit record or group for the {defence.name} defence, whose reference "
            "records are of the classes of the members."
        )
