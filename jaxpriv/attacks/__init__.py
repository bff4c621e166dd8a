"""Membership inference attacks: score arrays in, scores out; higher = more likely a member."""

from jaxpriv.attacks import lira, threshold

__all__ = ["lira", "threshold"]
