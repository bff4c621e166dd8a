"""The notebooks run as they are stored, and their prose states what their cells assert."""

import ast
import os
import re
from pathlib import Path

import nbclient
import nbformat
import pytest
from ipykernel import kernelspec
from nbclient.exceptions import CellExecutionError
from nbformat import v4

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
DECIMAL = r"\d+\.\d+"

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Runs a notebook on this interpreter, in an empty folder, with nothing of the user's."""
    kernelspec.write_kernel_spec(tmp_path / "kernels" / "python3")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    # The tests' own process may hold the GPU's memory.
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    # As the reader runs it: optimised, and with figures, which the tests' Agg would drop.
    monkeypatch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS", raising=False)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.delenv("MPLBACKEND", raising=False)
    folder = tmp_path / "empty"
    folder.mkdir()

    def run(notebook):
        resources = {"metadata": {"path": str(folder)}}
        client = nbclient.NotebookClient(
            notebook, timeout=120, kernel_name="python3", resources=resources
        )
        return client.execute()

    return run


def markdown(notebook):
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def code(notebook):
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")


def asserted(source):
    """The decimals in asserts, and those that an upper-case name sets."""
    found = []
    for node in ast.walk(ast.parse(source)):
        setting = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).isupper()
        if isinstance(node, ast.Assert) or setting:
            found += re.findall(DECIMAL, ast.unparse(node))
    return found


def unasserted(notebook):
    """The decimals of the prose that are no rounding of one that a cell asserts."""
    known = asserted(code(notebook))
    outside_formulas = re.sub(r"\$\$.*?\$\$", "", markdown(notebook), flags=re.S)
    stated = re.findall(DECIMAL, outside_formulas)
    places = {text: len(text.split(".")[1]) for text in stated}
    return [t for t in stated if float(t) not in {round(float(k), places[t]) for k in known}]


def widget_outputs(notebook):
    """What callbacks of widgets wrote: their errors do not fail the cell."""
    states = notebook.metadata.get("widgets", {}).values()
    models = [model for state in states for model in state["state"].values()]
    return [output for model in models for output in model["state"].get("outputs", [])]


def test_there_are_notebooks():
    assert NOTEBOOKS


@each
def test_runs_without_an_error_or_a_warning(path, execute):
    notebook = execute(nbformat.read(path, as_version=4))
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in shown)
    for output in shown + widget_outputs(notebook):
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr", output["text"]


@each
def test_is_stored_without_outputs(path):
    text = path.read_text("utf8")
    notebook = nbformat.reads(text, as_version=4)
    assert text == nbformat.writes(notebook) + "\n"
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        assert cell.metadata == {}  # no tag that would let an error pass
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


@each
def test_every_number_of_the_prose_is_asserted(path):
    assert unasserted(nbformat.read(path, as_version=4)) == []


def test_a_number_that_drifts_is_found(execute):
    prose = v4.new_markdown_cell("The advantage is 0.3691, and not 0.2763; $$0.5$$ is a formula.")
    true = v4.new_code_cell("assert round(0.3691263, 6) == 0.369126")
    assert unasserted(v4.new_notebook(cells=[prose, true])) == ["0.2763"]
    false = v4.new_code_cell("assert round(0.3691263, 4) == 0.2763")
    with pytest.raises(CellExecutionError, match="AssertionError"):
        execute(v4.new_notebook(cells=[false]))
