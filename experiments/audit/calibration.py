"""Coverage and power of the lower bounds on epsilon, on scores of a Gaussian mechanism.

Run:       python -m experiments run audit/calibration --preset cpu
Time:      smoke 3 s, cpu 45 s on two cores (6 min with jax-privacy), paper 3 min
Expected:  at 95 % confidence, above the truth in at most 73 of 1,000 draws
Ours:      at most 38 of 1,000 null draws above 0, at most 3 above mu = 2 (cpu, 2026-11-28); means
           at mu = 2 and 1,000 rows, of the best fixed plan: clopper_pearson 2.716 of 2.826,
           gdp_mu 1.679 of 1.742, one_run 3.308 of 3.431, one_run_fdp_mu 1.208 of 1.289. Null draws
           above 0 of jax-privacy 2.0.0, 1,000 rows: 1, 999, 58 and 71

Scores are those of the best attack on a mechanism whose trade-off is exactly Gaussian: N(mu, 1) for
members and N(0, 1) for non-members. Half of the rows are members (trainings), or each row has a
fair coin (canaries). `null` is the share of bounds above 0 at mu = 0, `above` the share above the
truth at the given mu, and `mean` the mean bound there. `best` is the mean bound of the same method
at the one threshold, or number of guesses, that is best on average over the same draws, as if known
in advance. With jax-privacy installed (extra `bench`), its four bounds on epsilon are computed on
the same draws.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments import common
from jaxpriv import reports
from jaxpriv.accounting import gaussian
from jaxpriv.audit import independent_runs, one_run


@dataclass(frozen=True, kw_only=True)
class Settings:
    """rows: numbers of trainings or canaries. draws: repetitions. peer_rows: rows with peers."""

    rows: tuple[int, ...] = (30, 100, 300, 1000, 3000)
    draws: int = 1000
    mus: tuple[float, ...]
    peer_rows: tuple[int, ...] = (100, 1000)


PRESETS = {
    "smoke": Settings(rows=(30, 100), draws=20, mus=(2.0,), peer_rows=(30,)),
    "cpu": Settings(mus=(2.0,)),
    "paper": Settings(mus=(0.5, 1.0, 2.0, 3.0)),
}
CONFIDENCE, DELTA = 0.95, 1e-5
THRESHOLDS = np.arange(-0.5, 4.0, 0.25)
SHARES = (1.0, 0.75, 0.5, 0.35, 0.25, 0.18, 0.125, 0.09, 0.0625)
_PLAN_DRAWS = 40
"""Draws over which the best threshold or number of guesses is chosen."""

Draw = tuple[np.ndarray, np.ndarray]


def run(settings: Settings) -> dict[str, Any]:
    """Draws scores and bounds them; `rows` has a dict for each bound, size and mu."""
    rows = []
    for size in settings.rows:
        bounds = {**BOUNDS, **(_peers() if size in settings.peer_rows else {})}
        nulls = {name: _above(name, size, 0.0, 0.0, settings.draws)[0] for name in bounds}
        for mu in settings.mus:
            for name in bounds:
                truth = mu if name.endswith("mu") else gaussian.epsilon(DELTA, mu=mu)
                above, mean = _above(name, size, mu, truth, settings.draws)
                plan_draws = min(_PLAN_DRAWS, settings.draws)
                best = _best(name, size, mu, plan_draws) if name in FIXED_PLAN_BOUNDS else None
                rows.append(
                    {
                        "bound": name,
                        "rows": size,
                        "mu": mu,
                        "truth": truth,
                        "null": nulls[name],
                        "above": above,
                        "mean": mean,
                        "best": best,
                    }
                )
    return {"confidence": CONFIDENCE, "delta": DELTA, "rows": rows}


def _draws(name: str, size: int, mu: float, count: int) -> list[Draw]:
    rng = np.random.default_rng([size, round(1000 * mu)])
    draws = []
    for _ in range(count):
        coins = "one_run" in name
        is_member = rng.random(size) < 0.5 if coins else np.arange(size) % 2 == 0
        draws.append((rng.normal(mu * is_member), is_member))
    return draws


def _above(name: str, size: int, mu: float, truth: float, count: int) -> tuple[float, float]:
    """Returns the share of bounds above the truth, and their mean."""
    bound = {**BOUNDS, **_peers()}[name]
    bounds = np.array([bound(*draw) for draw in _draws(name, size, mu, count)])
    return float(np.mean(bounds > truth)), float(np.mean(bounds))


def _best(name: str, size: int, mu: float, count: int) -> float:
    """Returns the largest mean bound over plans that are fixed in advance."""
    draws = _draws(name, size, mu, count)
    if name.startswith("one_run"):
        sides = sorted({max(1, int(size * share) // 2) for share in SHARES})
        plans = [
            [one_run.guess(*draw, guess_in=side, guess_out=side) for draw in draws]
            for side in sides
        ]
    else:
        plans = [[independent_runs.count(*draw, threshold=t) for draw in draws] for t in THRESHOLDS]
    return float(
        max(np.mean([FIXED_PLAN_BOUNDS[name](outcome) for outcome in plan]) for plan in plans)
    )


BOUNDS: dict[str, Callable[..., float]] = {
    "clopper_pearson": lambda s, m: independent_runs.epsilon_of_scores(
        s, m, delta=DELTA, confidence=CONFIDENCE
    ),
    "gdp_mu": lambda s, m: independent_runs.mu_of_scores(s, m, confidence=CONFIDENCE),
    "one_run": lambda s, m: one_run.epsilon_of_scores(s, m, delta=DELTA, confidence=CONFIDENCE),
    "one_run_fdp_mu": lambda s, m: one_run.mu_of_scores(s, m, confidence=CONFIDENCE),
}


def _peers() -> dict[str, Callable[..., float]]:
    """Returns the bounds of jax-privacy at the same delta and confidence, with their defaults."""
    if importlib.util.find_spec("jax_privacy") is None:
        return {}
    from jax_privacy import auditing

    def bound(method: str, **more: bool) -> Callable[..., float]:
        def of(scores: np.ndarray, is_member: np.ndarray) -> float:
            auditor = auditing.CanaryScoreAuditor(scores[is_member], scores[~is_member])
            return float(getattr(auditor, method)(1 - CONFIDENCE, DELTA, **more))

        return of

    return {
        "jax-privacy clopper_pearson": bound("epsilon_clopper_pearson", one_sided=False),
        "jax-privacy gdp": bound("epsilon_from_gdp"),
        "jax-privacy one_run": bound("epsilon_one_run"),
        "jax-privacy one_run_fdp": bound("epsilon_one_run_fdp"),
    }


FIXED_PLAN_BOUNDS: dict[str, Callable[..., float]] = {
    "clopper_pearson": lambda c: independent_runs.epsilon_of_counts(
        c, delta=DELTA, confidence=CONFIDENCE
    ),
    "gdp_mu": lambda c: independent_runs.mu_of_counts(c, confidence=CONFIDENCE),
    "one_run": lambda g: one_run.epsilon_of_guesses(g, delta=DELTA, confidence=CONFIDENCE),
    "one_run_fdp_mu": lambda g: one_run.mu_of_guesses(g, confidence=CONFIDENCE),
}


def plots(record: dict[str, Any]) -> dict[str, str]:
    """Draws the mean bound, as a share of the truth, against the number of rows."""
    mu = max(row["mu"] for row in record["rows"])
    curves = []
    for name in BOUNDS:
        rows = [row for row in record["rows"] if row["bound"] == name and row["mu"] == mu]
        shares = [row["mean"] / row["truth"] for row in rows]
        curves.append(reports.plots.Curve(name, [row["rows"] for row in rows], shares))
    share = f"mean bound / truth, at mu = {mu:g}"
    return {"power": reports.plots.lines_svg(curves, x="trainings, or canaries", y=share)}


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    return common.text_table(
        ("bound", "rows", "mu", "truth", "null", "above", "mean", "best"),
        (
            (
                row["bound"],
                str(row["rows"]),
                f"{row['mu']:.1f}",
                *(f"{row[name]:.3f}" for name in ("truth", "null", "above", "mean")),
                "" if row["best"] is None else f"{row['best']:.3f}",
            )
            for row in record["rows"]
        ),
    )
