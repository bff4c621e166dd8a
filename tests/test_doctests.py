"""The examples in the docstrings do what they say."""

import doctest
import importlib
import pkgutil

import pytest

import jaxpriv

MODULES = sorted(m.name for m in pkgutil.walk_packages(jaxpriv.__path__, "jaxpriv."))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name), verbose=False)
    assert result.failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    found = [t for m in MODULES for t in finder.find(importlib.import_module(m)) if t.examples]
    assert len(found) >= 3
