"""Attackers who know the noise of a defence: likelihood ratios of noised answers and parameters.

Each attacker has shadow models without noise, computes the likelihood of what the target released
under every shadow model, and compares models with and without the record:

    score = log mean over models with the record of the likelihood - the same without the record

This is the optimal test if the shadow models represent the target. In the shapes below `n` counts
records, `m` shadow models, `q` repeated queries and `c` classes.
"""

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree, Shaped
from scipy import special

from jaxpriv import _check, signals
from jaxpriv.attacks import _networks

__all__ = ["dirichlet_answers", "gaussian_parameters", "label_votes"]


def dirichlet_answers(
    mean_log_probs: Float[Array | np.ndarray, "n c"],
    shadow_logits: Float[Array | np.ndarray, "m n c"],
    shadow_is_member: Bool[np.ndarray, "m n"],
    *,
    k: float,
    eta: float,
    queries: int,
) -> Float[np.ndarray, " n"]:
    """Scores records by the summed log-likelihood ratio of repeated Dirichlet answers.

    log p(x_1..x_q | shadow) = q (sum_i (k p_i - 1) mean log x_i - log B(k p)), which depends on the
    answers through the mean of log x alone. p are the floored probabilities of the shadow model.

    Args:
      mean_log_probs: mean over the answers of the log-probabilities of each record.
      shadow_logits: outputs of the shadow models before the noise.
      shadow_is_member: whether each shadow model was trained on each record.
      k: concentration of the mechanism.
      eta: floor of the mechanism.
      queries: number of answers in the mean, q.

    Returns:
      Log-likelihood ratios, higher = more likely a member; 0 for a record that all shadow models
      or none were trained on.

    Raises:
      ValueError: if an argument is out of range, an answer is not finite, or the shapes do not fit
        together.

    References:
      Neyman and Pearson, On the Problem of the Most Efficient Tests of Statistical Hypotheses,
      1933; the density is that of the Dirichlet distribution.

    Example:
      >>> shadow_logits = np.log([[[0.8, 0.2]], [[0.5, 0.5]]])
      >>> score = dirichlet_answers(
      ...     np.log([[0.8, 0.2]]), shadow_logits, np.array([[True], [False]]),
      ...     k=10.0, eta=0.01, queries=4,
      ... )
      >>> bool(score[0] > 0)
      True
    """
    _check.positive(k=k, eta=eta)
    _check.positive_int(queries=queries)
    answers = _networks.finite_float64("mean_log_probs", mean_log_probs)
    shadows = np.asarray(shadow_logits)
    if shadows.ndim != 3 or shadows.shape[1:] != answers.shape:
        raise ValueError(
            f"Expected shadow_logits [m, {answers.shape[0]}, {answers.shape[-1]}], got "
            f"{list(shadows.shape)}."
        )
    rest = 1 - shadows.shape[-1] * eta
    if rest <= 0:
        raise ValueError(f"Expected eta below 1 / {shadows.shape[-1]}, got eta={eta}.")
    log_likelihoods = np.empty(shadows.shape[:2])
    for i, logits in enumerate(shadows):
        p = eta + rest * np.exp(np.asarray(signals.log_probabilities(logits), np.float64))
        log_beta = special.gammaln(k * p).sum(axis=-1) - special.gammaln(k)
        log_likelihoods[i] = queries * (((k * p - 1) * answers).sum(axis=-1) - log_beta)
    return _log_ratio(log_likelihoods, shadow_is_member)


