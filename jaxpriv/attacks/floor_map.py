"""Membership of floor maps in the training of an agent, from the episodes that it plays on them.

    evidence --applicable--> attacks --run--> scores of maps

The unit is the map: an attack scores every episode, and a map has the mean score of its episodes.
The network learns from episodes of shadow agents on maps whose membership is known; they are never
maps on which the attack is judged. A label agent, trained on the queried map alone, plays the role
that the true label has in the attack on classifiers: its policy on the same observations is given
beside the victim's. Shapes: `n` counts episodes, `t` steps, `a` actions, `u` judged maps and `m`
shadow agents.

References:
  On The Vulnerability of Recurrent Neural Networks to Membership Inference Attacks, under review,
  2022, section 3.2; Yang, Gohari and Topcu, On the Privacy Risks of Deploying Recurrent Neural
  Networks in Machine Learning Models, 2023, section 3.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, PRNGKeyArray, Shaped

from jaxpriv import _check
from jaxpriv._types import Params
from jaxpriv.attacks import _networks, _recurrent, _shadows, _tables, lira
from jaxpriv.attacks._networks import Training
from jaxpriv.attacks._tables import Attack
from jaxpriv.models import RecurrentMembershipNet

if TYPE_CHECKING:
    from jaxpriv.envs import FloorMaps

__all__ = [
    "PAPER_TRAINING",
    "Evidence",
    "Run",
    "Trajectories",
    "applicable",
    "apply",
    "attacks",
    "cross_entropy",
    "entropy",
    "fit",
    "map_features",
    "mean_by_map",
    "missing",
    "run_all",
]

PAPER_TRAINING = Training(steps=1500, batch_size=128, learning_rate=1e-3)
"""15 epochs of 100 updates by Adam."""

_ROUNDING, _ROUNDING_OF_HALF = 1e-4, 1e-2
"""Distance of a sum of action probabilities from 1 that counts as rounding; in half precision."""

_NUM_LAYERS = 5
"""Number of ReLU layers of the network, as in the paper."""


class Trajectories(NamedTuple):
    """Episodes of agents; what follows the end of an episode is padding.

    map_id: number of the map of each episode.
    policies: action probabilities of the agent at each step; not its logits.
    label_policies: those of the label agent of the map, on the same observations; None without.
    lengths: number of steps of each episode, in 1..t.
    returns: undiscounted return of each episode.
    """

    map_id: Shaped[np.ndarray, " n"]
    policies: Float[np.ndarray, "n t a"]
    label_policies: Float[np.ndarray, "n t a"] | None
    lengths: Shaped[np.ndarray, " n"]
    returns: Float[np.ndarray, " n"]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the attacker has; the membership of the judged maps is not part of it.

    trajectories: episodes of the victim on the judged maps.
    known: episodes of shadow agents on other maps.
    known_is_member: whether the map of each of them was in the training of its agent.
    shadow_returns: mean return of each shadow agent on each judged map, in the order of `map_ids`.
    shadow_is_member: which judged maps each of these agents was trained on.

    Raises:
      ValueError: if shapes disagree, numbers are not finite, policies are not probabilities that
        sum to 1 at each step, lengths are out of range or not whole, membership is not 0 or 1, or
        a judged map is among the known ones.

    Example:
      >>> evidence = Evidence(
      ...     trajectories=Trajectories(
      ...         np.array([4, 4, 2]), np.ones((3, 5, 1)), None, np.array([1, 5, 2]), np.zeros(3)
      ...     )
      ... )
      >>> evidence.map_ids
      array([2, 4])
    """

    trajectories: Trajectories
    known: Trajectories | None = None
    known_is_member: Bool[np.ndarray, " k"] | None = None
    shadow_returns: Float[np.ndarray, "m u"] | None = None
    shadow_is_member: Bool[np.ndarray, "m u"] | None = None

    def __post_init__(self) -> None:
        _check_trajectories("trajectories", self.trajectories)
        if (self.known is None) != (self.known_is_member is None):
            raise ValueError("Expected known and known_is_member together, got one of them.")
        if (self.shadow_returns is None) != (self.shadow_is_member is None):
            raise ValueError("Expected shadow_returns and shadow_is_member together, got one.")
        if self.known is not None and self.known_is_member is not None:
            _check_trajectories("known", self.known)
            is_member = _check.scores(self.known_is_member, name="known_is_member")
            is_member = _check.membership(is_member, name="known_is_member")
            _check.same_length(known=self.known.map_id, known_is_member=is_member)
            object.__setattr__(self, "known_is_member", is_member)
            widths = [part.policies.shape[2] for part in (self.trajectories, self.known)]
            if widths[0] != widths[1]:
                raise ValueError(f"Expected equally many actions, got {widths[0]} and {widths[1]}.")
            shared = np.intersect1d(self.known.map_id, self.trajectories.map_id)
            if shared.size:
                raise ValueError(
                    "Expected judged maps that do not train the attack, "
                    f"got map {shared[0]} among the known ones."
                )
        if self.shadow_returns is not None and self.shadow_is_member is not None:
            _networks.finite_float64("shadow_returns", self.shadow_returns)
            is_member = _shadows.as_bool(self.shadow_is_member)
            shape = (len(is_member), len(self.map_ids))
            if not self.shadow_returns.shape == is_member.shape == shape:
                raise ValueError(
                    f"Expected shadow_returns and shadow_is_member [m, {shape[1]}], a column for "
                    f"each judged map, got {list(self.shadow_returns.shape)} and "
                    f"{list(is_member.shape)}."
                )
            object.__setattr__(self, "shadow_is_member", is_member)

    @property
    def map_ids(self) -> Shaped[np.ndarray, " u"]:
        """Numbers of the judged maps, ascending, in the order of the scores."""
        return np.unique(self.trajectories.map_id)


