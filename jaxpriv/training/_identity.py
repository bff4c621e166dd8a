"""Describes what determines a run: arrays, settings, functions with their closures, versions.

The description is a flat dictionary from a path such as `algorithm.update.clipped_grad.clip_norm`
to a short text. Comparing two descriptions shows which arguments of two runs differ.
"""

import dataclasses
import enum
import functools
import hashlib
import importlib.metadata
import inspect
import platform
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

_PACKAGES = ("jaxpriv", "jax", "jaxlib", "numpy", "optax", "flax")
# Functions of these packages are identified by name and version, all others also by their code.
_LIBRARIES = {*_PACKAGES, "beartype", "builtins", "chex", "dp_accounting", "jaxtyping", "scipy"}
_MAX_TEXT = 60
"""Longer texts are shortened to their start and a hash."""


def describe(**arguments: Any) -> dict[str, str]:
    """Describes the arguments of a run.

    A function is described by its name, the values it closes over and, outside well-known
    libraries, its code and the globals that it uses. Attributes that begin with an underscore
    are left out. Objects without attributes are described by their type alone.

    Args:
      arguments: values by name: trees of arrays, keys, numbers, functions.

    Returns:
      A text for each part of each value, in a fixed order.
    """
    rows: dict[str, str] = {}
    seen: dict[int, Any] = {}
    for name, value in arguments.items():
        _describe(name, value, rows, seen)
    return rows


def versions() -> dict[str, str]:
    """Lists the versions and the platform on which the bits of a run depend."""
    rows = {"version of python": platform.python_version()}
    rows |= {f"version of {name}": importlib.metadata.version(name) for name in _PACKAGES}
    return {**rows, "platform": jax.default_backend()}


def difference(saved: Mapping[str, str], current: Mapping[str, str]) -> str:
    """Formats the difference between two descriptions.

    An absent value equals None, so that checkpoints stay valid when an optional argument is added.

    Args:
      saved: description of the checkpoint's run.
      current: description of the current run.

    Returns:
      A text with at most three differences; empty if there are none.
    """
    names = [n for n in {**current, **saved} if saved.get(n, "None") != current.get(n, "None")]
    texts = [
        f"{n} ({saved.get(n, 'absent')} in the checkpoint, {current.get(n, 'absent')} now)"
        for n in names[:3]
    ]
    return "; ".join([*texts, *([f"{len(names) - 3} more"] if len(names) > 3 else [])])


def _describe(path: str, value: Any, rows: dict[str, str], seen: dict[int, Any]) -> None:
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        rows[path] = _short(repr(value))
    elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
        rows[path] = _array(value)
    elif isinstance(value, (np.dtype, enum.Enum, types.ModuleType)):
        rows[path] = value.__name__ if isinstance(value, types.ModuleType) else str(value)
    elif isinstance(value, (set, frozenset)):
        rows[path] = _short(repr(sorted(map(repr, value))))
    elif id(value) not in seen:
        seen[id(value)] = value  # a reference, so that no other object gets this id
        for name, component in _components(path, value, rows):
            _describe(f"{path}{name}", component, rows, seen)


def _components(path: str, value: Any, rows: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Yields the named components of a compound value, and describes the rest of it."""
    if isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from ((".self", value.__self__), (".method", value.__func__))
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", value[key]) for key in sorted(value, key=repr))
    elif isinstance(value, (tuple, list)):
        names = getattr(value, "_fields", None)
        for i, element in enumerate(value):
            yield (f"[{i}]" if names is None else f".{names[i]}"), element
    elif isinstance(value, type):
        rows[path] = f"{value.__module__}.{value.__qualname__}"
        if not _is_of_library(value):
            methods = {k: v for k, v in vars(value).items() if inspect.isfunction(v)}
            yield from ((f".{name}", method) for name, method in sorted(methods.items()))
    elif isinstance(function := inspect.unwrap(value), types.FunctionType):
        rows[path] = f"{function.__module__}.{function.__qualname__}"
        yield from _components_of_function(path, function, rows)
    else:
        rows[path] = type(value).__qualname__
        leaves = jax.tree_util.tree_leaves_with_path(value)
        if not (len(leaves) == 1 and leaves[0][1] is value):  # a registered container
            yield from ((jax.tree_util.keystr(p), leaf) for p, leaf in leaves)
        yield from _attributes(value)


def _components_of_function(
    path: str, function: types.FunctionType, rows: dict[str, str]
) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:  # the variable is not assigned yet
            continue
    if function.__defaults__ or function.__kwdefaults__:
        yield ".defaults", (function.__defaults__, function.__kwdefaults__)
    if not _is_of_library(function):
        rows[f"{path} (code)"] = hashlib.sha256(_code(function.__code__).encode()).hexdigest()[:12]
        names = sorted(set(_global_names(function.__code__)) & set(function.__globals__))
        yield from ((f".{name}", function.__globals__[name]) for name in names)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    else:
        names = sorted(getattr(value, "__dict__", {}))
    for name in names:
        # A module of flax refers to the module that contains it as its parent.
        if not name.startswith("_") and name != "parent":
            yield f".{name}", getattr(value, name, None)
    if not _is_of_library(type(value)):
        yield ".class", type(value)


def _is_of_library(value: Callable[..., Any]) -> bool:
    return (value.__module__ or "").split(".")[0] in _LIBRARIES


def _code(code: types.CodeType) -> str:
    """Returns the instructions without line numbers, which change with lines added above."""
    constants = [_constant(value) for value in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, constants))


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _code(value)
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _array(value: Any) -> str:
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.ascontiguousarray(np.asarray(value))
    if array.ndim == 0 or array.size == 1:
        return f"{array.dtype} {array.ravel()[0]!s}"
    digest = hashlib.sha256(array.tobytes()).hexdigest()[:12]
    return f"{array.dtype}{list(array.shape)} {digest}"


def _short(text: str) -> str:
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[:20]}... {hashlib.sha256(text.encode()).hexdigest()[:12]}"