def gaussian_parameters(
    released: PyTree,
    shadow_params: PyTree,
    shadow_is_member: Bool[np.ndarray, "m n"],
    *,
    sigma: float,
) -> Float[np.ndarray, " n"]:
    """Scores records by the likelihood ratio of parameters with known Gaussian noise.

    log p(theta | shadow) = -|theta - theta_shadow|^2 / (2 sigma^2) + constant. The attack is
    meaningful for shadow models that begin at the target's initial parameters and, for the test of
    two neighbouring data sets, have its order of batches; models that end elsewhere for other
    reasons have likelihoods that say little about a record.

    Args:
      released: noised parameters of the target, which the attacker sees.
      shadow_params: parameters of the shadow models without noise, stacked along m.
      shadow_is_member: whether each shadow model was trained on each record.
      sigma: standard deviation of the noise; > 0.

    Returns:
      Log-likelihood ratios, higher = more likely a member; 0 for a record that all shadow models
      or none were trained on.

    Raises:
      ValueError: if sigma is not positive, a parameter is not finite, or structures, shapes or
        numbers of shadow models differ.

    References:
      Neyman and Pearson, On the Problem of the Most Efficient Tests of Statistical Hypotheses,
      1933.

    Example:
      >>> with_record, without = np.array([[1.0], [0.0]])
      >>> gaussian_parameters(
      ...     with_record, np.stack([with_record, without]), np.array([[True], [False]]), sigma=0.5
      ... )
      array([2.])
    """
    _check.positive(sigma=sigma)
    if jax.tree.structure(released) != jax.tree.structure(shadow_params):
        raise ValueError("Expected shadow_params of the structure of released, got another one.")
    distances = np.zeros(len(shadow_is_member))
    for target, shadows in zip(*map(jax.tree.leaves, (released, shadow_params)), strict=True):
        target = _networks.finite_float64("released", target)
        shadows = np.asarray(shadows)
        if len(shadows) != len(distances):
            raise ValueError(
                f"Expected {len(distances)} shadow models as in shadow_is_member, "
                f"got {len(shadows)}."
            )
        if shadows.shape[1:] != target.shape:
            raise ValueError(
                f"Expected shadow_params {[len(distances), *target.shape]}, "
                f"got {list(shadows.shape)}."
            )
        for i, shadow in enumerate(shadows):
            shadow = _networks.finite_float64("shadow_params", shadow)
            distances[i] += np.square(target - shadow).sum()
    log_likelihoods = np.repeat(-distances[:, None] / (2 * sigma**2), shadow_is_member.shape[1], 1)
    return _log_ratio(log_likelihoods, shadow_is_member)


def label_votes(
    answers: Float[Array | np.ndarray, "q n c"], labels: Shaped[Array | np.ndarray, "n ..."]
) -> Float[np.ndarray, " n"]:
    """Scores records by the share of repeated answers whose largest entry is the true class.

    The attacker sees labels only. Repeating a query of a random defence shows how sure the model
    is, which one label hides.

    Args:
      answers: noised outputs of the same query, with noise of their own.
      labels: true classes; [n], [n, 1] or one-hot.

    Returns:
      Shares in [0, 1], higher = more likely a member.

    Raises:
      ValueError: for NaN, labels that do not index the answers, or unequal lengths.

    References:
      Choquette-Choo et al., Label-Only Membership Inference Attacks, 2021, for attacks on labels.

    Example:
      >>> label_votes(np.array([[[2.0, 0.0]], [[0.0, 1.0]]]), np.array([0]))
      array([0.5])
    """
    answers = _check.real_array("answers", answers)
    truth = _check.labels(labels, num_classes=answers.shape[-1])
    if len(truth) != answers.shape[1]:
        raise ValueError(f"Expected {answers.shape[1]} labels, got {len(truth)}.")
    return (answers.argmax(axis=-1) == truth).mean(axis=0)


def _log_ratio(
    log_likelihoods: Float[np.ndarray, "m n"], shadow_is_member: Bool[np.ndarray, "m n"]
) -> Float[np.ndarray, " n"]:
    """Computes log mean likelihood over models with the record minus that without it."""
    is_member = _check.membership(shadow_is_member, name="shadow_is_member")
    if is_member.shape != log_likelihoods.shape:
        raise ValueError(
            f"Expected shadow_is_member of shape {list(log_likelihoods.shape)}, "
            f"got {list(is_member.shape)}."
        )
    sides = []
    for side in (is_member, ~is_member):
        count = side.sum(axis=0)
        with np.errstate(divide="ignore"):
            total = special.logsumexp(np.where(side, log_likelihoods, -np.inf), axis=0)
            sides.append(total - np.log(np.maximum(count, 1)))
    is_covered = is_member.any(axis=0) & (~is_member).any(axis=0)
    with np.errstate(invalid="ignore"):
        return np.where(is_covered, sides[0] - sides[1], 0.0)
