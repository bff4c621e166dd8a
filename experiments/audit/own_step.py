"""Audits the library's own DP-SGD by the probes of the bug zoo, as a user would audit theirs.

Run:       python -m experiments run audit/own_step --preset cpu (or make audit-self)
Time:      smoke 40 s, cpu 2 min with one thread
Expected:  no probe is flagged, with probability 95 % over all of them
Ours:      7 probes pass (cpu, 2026-11-29)

For another training step, replace `zoo.library_algorithm` by a function that returns its
`training.Algorithm`: init, update, sampler and the event that it claims.
"""

import functools
import time
from dataclasses import dataclass
from typing import Any

import jax

from experiments import common
from experiments.audit import zoo


@dataclass(frozen=True, kw_only=True)
class Settings:
    """probes: names in `zoo.PROBES`. runs: number of trainings for each."""

    probes: tuple[str, ...] = tuple(zoo.PROBES)
    runs: int


PRESETS = {
    "smoke": Settings(probes=("large gradient",), runs=60),
    "cpu": Settings(runs=1000),
    "paper": Settings(runs=10_000),
}
LEVEL = 0.05


def run(settings: Settings) -> dict[str, Any]:
    """Audits the step by each probe."""
    rows = []
    for name in settings.probes:
        probe, key = zoo.PROBES[name], jax.random.key(23)
        make = functools.partial(zoo.library_algorithm, probe)
        started = time.monotonic()
        findings = zoo.check(
            key, probe, make, runs=settings.runs, level=LEVEL / len(settings.probes)
        )
        rows.append(
            {
                "probe": probe.title,
                "is_flagged": findings.is_flagged,
                "noise_tests": list(findings.noise.rejected),
                "promised": findings.promised,
                "bound": findings.bounds.clopper_pearson or 0.0,
                "seconds": round(time.monotonic() - started, 1),
            }
        )
    return {"level": LEVEL, "rows": rows}


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    rows = [
        (
            row["probe"],
            "flagged" if row["is_flagged"] else "passed",
            ", ".join(row["noise_tests"]) or "none",
            f"{row['bound']:.2f}",
            f"{row['promised']:.2f}",
            f"{row['seconds']:.0f}",
        )
        for row in record["rows"]
    ]
    return common.text_table(
        ("probe", "result", "rejected tests", "bound", "promised", "seconds"), rows
    )
