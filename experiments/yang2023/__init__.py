"""Figures of yang2023: the privacy of recurrent networks, here of agents on floor maps."""
