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
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from experiments import common
from jaxpriv.attacks import lira, rmia

SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {"size": [200, 8, 50], "repeats": 1, "weighed": ["lira online"]},
    "cpu": {"size": [50_000, 256, 10_000], "repeats": 5, "weighed": None},
    "paper": {"size": [50_000, 256, 25_000], "repeats": 5, "weighed": None},
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


def drawn(records: int, shadows: int, population_size: int) -> Arrays:
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
        "lira online, fixed": lambda: lira.online(*gaussian),
        "lira offline": lambda: lira.offline(*gaussian, variance="per_example"),
        "rmia online": lambda: rmia.online(*likely, **options),
        "rmia offline": lambda: rmia.offline(*likely, **options, a=A),
    }


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


def run(preset: str) -> dict[str, Any]:
    """Times every attack, and its loop once; `rows` holds a dict for each."""
    settings = SETTINGS[preset]
    arrays = drawn(*settings["size"])
    attacks_by_name, loops_by_name = attacks(arrays), loops(arrays)
    times = common.interleaved(attacks_by_name, repeats=settings["repeats"])
    rows = []
    for name, function in attacks_by_name.items():
        started = time.perf_counter()
        expected = loops_by_name[name]()
        taken = time.perf_counter() - started
        weigh = settings["weighed"] is None or name in settings["weighed"]
        rows.append(
            {
                "attack": name,
                "seconds": float(np.median(times[name])),
                "loop_seconds": taken,
                "difference": float(np.abs(function() - expected).max()),
                "growth_mb": _growth(name, settings["size"]) if weigh else None,
            }
        )
    return {
        "settings": settings,
        "rows": rows,
        "goal_seconds": GOAL_SECONDS,
        "goal_mb": GOAL_MB,
    }


def _growth(name: str, size: list[int]) -> float:
    words = [sys.executable, "-m", "experiments.benchmarks.scoring", "--memory", name]
    # Freed arrays go back to the system at once, so that the second call's are seen.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        [*words, *map(str, size)], capture_output=True, text=True, check=True, env=env
    )
    return json.loads(done.stdout.splitlines()[-1])


def table(record: dict[str, Any]) -> str:
    """The rows, for people."""
    lines = [f"{'attack':20}{'seconds':>9}{'loop':>9}{'times':>7}{'MB':>8}{'difference':>12}"]
    for row in record["rows"]:
        grown = "" if row["growth_mb"] is None else f"{row['growth_mb']:.0f}"
        lines.append(
            f"{row['attack']:20}{row['seconds']:9.3f}{row['loop_seconds']:9.2f}"
            f"{row['loop_seconds'] / row['seconds']:7.0f}{grown:>8}{row['difference']:12.1e}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", nargs=4, required=True)
    chosen, *size_of = parser.parse_args().memory
    print(json.dumps(common.growth_mb(attacks(drawn(*map(int, size_of)))[chosen])))