def _check_trajectories(name: str, trajectories: Trajectories) -> None:
    policies, labels = trajectories.policies, trajectories.label_policies
    rows = {
        "map_id": trajectories.map_id,
        "lengths": trajectories.lengths,
        "returns": trajectories.returns,
    }
    for part, values in rows.items():
        if np.ndim(values) != 1:
            raise ValueError(f"Expected {part} [n] in {name}, got shape {list(np.shape(values))}.")
    lengths = np.asarray(trajectories.lengths)
    _check.same_length(
        map_id=trajectories.map_id,
        policies=policies,
        lengths=lengths,
        returns=trajectories.returns,
    )
    if not len(lengths):
        raise ValueError(f"Expected at least one episode in {name}, got none.")
    if policies.ndim != 3 or (labels is not None and labels.shape != policies.shape):
        shape = None if labels is None else list(labels.shape)
        raise ValueError(
            f"Expected policies and label_policies [n, t, a] in {name}, "
            f"got {list(policies.shape)} and {shape}."
        )
    for part, values in zip(trajectories._fields, trajectories, strict=True):
        if values is not None:
            _networks.finite_float64(f"{part} of {name}", values)
    num_steps = policies.shape[1]
    lengths = _check.whole_numbers(f"lengths of {name}", lengths, low=1, high=num_steps)
    is_step = np.arange(num_steps) < lengths[:, None]
    _check_policies(f"policies of {name}", np.asarray(policies)[is_step])
    if labels is not None:
        _check_policies(f"label_policies of {name}", np.asarray(labels)[is_step])


def _check_policies(name: str, policies: Float[np.ndarray, "s a"]) -> None:
    """Raises ValueError unless the policies of steps are distributions; logits are not."""
    negative = policies[policies < 0]
    if negative.size:
        raise ValueError(f"Expected probabilities >= 0 in {name}, got {float(negative[0]):g}.")
    total = policies.sum(axis=1, dtype=np.float64)
    rounding = _ROUNDING_OF_HALF if policies.dtype.itemsize < 4 else _ROUNDING
    wrong = total[np.abs(total - 1) > rounding]
    if wrong.size:
        raise ValueError(f"Expected probabilities that sum to 1 in {name}, got sum {wrong[0]:g}.")


def mean_by_map(
    map_id: Shaped[np.ndarray, " n"], values: Shaped[np.ndarray, " n"]
) -> Float[np.ndarray, " u"]:
    """Averages values of episodes over the episodes of each map.

    Args:
      map_id: number of the map of each episode.
      values: a value of each episode.

    Returns:
      The means, in the order of the ascending numbers of the maps.

    Example:
      >>> mean_by_map(np.array([7, 3, 7]), np.array([1.0, 5.0, 2.0]))
      array([5. , 1.5])
    """
    _, index = np.unique(map_id, return_inverse=True)
    return np.bincount(index, np.asarray(values, np.float64)) / np.bincount(index)


