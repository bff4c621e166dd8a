"""Price of scoring: LiRA and RMIA on float32 shadow scores, each against a loop over records.

Run:       python -m experiments run benchmarks/scoring --preset cpu
Time:      smoke 3 s, cpu 1 min on two cores, paper 1 min
Goal:      50,000 records, 256 shadows: at most 2 s and 1 GiB of growth on two cores
Ours:      0.18 to 0.49 s, 27 MB, the loop 1.5 to 2.3 s (cpu, busy machine, 2026-11-28)

The loop is plain NumPy, one record at a time, in float64. Memory is the growth during the second
call of a process that runs one attack alone.
"""

import argparse
import functools
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from experiments import common
from jaxpriv.attacks import lira, rmia


@dataclass(frozen=True, kw_only=True)
class Settings:
    """records, shadows, population: sizes. memory: attacks whose memory is measured, or all."""

    records: int = 50_000
    shadows: int = 256
    population: int
    repeats: int = 5
    memory: tuple[str, ...] | None = None


PRESETS = {
    "smoke": Settings(records=200, shadows=32, population=50, repeats=1, memory=("lira online",)),
    "cpu": Settings(population=10_000),
    "paper": Settings(population=25_000),
}
GOAL_SECONDS, GOAL_MB = 2.0, 1074.0
GAMMA, A = 2.0, 0.3


class Arrays(NamedTuple):
    """Scores of records, and log probabilities of records and population."""

    scores: np.ndarray
    shadow_scores: np.ndarray
    is_member: np.ndarray
    log_probs: np.ndarray
    shadow_log_probs: np.ndarray
    population: rmia.Population


