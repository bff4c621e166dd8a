"""What importing costs, and that a wheel carries everything."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def loaded_by(code):
    """Top-level and dotted names of the modules that a fresh interpreter has after `code`."""
    program = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/"
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_jaxpriv_loads_nothing_heavy():
    heavy = {
        "dp_accounting",
        "gymnax",
        "matplotlib",
        "scipy.stats",
        "sklearn",
        "tensorflow_datasets",
    }
    assert not loaded_by("import jaxpriv") & (heavy | {"jax"})
    assert not loaded_by("import jaxpriv as jp; jp.grads, jp.accounting, jp.metrics") & heavy
    assert not loaded_by("import jaxpriv as jp; jp.sampling, jp.training, jp.attacks") & heavy


def test_help_loads_no_jax():
    code = "from jaxpriv import cli\ntry: cli.main(['report', '--help'])\nexcept SystemExit: pass"
    names = loaded_by(code)
    assert "jaxpriv.cli" in names
    assert not names & {"jax", "jaxlib", "numpy", "flax"}


def test_unknown_parts_are_named():
    import jaxpriv

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = jaxpriv.nothing
    assert {"grads", "training"} <= set(dir(jaxpriv))


def test_a_wheel_installs_and_runs_outside_the_tree(tmp_path):
    """Template, schema and typing marker inside; the command runs from the installed copy."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    subprocess.run([*pip, *build], check=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("jaxpriv-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in ("py.typed", "reports/page.html.j2", "reports/report.schema.json"):
        assert f"jaxpriv/{name}" in names
    assert not any(name.startswith(("tests/", "experiments/")) for name in names)
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import jaxpriv, jaxpriv.cli as c;"
        "assert jaxpriv.__file__.startswith(sys.argv[1]);"
        "from importlib import resources as r;"
        "assert (r.files('jaxpriv.reports') / 'page.html.j2').is_file();"
        "c.main(['epsilon', '--noise-multiplier', '1', '--sampling-prob', '1', '--steps', '1',"
        "'--delta', '1e-5', '--relation', 'add_or_remove_one', '--json'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(site)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert json.loads(done.stdout)["epsilon"] == pytest.approx(4.377178, rel=1e-5)
