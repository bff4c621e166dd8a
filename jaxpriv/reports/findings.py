"""Typed results of a report. What is stored as report.json; page and wording read nothing else.

An epsilon without a finite bound is `epsilon=None, unbounded=True`, so that the JSON is standard.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from jaxpriv._names import Relation
from jaxpriv.metrics.verdict import Recommendation
from jaxpriv.reports.settings import Settings, Unit

_STRICT = ConfigDict(allow_inf_nan=False, extra="forbid")

Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Interval = tuple[Share, Share]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Metrics:
    """Success of an attack; keys as in `metrics.Membership`.

    num_members, num_nonmembers: units (records or groups) that were attacked.
    """

    auc: Share
    auc_interval: Interval
    balanced_accuracy: Share
    advantage: Share
    tpr_at_fpr: dict[str, Share | None]
    tpr_at_fpr_interval: dict[str, Interval | None]
    coarse: tuple[str, ...]
    num_members: Count
    num_nonmembers: Count
    confidence: Share


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Roc:
    """Points of a ROC curve, ascending; thinned, with the largest TPR at each FPR kept."""

    fpr: tuple[Share, ...]
    tpr: tuple[Share, ...]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class AttackResult:
    """Result of one attack.

    trains: whether the attack fits a model or a threshold.
    corrected_auc_interval: at the confidence of `Findings.corrected_confidence`.
    epsilon_lower_bound: one-run audit at that confidence; None where no audit applies.
    leaks: whether either proves a leak.
    below_gap: whether an attack that trains is below the gap baseline at its best threshold.
    accuracy_at_zero: balanced accuracy at the attack's own threshold; None if it has none.
    """

    name: str
    title: str
    reference: str
    trains: bool
    metrics: Metrics
    corrected_auc_interval: Interval
    epsilon_lower_bound: NonNegative | None
    leaks: bool
    below_gap: bool
    accuracy_at_zero: Share | None
    roc: Roc


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class MissingAttack:
    """An attack that could not run, and what it needs."""

    name: str
    title: str
    reason: str


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Slice:
    """The strongest attack on some of the records; metrics None where `reason` is given.

    num_members, num_nonmembers: units with records in this part.
    """

    value: str | int
    num_members: Count
    num_nonmembers: Count
    auc: Share | None
    auc_interval: Interval | None
    tpr_at_1_percent_fpr: Share | None
    reason: str | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Slices:
    """The strongest attack on each part of a partition of the records.

    by: "class", "prediction" or "loss decile".
    num_parts: parts in the data; `parts` holds the largest 100.
    confidence: of each interval, so that all hold together at 95 %.
    """

    by: str
    num_parts: Count
    parts: tuple[Slice, ...]
    confidence: Share


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Audit:
    """Lower bounds on epsilon from the attack with the largest one, at the corrected confidence.

    one_run: holds for every mechanism.
    one_run_fdp: assumes a Gaussian trade-off function.
    """

    attack: str
    one_run: NonNegative
    one_run_fdp: NonNegative | None
    delta: Share
    relation: Relation
    unit: Unit
    confidence: Share


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Findings:
    """Results of all attacks on one model.

    corrected_confidence: 1 - 0.05 / number of attacks that ran.
    strongest: name of the attack with the largest lower end of the corrected AUC interval.
    leaks: names of the attacks that prove a leak.
    gap_baseline: balanced accuracy of calling correctly classified records members.
    audit: None where `no_audit` gives the reason.
    """

    attacks: Annotated[tuple[AttackResult, ...], Field(min_length=1)]
    missing: tuple[MissingAttack, ...]
    corrected_confidence: Share
    strongest: str
    leaks: tuple[str, ...]
    gap_baseline: Share | None
    slices: tuple[Slices, ...]
    audit: Audit | None
    no_audit: str | None
    num_shadows: Count

    def attack(self, name: str) -> AttackResult:
        """Returns the result of an attack by its name."""
        return next(attack for attack in self.attacks if attack.name == name)

    def strongest_attack(self) -> AttackResult:
        """Returns the result of the strongest attack."""
        return self.attack(self.strongest)


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Guarantee:
    """An upper bound on epsilon for one unit and one neighbouring relation.

    size: records of the unit; groups: the largest one of the data.
    rho_beta: largest posterior belief at equal priors.
    violation_probability: bound on the probability that the belief exceeds it; None if unknown.
    """

    unit: Unit
    size: Count
    relation: Relation
    epsilon: NonNegative | None
    unbounded: bool
    delta: Share
    advantage_bound: Share
    rho_beta: Share
    violation_probability: Share | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Promise:
    """Guarantees of one training, and the one that is stated.

    guarantees: for records and, where they are the unit, groups; under both relations.
    vacuous: reasons why the stated guarantee protects nothing; empty if it does protect.
    """

    unit: Unit
    relation: Relation
    guarantees: tuple[Guarantee, ...]
    vacuous: tuple[str, ...]

    def of(self, relation: Relation) -> Guarantee:
        """Returns the guarantee of the report's unit under a relation."""
        return next(
            one for one in self.guarantees if (one.unit, one.relation) == (self.unit, relation)
        )

    def stated(self) -> Guarantee:
        """Returns the guarantee of the report's unit under the report's relation."""
        return self.of(self.relation)


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Training:
    """How a model was trained.

    model, inputs: descriptions of the network and of its inputs.
    noise_multiplier, clip_norm, target_epsilon: None without DP.
    """

    model: str
    inputs: str
    optimizer: str
    learning_rate: float
    steps: Count
    sampling_prob: Share
    noise_multiplier: NonNegative | None
    clip_norm: NonNegative | None
    target_epsilon: NonNegative | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Utility:
    """Accuracy of a model.

    train: on members. test: on non-members, with its interval at 95 %.
    majority: accuracy on non-members of the most frequent class of the members.
    """

    train: Share
    test: Share
    test_interval: Interval
    majority: Share

    def is_useful(self) -> bool:
        """Returns whether the accuracy is above that of the most frequent class."""
        return self.test_interval[0] > self.majority


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Entry:
    """A model of the report: how it was made, what is promised, what was measured.

    defence: title of the defence of its outputs; None without one.
    evidence: name of the file with what the attacks were given.
    """

    name: str
    defence: str | None
    training: Training | None
    promise: Promise | None
    utility: Utility | None
    findings: Findings
    recommendation: Recommendation
    evidence: str | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Data:
    """Counts of the records; None where they are not known.

    class_names: in the order of the labels.
    notes: what was converted, left out or imputed when the records were read.
    not_private: preprocessing that depends on the records and that no epsilon covers.
    num_population: records of no model, for the attacks that need such.
    largest_group: records of the largest group.
    by_coin: whether a fair coin decided the membership of each unit.
    """

    name: str
    source: str
    num_records: Count
    num_classes: Count | None
    class_names: tuple[str, ...] | None
    notes: tuple[str, ...]
    not_private: tuple[str, ...]
    num_members: Count
    num_nonmembers: Count
    num_population: Count
    num_groups: Count | None
    largest_group: Count | None
    num_duplicates: Count | None
    by_coin: bool


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Run:
    """The circumstances of a run: all that differs between equal reports.

    seed: None where the key was secret.
    """

    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    command: str
    seed: int | None
    seconds: NonNegative
    jaxpriv: str
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Report:
    """A privacy report."""

    schema_version: Literal[2]
    run: Run
    settings: Settings
    unit: Unit
    data: Data
    blind: Metrics | None
    entries: Annotated[tuple[Entry, ...], Field(min_length=1)]
    limits: tuple[str, ...]


REPORT: TypeAdapter[Report] = TypeAdapter(Report)


def exceeds(audit: Audit | None, promise: Promise | None) -> bool:
    """Returns whether a lower bound that holds for every mechanism is above the promise.

    Args:
      audit: bounds for one unit; None where no audit applies.
      promise: compared under the relation of the audit.
    """
    if audit is None or promise is None:
        return False
    epsilon = promise.of(audit.relation).epsilon
    return epsilon is not None and audit.one_run > epsilon
