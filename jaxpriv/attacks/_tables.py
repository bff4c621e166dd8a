"""Shared by the tables of attacks: a row, the run of a table, the phrase for what is missing."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from jaxpriv import _keys


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One row of a table of attacks.

    name: key in JSON files.
    title: name on pages and in tables.
    needs: parts of the evidence that the attack uses.
    run: `run(key, evidence) -> scores`, higher = more likely a member; the attacks of
      `inversion` return reconstructions.
    trains: whether the attack is fitted to examples of members and non-members, so that a
      balanced accuracy below the gap baseline shows that it did not learn.
    decision_at_zero: whether the attack calls what has a score above 0 a member.
    reference: publication of the attack.

    Example:
      >>> import jax, numpy as np
      >>> from jaxpriv.attacks import Evidence
      >>> attack = Attack(
      ...     name="last_logit",
      ...     title="last logit",
      ...     needs=("logits",),
      ...     run=lambda key, evidence: evidence.logits[:, -1],
      ...     reference="none",
      ... )
      >>> attack.run(jax.random.key(0), Evidence(logits=np.array([[0.0, 2.0], [1.0, 0.5]])))
      array([2. , 0.5])
    """

    name: str
    title: str
    needs: tuple[str, ...]
    run: Callable[..., Any]
    trains: bool = False
    decision_at_zero: bool = False
    reference: str


def run_all(
    key: PRNGKeyArray, evidence: Any, table: Iterable[Attack]
) -> dict[str, Float[np.ndarray, " n"]]:
    """Runs attacks; returns their scores in float64, by name.

    The key of an attack is derived from its name, so that a new row does not change other scores.
    """
    return {
        attack.name: np.asarray(attack.run(_keys.named(key, attack.name), evidence), np.float64)
        for attack in table
    }


def needs_phrase(descriptions: Sequence[str]) -> str:
    """Joins descriptions of absent parts, as in "needs logits and labels"; '' for none."""
    *first, last = descriptions or [""]
    return f"needs {', '.join(first)}{' and ' if first else ''}{last}" if last else ""