def entropy(trajectories: Trajectories) -> Float[np.ndarray, " n"]:
    """Computes the mean entropy of the policy along each episode.

    Args:
      trajectories: episodes.

    Returns:
      The entropies, in nats.

    Raises:
      ValueError: for impossible episodes, as in `Evidence`.

    Example:
      >>> uniform = np.full((1, 3, 4), 0.25)
      >>> episode = Trajectories(np.zeros(1), uniform, None, np.array([2]), np.zeros(1))
      >>> entropy(episode).round(3)  # log 4
      array([1.386])
    """
    return _mean_cross_entropy(trajectories, trajectories.policies)


def cross_entropy(trajectories: Trajectories) -> Float[np.ndarray, " n"]:
    """Computes the mean cross-entropy -sum_a q_a log p_a of the policy p and the label agent's q.

    Args:
      trajectories: episodes, with the policies of the label agents.

    Returns:
      The cross-entropies, in nats; probabilities below 1e-13 count as 1e-13.

    Raises:
      ValueError: without label policies, or for impossible episodes.

    Example:
      >>> policy, label = np.array([[[0.5, 0.5]]]), np.array([[[1.0, 0.0]]])
      >>> episode = Trajectories(np.zeros(1), policy, label, np.array([1]), np.zeros(1))
      >>> cross_entropy(episode).round(3)  # log 2
      array([0.693])
    """
    return _mean_cross_entropy(trajectories, _required_labels(trajectories))


_MIN_PROB = 1e-13


def _mean_cross_entropy(
    trajectories: Trajectories, weights: Float[np.ndarray, "n t a"]
) -> Float[np.ndarray, " n"]:
    _check_trajectories("trajectories", trajectories)
    log_p = np.log(np.maximum(np.asarray(trajectories.policies, np.float64), _MIN_PROB))
    steps = -(np.asarray(weights, np.float64) * log_p).sum(axis=2)
    lengths = np.asarray(trajectories.lengths)
    is_step = np.arange(steps.shape[1]) < lengths[:, None]
    return np.where(is_step, steps, 0.0).sum(axis=1) / lengths


def _required_labels(trajectories: Trajectories) -> Float[np.ndarray, "n t a"]:
    if trajectories.label_policies is None:
        raise ValueError("Expected label_policies, got none.")
    return trajectories.label_policies


def fit(
    key: PRNGKeyArray,
    known: Trajectories,
    is_member: Bool[np.ndarray, " n"],
    *,
    training: Training = PAPER_TRAINING,
    max_steps: int | None = None,
    width: int = 64,
) -> Params:
    """Trains a network to separate episodes on training maps from others.

    Maximises the attacker's gain by Adam; half of every batch are episodes on training maps. The
    input of a step is the policy of the agent, followed by that of the label agent.

    Args:
      key: PRNG key.
      known: episodes of agents whose training maps are known, with label policies.
      is_member: whether the map of each episode was in the training of its agent.
      training: options of the training.
      max_steps: number of first steps of an episode that the network reads; None for all.
      width: width of the network's layers.

    Returns:
      The parameters, for `apply`.

    Raises:
      ValueError: without label policies, members or non-members, or for impossible episodes.

    Example:
      >>> import jax
      >>> policies = np.repeat([[[0.9, 0.1]], [[0.5, 0.5]]], 10, axis=0)
      >>> episodes = Trajectories(
      ...     np.arange(20), policies, policies, np.ones(20, int), np.zeros(20)
      ... )
      >>> is_member = np.arange(20) < 10
      >>> options = Training(steps=40, batch_size=8, learning_rate=1e-2)
      >>> params = fit(jax.random.key(0), episodes, is_member, training=options, width=8)
      >>> scores = apply(params, episodes)
      >>> bool(scores[is_member].min() > scores[~is_member].max())
      True
    """
    _check.positive_int(width=width)
    steps, lengths = _sequences(known, max_steps)
    net = RecurrentMembershipNet(width=width, num_layers=_NUM_LAYERS)
    return _recurrent.fit(key, steps, lengths, is_member, net=net, training=training)


def apply(
    fitted: Params, trajectories: Trajectories, *, max_steps: int | None = None
) -> Float[np.ndarray, " n"]:
    """Scores episodes by their log odds of membership.

    Args:
      fitted: parameters from `fit`.
      trajectories: episodes, with label policies.
      max_steps: number of first steps that are read, as in `fit`.

    Returns:
      Log odds at even priors, in nats; > 0 indicates a map of the training.

    Raises:
      ValueError: without label policies, or for impossible episodes.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> policies = np.full((2, 3, 2), 0.5)
      >>> episodes = Trajectories(np.arange(2), policies, policies, np.array([3, 1]), np.zeros(2))
      >>> net = RecurrentMembershipNet(width=4)
      >>> params = net.init(jax.random.key(0), jnp.zeros((3, 4)), jnp.int32(3))
      >>> apply(jax.tree.map(jnp.zeros_like, params), episodes)
      array([0., 0.])
    """
    return _recurrent.score(fitted, *_sequences(trajectories, max_steps))


