"""Extension of griffe: the section "Example:" of a docstring is the examples section of the site.

griffe parses "Examples:" alone, and would set an example as text, in which a printed list looks
like a link.
"""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Renames the section in every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Renames the section in the docstring of an object."""
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )
