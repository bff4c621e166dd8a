"""Nasr et al., Machine Learning with Membership Privacy using Adversarial Regularization, 2018."""
