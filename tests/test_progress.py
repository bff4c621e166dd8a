"""Times in words, and the time left of a report."""

import pytest

from jaxpriv import _progress
from jaxpriv.reports import assembly


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (40.0, "40 s"), (130.0, "2 min"), (5000.0, "1 h 23 min")]
)
def test_a_time_in_words(seconds, text):
    assert _progress.in_words(seconds) == text


def test_the_time_left_is_that_of_the_models_to_come():
    assert assembly._time_left(300.0, done=0, total=3) == ""
    assert assembly._time_left(300.0, done=1, total=3) == " (about 10 min left)"
    assert assembly._time_left(600.0, done=2, total=3) == " (about 5 min left)"


def test_without_a_terminal_the_bar_is_silent(capsys):
    with _progress.bar("training", 2) as advance:
        advance(1)
    assert capsys.readouterr() == ("", "")
