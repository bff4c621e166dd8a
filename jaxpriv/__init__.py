"""Measures how much a model leaks about its training data, and trains models that leak less.

Sub-packages are imported when they are first used.

Example:
  >>> import jaxpriv as jp
  >>> sampler = jp.sampling.full_batch(1000)
  >>> event = sampler.event(noise_multiplier=2.0, steps=4)
  >>> round(jp.accounting.epsilon(event, delta=1e-5, relation="add_or_remove_one"), 3)
  4.377
"""

import importlib
from types import ModuleType

__all__ = [
    "accounting",
    "attacks",
    "audit",
    "data",
    "defences",
    "envs",
    "grads",
    "identifiability",
    "metrics",
    "models",
    "reports",
    "rl",
    "sampling",
    "sensitivity",
    "signals",
    "training",
    "units",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"jaxpriv.{name}")
    raise AttributeError(f"module 'jaxpriv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
