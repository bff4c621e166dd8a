"""Runs the command line inside a test."""

import json

from jaxpriv import cli


def run(capsys, *words):
    """Exit status, the JSON object (or text) on standard output, and standard error."""
    try:
        status = cli.main([str(word) for word in words])
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    return status, json.loads(out) if out.startswith("{") else out, err


def refusal(capsys, *words):
    """The one line of an error that the user can correct."""
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err
