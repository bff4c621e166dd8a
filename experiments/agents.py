"""Agents on floor maps of MultiRoom, and attacks on the maps that they were trained on.

    maps --members--> victims, shadow agents --episodes--> trajectories --floor_map--> rows

Victims are trained on random halves of one pool of maps, shadow agents on halves of another pool,
and a label agent on each map alone. Episodes of the shadow agents train the attack network, which
then judges the victims; the other victims are the shadow agents of the attack by LiRA. In the
shapes below `m` counts agents, `s` stages of their training, `u` maps and `n` episodes.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import common
from jaxpriv import defences, envs, metrics, rl, sensitivity, training
from jaxpriv.attacks import blind, floor_map
from jaxpriv.models import ActorCritic
from jaxpriv.training import shadows

NUM_ACTIONS = len(envs.ACTIONS)
STARTER = rl.Hyperparameters()
ATTACK = floor_map.Training(steps=600)
SEQUENCE = 4
"""Number of steps through which gradients of a recurrent agent flow back."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Architecture of an agent: widths of both heads, and units of the LSTM."""

    actor_widths: tuple[int, ...]
    critic_widths: tuple[int, ...]
    lstm_units: int = 0

    @property
    def module(self) -> ActorCritic:
        """The network."""
        return ActorCritic(num_actions=NUM_ACTIONS, **dataclasses.asdict(self))

    @property
    def label(self) -> str:
        """Name in folders of checkpoints."""
        return "x".join(map(str, (*self.actor_widths, self.lstm_units)))


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Sizes of an experiment on maps of one kind.

    num_rooms, max_room_size, max_steps: of the environment.
    victims, shadows: numbers of agents; even.
    victim_maps, shadow_maps: numbers of maps, half of which each agent is trained on.
    stages: number of times at which agents are attacked.
    updates: number of updates of each stage, of 2,048 frames.
    order_updates: number of updates on each map, when maps come one after the other; 0 to leave
      this out.
    label_updates: number of updates of a label agent.
    episodes: number of episodes of an agent on each map.
    attack: options of the training of the attack network.
    attack_width, attack_steps: its width, and the number of first steps of an episode it reads.
    hyperparameters: of PPO.
    resumable: whether trained agents are stored below build/agents.
    """

    num_rooms: int = 2
    max_room_size: int = 6
    max_steps: int = 200
    victims: int = 8
    shadows: int = 4
    victim_maps: int = 32
    shadow_maps: int = 32
    stages: int = 4
    updates: int = 25
    order_updates: int = 6
    label_updates: int = 40
    episodes: int = 16
    attack: floor_map.Training = ATTACK
    attack_width: int = 32
    attack_steps: int = 100
    hyperparameters: rl.Hyperparameters = STARTER
    resumable: bool = True


SMOKE = Piece(
    max_room_size=4,
    max_steps=4,
    victims=2,
    shadows=2,
    victim_maps=4,
    shadow_maps=4,
    stages=1,
    updates=1,
    order_updates=1,
    label_updates=1,
    episodes=2,
    attack=floor_map.Training(steps=2, batch_size=4),
    attack_width=4,
    attack_steps=4,
    hyperparameters=rl.Hyperparameters(num_envs=2, rollout_steps=4, epochs=1, batch_size=8),
    resumable=False,
)
CPU = {
    "N2-S6": Piece(),
    "N3-S4": Piece(num_rooms=3, max_room_size=4, updates=50, order_updates=0, label_updates=80),
}
PAPER = {
    "N4-S5": Piece(
        num_rooms=4,
        max_room_size=5,
        victims=16,
        shadows=8,
        stages=5,
        updates=400,
        order_updates=125,
        label_updates=1000,
        episodes=50,
        attack=floor_map.PAPER_TRAINING,
        attack_width=64,
        attack_steps=200,
    )
}
"""Four rooms do not train in the 204,800 frames of the papers, so there are twenty times as many.

