"""Choices of `jaxpriv report` that were made on public data."""
