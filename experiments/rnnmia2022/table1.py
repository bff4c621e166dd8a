"""Table 1 of rnnmia2022: agents whose policies are answered by the Dirichlet mechanism.

Run:       python -m experiments run rnnmia2022/table1 --preset cpu
Time:      smoke 60 s, cpu not run yet, paper not run yet; resumable by build/agents
Paper:     attack accuracy 99.19 % without protection; 98.74 %, 55.87 %, 50.59 %, 50.00 % and
           50.00 % at k = 100, 10, 1, 0.1 and 0.01, at a return between 0.9095 and 0.8783
Ours:      not run yet

The agent acts on an answer of the mechanism in place of its policy. `as trained` is the attack
network that learned from undefended shadow agents; the adaptive ones learn from shadow agents with
the same mechanism and see the mean of 1, 16 or 64 answers at every step. Agents, maps and intervals
are those of rnnmia2022/fig2, for the recurrent architecture after the last stage.

The mechanism protects one vector of probabilities against others that differ in two entries by at
most b. It does not protect the membership of a map: the policies of agents with and without the map
may differ by more than b, and every further step and query spends the guarantee again. The paper
states neither eta nor b, so the epsilons are for those chosen here.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments import agents, common
from experiments.rnnmia2022 import fig2
from jaxpriv import defences
from jaxpriv.attacks import floor_map
from jaxpriv.defences import dirichlet

KIND = fig2.KINDS["recurrent"]
PAPER = {
    None: (0.9919, 0.9095),
    100.0: (0.9874, 0.9047),
    10.0: (0.5587, 0.8960),
    1.0: (0.5059, 0.8936),
    0.1: (0.5, 0.8843),
    0.01: (0.5, 0.8783),
}
"""Attack accuracy and total reward by k; None is the agent without protection."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Sizes, and the mechanism.

    pieces: sizes, by the name of the maps.
    concentrations: k of the mechanism.
    queries: numbers of answers at each step that adaptive attackers average; the first is 1.
    eta, b, delta: floor of the probabilities, L1 distance of neighbours, and delta.
    """

    pieces: dict[str, agents.Piece]
    concentrations: tuple[float, ...] = (100.0, 10.0, 1.0, 0.1, 0.01)
    queries: tuple[int, ...] = (1, 16, 64)
    eta: float = 0.01
    b: float = 0.1
    delta: float = 1e-5


PRESETS = {
    "smoke": Settings(
        pieces={"N2-S4": dataclasses.replace(agents.SMOKE, order_updates=0)},
        concentrations=(1.0,),
        queries=(1,),
    ),
    "cpu": Settings(pieces={"N2-S6": dataclasses.replace(agents.CPU["N2-S6"], episodes=4)}),
    "paper": Settings(pieces=agents.PAPER),
}


def run(settings: Settings) -> dict[str, Any]:
    """Attacks the agents of each piece at every k."""
    rows = []
    for maps, piece in settings.pieces.items():
        undefended = agents.fit_attack(piece, KIND, stage=piece.stages - 1)[0]
        plain = _play(piece, None)
        rows.append(
            {
                "maps": maps,
                "k": None,
                "return": _returns(piece, plain),
                "as_trained": _accuracy(piece, undefended, plain),
                "adaptive": {},
                "epsilon": {},
                "paper": PAPER[None],
            }
        )
        steps = max(1, round(float(np.median([e.lengths for e in plain]))))
        for k in settings.concentrations:
            row = _defended(piece, k, undefended, steps, settings)
            rows.append({"maps": maps, "k": k, **row, "paper": PAPER[k]})
    return {"rows": rows, "eta": settings.eta, "b": settings.b, "delta": settings.delta}


def _defended(
    piece: agents.Piece, k: float, undefended: Any, steps: int, settings: Settings
) -> dict[str, Any]:
    """Attacks the agents at one k; `steps` is the length of an episode for its epsilon."""
    row: dict[str, Any] = {"steps": steps, "adaptive": {}, "epsilon": {}}
    row["epsilon"]["1"] = _epsilon(k, 1, settings)
    for queries in settings.queries:
        defence = _defence(k, queries, settings)
        episodes = _play(piece, defence)
        adapted = agents.fit_attack(piece, KIND, stage=piece.stages - 1, defence=defence)[0]
        row["adaptive"][str(queries)] = _accuracy(piece, adapted, episodes)
        row["epsilon"][f"{queries} x {steps}"] = _epsilon(k, queries * steps, settings)
        if queries == 1:
            row["return"] = _returns(piece, episodes)
            row["as_trained"] = _accuracy(piece, undefended, episodes)
    return row


def _defence(k: float, queries: int, settings: Settings) -> defences.Defence:
    return dirichlet.noised_outputs(
        k=k, eta=settings.eta, b=settings.b, delta=settings.delta, queries=queries
    )


def _epsilon(k: float, queries: int, settings: Settings) -> float:
    guarantee = _defence(k, queries, settings).output_guarantee
    assert guarantee is not None
    return guarantee(agents.NUM_ACTIONS).epsilon


def _play(piece: agents.Piece, defence: defences.Defence | None) -> list[floor_map.Trajectories]:
    victims = agents.train("victims", piece, KIND)
    return agents.play(
        piece, KIND, victims, stage=piece.stages - 1, role="victims", defence=defence
    )


def _accuracy(
    piece: agents.Piece, network: Any, episodes: list[floor_map.Trajectories]
) -> list[float]:
    """Computes the accuracy over episodes, with its interval over victims."""
    shares = [
        float(
            np.mean(
                (floor_map.apply(network, each, max_steps=piece.attack_steps) > 0)
                == np.repeat(is_member, piece.episodes)
            )
        )
        for each, is_member in zip(episodes, agents.members(piece, "victims"), strict=True)
    ]
    return agents.share_interval(shares)


def _returns(piece: agents.Piece, episodes: list[floor_map.Trajectories]) -> list[float]:
    """Computes the mean return on the maps of the training, with its interval over victims."""
    by_victim = [
        float(floor_map.mean_by_map(each.map_id, each.returns)[is_member].mean())
        for each, is_member in zip(episodes, agents.members(piece, "victims"), strict=True)
    ]
    return agents.mean_interval(by_victim)


def table(record: dict[str, Any]) -> str:
    """Formats the rows beside those of the paper."""
    queries = list(record["rows"][-1]["adaptive"])
    columns = (
        "maps", "attack, %: paper", "as trained", *(f"adaptive, {q}" for q in queries),
        "return: paper", "ours", "epsilon of 1 answer", "of an episode", f"x {queries[-1]}",
    )  # fmt: skip
    rows = []
    for row in record["rows"]:
        accuracy, reward = row["paper"]
        adaptive = row["adaptive"]
        epsilons = list(row["epsilon"].values())
        shown = (epsilons[0], epsilons[1], epsilons[-1]) if epsilons else ()
        rows.append(
            (
                f"{row['maps']}, " + ("no protection" if row["k"] is None else f"k = {row['k']:g}"),
                f"{100 * accuracy:.2f}",
                common.percent(row["as_trained"]),
                *(common.percent(adaptive[q]) if adaptive else "" for q in queries),
                f"{reward:.4f}",
                common.cell(row["return"], digits=3),
                *(tuple(f"{x:.4g}" for x in shown) or ("infinite",) * 3),
            )
        )
    note = (
        f"epsilon at delta {record['delta']:g}, eta {record['eta']:g} and b {record['b']:g} is "
        "local differential privacy of answers, not of maps."
    )
    return common.text_table(columns, rows) + "\n\n" + note
