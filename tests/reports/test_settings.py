"""Settings: one class for flags, TOML file and JSON."""

import dataclasses
import math
import re

import pytest

from jaxpriv.reports import settings as settings_lib
from jaxpriv.reports.settings import Settings, read_toml
from tests import oracles

PROMISE = {"epsilon": (2.0,), "delta": 1e-4, "relation": "replace_one"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": (-1.0,)}, "epsilon > 0"),
        ({"epsilon": (math.inf,)}, "epsilon > 0"),
        ({"epsilon": (2.0, 2.0)}, "different values of epsilon"),
        ({"delta": 1.5}, "0 < delta < 1"),
        ({"delta": math.nan}, "0 < delta < 1"),
        ({"delta": None}, "Expected --delta and --relation"),
        ({"relation": None}, "Expected --delta and --relation"),
        ({"no_dp": True}, "Expected neither --epsilon"),
        ({"shadows": 5}, "even number of shadows"),
        ({"shadows": 2}, "even number of shadows"),
        ({"sampling_prob": 0.0}, "0 < sampling_prob <= 1"),
        ({"clip_norm": math.inf}, "clip_norm > 0"),
        ({"steps": 0}, "steps > 0"),
        ({"repetitions": 0}, "repetitions > 0"),
        ({"sensitive": "race", "label": "race"}, "'race', which is given as --label"),
        ({"sensitive": "race", "exclude": ("id", "race")}, "'race', which is given as --exclude"),
        ({"sensitive": "race", "group": "race"}, "'race', which is given as --group"),
        ({"sensitive": "race", "tokens": 9}, "Expected no --tokens with --sensitive"),
        ({"repetitions": 9, "unit": "group"}, "Expected --unit record for --repetitions"),
        ({"repetitions": 9, "unit": "class"}, "Expected --unit record for --repetitions"),
        ({"canaries": 19}, "at least 20, got 19"),
        ({"canaries": 20, "unit": "class"}, "Expected no --canaries with --unit class"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Settings(**PROMISE | changes)


def test_an_option_without_effect_is_refused():
    with pytest.raises(ValueError, match="Expected no --clip-norm with --no-dp"):
        Settings(no_dp=True, clip_norm=3.0).check_subject()
    Settings(no_dp=True, clip_norm=3.0, canaries=20).check_subject()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 4.0}, "as in epsilon=(4.0,), got 4.0"),
        ({"epsilon": [4.0, 2.0]}, "as in epsilon=(4.0, 2.0), got [4.0, 2.0]"),
        ({"defence": "top_k:k=3"}, "as in defence=('top_k:k=3',), got 'top_k:k=3'"),
    ],
)
def test_a_single_value_in_place_of_a_tuple_is_refused(changes, message):
    settings = object.__new__(Settings)
    with pytest.raises(ValueError, match=re.escape(message)):
        oracles.unhooked(Settings.__init__)(settings, **PROMISE | changes)


def test_a_subject_and_a_promise_must_be_stated():
    for stated in (Settings(no_dp=True), Settings(**PROMISE), Settings(scores="a.npz")):
        stated.check_subject()
    with pytest.raises(ValueError, match="Expected either --epsilon"):
        Settings().check_subject()
    with pytest.raises(ValueError, match="Expected either --epsilon"):
        Settings(delta=1e-4, relation="replace_one").check_subject()
    with pytest.raises(ValueError, match="Expected --epsilon for --repetitions"):
        Settings(no_dp=True, repetitions=9).check_subject()


@pytest.mark.parametrize(
    "name", ["shadows", "width", "label", "data", "unit", "no_dp", "model", "sensitive"]
)
def test_settings_of_training_are_refused_beside_scores(name):
    given = {"shadows": 8, "width": 3, "no_dp": True, "epsilon": (1.0,), "unit": "group"}
    with pytest.raises(
        ValueError, match=f"Expected no .*--{name.replace('_', '-')}.* with --scores"
    ):
        Settings(scores="a.npz", **{name: given.get(name, "text")})


