"""Architectures of the agents of yang2023."""

from experiments.agents import Kind

KINDS = {
    "feed-forward": Kind(actor_widths=(74,), critic_widths=(64,)),
    "recurrent": Kind(actor_widths=(32, 32), critic_widths=(32, 32), lstm_units=4),
}
"""The actor's head of the first has 5,335 parameters as in the paper; the 5,216 of the second do
not follow from its stated widths."""
