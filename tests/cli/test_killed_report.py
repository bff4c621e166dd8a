"""A report that is killed at random moments and resumed equals an uninterrupted one."""

import json
import time

import numpy as np
import pytest

from tests.cli.killing import killed, start


def findings(out):
    """The report, apart from the circumstances of its run."""
    return {**json.loads((out / "report.json").read_text("utf8")), "run": None}


@pytest.mark.slow
def test_ten_sigkills_change_no_report(tmp_path):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(120, 4))
    np.savez(tmp_path / "toy.npz", x=x, y=(x[:, 0] > 0).astype(int))
    words = [
        "report", "--no-dp", "--seed", 1, "--data", tmp_path / "toy.npz", "--shadows", 4,
        "--width", 2, "--plain-steps", 5, "--attack-steps", 5,
    ]  # fmt: skip
    whole, out = tmp_path / "whole", tmp_path / "killed"
    begun = time.monotonic()
    process = start("all", *words, "--out", whole)
    _, err = process.communicate()
    assert process.returncode == 0, err
    duration, count = time.monotonic() - begun, 0
    for _ in range(10):
        if not killed("all", *words, "--resume", out=out, after=rng.uniform(0, 0.6 * duration)):
            break
        count += 1
        if (out / "report.json").exists():  # killed while the process ended
            break
        assert not list(out.glob("report*")), "a page of an unfinished report"
    if not (out / "report.json").exists():
        process = start("all", *words, "--resume", "--out", out)
        _, err = process.communicate()
        assert process.returncode == 0, err
    assert count >= 2
    assert findings(out) == findings(whole)
    names = {path.name for path in out.iterdir()} - {".checkpoints"}
    assert names == {"evidence", "report.html", "report.json"}