CLAIM = {"claimed_epsilon": 2.0, "delta": 1e-5, "relation": "replace_one"}
PREDICT = {"predict": "m.py:predict", "members": "a.npz", "nonmembers": "b.npz"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"predict": "m.py:predict"}, "Expected --members and --nonmembers with --predict"),
        (PREDICT | {"predict": "m.predict"}, "Expected FILE.py:predict for --predict"),
        (PREDICT | {"scores": "c.npz"}, "Expected one of --scores and --predict"),
        (PREDICT | {"shadows": 8}, "Expected no --shadows with --predict"),
        (PREDICT | {"epsilon": (1.0,), "delta": 1e-5}, "Expected no --epsilon, --delta with"),
        (PREDICT | {"delta": 1e-5}, "Expected no --delta with --predict"),
        (PREDICT | {"claimed_epsilon": 2.0}, "Expected --delta and --relation with --claimed-eps"),
        ({"members": "a.npz", "no_dp": True}, "Expected no --members without --predict"),
        ({"claimed_epsilon": 2.0, "no_dp": True}, "Expected no --claimed-epsilon without"),
        (PREDICT | CLAIM | {"claimed_epsilon": -1.0}, "Expected claimed_epsilon > 0"),
        ({"scores": "a.npz", "label": "y"}, "Expected no --label with --scores"),
    ],
)
def test_settings_of_outputs_fit_together(given, message):
    with pytest.raises(ValueError, match=message):
        Settings(**given)


def test_outputs_need_no_promise():
    for given in (PREDICT, PREDICT | {"label": "y"}, {"scores": "a.npz"}):
        Settings(**given).check_subject()
    Settings(**PREDICT, **CLAIM).check_subject()


def test_a_toml_file_holds_the_fields(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(
        'epsilon = [2, 8.0]\ndelta = 1e-4\nrelation = "replace_one"\n'
        'plain-steps = 7\ndefence = "top_k:k=3"\nunit = "record"\n'
    )
    assert read_toml(path) == Settings(
        epsilon=(2.0, 8.0),
        delta=1e-4,
        relation="replace_one",
        plain_steps=7,
        defence=("top_k:k=3",),
        unit="record",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epsilom = 2", "got 'epsilom'; the settings are attack_steps, "),
        ("shadows = 4.0", "Expected shadows as int, got 4.0"),
        ("no_dp = 1", "Expected no_dp as bool, got 1"),
        ("shadows = true", "Expected shadows as int, got True"),
        ('epsilon = ["2"]', "Expected epsilon as float, got '2'"),
        ('unit = "person"', "Expected unit to be one of record, group, class, got 'person'"),
        ('relation = "x"', "Expected relation to be one of add_or_remove_one, replace_one"),
        ("relation = 3", "Expected relation as str, got 3"),
        ("plain_steps = 1\nplain-steps = 2", "Expected 'plain-steps' once"),
        ("delta = ", "Expected a TOML file at"),
        ("no_dp = true\ndelta = 0.1", "Expected neither --epsilon"),
    ],
)
def test_a_wrong_toml_file_is_one_line(tmp_path, text, message):
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_toml(tmp_path / "s.toml")
    assert "\n" not in str(error.value)


def test_a_missing_toml_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"Expected a TOML file at .*none\.toml: No such file"):
        read_toml(tmp_path / "none.toml")


def test_every_setting_has_a_help_text():
    source = settings_lib.__file__
    with open(source, encoding="utf8") as file:
        lines = file.read().splitlines()
    for field in dataclasses.fields(Settings):
        row = next(i for i, line in enumerate(lines) if line.startswith(f"    {field.name}: "))
        assert lines[row + 1].startswith('    """'), field.name


def test_a_byte_order_mark_before_the_settings_is_skipped(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_bytes(b"\xef\xbb\xbfshadows = 8\n")
    assert read_toml(path).shadows == 8
