"""The command line: parses, then calls functions. `--help` imports no jax."""

from jaxpriv.cli.program import main

__all__ = ["main"]
