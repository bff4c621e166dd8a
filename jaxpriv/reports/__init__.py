"""Privacy reports.

`assembly` runs the experiment, `findings` are its stored results, `page` and `wording` show them.

Modules are imported when they are first used, so that `settings` does not import jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jaxpriv.reports.settings import Settings, read_toml

if TYPE_CHECKING:
    from jaxpriv.reports import (
        assembly,
        findings,
        page,
        partition,
        plots,
        settings,
        subjects,
        wording,
    )
    from jaxpriv.reports.assembly import Folders, assemble, assemble_outputs
    from jaxpriv.reports.findings import Report
    from jaxpriv.reports.page import (
        as_json,
        find_browser,
        read,
        render,
        schema,
        write,
        write_pdf,
    )
    from jaxpriv.reports.wording import model_rows, summary

__all__ = [
    "Folders",
    "Report",
    "Settings",
    "as_json",
    "assemble",
    "assemble_outputs",
    "assembly",
    "find_browser",
    "findings",
    "model_rows",
    "page",
    "partition",
    "plots",
    "read",
    "read_toml",
    "render",
    "schema",
    "settings",
    "subjects",
    "summary",
    "wording",
    "write",
    "write_pdf",
]

_MODULE_OF = {
    "Folders": "assembly",
    "Report": "findings",
    "as_json": "page",
    "assemble": "assembly",
    "assemble_outputs": "assembly",
    "find_browser": "page",
    "read": "page",
    "render": "page",
    "schema": "page",
    "model_rows": "wording",
    "summary": "wording",
    "write": "page",
    "write_pdf": "page",
}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        module = importlib.import_module(f"jaxpriv.reports.{_MODULE_OF[name]}")
        return getattr(module, name)
    if name in __all__:
        return importlib.import_module(f"jaxpriv.reports.{name}")
    raise AttributeError(f"module 'jaxpriv.reports' has no attribute {name!r}")
