"""What every experiment shares: where results go, what they say of the machine, fair timing."""

import datetime
import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from jaxpriv import _files

PRESETS = ("smoke", "cpu", "paper")


def machine() -> dict[str, Any]:
    """Names the processor, the accelerator and the versions that a number depends on."""
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


def interleaved(
    functions: dict[str, Callable[[], Any]], *, repeats: int, seconds: float = 0.0
) -> dict[str, list[float]]:
    """Times functions in turn, so that a busy machine is busy for all of them.

    Args:
      functions: each blocks until its result is there; called once before, untimed.
      repeats: rounds.
      seconds: a round runs each function at least so long, and takes the mean.

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
    """MB by which the process grows in a call, over what it holds before; Linux only.

    The function is called once before, so that neither compiling nor loading counts.
    """
    function()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status_mb("VmRSS")
    function()
    return _status_mb("VmHWM") - before


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1]) / 1e3


def ratio(times: dict[str, list[float]], name: str, base: str) -> float:
    """Median over rounds of one function's time divided by another's in the same round."""
    return statistics.median(a / b for a, b in zip(times[name], times[base], strict=True))
