"""Table 1 of the paper: sensitivity of recurrent and feed-forward networks, by sampled pairs.

Run:       python -m experiments run yang2023/table1 --preset cpu
Time:      smoke 1 min, cpu 40 min on one core; paper unmeasured, for one GPU
Paper:     500 pairs: images 0.013209 (RNN) and 0.013518 (FFNN), translation 0.11678 and 0.11845,
           agents 0.093682 and 0.093429; gamma at most 0.0774
Ours:      20 pairs (cpu, 2026-11-29), gamma 0.32: images 5.87 (RNN) and 1.70 (FFNN), translation
           1.49 (RNN) and 0.99 (transformer), agents 6.99 (recurrent) and 6.00 (feed-forward),
           Purchase MLP 1.06

Each pair trains twice, with equal initial parameters and batches, on data sets that differ in one
record. The paper tunes both networks to one sensitivity and states neither training nor width, so
the values compare kinds of networks and not with the paper's. gamma is the probability that a
further pair exceeds the sensitivity; at 20 pairs it is 0.32. Pairs share records where the data set
is smaller than all of them (`are_disjoint`), which gamma does not allow for. A record of an agent
is a floor map of two rooms of size 4. A record of a translation model is a pair of sentences, and
its feed-forward network is a transformer; the paper fine-tunes BERT on WMT14.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from experiments import agents, common, translation
from experiments.yang2023 import networks, tasks
from jaxpriv import data, sensitivity, training
from jaxpriv.accounting import random_dp


@dataclass(frozen=True, kw_only=True)
class AgentSchedule:
    """piece: maps and PPO. num_maps: maps of an agent. updates: number of updates."""

    piece: agents.Piece
    num_maps: int = 16
    updates: int = 25


@dataclass(frozen=True, kw_only=True)
class TranslationSchedule:
    """piece: sentences and training. kinds: architectures."""

    piece: translation.Piece
    kinds: dict[str, translation.Kind]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Sizes.

    num_pairs: number of pairs of trainings of each network.
    schedules: training of each classifier.
    agents: training of the agents.
    translation: training of the translation models.
    checkpoints: folder from which a run continues.
    """

    num_pairs: int
    schedules: dict[str, tasks.Schedule]
    agents: AgentSchedule
    translation: TranslationSchedule
    checkpoints: str | None = None


_FOLDER = str(Path(tempfile.gettempdir()) / "jaxpriv-yang2023-table1")
PRESETS = {
    "smoke": Settings(
        num_pairs=2,
        schedules={"images": tasks.Schedule(num_records=40, steps=2)},
        agents=AgentSchedule(piece=agents.SMOKE, num_maps=2, updates=1),
        translation=TranslationSchedule(piece=translation.SMOKE, kinds=translation.SMALL_KINDS),
    ),
    "cpu": Settings(
        num_pairs=20,
        schedules={
            "images": tasks.Schedule(num_records=2000, steps=300),
            "purchases": tasks.Schedule(num_records=2000, steps=300),
        },
        agents=AgentSchedule(piece=agents.Piece(num_rooms=2, max_room_size=4)),
        translation=TranslationSchedule(
            piece=translation.Piece(size=500, stages=(5,), widths=()), kinds=translation.KINDS
        ),
        checkpoints=_FOLDER,
    ),
    "paper": Settings(
        num_pairs=500,
        schedules={
            "images": tasks.Schedule(num_records=10_000, steps=3907),
            "purchases": tasks.Schedule(num_records=10_000, steps=3907),
        },
        agents=AgentSchedule(piece=agents.PAPER["N4-S5"], updates=100),
        translation=TranslationSchedule(
            piece=translation.Piece(size=5000, stages=(50,), batch_size=128, widths=()),
            kinds=translation.KINDS,
        ),
        checkpoints=_FOLDER,
    ),
}


PAPER_AGENTS = {"recurrent": 0.093682, "feed-forward": 0.093429}
PAPER_TRANSLATION = {"RNN": 0.11678, "transformer": 0.11845}


