"""Sets JAX up as the tests need it before anything imports it."""

import gc
import importlib.metadata
import os

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


@pytest.fixture(scope="module", autouse=True)
def _clear_caches():
    """Frees compiled programs after each module, so that a worker stays below 2 GiB."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture
def keys():
    """`keys(n)`: n keys, the same in every run."""
    return lambda n: jax.random.split(jax.random.key(20261127), n)
