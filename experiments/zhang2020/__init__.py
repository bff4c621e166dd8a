"""Tables and figures of zhang2020: model inversion, and differential privacy of classes."""