def draw_arrays(records: int, shadows: int, population_size: int) -> Arrays:
    """Draws Gaussian scores in complementary halves, float32, the same in every run."""
    rng = np.random.default_rng(0)
    half = rng.random((shadows // 2, records)) < 0.5
    is_member = np.concatenate([half, ~half])
    scores = rng.normal(size=records).astype(np.float32)
    shadow_scores = (rng.normal(size=is_member.shape) + is_member).astype(np.float32)
    log_p = lambda log_odds: -np.logaddexp(np.float32(0), -log_odds)  # noqa: E731
    population = rmia.Population(
        log_p(rng.normal(size=population_size).astype(np.float32)),
        log_p(rng.normal(size=(shadows, population_size)).astype(np.float32)),
    )
    return Arrays(scores, shadow_scores, is_member, log_p(scores), log_p(shadow_scores), population)


def attacks(arrays: Arrays) -> dict[str, Callable[[], np.ndarray]]:
    """Returns the attacks of the library, by name."""
    gaussian = arrays.scores, arrays.shadow_scores, arrays.is_member
    likely = arrays.log_probs, arrays.shadow_log_probs, arrays.is_member
    options = {"population": arrays.population, "gamma": GAMMA}
    return {
        "lira online": lambda: lira.online(*gaussian, variance="per_example"),
        "lira online, fixed": lambda: lira.online(*gaussian, variance="fixed"),
        "lira offline": lambda: lira.offline(*gaussian, variance="per_example"),
        "rmia online": functools.partial(_without_ties, rmia.online, *likely, **options),
        "rmia offline": functools.partial(_without_ties, rmia.offline, *likely, **options, a=A),
    }


def _without_ties(attack: Callable[..., np.ndarray], *arrays: Any, **options: Any) -> np.ndarray:
    """Runs RMIA without its warning of ties, which random scores of a population have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rmia.TiesWarning)
        return attack(*arrays, **options)


def loops(arrays: Arrays) -> dict[str, Callable[[], np.ndarray]]:
    """Returns the same attacks as loops over records, by name."""
    return {
        "lira online": functools.partial(_lira_loop, arrays),
        "lira online, fixed": functools.partial(_lira_loop, arrays, fixed=True),
        "lira offline": functools.partial(_lira_loop, arrays, offline=True),
        "rmia online": functools.partial(_rmia_loop, arrays, None),
        "rmia offline": functools.partial(_rmia_loop, arrays, A),
    }


def _lira_loop(arrays: Arrays, *, fixed: bool = False, offline: bool = False) -> np.ndarray:
    from scipy import special

    scores, sides = [], []
    for i in range(len(arrays.scores)):
        values, is_member = arrays.shadow_scores[:, i].astype(np.float64), arrays.is_member[:, i]
        parts = values[is_member], values[~is_member]
        sides.append([(x.mean(), x.var(ddof=1), x.size - 1) for x in parts])
    moments = np.array(sides)
    if fixed:
        free = moments[:, :, 2]
        moments[:, :, 1] = (moments[:, :, 1] * free).sum(axis=0) / free.sum(axis=0)
    for s, ((mean_in, var_in, _), (mean_out, var_out, _)) in zip(
        arrays.scores, moments, strict=True
    ):
        z_out = (s - mean_out) / np.sqrt(var_out)
        z_in = (s - mean_in) / np.sqrt(var_in)
        ratio = (np.log(var_out / var_in) + z_out**2 - z_in**2) / 2
        scores.append(special.log_ndtr(z_out) if offline else ratio)
    return np.array(scores)


def _rmia_loop(arrays: Arrays, a: float | None) -> np.ndarray:
    def prior(p_out: float, p_in: float) -> float:
        return (p_out + p_in) / 2 if a is None else ((1 + a) * p_out + (1 - a)) / 2

    ratios = []
    for j, log_p in enumerate(arrays.population.log_probs):
        p = np.exp(arrays.population.shadow_log_probs[:, j].astype(np.float64)).mean()
        ratios.append(np.exp(np.float64(log_p)) / prior(p, p))
    population_ratios, scores = np.array(ratios), []
    for i, log_p in enumerate(arrays.log_probs):
        p = np.exp(arrays.shadow_log_probs[:, i].astype(np.float64))
        is_member = arrays.is_member[:, i]
        ratio = np.exp(np.float64(log_p)) / prior(p[~is_member].mean(), p[is_member].mean())
        scores.append((ratio / population_ratios >= GAMMA).mean())
    return np.array(scores)


def run(settings: Settings) -> dict[str, Any]:
    """Times every attack, and its loop once; `rows` has a dict for each."""
    size = settings.records, settings.shadows, settings.population
    arrays = draw_arrays(*size)
    attacks_by_name, loops_by_name = attacks(arrays), loops(arrays)
    times = common.interleaved(attacks_by_name, repeats=settings.repeats)
    rows = []
    for name, function in attacks_by_name.items():
        start = time.perf_counter()
        expected = loops_by_name[name]()
        loop_seconds = time.perf_counter() - start
        has_memory = settings.memory is None or name in settings.memory
        rows.append(
            {
                "attack": name,
                "seconds": float(np.median(times[name])),
                "loop_seconds": loop_seconds,
                "difference": float(np.abs(function() - expected).max()),
                "growth_mb": _growth_mb(name, size) if has_memory else None,
            }
        )
    return {"rows": rows, "goal_seconds": GOAL_SECONDS, "goal_mb": GOAL_MB}


def _growth_mb(name: str, size: tuple[int, ...]) -> float:
    module = "experiments.benchmarks.scoring"
    return common.growth_mb_of_process(module, name, *map(str, size))


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    return common.text_table(
        ("attack", "seconds", "loop", "times", "MB", "difference"),
        (
            (
                row["attack"],
                f"{row['seconds']:.3f}",
                f"{row['loop_seconds']:.2f}",
                f"{row['loop_seconds'] / row['seconds']:.0f}",
                "" if row["growth_mb"] is None else f"{row['growth_mb']:.0f}",
                f"{row['difference']:.1e}",
            )
            for row in record["rows"]
        ),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", nargs=4, required=True)
    chosen, *size_of = parser.parse_args().memory
    print(json.dumps(common.growth_mb(attacks(draw_arrays(*map(int, size_of)))[chosen])))
