"""Loads a function from a file of the user's, named FILE.py:function."""

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def names_file(text: str) -> bool:
    """Returns whether a text has the form FILE.py:function."""
    path, separator, _ = text.rpartition(":")
    return bool(separator) and path.endswith(".py")


def load_function(text: str) -> Callable[..., Any]:
    """Runs a file and returns one of its functions.

    The folder of the file is searched for its own imports, as when Python runs the file.

    Args:
      text: FILE.py:function.

    Returns:
      The function.

    Raises:
      ValueError: if the file does not exist, cannot be run, or has no such function; the message
        names the line.
    """
    file, _, name = text.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"Expected a file at {path}, got none.")
    spec = importlib.util.spec_from_file_location(f"_user_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as e:
        raise ValueError(f"Expected a file that runs, got {describe(e, path)}.") from e
    finally:
        sys.path.remove(folder)
    function = getattr(module, name, None)
    if not callable(function):
        names = ", ".join(n for n, v in vars(module).items() if callable(v) and n[0] != "_")
        raise ValueError(f"Expected the function {name!r} in {path.name}, got {names or 'none'}.")
    return function


def describe(error: Exception, path: Path) -> str:
    """Describes an error in one line, with the last line of the file that it passed through."""
    text = " ".join(str(error).split()) or "no message"
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} in {path.name}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).name == path.name]
    where = f" in {path.name}, line {lines[-1]}" if lines else ""
    return f"{type(error).__name__}: {text.rstrip('.')}{where}"