The episodes of the shadow agents are 6,400 on their own maps and 6,400 on others.
"""

CLIP = STARTER.clip


class Agents(NamedTuple):
    """Trained agents.

    snapshots: parameters at the end of each stage, every leaf [m, s, ...].
    info: diagnostics of all updates, every leaf [m, updates].
    members: indices of the maps of each agent, in the order of training, [m, k].
    """

    snapshots: Any
    info: rl.ppo.Info
    members: np.ndarray


class World(NamedTuple):
    """Maps of a piece with their label agents; those of the shadow agents come last.

    maps: floor maps, [u, ...].
    labels: parameters of the label agents, every leaf [u, ...].
    """

    maps: envs.FloorMaps
    labels: Any


LABEL = Kind(actor_widths=(64,), critic_widths=(64,))
"""Architecture of the label agents, which the victims of every architecture share."""


@functools.cache
def load(piece: Piece) -> World:
    """Draws the maps of Minigrid's seeds from 1 on, and trains a label agent on each."""
    count = piece.victim_maps + piece.shadow_maps
    maps = draw_maps(piece, count)
    stages = rl.Stages(count=1, updates=piece.label_updates)
    members = np.arange(count)[:, None]
    trained = _train("labels", piece, LABEL, maps, members, stages=stages, in_order=False)
    return World(maps, jax.tree.map(lambda leaf: leaf[:, 0], trained.snapshots))


def members(piece: Piece, role: str) -> np.ndarray:
    """Draws the maps of each victim or shadow agent, as bool [m, u] over their own pool."""
    num_agents, num_maps = {
        "victims": (piece.victims, piece.victim_maps),
        "shadows": (piece.shadows, piece.shadow_maps),
    }[role]
    key = jax.random.key({"victims": 1, "shadows": 2}[role])
    return shadows.halves(key, num_maps, num_models=num_agents)


def train(
    role: str, piece: Piece, kind: Kind, *, in_order: bool = False, clip: float = CLIP
) -> Agents:
    """Trains the victims or the shadow agents.

    Args:
      role: "victims" or "shadows".
      piece: sizes.
      kind: architecture.
      in_order: whether the maps of an agent come one after the other, in a stage each.
      clip: of PPO.
    """
    is_member, first = members(piece, role), piece.victim_maps if role == "shadows" else 0
    rows = np.stack([first + np.flatnonzero(row) for row in is_member])
    rng = np.random.default_rng(3)
    rows = np.stack([rng.permutation(row) for row in rows])
    if in_order:
        stages = rl.Stages(count=rows.shape[1], updates=piece.order_updates)
    else:
        stages = rl.Stages(count=piece.stages, updates=piece.updates)
    maps = load(piece).maps
    return _train(role, piece, kind, maps, rows, stages=stages, in_order=in_order, clip=clip)


def _train(
    role: str,
    piece: Piece,
    kind: Kind,
    maps: envs.FloorMaps,
    rows: np.ndarray,
    *,
    stages: rl.Stages,
    in_order: bool,
    clip: float = CLIP,
) -> Agents:
    """Trains one agent for each row of maps; resumable by its checkpoints below build/agents."""
    checkpoints = None
    if piece.resumable:
        order = "order" if in_order else "time"
        sizes = f"N{piece.num_rooms}-S{piece.max_room_size}-{len(rows)}-{stages.total}"
        folder = f"{role}-{kind.label}-{sizes}-{order}-{clip:g}"
        checkpoints = training.Checkpoints(directory=Path("build") / "agents" / folder)
    init_key, run_key = jax.random.split(jax.random.key(len(role) + len(rows)))
    params = jax.vmap(functools.partial(initial, kind))(jax.random.split(init_key, len(rows)))
    snapshots, many = training.fit_many(
        jax.random.split(run_key, len(rows)),
        _make_alg(piece, kind, maps, stages=stages, in_order=in_order),
        params,
        maps,
        members=rows,
        steps=stages.total,
        hyper=jnp.full(len(rows), clip),
        keep=lambda state: state.snapshots,
        checkpoints=checkpoints,
    )
    return Agents(snapshots, many.info, rows)


def initial(kind: Kind, key: jax.Array) -> Any:
    """Draws the initial parameters of an agent."""
    module = kind.module
    observation = jnp.zeros((envs.grid.VIEW, envs.grid.VIEW, 3), jnp.uint8)
    return module.init(key, module.initial_memory(), observation)