def run(settings: Settings) -> dict[str, Any]:
    """Samples the pairs of every network."""
    rows = []
    for name, schedule in settings.schedules.items():
        task, records = tasks.TASKS[name], tasks.load(name).name
        for kind, network in task.networks.items():
            pairs = sample(name, kind, schedule, settings)
            paper = task.paper_sensitivity.get(kind)
            rows.append(_row((name, records, kind), tasks.initial(network), pairs, paper))
    schedule = settings.agents
    maps = f"MultiRoom-N{schedule.piece.num_rooms}-S{schedule.piece.max_room_size}"
    for name, kind in networks.KINDS.items():
        pairs = agents.sample_pairs(
            schedule.piece,
            kind,
            num_pairs=settings.num_pairs,
            num_maps=schedule.num_maps,
            updates=schedule.updates,
            checkpoints=_checkpoints(settings, "agents", name),
        )
        params = agents.initial(kind, jax.random.key(0))
        rows.append(_row(("agents", maps, name), params, pairs, PAPER_AGENTS[name]))
    piece = settings.translation.piece
    is_available = any(e.name == piece.corpus and e.sources for e in data.available())
    for name, kind in settings.translation.kinds.items() if is_available else ():
        checkpoints = _checkpoints(settings, "translation", name)
        pairs = translation.sample_pairs(
            piece, kind, num_pairs=settings.num_pairs, checkpoints=checkpoints
        )
        params = translation.initial(piece, kind, jax.random.key(0))
        names = ("translation", piece.corpus, name)
        rows.append(_row(names, params, pairs, PAPER_TRANSLATION[name]))
    return {"rows": rows, "missing": [] if is_available else ["translation"]}


def _row(
    names: tuple[str, str, str],
    params: Any,
    pairs: sensitivity.SampledPairs,
    paper_sensitivity: float | None,
) -> dict[str, Any]:
    """Makes the row of a network; the names are those of task, data and network."""
    bounds = random_dp.failure_probabilities(len(pairs.distances), confidence=0.95)
    return {
        **dict(zip(("task", "data", "network"), names, strict=True)),
        "parameters": sum(x.size for x in jax.tree.leaves(params)),
        "num_pairs": len(pairs.distances),
        "sensitivity": pairs.sensitivity,
        "paper_sensitivity": paper_sensitivity,
        "distances": pairs.distances.tolist(),
        "are_disjoint": pairs.are_disjoint,
        **bounds._asdict(),
    }


def _checkpoints(settings: Settings, task: str, network: str) -> training.Checkpoints | None:
    folder = settings.checkpoints
    if folder is None:
        return None
    return training.Checkpoints(directory=f"{folder}/{task}-{network}-{settings.num_pairs}")


def sample(
    name: str, kind: str, schedule: tasks.Schedule, settings: Settings
) -> sensitivity.SampledPairs:
    """Samples the pairs of one network."""
    network = tasks.TASKS[name].networks[kind]
    checkpoints = _checkpoints(settings, name, kind)
    return sensitivity.sample_pairs(
        jax.random.key(1),
        tasks.plain_algorithm(network, schedule),
        tasks.initial(network),
        tasks.inputs(tasks.load(name), network),
        num_pairs=settings.num_pairs,
        num_records=schedule.num_records,
        steps=schedule.steps,
        chunk=2 if checkpoints else None,
        checkpoints=checkpoints,
    )


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    rows = [
        (
            f"{row['task']} ({row['data']}), {row['network']}",
            f"{row['num_pairs']}",
            f"{row['sensitivity']:.5g}",
            "" if row["paper_sensitivity"] is None else f"{row['paper_sensitivity']:g}",
            f"{row['gamma']:.4f}",
            f"{row['exchangeable']:.4f}",
            f"{row['with_confidence']:.4f}",
            "yes" if row["are_disjoint"] else "no",
        )
        for row in record["rows"]
    ]
    columns = ("network", "pairs", "S", "paper", "gamma", "1/(n+1)", "at 95 %", "disjoint")
    return common.text_table(columns, rows)
