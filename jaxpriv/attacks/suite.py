"""The table of membership attacks that reports, command line, leaderboard and tests run.

    evidence --applicable--> attacks --run--> scores

A new attack takes one module, one run in `_runs` and one row here. What an attack may need is
listed in `_needs`. In the shapes below `n` counts records.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from jaxpriv import signals
from jaxpriv.attacks import _needs, _networks, _runs, _tables, lira, shadow_classifier
from jaxpriv.attacks._needs import Need
from jaxpriv.attacks._networks import Training
from jaxpriv.attacks._tables import Attack
from jaxpriv.attacks.evidence import Evidence

__all__ = ["applicable", "attacks", "missing", "run_all"]

_FPRS = (0.5, 0.1, 0.01, 0.001)
"""False positive rates at which quantile regression estimates its quantiles.

Rates that the population cannot calibrate are left out.
"""


def attacks(
    *, training: Training = _networks.DEFAULT, copies: int = 16, fprs: Sequence[float] = _FPRS
) -> tuple[Attack, ...]:
    """Lists the membership attacks, from the weakest attacker to the strongest.

    Args:
      training: options of the attacks that train a network.
      copies: number of perturbed copies of each record in the label-only attack.
      fprs: false positive rates at which quantile regression estimates its quantiles.

    Returns:
      The table. It does not contain the blind attack, which needs the true membership.

    Example:
      >>> import jax, numpy as np
      >>> evidence = Evidence(logits=np.array([[4.0, 0.0], [1.0, 0.0]]), labels=np.array([0, 1]))
      >>> for attack in applicable(attacks(), evidence)[:3]:
      ...     print(attack.name, attack.run(jax.random.key(0), evidence).round(2))
      correctness [1. 0.]
      negative_loss [-0.02 -1.31]
      confidence [0.98 0.27]
    """
    return (
        *_SIGNALS,
        *_THRESHOLDS,
        Attack(
            name="label_only",
            title="label-only",
            needs=("inputs", "labels", "predict"),
            run=_runs.perturbed_labels(copies=copies),
            reference="Choquette-Choo et al., Label-Only Membership Inference Attacks, 2021",
        ),
        *_networks_of(training, tuple(fprs)),
        *_SHADOW_MODELS,
    )


def applicable(table: Iterable[Attack], evidence: Evidence) -> tuple[Attack, ...]:
    """Selects the attacks that the evidence supports.

    Args:
      table: attacks, as from `attacks()`.
      evidence: what the attacker has.

    Returns:
      The attacks for which nothing is missing, in the order of the table.

    Example:
      >>> import numpy as np
      >>> [attack.name for attack in applicable(attacks(), Evidence(signals=np.zeros(3)))]
      ['signals']
    """
    return tuple(attack for attack in table if not missing(attack, evidence))


def run_all(
    key: PRNGKeyArray, evidence: Evidence, *, table: Iterable[Attack] | None = None
) -> dict[str, Float[np.ndarray, " n"]]:
    """Runs every attack that the evidence supports.

    The key of an attack is derived from its name, so that a new row of the table does not change
    the scores of other attacks.

    Args:
      key: PRNG key.
      evidence: what the attacker has.
      table: attacks; None takes `attacks()`.

    Returns:
      Scores of all records in float64, by name of the attack; higher = more likely a member.
      Judge them on `evidence.judged`, the records whose membership the attacker does not have.

    Example:
      >>> import jax, numpy as np
      >>> evidence = Evidence(signals=np.array([0.5, 2.0]))
      >>> run_all(jax.random.key(0), evidence)
      {'signals': array([0.5, 2. ])}
    """
    table = attacks() if table is None else table
    return _tables.run_all(key, evidence, applicable(table, evidence))


def missing(attack: Attack, evidence: Evidence) -> str:
    """Describes what an attack needs and the evidence lacks.

    Args:
      attack: a row of the table.
      evidence: what the attacker has.

    Returns:
      A phrase such as "needs shadow models and labels"; empty if nothing is missing.

    Example:
      >>> import numpy as np
      >>> by_name = {attack.name: attack for attack in attacks()}
      >>> missing(by_name["label_only"], Evidence(labels=np.array([0, 1])))
      'needs inputs and queries of the target'
    """
    parts = [_needs.PARTS[need] for need in attack.needs]
    return _tables.needs_phrase([p.description for p in parts if not p.is_available(evidence)])


_YEOM = "Yeom et al., Privacy Risk in Machine Learning, 2018"
_SONG = "Song and Mittal, Systematic Evaluation of Privacy Risks of Machine Learning Models, 2021"
_SALEM = "Salem et al., ML-Leaks, 2019"
_SHOKRI = "Shokri et al., Membership Inference Attacks Against Machine Learning Models, 2017"
_CARLINI = "Carlini et al., Membership Inference Attacks From First Principles, 2022"
_YE = "Ye et al., Enhanced Membership Inference Attacks against Machine Learning Models, 2022"
_BERTRAN = "Bertran et al., Scalable Membership Inference Attacks via Quantile Regression, 2023"
_ZARIFZADEH = "Zarifzadeh et al., Low-Cost High-Power Membership Inference Attacks, 2024"

_TARGET: tuple[Need, ...] = ("logits", "labels")
_SHADOWS: tuple[Need, ...] = (*_TARGET, "shadow_logits")
_POPULATION: tuple[Need, ...] = ("population_logits", "population_shadow_logits")

_POPULATION_INPUTS: tuple[Need, ...] = (
    "inputs",
    *_TARGET,
    "population_inputs",
    "population_logits",
)

_SIGNALS = (
    Attack(
        name="signals",
        title="scores as given",
        needs=("signals",),
        run=_runs.given_signals,
        reference="the file of scores",
    ),
    Attack(
        name="correctness",
        title="gap (correctness)",
        needs=_TARGET,
        run=_runs.signal(signals.correctness),
        decision_at_zero=True,
        reference=_YEOM,
    ),
    Attack(
        name="negative_loss",
        title="loss",
        needs=_TARGET,
        run=_runs.signal(signals.negative_loss),
        reference=_YEOM,
    ),
    Attack(
        name="confidence",
        title="confidence",
        needs=_TARGET,
        run=_runs.signal(signals.confidence),
        reference=_SALEM,
    ),
    Attack(name="entropy", title="entropy", needs=("logits",), run=_runs.entropy, reference=_SALEM),
    Attack(
        name="modified_entropy",
        title="modified entropy",
        needs=_TARGET,
        run=_runs.signal(signals.modified_entropy),
        reference=_SONG,
    ),
    Attack(
        name="margin",
        title="margin",
        needs=_TARGET,
        run=_runs.signal(signals.margin),
        reference=_SALEM,
    ),
)

_THRESHOLDS = (
    Attack(
        name="attack_p",
        title="Attack P",
        needs=(*_TARGET, "population_logits"),
        run=_runs.population_shares,
        reference=_YE,
    ),
    Attack(
        name="threshold",
        title="loss threshold",
        needs=("shadow_signals",),
        run=_runs.loss_threshold,
        trains=True,
        decision_at_zero=True,
        reference=_YEOM,
    ),
    Attack(
        name="threshold_per_class",
        title="loss threshold, per class",
        needs=("shadow_signals", "labels"),
        run=_runs.loss_threshold_per_class,
        trains=True,
        decision_at_zero=True,
        reference=_SONG,
    ),
)


def _networks_of(training: Training, fprs: tuple[float, ...]) -> tuple[Attack, ...]:
    """Lists the attacks that train a network."""
    return (
        Attack(
            name="shadow_classifier",
            title="shadow classifier",
            needs=_SHADOWS,
            run=_runs.shadow_outputs(shadow_classifier.fit, training=training),
            trains=True,
            decision_at_zero=True,
            reference=_SHOKRI,
        ),
        Attack(
            name="shadow_classifier_per_class",
            title="shadow classifier, per class",
            needs=_SHADOWS,
            run=_runs.shadow_outputs(shadow_classifier.fit_per_class, training=training),
            trains=True,
            decision_at_zero=True,
            reference=_SHOKRI,
        ),
        Attack(
            name="neural",
            title="neural",
            needs=("logits", "labels", "revealed"),
            run=_runs.revealed_records(training=training),
            trains=True,
            decision_at_zero=True,
            reference="Nasr et al., Machine Learning with Membership Privacy using Adversarial "
            "Regularization, 2018",
        ),
        Attack(
            name="forest",
            title="random forest",
            needs=("logits", "labels", "revealed"),
            run=_runs.revealed_probabilities,
            trains=True,
            decision_at_zero=True,
            reference=_SALEM,
        ),
        Attack(
            name="quantile",
            title="quantile regression",
            needs=_POPULATION_INPUTS,
            run=_runs.population_quantiles(fprs=fprs, training=training),
            trains=True,
            reference=_BERTRAN,
        ),
        Attack(
            name="quantile_boosting",
            title="quantile regression, boosting",
            needs=_POPULATION_INPUTS,
            run=_runs.boosted_quantiles(fprs=fprs),
            trains=True,
            reference=_BERTRAN,
        ),
    )


_SHADOW_MODELS = (
    Attack(
        name="attack_r",
        title="Attack R",
        needs=("out_shadow_signals",),
        run=_runs.shadow_ranks,
        reference=_YE,
    ),
    Attack(
        name="lira_offline",
        title="LiRA offline",
        needs=("out_shadow_signals",),
        run=_runs.shadow_confidences(lira.offline),
        reference=_CARLINI,
    ),
    Attack(
        name="lira_offline_density",
        title="LiRA offline, density",
        needs=("out_shadow_signals",),
        run=_runs.shadow_confidences(lira.offline_density),
        reference=_CARLINI,
    ),
    Attack(
        name="lira",
        title="LiRA online",
        needs=("shadow_signals",),
        run=_runs.shadow_confidences(lira.online),
        decision_at_zero=True,
        reference=_CARLINI,
    ),
    Attack(
        name="lira_fixed",
        title="LiRA online, fixed variance",
        needs=("shadow_signals",),
        run=_runs.shadow_confidences(lira.online, variance="fixed"),
        decision_at_zero=True,
        reference=_CARLINI,
    ),
    Attack(
        name="rmia_offline",
        title="RMIA offline",
        needs=("logits", "labels", "out_shadow_logits", *_POPULATION),
        run=_runs.population_ratios(slopes=_runs.SLOPES),
        reference=_ZARIFZADEH,
    ),
    Attack(
        name="rmia",
        title="RMIA online",
        needs=(*_SHADOWS, *_POPULATION),
        run=_runs.population_ratios(slopes=None),
        reference=_ZARIFZADEH,
    ),
    Attack(
        name="base",
        title="BASE (RMIA's ratio, no population)",
        needs=_SHADOWS,
        run=_runs.ratio,
        reference="Lassila et al., Practical Bayes-Optimal Membership Inference Attacks, 2025",
    ),
)