def _make_alg(
    piece: Piece,
    kind: Kind,
    maps: envs.FloorMaps,
    *,
    stages: rl.Stages | None,
    in_order: bool = False,
) -> Callable[[int, Any], training.Algorithm]:
    """Returns `make_alg(num_maps, clip)` of PPO; a clip of None is that of the piece."""
    hyperparameters = dataclasses.replace(
        piece.hyperparameters, recurrence=SEQUENCE if kind.lstm_units else 1
    )

    max_steps = piece.max_steps  # checkpoints depend on what the function refers to

    def env_params(maps: envs.FloorMaps, stage: jax.Array) -> envs.EnvParams:
        if in_order:
            maps = jax.tree.map(lambda leaf: leaf[stage][None], maps)
        return envs.EnvParams(max_steps_in_episode=max_steps, maps=maps)

    def make_alg(num_maps: int, clip: Any) -> training.Algorithm:
        return rl.ppo.algorithm(
            kind.module,
            envs.MultiRoom(_preset(piece)),
            jax.tree.map(lambda leaf: leaf[:num_maps], maps),
            env_params=env_params,
            hyperparameters=hyperparameters,
            clip=clip,
            stages=stages,
        )

    return make_alg


def draw_maps(piece: Piece, count: int) -> envs.FloorMaps:
    """Draws the maps of Minigrid's seeds from 1 on."""
    draw = functools.partial(
        envs.from_minigrid_seed, num_rooms=piece.num_rooms, max_room_size=piece.max_room_size
    )
    return envs.stack([draw(seed) for seed in range(1, count + 1)])


def sample_pairs(
    piece: Piece,
    kind: Kind,
    *,
    num_pairs: int,
    num_maps: int,
    updates: int,
    checkpoints: training.Checkpoints | None,
) -> sensitivity.SampledPairs:
    """Trains agents in pairs whose maps differ in one, on `num_maps` maps each."""
    maps = draw_maps(piece, num_pairs * (num_maps + 1))
    return sensitivity.sample_pairs(
        jax.random.key(1),
        _make_alg(piece, kind, maps, stages=None),
        initial(kind, jax.random.key(0)),
        maps,
        num_pairs=num_pairs,
        num_records=num_maps,
        steps=updates,
        chunk=2 if checkpoints else None,
        checkpoints=checkpoints,
    )


def _preset(piece: Piece) -> envs.Preset:
    return envs.Preset(
        num_rooms=piece.num_rooms, max_room_size=piece.max_room_size, max_steps=piece.max_steps
    )


def play(
    piece: Piece,
    kind: Kind,
    agents: Agents,
    *,
    stage: int,
    role: str,
    defence: defences.Defence | None = None,
) -> list[floor_map.Trajectories]:
    """Lets agents of a stage play on all maps of their pool.

    Args:
      piece: sizes.
      kind: architecture.
      agents: the agents.
      stage: stage of their training.
      role: "victims" or "shadows".
      defence: answers in place of the policies; those recorded are the mean of its `queries`.

    Returns:
      The episodes of each agent, in the order of the maps.
    """
    world = load(piece)
    first, count = 0, piece.victim_maps
    if role == "shadows":
        first, count = piece.victim_maps, piece.shadow_maps
    rows = np.arange(first, first + count)
    maps, labels = jax.tree.map(lambda leaf: leaf[rows], (world.maps, world.labels))
    keys = jax.random.split(jax.random.key(5 + stage), len(agents.members) * count)
    keys = keys.reshape(len(agents.members), count)
    result = []
    for i in range(len(agents.members)):
        params = jax.tree.map(lambda leaf, i=i: leaf[i, stage], agents.snapshots)
        episodes = _play(keys[i], kind, params, maps, labels, piece, defence)
        joined = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), episodes)
        result.append(
            floor_map.Trajectories(
                np.repeat(rows, piece.episodes),
                joined.policies,
                joined.peer_policies,
                joined.lengths,
                joined.returns,
            )
        )
    return result


@functools.partial(jax.jit, static_argnames=("kind", "piece", "defence"))
def _play(
    keys: jax.Array,
    kind: Kind,
    params: Any,
    maps: envs.FloorMaps,
    labels: Any,
    piece: Piece,
    defence: defences.Defence | None,
) -> rl.rollout.Episodes:
    env = envs.MultiRoom(_preset(piece))

    def on_map(key: jax.Array, one: envs.FloorMaps, label: Any) -> rl.rollout.Episodes:
        pool = jax.tree.map(lambda leaf: leaf[None], one)
        return rl.rollout.episodes(
            key,
            kind.module,
            params,
            env,
            envs.EnvParams(max_steps_in_episode=piece.max_steps, maps=pool),
            num_episodes=piece.episodes,
            max_steps=piece.max_steps,
            peer=LABEL.module,
            peer_params=label,
            respond=None if defence is None else defence.respond,
            queries=1 if defence is None else defence.queries,
        )

    return jax.vmap(on_map)(keys, maps, labels)


