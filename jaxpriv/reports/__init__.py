"""Privacy reports. Modules load when they are first named, so that `settings` imports no jax."""

import importlib
from typing import TYPE_CHECKING, Any

from jaxpriv.reports.settings import Settings, read_toml

if TYPE_CHECKING:
    from jaxpriv.reports import findings, plots, wording
    from jaxpriv.reports.assembly import Folders, assemble, assemble_scores
    from jaxpriv.reports.findings import Report
    from jaxpriv.reports.page import as_json, read, render, schema, write
    from jaxpriv.reports.wording import summary

__all__ = [
    "Folders",
    "Report",
    "Settings",
    "as_json",
    "assemble",
    "assemble_scores",
    "findings",
    "plots",
    "read",
    "read_toml",
    "render",
    "schema",
    "summary",
    "wording",
    "write",
]

_MODULES = {
    "Folders": "assembly",
    "Report": "findings",
    "as_json": "page",
    "assemble": "assembly",
    "assemble_scores": "assembly",
    "read": "page",
    "render": "page",
    "schema": "page",
    "summary": "wording",
    "write": "page",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        module = importlib.import_module(f"jaxpriv.reports.{_MODULES[name]}")
        return getattr(module, name)
    if name in __all__:
        return importlib.import_module(f"jaxpriv.reports.{name}")
    raise AttributeError(f"module 'jaxpriv.reports' has no attribute {name!r}")
