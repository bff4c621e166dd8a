"""The code of the README and of the documentation runs and prints what they show."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf8")
TOUR = README.split("## The tour")[1].split("\n## ")[0]


TOUR_CODE = "\n".join(re.findall(r"```python\n(.*?)```", TOUR, re.S))
TOUR_OUTPUT = "".join(re.findall(r"```text\n(.*?)```", TOUR, re.S))


def printed_by(code, name):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, name, "exec"), {})
    return printed.getvalue()


@pytest.mark.slow
def test_the_tour_prints_what_it_says():
    assert printed_by(TOUR_CODE, "README.md") == TOUR_OUTPUT


def test_the_tour_runs():
    """With fewer steps, so that the numbers are others."""
    assert TOUR_CODE.count("1500") >= 4
    printed = printed_by(TOUR_CODE.replace("1500", "15"), "README.md")
    assert re.sub(r"[\d.]+", "#", printed) == re.sub(r"[\d.]+", "#", TOUR_OUTPUT)


def test_a_model_of_another_library_trains_and_explains_itself():
    models = (ROOT / "docs" / "models.md").read_text("utf8")
    (code,) = re.findall(r"```python\n(.*?)```", models, re.S)
    printed = printed_by(code, "models.md")
    assert re.search(r"embed.* lookup", printed)
    assert "explicit" in printed


def test_the_recipe_for_a_training_of_another_framework_runs():
    page = (ROOT / "docs" / "command_line.md").read_text("utf8").split("## Your own network")[1]
    network, recipe = re.findall(r"```python\n(.*?)```", page.split("\n## ")[0], re.S)
    names = {}
    exec(compile(network, "my_model.py", "exec"), names)
    assert names["make"]()[2] == 500
    assert re.search(r"[12] of 2 attacks find", printed_by(recipe, "command_line.md"))


def test_links_lead_to_files_of_the_repository():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text("utf8")):
            assert (page.parent / link).exists(), (page.name, link)