def fit_attack(
    piece: Piece,
    kind: Kind,
    *,
    stage: int,
    in_order: bool = False,
    clip: float = CLIP,
    defence: defences.Defence | None = None,
) -> tuple[Any, floor_map.Trajectories, np.ndarray]:
    """Trains the attack network on episodes of the shadow agents, which have the victims' defence.

    Returns:
      The network's parameters, the episodes and whether the map of each was one of the training.
    """
    agents = train("shadows", piece, kind, in_order=in_order, clip=clip)
    known = _join(play(piece, kind, agents, stage=stage, role="shadows", defence=defence))
    truth = np.repeat(members(piece, "shadows").ravel(), piece.episodes)
    params = floor_map.fit(
        jax.random.key(6 + stage),
        known,
        truth,
        training=piece.attack,
        max_steps=piece.attack_steps,
        width=piece.attack_width,
    )
    return params, known, truth


def _join(episodes: Sequence[floor_map.Trajectories]) -> floor_map.Trajectories:
    parts: list[Any] = [np.concatenate(leaves) for leaves in zip(*episodes, strict=True)]
    return floor_map.Trajectories(*parts)


class Judged(NamedTuple):
    """Results of the attacks on the victims.

    episodes: episodes of each victim.
    is_right: whether the network is right about each episode, [m, n].
    scores: scores of the maps by name of the attack, [m, u].
    """

    episodes: list[floor_map.Trajectories]
    is_right: np.ndarray
    scores: dict[str, np.ndarray]


