"""Table 3 of bernau2021: epsilon and the bound on the advantage for a bound on the belief.

Run:       python -m experiments run bernau2021/table3 --preset cpu
Time:      smoke 2 s, cpu 2 s, paper 2 s
Paper:     epsilon = 0.08, 1.1, 2.2, 4.6 and rho_alpha = 0.01, 0.14, 0.28, 0.54 at delta = 0.01
Ours:      the same values, and those that hold in the columns behind them

`rho_alpha` is Theorem 3, the advantage at the noise of the classical formula. Noise that is
calibrated exactly is smaller, so that the advantage of the same (epsilon, delta) is larger:
`advantage_exact`. `advantage_rdp` is that at the noise of the experiments, which RDP with its
classic conversion sets. `violation_exact` and `violation_rdp` are the probabilities that the belief
exceeds rho_beta, which Theorem 2 says is at most delta.
"""

from dataclasses import dataclass
from typing import Any

from experiments import common
from experiments.bernau2021 import games
from jaxpriv import accounting, identifiability


@dataclass(frozen=True, kw_only=True)
class Settings:
    """tasks: names of the tasks."""

    tasks: tuple[str, ...] = ("mnist", "purchases", "adult")


PRESETS = {name: Settings() for name in ("smoke", "cpu", "paper")}
PAPER = {"mnist": (0.01, 0.14, 0.28, 0.54), "purchases": (0.01, 0.12, 0.23, 0.46)}
PAPER |= {"adult": PAPER["purchases"]}


def run(settings: Settings) -> dict[str, Any]:
    """Computes both bounds for each task and rho_beta."""
    rows = []
    for name in settings.tasks:
        delta = games.TASKS[name].delta
        for rho, paper in zip(games.TASKS[name].rhos, PAPER[name], strict=True):
            epsilon = identifiability.epsilon_of_rho_beta(rho)
            exact = accounting.gaussian.mu(epsilon, delta=delta)
            rdp = games.target_mu(rho, delta=delta)
            violation = identifiability.gaussian_violation_probability
            rows.append(
                {
                    "data": name,
                    "rho_beta": rho,
                    "delta": delta,
                    "epsilon": epsilon,
                    "rho_alpha": identifiability.classical_rho_alpha(epsilon, delta=delta),
                    "paper_rho_alpha": paper,
                    "mu_exact": exact,
                    "advantage_exact": accounting.gaussian.advantage(exact),
                    "violation_exact": violation(rho, mu=exact),
                    "mu_rdp": rdp,
                    "advantage_rdp": accounting.gaussian.advantage(rdp),
                    "violation_rdp": violation(rho, mu=rdp),
                }
            )
    return {"rows": rows}


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    columns = (
        "data and rho_beta", "delta", "epsilon", "rho_alpha", "paper", "exact", "violation", "RDP",
        "violation",
    )  # fmt: skip
    rows = [
        (
            f"{row['data']} {row['rho_beta']}",
            f"{row['delta']:g}",
            f"{row['epsilon']:.4f}",
            f"{row['rho_alpha']:.4f}",
            f"{row['paper_rho_alpha']:.2f}",
            f"{row['advantage_exact']:.4f}",
            f"{row['violation_exact']:.5f}",
            f"{row['advantage_rdp']:.4f}",
            f"{row['violation_rdp']:.5f}",
        )
        for row in record["rows"]
    ]
    return common.text_table(columns, rows)
