"""Every experiment is listed, has its record, and runs in its smoke preset."""

import json

import pytest

from experiments import __main__ as command
from experiments import common

NAMES = sorted(command.experiments())
FAST = (
    "attacks/leaderboard",
    "audit/calibration",
    "benchmarks/dpsgd_libraries",
    "bernau2021/table3",
    "nasr2018/table7",
    "report/learning_rates",
    "rnnmia2022/fig2",
    "yang2023/fig9",
    "zhang2020/epsilons",
)
"""One of each folder; the others are slow tests."""


def test_they_are_listed(capsys):
    assert command.main(["list"]) == 0
    listed = capsys.readouterr().out
    assert {"benchmarks/dpsgd_step", "benchmarks/shadow_models"} <= set(NAMES)
    assert all(name in listed for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_record_names_command_and_time(name):
    text = (command.ROOT / f"{name}.py").read_text("utf8").split('"""')[1]
    assert f"Run:       python -m experiments run {name} --preset cpu" in text
    assert "\nTime:      smoke " in text


@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_smoke(name, tmp_path, capsys):
    assert command.main(["run", name, "--preset", "smoke", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text("utf8"))
    assert record["experiment"] == name
    assert record["versions"]["jax"]
    assert record["rows"]
    assert len(capsys.readouterr().out.splitlines()) > len(record["rows"])


def test_each_folder_has_one_that_is_not_slow():
    assert set(FAST) <= set(NAMES)
    assert {n.split("/")[0] for n in FAST} == {n.split("/")[0] for n in NAMES}


def test_bad_usage_exits_2(capsys):
    assert command.main(["run", "nothing", "--preset", "smoke"]) == 2
    assert capsys.readouterr().err == "error: no experiment 'nothing'; see `list`\n"
    for words in (["run", NAMES[0]], []):
        with pytest.raises(SystemExit) as stop:
            command.main(words)
        assert stop.value.code == 2


def test_ratios_are_of_the_same_round():
    times = {"a": [2.0, 20.0, 2.0], "b": [1.0, 10.0, 2.0]}
    assert common.ratio(times, "a", "b") == 2.0


def test_interleaving_calls_all_in_turn():
    calls = []
    times = common.interleaved({n: lambda n=n: calls.append(n) for n in "ab"}, repeats=2)
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert all(len(rounds) == 2 for rounds in times.values())