def _sequences(
    trajectories: Trajectories, max_steps: int | None
) -> tuple[Float[np.ndarray, "n t d"], Int[np.ndarray, " n"]]:
    """Joins both policies of each step, and drops steps that no episode reaches."""
    labels = _required_labels(trajectories)
    _check_trajectories("trajectories", trajectories)
    lengths = np.asarray(trajectories.lengths).astype(np.int32)
    if max_steps is not None:
        _check.positive_int(max_steps=max_steps)
        lengths = np.minimum(lengths, np.int32(max_steps))
    last = int(lengths.max()) if max_steps is None else max_steps
    joined = (trajectories.policies[:, :last], labels[:, :last])
    return np.concatenate(joined, axis=2).astype(np.float32), lengths


_OBJECT_BITS, _OBJECTS = 0xF, (1, 2, 4)
"""Bits of a packed cell with its object; the objects empty, wall and door."""


def map_features(maps: "FloorMaps") -> Float[np.ndarray, "u f"]:
    """Describes floor maps by numbers, for `blind.score_records`, which predicts without an agent.

    If these distinguish members from non-members, the distributions of the two differ.

    Args:
      maps: floor maps with a leading axis.

    Returns:
      Position and direction at the start, position of the goal, distance between the two, and the
      numbers of empty, wall and door cells.

    Example:
      >>> from jaxpriv import envs
      >>> one = envs.from_minigrid_seed(1, num_rooms=2, max_room_size=4)
      >>> map_features(envs.stack([one, one])).shape
      (2, 12)
    """
    objects = np.asarray(maps.cells) & _OBJECT_BITS
    start, goal = np.asarray(maps.position), np.asarray(maps.goal)
    counts = [(objects == kind).sum(axis=(1, 2)) for kind in _OBJECTS]
    columns = (
        start,
        np.eye(4)[np.asarray(maps.direction)],
        goal,
        np.abs(start - goal).sum(axis=1, keepdims=True),
        np.stack(counts, axis=1),
    )
    return np.concatenate(columns, axis=1).astype(np.float64)


_DESCRIPTIONS = {
    "label_policies": "policies of label agents",
    "known": "episodes on maps of known membership",
    "shadow_returns": "returns of shadow agents",
}
"""Parts of the evidence that an attack may need, as `missing` describes them."""

Run = Callable[[PRNGKeyArray, Evidence], Float[np.ndarray, " u"]]
"""`run(key, evidence) -> scores [u]` of the judged maps, higher = more likely a member."""


def attacks(
    *, training: Training = PAPER_TRAINING, max_steps: int | None = None, width: int = 64
) -> tuple[Attack, ...]:
    """Lists the attacks on maps, from the simplest to those that use shadow agents.

    Args:
      training: options of the attack that trains a network.
      max_steps: number of first steps of an episode that the network reads; None for all.
      width: width of the network's layers.

    Returns:
      The table.

    Example:
      >>> import jax
      >>> episodes = Trajectories(
      ...     np.array([5, 8]), np.ones((2, 9, 1)), None, np.array([3, 9]), np.array([0.9, 0.0])
      ... )
      >>> evidence = Evidence(trajectories=episodes)
      >>> for attack in applicable(attacks(), evidence):
      ...     print(attack.name, attack.run(jax.random.key(0), evidence) + 0.0)
      episode_return [0.9 0. ]
      episode_length [-3. -9.]
      policy_entropy [0. 0.]
    """

    def network(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " u"]:
        if evidence.known is None or evidence.known_is_member is None:
            raise ValueError("Expected known episodes, got none.")
        params = fit(
            key,
            evidence.known,
            evidence.known_is_member,
            training=training,
            max_steps=max_steps,
            width=width,
        )
        return _by_map(evidence, apply(params, evidence.trajectories, max_steps=max_steps))

    return (
        *_BASELINES,
        Attack(
            name="lira_return",
            title="LiRA on the return",
            needs=("shadow_returns",),
            run=_lira_on_return,
            decision_at_zero=True,
            reference="Carlini et al., Membership Inference Attacks From First Principles, 2022",
        ),
        Attack(
            name="policy_network",
            title="LSTM on policies",
            needs=("label_policies", "known"),
            run=network,
            trains=True,
            decision_at_zero=True,
            reference=_YANG,
        ),
    )


