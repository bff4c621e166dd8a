"""The examples in the docstrings do what they say."""

import ast
import doctest
import importlib
import inspect
import pkgutil

import pytest

import jaxpriv

MODULES = sorted(m.name for m in pkgutil.walk_packages(jaxpriv.__path__, "jaxpriv."))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name), verbose=False)
    assert result.failed == 0


def written(module):
    """Names of the functions and classes of a module whose docstrings have examples."""
    tree = ast.parse(inspect.getsource(module))
    nodes = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    return {n.name for n in nodes if ">>>" in (ast.get_docstring(n) or "")}


def test_every_example_is_run():
    """Type checks wrap functions, and doctest looks at those of the module alone."""
    finder, count = doctest.DocTestFinder(), 0
    for name in MODULES:
        module = importlib.import_module(name)
        tests = {t.name.removeprefix(f"{name}.") for t in finder.find(module) if t.examples}
        assert written(module) <= tests
        count += len(written(module))
    assert count > 200
