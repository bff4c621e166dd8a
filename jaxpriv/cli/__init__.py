"""The command line. Importing it, and `--help`, do not import jax."""

from jaxpriv.cli import accounting, attack, audit, data, identify, program, report
from jaxpriv.cli.program import main

__all__ = [
    "accounting",
    "attack",
    "audit",
    "data",
    "identify",
    "main",
    "program",
    "report",
]