def judge(
    piece: Piece,
    kind: Kind,
    attack: tuple[Any, floor_map.Trajectories, np.ndarray],
    *,
    stage: int,
    in_order: bool = False,
    clip: float = CLIP,
) -> Judged:
    """Runs every attack on every victim."""
    agents = train("victims", piece, kind, in_order=in_order, clip=clip)
    episodes = play(piece, kind, agents, stage=stage, role="victims")
    is_member = members(piece, "victims")
    returns = np.stack([floor_map.mean_by_map(e.map_id, e.returns) for e in episodes])
    baselines = [each for each in floor_map.attacks() if not each.trains]
    features = floor_map.map_features(
        jax.tree.map(lambda leaf: leaf[: piece.victim_maps], load(piece).maps)
    )
    params, known, truth = attack
    is_right, scores = [], []
    for i, each in enumerate(episodes):
        rest = np.arange(len(episodes)) != i
        evidence = floor_map.Evidence(
            trajectories=each,
            known=known,
            known_is_member=truth,
            shadow_returns=returns[rest],
            shadow_is_member=is_member[rest],
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # LiRA asks for more shadow agents than there are
            row = floor_map.run_all(jax.random.key(0), evidence, table=baselines)
        log_odds = floor_map.apply(params, each, max_steps=piece.attack_steps)
        row["policy_network"] = floor_map.mean_by_map(each.map_id, log_odds)
        folds = min(5, *np.bincount(is_member[i].astype(int)))
        row["map_features"] = blind.score_records(
            np.random.default_rng(i), features, is_member[i], folds=int(folds)
        )
        scores.append(row)
        is_right.append((log_odds > 0) == np.repeat(is_member[i], piece.episodes))
    joined = {name: np.stack([row[name] for row in scores]) for name in scores[0]}
    return Judged(episodes, np.stack(is_right), joined)


def by_time(piece: Piece, kinds: dict[str, Kind], *, clip: float = CLIP) -> list[dict[str, Any]]:
    """Attacks the victims of each architecture at the end of each stage of their training.

    Means over victims have intervals at 95 % over victims.
    """
    rows = []
    for name, kind in kinds.items():
        for stage in range(piece.stages):
            attack = fit_attack(piece, kind, stage=stage, clip=clip)
            judged = judge(piece, kind, attack, stage=stage, clip=clip)
            frames = (stage + 1) * piece.updates * piece.hyperparameters.frames
            rows.append({"agent": name, "frames": frames, **summarise(piece, judged)})
    return rows


def summarise(piece: Piece, judged: Judged) -> dict[str, Any]:
    """Summarises the results over victims."""
    is_member = members(piece, "victims")
    accuracy = judged.is_right.mean(axis=1)
    episodes = judged.episodes

    def sides(values: list[np.ndarray]) -> dict[str, list[float]]:
        by_map = np.stack(
            [floor_map.mean_by_map(e.map_id, v) for e, v in zip(episodes, values, strict=True)]
        )
        chosen = {"member": is_member, "nonmember": ~is_member}
        return {
            side: mean_interval((by_map * mask).sum(axis=1) / mask.sum(axis=1))
            for side, mask in chosen.items()
        }

    returns = sides([e.returns for e in episodes])
    per_victim = [
        float(floor_map.mean_by_map(e.map_id, e.returns)[row].mean())
        for e, row in zip(episodes, is_member, strict=True)
    ]
    return {
        "return": returns,
        "median_member_return": float(np.median(per_victim)),
        "steps": sides([np.asarray(e.lengths) for e in episodes]),
        "entropy": sides([floor_map.entropy(e) for e in episodes]),
        "accuracy": share_interval(accuracy),
        "accuracies": accuracy.tolist(),
        "auc": {name: share_interval(aucs(judged, is_member, name)) for name in judged.scores},
    }


def aucs(judged: Judged, is_member: np.ndarray, name: str) -> list[float]:
    """Computes the AUC of an attack over the maps of each victim."""
    pairs = zip(judged.scores[name], is_member, strict=True)
    return [metrics.membership(scores, truth).auc for scores, truth in pairs]


def by_order(piece: Piece, kinds: dict[str, Kind]) -> list[dict[str, Any]]:
    """Attacks victims whose maps came one after the other, by the order of the maps.

    A row is the balanced accuracy on the maps of one place in the order: the mean of the rate on
    these maps and the rate on the non-members. Returns are those of the fully trained agents.
    """
    rows = []
    is_member = members(piece, "victims")
    for name, kind in kinds.items():
        agents = train("victims", piece, kind, in_order=True)
        last = agents.members.shape[1] - 1
        attack = fit_attack(piece, kind, stage=last, in_order=True)
        judged = judge(piece, kind, attack, stage=last, in_order=True)
        right = judged.is_right.reshape(*is_member.shape, piece.episodes).mean(axis=2)
        specificity = (right * ~is_member).sum(axis=1) / (~is_member).sum(axis=1)
        returns = np.stack([floor_map.mean_by_map(e.map_id, e.returns) for e in judged.episodes])
        while_training = np.asarray(agents.info.mean_return)
        while_training = while_training.reshape(len(right), last + 1, -1)[:, :, -1]
        for place in range(last + 1):
            columns = agents.members[:, place]
            chosen = np.arange(len(right)), columns
            rows.append(
                {
                    "agent": name,
                    "place": place + 1,
                    "accuracy": share_interval((right[chosen] + specificity) / 2),
                    "return_while_training": mean_interval(while_training[:, place]),
                    "return_at_end": mean_interval(returns[chosen]),
                }
            )
    return rows


def mean_interval(values: Sequence[float] | np.ndarray) -> list[float]:
    """Computes a mean over victims with its 95 % interval, which is the mean if all are equal."""
    numbers = np.asarray(values, np.float64)
    if np.ptp(numbers) == 0:
        return [float(numbers[0])] * 3
    return common.mean_interval(numbers.tolist(), confidence=0.95)


def share_interval(values: Sequence[float] | np.ndarray) -> list[float]:
    """Computes `mean_interval` of shares, cut off at 0 and 1."""
    return [min(max(number, 0.0), 1.0) for number in mean_interval(values)]


def compare(rows: list[dict[str, Any]], first: str, second: str) -> dict[str, Any]:
    """Tests whether the attack is more accurate on the first architecture than on the second.

    Victims with equal maps are paired; the test flips the signs of their differences.
    """
    from scipy import stats

    last = {row["agent"]: row["accuracies"] for row in rows}
    differences = np.subtract(last[first], last[second])
    test = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", alternative="greater", vectorized=False
    )
    return {
        "difference": mean_interval(differences),
        "p_value": float(test.pvalue),
        "alternative": f"{first} above {second}",
    }
