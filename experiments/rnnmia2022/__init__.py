"""Figures of rnnmia2022: membership inference on recurrent networks."""
