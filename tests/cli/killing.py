"""Starts the command line in another process, and kills it at a random moment."""

import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
from jaxpriv import cli
from jaxpriv.attacks import suite
from tests.reports import examples

if sys.argv[1] == "toy":
    table = (*examples.cheap_attacks(), examples.TOY)
    suite.attacks = lambda **_: table
sys.exit(cli.main(sys.argv[2:]))
"""


def start(attacks, *words):
    """Starts a command with "all" attacks, or with "toy" and others that train no network."""
    command = [sys.executable, "-c", PROGRAM, attacks, *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)


def killed(attacks, *words, out, after):
    """Kills a report some seconds after it began to compute; False if it ended before."""
    process = start(attacks, *words, "--out", out)
    while process.poll() is None and not (out / ".checkpoints").exists():
        time.sleep(0.01)
    try:
        _, err = process.communicate(timeout=after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return True
    assert process.returncode == 0, err
    return False
