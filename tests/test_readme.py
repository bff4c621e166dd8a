"""The code of the README and of the documentation runs and prints what they show."""

import contextlib
import io
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf8")
TOUR = README.split("## The tour")[1].split("\n## ")[0]


def test_the_tour_runs_and_prints_what_it_says():
    code = "\n".join(re.findall(r"```python\n(.*?)```", TOUR, re.S))
    expected = "".join(re.findall(r"```text\n(.*?)```", TOUR, re.S))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue() == expected


def test_a_model_of_another_library_trains_and_explains_itself():
    models = (ROOT / "docs" / "models.md").read_text("utf8")
    (code,) = re.findall(r"```python\n(.*?)```", models, re.S)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "models.md", "exec"), {})
    assert re.search(r"embed.* lookup", printed.getvalue())
    assert "explicit" in printed.getvalue()


def test_links_lead_to_files_of_the_repository():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text("utf8")):
            assert (page.parent / link).exists(), (page.name, link)
