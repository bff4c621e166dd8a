"""Figures 2 and 3 of bernau2021: decision regions of the adversary, and both scores by epsilon.

Run:       python -m experiments run bernau2021/fig2_3 --preset cpu
Time:      smoke 3 s, cpu 3 s, paper 3 s
Paper:     the regions shrink as epsilon grows; rho_beta hardly depends on delta, rho_alpha does
Ours:      both hold; rho_alpha by the classical formula understates the advantage of noise that is
           calibrated exactly, for every epsilon and delta of the figure

Figure 2 draws the densities of one output under D and D' for a query with sensitivity 1, the belief
in D and the probability of error, at the noise of the classical formula, as in the paper, which is
proved for epsilon <= 1 only: the true delta at epsilon 3 and 6 is in `rows`. Figure 3 draws
rho_beta and rho_alpha.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from experiments import common, figures
from jaxpriv import accounting, identifiability


@dataclass(frozen=True, kw_only=True)
class Settings:
    """epsilons: of Figure 2. deltas, num_epsilons: curves of Figure 3 and their points."""

    epsilons: tuple[float, ...] = (6.0, 3.0)
    delta: float = 1e-6
    deltas: tuple[float, ...] = (1e-2, 1e-4, 1e-6)
    num_epsilons: int = 40


PRESETS = {"smoke": Settings(num_epsilons=3), "cpu": Settings(), "paper": Settings()}
LARGEST_EPSILON = 6.0


def run(settings: Settings) -> dict[str, Any]:
    """Computes the scores of both figures."""
    rows = []
    for epsilon in settings.epsilons:
        std = accounting.gaussian.classical_noise_std(
            epsilon, delta=settings.delta, sensitivity=1.0
        )
        mu = 1 / std
        rows.append(
            {
                "epsilon": epsilon,
                "delta": settings.delta,
                "std": std,
                "probability_of_error": float(stats.norm.cdf(-mu / 2)),
                "advantage": accounting.gaussian.advantage(mu),
                "true_delta": accounting.gaussian.delta(epsilon, mu=mu),
            }
        )
    epsilons = np.linspace(0, LARGEST_EPSILON, settings.num_epsilons + 1)[1:].tolist()
    curves = [
        {
            "delta": delta,
            "epsilons": epsilons,
            "rho_beta": [identifiability.rho_beta(e) for e in epsilons],
            "rho_alpha": [identifiability.classical_rho_alpha(e, delta=delta) for e in epsilons],
            "rho_alpha_exact": [
                accounting.gaussian.advantage(accounting.gaussian.mu(e, delta=delta))
                for e in epsilons
            ],
        }
        for delta in settings.deltas
    ]
    return {"rows": rows, "curves": curves}


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws both figures."""
    regions = {}
    for row in record["rows"]:
        x = np.linspace(-3 * row["std"], 1 + 3 * row["std"], 200)
        densities = {
            name: stats.norm.pdf(x, mean, row["std"]) * row["std"]
            for name, mean in (("density given D, times std", 0), ("density given D'", 1))
        }
        log_odds = (1 - 2 * x) / (2 * row["std"] ** 2)
        belief = 1 / (1 + np.exp(-log_odds))
        title = f"epsilon {row['epsilon']:g}: error {row['probability_of_error']:.3f}"
        regions[title] = [
            *(figures.Line(name, x, y, style="-") for name, y in densities.items()),
            figures.Line("belief in D", x, belief, style="--"),
        ]
    scores = {
        "rho_beta": [
            figures.Line(f"delta {c['delta']:g}", c["epsilons"], c["rho_beta"], style="-")
            for c in record["curves"]
        ],
        "rho_alpha, classical": [
            figures.Line(f"delta {c['delta']:g}", c["epsilons"], c["rho_alpha"], style="-")
            for c in record["curves"]
        ],
        "advantage at exact noise": [
            figures.Line(f"delta {c['delta']:g}", c["epsilons"], c["rho_alpha_exact"], style="-")
            for c in record["curves"]
        ],
    }
    return {
        "fig2": figures.lines(regions, x="output", y="density, belief"),
        "fig3": figures.lines(scores, x="epsilon", y="score"),
    }


def table(record: dict[str, Any]) -> str:
    """Formats the decision regions, then the scores at the largest epsilon."""
    regions = common.text_table(
        ("epsilon", "delta", "std", "error", "advantage", "true delta"),
        (
            (
                f"{row['epsilon']:g}",
                f"{row['delta']:g}",
                f"{row['std']:.3f}",
                f"{row['probability_of_error']:.4f}",
                f"{row['advantage']:.4f}",
                f"{row['true_delta']:.1e}",
            )
            for row in record["rows"]
        ),
    )
    scores = common.text_table(
        ("at epsilon 6", "rho_beta", "rho_alpha", "exact"),
        (
            (
                f"delta {curve['delta']:g}",
                *(
                    f"{curve[name][-1]:.4f}"
                    for name in ("rho_beta", "rho_alpha", "rho_alpha_exact")
                ),
            )
            for curve in record["curves"]
        ),
    )
    return f"{regions}\n\n{scores}"