def applicable(table: Iterable[Attack], evidence: Evidence) -> tuple[Attack, ...]:
    """Selects the attacks that the evidence supports.

    Args:
      table: attacks, as from `attacks()`.
      evidence: what the attacker has.

    Returns:
      The attacks for which nothing is missing, in the order of the table.

    Example:
      >>> episodes = Trajectories(
      ...     np.array([5]), np.ones((1, 9, 1)), None, np.array([3]), np.array([0.9])
      ... )
      >>> [attack.name for attack in applicable(attacks(), Evidence(trajectories=episodes))]
      ['episode_return', 'episode_length', 'policy_entropy']
    """
    return tuple(attack for attack in table if not missing(attack, evidence))


def missing(attack: Attack, evidence: Evidence) -> str:
    """Describes what an attack needs and the evidence lacks.

    Args:
      attack: a row of the table.
      evidence: what the attacker has.

    Returns:
      A phrase such as "needs returns of shadow agents"; empty if nothing is missing.

    Example:
      >>> episodes = Trajectories(
      ...     np.array([5]), np.ones((1, 9, 1)), None, np.array([3]), np.array([0.9])
      ... )
      >>> missing(attacks()[-1], Evidence(trajectories=episodes))
      'needs policies of label agents and episodes on maps of known membership'
    """
    parts = [evidence.trajectories]
    if "known" in attack.needs and evidence.known is not None:
        parts.append(evidence.known)
    is_available = {
        "label_policies": all(part.label_policies is not None for part in parts),
        "known": evidence.known is not None,
        "shadow_returns": evidence.shadow_returns is not None,
    }
    absent = [need for need in attack.needs if not is_available[need]]
    return _tables.needs_phrase([_DESCRIPTIONS[need] for need in absent])


def run_all(
    key: PRNGKeyArray, evidence: Evidence, *, table: Iterable[Attack] | None = None
) -> dict[str, Float[np.ndarray, " u"]]:
    """Runs every attack that the evidence supports.

    Args:
      key: PRNG key; the key of an attack is derived from its name.
      evidence: what the attacker has.
      table: attacks; None takes `attacks()`.

    Returns:
      Scores of the judged maps, by name of the attack; higher = more likely a member.

    Example:
      >>> import jax
      >>> episodes = Trajectories(
      ...     np.array([5]), np.ones((1, 9, 1)), None, np.array([3]), np.array([0.9])
      ... )
      >>> run_all(jax.random.key(0), Evidence(trajectories=episodes))["episode_return"]
      array([0.9])
    """
    table = attacks() if table is None else table
    return _tables.run_all(key, evidence, applicable(table, evidence))


def _by_map(evidence: Evidence, values: Shaped[np.ndarray, " n"]) -> Float[np.ndarray, " u"]:
    return mean_by_map(evidence.trajectories.map_id, values)


def _of_episodes(score: Callable[[Trajectories], np.ndarray]) -> Run:
    """Makes a run without shadow agents from a score of episodes."""

    def run(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " u"]:
        del key
        return _by_map(evidence, score(evidence.trajectories))

    return run


def _lira_on_return(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " u"]:
    del key
    if evidence.shadow_returns is None or evidence.shadow_is_member is None:
        raise ValueError("Expected shadow_returns, got none.")
    target = _by_map(evidence, evidence.trajectories.returns)
    return lira.online(target, evidence.shadow_returns, evidence.shadow_is_member)


_YANG = "Yang et al., On the Privacy Risks of Deploying Recurrent Neural Networks, 2023"
_BASELINES = (
    Attack(
        name="episode_return",
        title="episode return",
        needs=(),
        run=_of_episodes(lambda trajectories: trajectories.returns),
        reference="baseline",
    ),
    Attack(
        name="episode_length",
        title="episode length",
        needs=(),
        run=_of_episodes(lambda trajectories: -np.asarray(trajectories.lengths, np.float64)),
        reference="baseline",
    ),
    Attack(
        name="policy_entropy",
        title="policy entropy",
        needs=(),
        run=_of_episodes(lambda trajectories: -entropy(trajectories)),
        reference="baseline",
    ),
    Attack(
        name="policy_cross_entropy",
        title="cross-entropy with the label agent",
        needs=("label_policies",),
        run=_of_episodes(lambda trajectories: -cross_entropy(trajectories)),
        reference="baseline",
    ),
)
