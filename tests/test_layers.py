"""Imports go strictly downward, and siblings never meet: read from the syntax trees."""

import ast
from pathlib import Path

import pytest

import jaxpriv

ROOT = Path(jaxpriv.__file__).parent
LAYERS = [
    {"_names"},
    {"_types", "_check", "_tree", "_keys", "_files", "_rounding", "_progress", "_jaxprs"},
    {"_convolutions"},
    {"units"},
    {"signals", "grads", "sampling", "accounting", "metrics", "models", "envs", "data"},
    {"identifiability", "training"},
    {"sensitivity", "rl"},
    {"attacks", "defences", "audit"},
    {"reports"},
    {"cli"},
]


def layer(part):
    return next(i for i, names in enumerate(LAYERS) if part in names)


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            if node.module == "jaxpriv":
                yield from (f"jaxpriv.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


def upward(source, home):
    """Parts of jaxpriv that a module of `home` may not import."""
    parts = [name.split(".") for name in imported(ast.parse(source))]
    named = {p[1] for p in parts if p[0] == "jaxpriv" and len(p) > 1 and p[1] != home}
    return {part for part in named if layer(part) >= layer(home)}


def test_every_import_goes_down():
    seen = set()
    for path in ROOT.rglob("*.py"):
        home = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if home == "__init__":
            continue
        seen.add(home)
        assert not upward(path.read_text("utf8"), home), path
    assert {"grads", "training", "reports", "cli"} <= seen


def test_the_check_itself_can_fail():
    assert upward("from jaxpriv import training", "grads") == {"training"}
    assert upward("import jaxpriv.sampling as s", "accounting") == {"sampling"}
    assert not upward("from jaxpriv.grads import _ghost_plan", "grads")


TABLES = {
    "attacks": {"suite", "floor_map", "sequence", "_runs"},
    "audit": {"bounds", "trainings"},
    "defences": {"base"},
}
"""Modules that import the members of their package; every attack may import `evidence`."""


def sideways(source, package, module):
    """Modules of its own package that an attack, an audit or a defence may not import."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == f"jaxpriv.{package}":
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {(node.module or "").removeprefix(f"jaxpriv.{package}.")}
    members = {path.stem for path in (ROOT / package).glob("*.py")} - TABLES[package] - {"evidence"}
    if module in TABLES[package] | {"__init__"}:
        return set()
    return {name for name in names & members if not name.startswith("_")}


@pytest.mark.parametrize("package", TABLES)
def test_siblings_in_a_package_do_not_import_each_other(package):
    for path in (ROOT / package).glob("*.py"):
        assert not sideways(path.read_text("utf8"), package, path.stem), path


def test_the_check_of_siblings_can_fail():
    assert sideways("from jaxpriv.attacks import _shadows, lira", "attacks", "rmia") == {"lira"}
    assert sideways("from jaxpriv.attacks.lira import online", "attacks", "rmia") == {"lira"}
    assert not sideways("from jaxpriv.attacks import evidence, _shadows", "attacks", "rmia")
    assert not sideways("from jaxpriv.attacks import lira", "attacks", "suite")


def test_only_plots_imports_matplotlib():
    users = {
        path.name
        for path in ROOT.rglob("*.py")
        if any(name.split(".")[0] == "matplotlib" for name in imported(ast.parse(path.read_text())))
    }
    assert users == {"plots.py"}
