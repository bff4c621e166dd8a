"""Shared by the experiments: records, text tables, the description of the machine, timing."""

import datetime
import gc
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from jaxpriv import _files


def machine() -> dict[str, Any]:
    """Describes what a number depends on: the processor, the accelerator, the versions."""
    import jax

    import jaxpriv

    names = ("jax", "jaxlib", "flax", "optax", "numpy")
    model = [
        line.split(":", 1)[1].strip()
        for line in _cpu_lines()
        if line.startswith(("model name", "Model"))
    ]
    return {
        "device": jax.devices()[0].device_kind,
        "platform": jax.default_backend(),
        "processor": model[0] if model else platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {
            "jaxpriv": jaxpriv.__version__,
            **{name: metadata.version(name) for name in names},
        },
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def write(path: Path, record: dict[str, Any]) -> None:
    """Writes a record as JSON, completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    _files.write_whole(path, text.encode())


def text_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Formats rows of cells as text: the first column to the left, the others to the right."""
    import rich.box
    import rich.console
    import rich.table

    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    rich.console.Console(file=text, width=400, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


def interleaved(
    functions: dict[str, Callable[[], Any]], *, repeats: int, seconds: float = 0.0
) -> dict[str, list[float]]:
    """Times functions in turn, so that other load on the machine slows all of them alike.

    Args:
      functions: functions that block until their result is computed. Each is called once,
        untimed, before the first round.
      repeats: number of rounds.
      seconds: minimum time of a function in a round, over which its time is averaged.

    Returns:
      Seconds of one call, for each function and round.
    """
    for function in functions.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            started, calls = time.perf_counter(), 0
            while not calls or time.perf_counter() - started < seconds:
                function()
                calls += 1
            times[name].append((time.perf_counter() - started) / calls)
    return times


def growth_mb(function: Callable[[], Any]) -> float:
    """Measures by how many MB the process grows during a call; Linux only.

    The function is called once before, so that neither compilation nor loading counts.
    """
    function()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak
    before = _status_mb("VmRSS")
    function()
    return _status_mb("VmHWM") - before


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1]) / 1e3


def growth_mb_of_process(module: str, *words: str) -> float:
    """Runs `python -m module --memory words...`, which prints `growth_mb` of one function."""
    # Freed arrays go back to the system at once, so that those of the second call count.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", module, "--memory", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return json.loads(done.stdout.splitlines()[-1])


def mean_interval(values: Sequence[float], *, confidence: float) -> list[float]:
    """Computes the mean, with the ends of its interval of Student's t."""
    from scipy import stats

    mean = statistics.fmean(values)
    half = stats.t.ppf((1 + confidence) / 2, len(values) - 1) * stats.sem(values)
    return [mean, float(mean - half), float(mean + half)]


def ratio(times: dict[str, list[float]], name: str, base: str) -> float:
    """Returns the median over rounds of one function's time divided by another's."""
    return statistics.median(a / b for a, b in zip(times[name], times[base], strict=True))


def cell(triple: Sequence[float], *, factor: float = 1.0, digits: int = 2) -> str:
    """Formats a number with its interval."""
    value, low, high = (factor * number for number in triple)
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def percent(triple: Sequence[float]) -> str:
    """Formats a share with its interval, in percent."""
    return cell(triple, factor=100, digits=0)
