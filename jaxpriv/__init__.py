"""How much a model leaks about its training data, and how to train one that leaks less.

Sub-packages load when they are first named: `import jaxpriv as jp; jp.accounting.epsilon(...)`.
"""

import importlib
from types import ModuleType

__version__ = "0.1.0"
__all__ = [
    "accounting",
    "attacks",
    "audit",
    "data",
    "defences",
    "grads",
    "identifiability",
    "metrics",
    "models",
    "reports",
    "sampling",
    "signals",
    "training",
    "units",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"jaxpriv.{name}")
    raise AttributeError(f"module 'jaxpriv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
