"""Privacy budgets as identifiability: posterior belief and membership advantage."""

from jaxpriv.identifiability.advantage import (
    classical_rho_alpha,
    epsilon_of_classical_rho_alpha,
    general_rho_alpha,
    mu_for_advantage,
    proposition_2_rho_alpha,
    rdp_rho_alpha,
    yeom_rho_alpha,
)
from jaxpriv.identifiability.belief import (
    bayes_accuracy,
    epsilon_of_rho_beta,
    gaussian_loss_tail,
    gaussian_violation_probability,
    loss_tail,
    mu_for_belief,
    odds_in_words,
    rho_beta,
    violation_probability,
)
from jaxpriv.identifiability.calibration import calibrate_advantage, calibrate_belief

__all__ = [
    "bayes_accuracy",
    "calibrate_advantage",
    "calibrate_belief",
    "classical_rho_alpha",
    "epsilon_of_classical_rho_alpha",
    "epsilon_of_rho_beta",
    "gaussian_loss_tail",
    "gaussian_violation_probability",
    "general_rho_alpha",
    "loss_tail",
    "mu_for_advantage",
    "mu_for_belief",
    "odds_in_words",
    "proposition_2_rho_alpha",
    "rdp_rho_alpha",
    "rho_beta",
    "violation_probability",
    "yeom_rho_alpha",
]
