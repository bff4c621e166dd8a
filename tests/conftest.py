"""Sets JAX up as the tests need it before anything imports it."""

import ctypes
import gc
import importlib.metadata
import os
import sys

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1":
    # Kernels are compiled twice as fast without the emitters of fusions. XLA aborts on a flag
    # that it does not have, so other versions go without.
    if importlib.metadata.version("jaxlib").startswith("0.10."):
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
import jax
import pytest

hypothesis.settings.register_profile(
    "jaxpriv", derandomize=True, deadline=None, max_examples=25, database=None
)
hypothesis.settings.load_profile("jaxpriv")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if all(device.platform == "cpu" for device in jax.devices()):
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(autouse=True)
def _bounded_memory():
    """Keeps a worker below 2 GiB, of which every compiled program takes about 2 MiB."""
    yield
    if sys.platform == "linux" and _resident_bytes() > 1.25 * 2**30:
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # the C library would keep the memory


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def keys():
    """`keys(n)`: n keys, the same in every run."""
    return lambda n: jax.random.split(jax.random.key(20261127), n)
