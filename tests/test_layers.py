"""Imports go strictly downward, and siblings never meet: read from the syntax trees."""

import ast
from pathlib import Path

import jaxpriv

ROOT = Path(jaxpriv.__file__).parent
LAYERS = [
    {"_names"},
    {"_types", "_check", "_tree", "_files", "_rounding"},
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
    assert not upward("from jaxpriv.grads import ghost", "grads")


def test_only_plots_imports_matplotlib():
    users = {
        path.name
        for path in ROOT.rglob("*.py")
        if any(name.split(".")[0] == "matplotlib" for name in imported(ast.parse(path.read_text())))
    }
    assert users == {"plots.py"}
