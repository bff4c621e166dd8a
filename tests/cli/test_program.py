"""Parsing, and the commands that list data."""

import re

import numpy as np
import pytest

import jaxpriv
from jaxpriv.cli import main, program, report
from tests.cli.running import refusal, run
from tests.data import layouts


@pytest.mark.parametrize(
    "words",
    [
        "",
        "nothing",
        "epsilon --noise-multiplier 1",
        "epsilon --noise-multiplier one --sampling-prob 1 --steps 1 --delta .1 --relation x",
        "attack",
    ],
)
def test_bad_usage_exits_2(capsys, words):
    status, _, err = run(capsys, *words.split())
    assert status == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_data_list_names_every_set_and_what_serves_it(capsys, monkeypatch, tmp_path):
    layouts.lay(tmp_path / "mnist", layouts.mnist())
    layouts.lay(tmp_path / "multi30k", {"train.en": b"a\n", "train.fr": b"un\n"})
    monkeypatch.setenv("JAXPRIV_DATA", str(tmp_path))
    _, found, _ = run(capsys, "data", "list", "--json")
    by_name = {one["name"]: one for one in found["data"]}
    assert by_name["mnist"]["sources"] == ["raw"]
    assert by_name["digits"]["sources"] == ["package"]
    assert by_name["multi30k"] == {**by_name["multi30k"], "num_classes": None, "sources": ["raw"]}
    assert all(one["licence"] for one in found["data"])
    _, text, _ = run(capsys, "data", "list")
    assert len(text.splitlines()) == len(by_name) + 2


def test_data_path(capsys, monkeypatch, tmp_path):
    layouts.lay(tmp_path / "mnist", layouts.mnist())
    monkeypatch.setenv("JAXPRIV_DATA", str(tmp_path))
    _, found, _ = run(capsys, "data", "path", "mnist", "--json")
    assert found == {"name": "mnist", "path": str(tmp_path / "mnist")}
    _, text, _ = run(capsys, "data", "path", "synthetic_purchase")
    assert "no file" in text
    refusals = {
        "cifar100": "Expected a source of cifar100, found none",
        "nope": "Expected data to be one of",
    }
    for name, message in refusals.items():
        status, _, err = run(capsys, "data", "path", name)
        assert status == 2
        assert err.startswith("error: ")
        assert message in err
        assert err.count("\n") == 1


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"jaxpriv {jaxpriv.__version__}\n"


def test_an_interrupted_command_is_one_line(capsys, monkeypatch):
    def interrupted(command, argv):
        raise KeyboardInterrupt

    monkeypatch.setitem(program._RUN, report.Report, interrupted)
    status, out, err = run(capsys, "report", "--no-dp")
    assert (status, out, err) == (130, "", "interrupted; --resume continues the report\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("report --defence a --no-dp --defence b", "report --no-dp --defence a b"),
        ("report --defence=a --epsilon 2 8 --defence b c", "report --defence a b c --epsilon 2 8"),
        ("report --epsilon 2 --epsilon -8 --seed 3", "report --seed 3 --epsilon 2 -8"),
        ("report --label x --defence", "report --label x --defence"),
        ("attack --defence a --defence b", "attack --defence a --defence b"),
    ],
)
def test_values_of_a_repeated_option_are_joined(words, expected):
    """The parser alone would drop all but the last."""
    assert program._joined(words.split()) == expected.split()


@pytest.mark.parametrize(
    "words",
    [
        "epsilon --steps 1 --delta .1 --delta .2",
        "attack a.npz --seed=1 --seed 2",
        "report --config a.toml --config b.toml",
        "report --no-dp --sampling-prob .1 --sampling_prob=.2",
    ],
)
def test_an_option_of_one_value_is_given_once(capsys, words):
    assert re.search(r"Expected --[a-z-]+ once, got it 2 times", refusal(capsys, *words.split()))


@pytest.mark.parametrize("seed", [-1, 2**32, 10**20])
def test_a_seed_that_jax_would_wrap_is_refused(capsys, tmp_path, seed):
    path = tmp_path / "scores.npz"
    np.savez(path, scores=[1.0, 2.0], is_member=[0, 1])
    assert "Expected a seed of at least 0 and below 2^32" in refusal(
        capsys, "attack", path, "--seed", seed
    )
