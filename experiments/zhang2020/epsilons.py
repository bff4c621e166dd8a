"""Epsilons that zhang2020 states for class-DP and subclass-DP, and those that hold.

Run:       python -m experiments run zhang2020/epsilons --preset cpu
Time:      smoke 5 s, cpu 20 s, paper 20 s
Paper:     MNIST (delta = 1e-3) 18.6, 8.2, 7.0; faces (delta = 1e-2) 62, 45.5, 40.5
Ours:      at the numbers of steps that fit these values, replacing a class costs about twice that

The paper defines neighbours by replacing a class, and does not state its numbers of steps. Those
of `steps` make an accountant for adding or removing a class agree with the printed values.
`printed` is Theorem 1 of the paper, which is no guarantee.
"""

from dataclasses import dataclass
from typing import Any

from experiments import common
from jaxpriv import accounting


@dataclass(frozen=True, kw_only=True)
class Row:
    """A training of the paper, and the epsilon that it states."""

    data: str
    noise_multiplier: float
    sampling_prob: float
    steps: int
    delta: float
    paper_epsilon: float


@dataclass(frozen=True, kw_only=True)
class Settings:
    """rows: trainings of the paper."""

    rows: tuple[Row, ...]


def _rows(data: str, q: float, delta: float, cells: Any) -> tuple[Row, ...]:
    return tuple(
        Row(
            data=data,
            noise_multiplier=z,
            sampling_prob=q,
            steps=steps,
            delta=delta,
            paper_epsilon=epsilon,
        )
        for z, steps, epsilon in cells
    )


MNIST = _rows("mnist", 0.2, 1e-3, ((1.6, 617, 18.6), (3.0, 662, 8.2), (3.65, 750, 7.0)))
FACES = _rows("faces94", 0.33, 1e-2, ((0.8, 167, 62.0), (1.2, 395, 45.5), (1.6, 707, 40.5)))
PRESETS = {
    "smoke": Settings(rows=MNIST[:1]),
    "cpu": Settings(rows=MNIST + FACES),
    "paper": Settings(rows=MNIST + FACES),
}


def run(settings: Settings) -> dict[str, Any]:
    """Computes the exact epsilons of each training under both relations."""
    rows = []
    for row in settings.rows:
        training = {
            "noise_multiplier": row.noise_multiplier,
            "sampling_prob": row.sampling_prob,
            "steps": row.steps,
        }
        event = accounting.poisson_event(**training)
        both = accounting.epsilon_by_relation(event, delta=row.delta)
        printed = accounting.zhang2020_printed_epsilon_no_guarantee(**training, delta=row.delta)
        rows.append(
            {
                "data": row.data,
                **training,
                "delta": row.delta,
                "paper_epsilon": row.paper_epsilon,
                "printed": printed,
                **both._asdict(),
            }
        )
    return {"rows": rows}


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    columns = ("data and noise", "steps", "paper", "Theorem 1", "add or remove", "replace")
    rows = [
        (
            f"{row['data']} {row['noise_multiplier']}",
            str(row["steps"]),
            f"{row['paper_epsilon']:.1f}",
            f"{row['printed']:.2f}",
            f"{row['add_or_remove_one']:.2f}",
            f"{row['replace_one']:.2f}",
        )
        for row in record["rows"]
    ]
    return common.text_table(columns, rows)
