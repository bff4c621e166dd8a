"""Typed results of a report, as stored in report.json.

Page and wording are functions of these classes. An epsilon without a finite bound is stored as
`epsilon=None, unbounded=True`, since JSON has no infinity.

Example:
  >>> guarantee = Guarantee(
  ...     unit="record", size=1, relation="add_or_remove_one", epsilon=2.0, unbounded=False,
  ...     delta=1e-5, advantage_bound=0.4, rho_beta=0.88, violation_probability=1e-4,
  ... )
  >>> promise = Promise(
  ...     unit="record", relation="add_or_remove_one", guarantees=(guarantee,), vacuous=()
  ... )
  >>> promise.stated().epsilon
  2.0
  >>> utility = Utility(train=1.0, test=0.8, test_interval=(0.75, 0.85), majority=0.3)
  >>> utility.is_useful()
  True
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from jaxpriv._names import Relation
from jaxpriv.metrics.verdict import Recommendation
from jaxpriv.reports.settings import Settings, Unit

__all__ = [
    "AttackResult",
    "AttributeAttack",
    "AttributeGain",
    "AttributeInference",
    "Audit",
    "CanaryAudit",
    "Data",
    "DefenceGuarantee",
    "Entry",
    "Exposed",
    "Findings",
    "Game",
    "Guarantee",
    "Histogram",
    "Inversion",
    "InversionResult",
    "InvertedModel",
    "Metrics",
    "MissingAttack",
    "Promise",
    "Report",
    "Roc",
    "Run",
    "Slice",
    "Slices",
    "Training",
    "Utility",
]

_STRICT = ConfigDict(allow_inf_nan=False, extra="forbid")

_Share = Annotated[float, Field(ge=0, le=1)]
_NonNegative = Annotated[float, Field(ge=0)]
_Count = Annotated[int, Field(ge=0)]
_Advantage = Annotated[float, Field(ge=-1, le=1)]
_Interval = tuple[_Share, _Share]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Metrics:
    """Success of an attack; the fields are those of `metrics.Membership`.

    num_members, num_nonmembers: numbers of attacked units: records, groups or classes.
    """

    auc: _Share
    auc_interval: _Interval
    balanced_accuracy: _Share
    advantage: _Share
    tpr_at_fpr: dict[str, _Share | None]
    tpr_interval_at_threshold: dict[str, _Interval | None]
    tpr_interval_at_fpr: dict[str, _Interval | None]
    coarse: tuple[str, ...]
    num_members: _Count
    num_nonmembers: _Count
    confidence: _Share


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Roc:
    """Points of a thinned ROC curve in ascending order, with the largest TPR at each FPR."""

    fpr: tuple[_Share, ...]
    tpr: tuple[_Share, ...]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class AttackResult:
    """Result of one attack.

    trains: whether the attack fits a model or a threshold.
    corrected_auc_interval: at the confidence of `Findings.corrected_confidence`.
    epsilon_lower_bound: one-run audit at that confidence; None if no audit applies.
    leaks: whether the interval or the audit proves a leak.
    below_gap: whether an attack that trains is below the gap baseline at its best threshold.
    accuracy_at_zero: balanced accuracy at threshold 0; None for attacks without a threshold.
    """

    name: str
    title: str
    reference: str
    trains: bool
    metrics: Metrics
    corrected_auc_interval: _Interval
    epsilon_lower_bound: _NonNegative | None
    leaks: bool
    below_gap: bool
    accuracy_at_zero: _Share | None
    roc: Roc


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class MissingAttack:
    """An attack that could not run, with the reason in a phrase such as "needs labels"."""

    name: str
    title: str
    reason: str


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Slice:
    """Results of the strongest attack on a part of the records.

    value: class, prediction or decile that defines the part.
    num_members, num_nonmembers: numbers of units with records in this part.
    reason: why there are no metrics; None if there are.
    """

    value: str | int
    num_members: _Count
    num_nonmembers: _Count
    auc: _Share | None
    auc_interval: _Interval | None
    tpr_at_1_percent_fpr: _Share | None
    reason: str | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Slices:
    """Results of the strongest attack on each part of a partition of the records.

    by: "class", "prediction" or "loss decile".
    num_parts: number of parts in the data; `parts` contains the 100 largest.
    confidence: confidence of each interval, such that all hold simultaneously at 95 %.
    """

    by: str
    num_parts: _Count
    parts: tuple[Slice, ...]
    confidence: _Share


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Histogram:
    """Numbers of members and non-members by the score of the strongest attack.

    edges: edges of the bins; the outer bins also contain the scores beyond them.
    """

    edges: tuple[float, ...]
    members: tuple[_Count, ...]
    nonmembers: tuple[_Count, ...]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Exposed:
    """A member record, group or class with a high score of the strongest attack.

    row: number of the record, or of the first record of the group or class, in the data; from 0.
    label: class of the record; None for groups and without labels.
    score: score of the strongest attack.
    num_flags: number of attacks whose score exceeds that of all but 1 % of the non-members.
    picture: the record as a PNG in a data URI; None unless the report keeps inputs and they are
      images.
    """

    row: _Count
    label: _Count | None
    score: float
    num_flags: _Count
    picture: str | None = None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Audit:
    """Lower bounds on epsilon, from the attack with the largest bound.

    attack: name of that attack.
    one_run: bound for every mechanism.
    one_run_fdp: bound under the assumption of a Gaussian trade-off function.
    confidence: corrected confidence of each bound.
    """

    attack: str
    one_run: _NonNegative
    one_run_fdp: _NonNegative | None
    delta: _Share
    relation: Relation
    unit: Unit
    confidence: _Share


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Findings:
    """Results of all attacks on one model.

    corrected_confidence: 1 - 0.05 / number of attacks that ran.
    strongest: name of an attack with AUC 1, or else of that with the largest lower end of the
      corrected AUC interval.
    leaks: names of the attacks that prove a leak.
    gap_baseline: balanced accuracy of calling correctly classified records members.
    audit: lower bounds on epsilon; None if `no_audit` gives a reason.
    num_shadows: number of shadow models.
    histogram: scores of the strongest attack.
    exposed: the members with the highest scores of the strongest attack.
    """

    attacks: Annotated[tuple[AttackResult, ...], Field(min_length=1)]
    missing: tuple[MissingAttack, ...]
    corrected_confidence: _Share
    strongest: str
    leaks: tuple[str, ...]
    gap_baseline: _Share | None
    slices: tuple[Slices, ...]
    audit: Audit | None
    no_audit: str | None
    num_shadows: _Count
    histogram: Histogram | None = None
    exposed: tuple[Exposed, ...] = ()

    def attack(self, name: str) -> AttackResult:
        """Returns the result of an attack by name."""
        return next(attack for attack in self.attacks if attack.name == name)

    def strongest_attack(self) -> AttackResult:
        """Returns the result of the strongest attack."""
        return self.attack(self.strongest)

    def lowest_attack(self) -> AttackResult:
        """Returns the result of the attack whose AUC interval has the smallest upper end."""
        return min(self.attacks, key=lambda attack: attack.corrected_auc_interval[1])


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Guarantee:
    """An upper bound on epsilon for one unit and one neighbouring relation.

    size: number of records of the unit, for groups and classes that of the largest.
    rho_beta: largest posterior belief for equal priors.
    violation_probability: bound on the probability that the belief exceeds rho_beta; None if
      there is none.
    """

    unit: Unit
    size: _Count
    relation: Relation
    epsilon: _NonNegative | None
    unbounded: bool
    delta: _Share
    advantage_bound: _Share
    rho_beta: _Share
    violation_probability: _Share | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Promise:
    """Guarantees of a training, of which the report states one.

    unit, relation: unit and neighbouring relation of the stated guarantee.
    guarantees: guarantees for records and, if groups are the unit, for groups, or else for classes,
      under both relations.
    vacuous: reasons why the stated guarantee does not protect; empty if it does.
    is_claim: whether the user stated the guarantee, or the event from which it was computed.
    """

    unit: Unit
    relation: Relation
    guarantees: tuple[Guarantee, ...]
    vacuous: tuple[str, ...]
    is_claim: bool = False

    def of(self, relation: Relation) -> Guarantee | None:
        """Returns the guarantee of the report's unit under a relation, if there is one."""
        for guarantee in self.guarantees:
            if (guarantee.unit, guarantee.relation) == (self.unit, relation):
                return guarantee
        return None

    def is_exceeded(self, bound: float, relation: Relation) -> bool:
        """Returns whether a lower bound on epsilon is above the guarantee of its relation."""
        guarantee = self.of(relation)
        return guarantee is not None and guarantee.epsilon is not None and bound > guarantee.epsilon

    def stated(self) -> Guarantee:
        """Returns the guarantee of the report's unit under the report's relation."""
        guarantee = self.of(self.relation)
        assert guarantee is not None
        return guarantee

    def contradicted_auc(self, findings: "Findings") -> float | None:
        """Returns the largest or the smallest AUC that a claim allows if an attack proves it wrong.

        The score of a non-member is a threshold for that of a member, whose coin it does not
        depend on, and without the member both are equally likely to be the larger. The same holds
        for the smaller, so that an AUC far below 1/2 contradicts a claim like one far above.
        Assumes that members and non-members come from the same distribution. None for a guarantee
        that is not a claim, which an audit compares.
        """
        if not self.is_claim:
            return None
        largest = 0.5 + self.stated().advantage_bound
        if findings.strongest_attack().corrected_auc_interval[0] > largest:
            return largest
        if findings.lowest_attack().corrected_auc_interval[1] < 1 - largest:
            return 1 - largest
        return None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Training:
    """Training of a model.

    model, inputs: descriptions of the network and of its inputs.
    learning_rate: None if the optimiser came with the model.
    sampling_prob: probability of a record in Poisson sampling; None for batches of `batch_size`
      records.
    noise_multiplier, clip_norm, target_epsilon: parameters of DP-SGD; None without DP.
    reference_records: number of records that the attacker in the training of each model compares
      with its members; None without such an attacker.
    """

    model: str
    inputs: str
    optimizer: str
    learning_rate: float | None
    steps: _Count
    sampling_prob: _Share | None
    noise_multiplier: _NonNegative | None
    clip_norm: _NonNegative | None
    target_epsilon: _NonNegative | None
    batch_size: _Count | None = None
    reference_records: _Count | None = None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Utility:
    """Accuracy of a model.

    train: accuracy on members.
    test: accuracy on non-members, with a 95 % interval (Clopper and Pearson; for groups, Korn and
      Graubard). If a class is the unit, both are those of a model trained on a part of every class
      and tested on the rest.
    majority: accuracy on non-members of always predicting the most frequent class of the members.
    """

    train: _Share
    test: _Share
    test_interval: _Interval
    majority: _Share

    def is_useful(self) -> bool:
        """Returns whether the accuracy is above that of the most frequent class."""
        return self.test_interval[0] > self.majority


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Game:
    """Repetitions of the training with and without one record, and an adversary who sees them.

    The differential-identifiability adversary has all records and every noisy gradient.

    repetitions: number of trainings.
    relation: neighbouring relation of the two data sets.
    row, replacement: row, in the data, of the record that differs, and of the one in its place;
      `replacement` is None for `add_or_remove_one`.
    confidence: confidence of the intervals.
    advantage: 2 P[right guess] - 1 at the end of the training.
    epsilon_lower_bound: bound of an audit of independent runs, at `bound_confidence`.
    violations: share of the final beliefs in the true data set above the guarantee's rho_beta.
    steps: steps at which the beliefs are stored.
    belief_low, belief_median, belief_high: 5, 50 and 95 % quantiles over the repetitions of the
      belief in the true data set.
    """

    repetitions: _Count
    relation: Relation
    row: _Count
    replacement: _Count | None
    confidence: _Share
    advantage: _Advantage
    advantage_interval: tuple[_Advantage, _Advantage]
    epsilon_lower_bound: _NonNegative
    bound_confidence: _Share
    violations: _Share
    violations_interval: _Interval
    steps: tuple[_Count, ...]
    belief_low: tuple[_Share, ...]
    belief_median: tuple[_Share, ...]
    belief_high: tuple[_Share, ...]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class CanaryAudit:
    """Lower bounds on epsilon from one more training, with canaries of two kinds.

    num_canaries: number of canaries of each kind, half of them members on average.
    confidence: confidence of each bound.
    gradients, gradients_fdp: bounds by constant gradients and the released parameters, for every
      mechanism and under the assumption of a Gaussian trade-off function.
    labels, labels_fdp: bounds by the loss of records with wrong labels.
    ceiling: bound that correct guesses for all canaries of a kind would give.
    """

    num_canaries: _Count
    delta: _Share
    relation: Relation
    confidence: _Share
    gradients: _NonNegative
    gradients_fdp: _NonNegative
    labels: _NonNegative
    labels_fdp: _NonNegative
    ceiling: _NonNegative

    @property
    def largest(self) -> float:
        """Larger of both bounds for every mechanism."""
        return max(self.gradients, self.labels)


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class DefenceGuarantee:
    """Guarantee of a defence after training; it is not a worst-case guarantee for a record.

    kind: "outputs" is local differential privacy of output vectors, for `queries` answers to a
      query and vectors at an L1 distance of at most `distance` that differ in two entries.
      "sampled" is random differential privacy of the parameters under `replace_one`, from the
      largest distance, `sensitivity`, of `num_pairs` pairs of trainings; it fails with probability
      `gamma`.
    epsilon: in nats; None if unbounded.
    are_disjoint: whether no record is in two pairs, as the independence of the pairs requires.
    vacuous: reasons why it does not protect; empty if it does.
    """

    kind: Literal["outputs", "sampled"]
    epsilon: _NonNegative | None
    unbounded: bool
    delta: _Share
    queries: _Count | None = None
    distance: _NonNegative | None = None
    gamma: _Share | None = None
    num_pairs: _Count | None = None
    sensitivity: _NonNegative | None = None
    are_disjoint: bool | None = None
    vacuous: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class AttributeGain:
    """Success of attribute inference on members or on non-members.

    accuracy: share of the records whose value the attack guesses.
    imputation: share of the records whose value imputation guesses, without the model.
    gain: difference of the two, with a paired interval.
    """

    accuracy: _Share
    accuracy_interval: _Interval
    imputation: _Share
    imputation_interval: _Interval
    gain: _Advantage
    gain_interval: tuple[_Advantage, _Advantage]
    num_records: _Count


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class AttributeAttack:
    """Attribute inference by one attack.

    has_prior: whether the attack has the result of imputation as prior of the values, rather than
      equal probabilities.
    """

    name: str
    title: str
    reference: str
    has_prior: bool
    members: AttributeGain
    nonmembers: AttributeGain


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class AttributeInference:
    """Inference of a sensitive column from a model, beside imputation without the model.

    column: name of the column.
    num_values: number of values that it has in the data.
    num_population: number of records, which no model was trained on, that imputation learns from.
    confidence: confidence of each interval, 1 - 0.05/k for k attacks; the records of a group or
      class are dependent.
    """

    column: str
    num_values: _Count
    num_population: _Count
    attacks: tuple[AttributeAttack, ...]
    confidence: _Share


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class InversionResult:
    """Result of one inversion attack on one model: a reconstruction of each class.

    distance: mean over classes of the Euclidean distance to the nearest training image of the
      class.
    one_minus_ssim: mean of the smallest 1 - SSIM; None for images of less than 11 x 11 pixels.
    top_1, top_5: shares of the reconstructions that the referee assigns to their class, first or
      among the first five; `top_5` is None for at most five classes.
    closer: share of the reconstructions that are nearer to a training image of their class than to
      any held-out image of it.
    confidence_of_model: mean probability of the class under the attacked model.
    pictures: reconstructions of the classes that are shown, as PNG in data URIs; empty unless the
      attack is the strongest.
    """

    name: str
    title: str
    reference: str
    distance: _NonNegative
    distance_interval: tuple[_NonNegative, _NonNegative]
    one_minus_ssim: _NonNegative | None
    one_minus_ssim_interval: tuple[_NonNegative, _NonNegative] | None
    top_1: _Share
    top_1_interval: _Interval
    top_5: _Share | None
    top_5_interval: _Interval | None
    closer: _Share
    closer_interval: _Interval
    confidence_of_model: _Share
    pictures: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class InvertedModel:
    """A model whose classes are reconstructed.

    The model is trained on all classes, without the held-out records.

    promise, utility: guarantee and accuracy of the model.
    strongest: name of the attack with the largest share `top_1`, of these with the smallest
      distance.
    """

    name: str
    promise: Promise | None
    utility: Utility
    attacks: Annotated[tuple[InversionResult, ...], Field(min_length=1)]
    strongest: str

    def strongest_attack(self) -> InversionResult:
        """Returns the result of the strongest attack."""
        return next(attack for attack in self.attacks if attack.name == self.strongest)


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Inversion:
    """Inversion of the models of a report whose classes are the unit and whose records are images.

    The referee assigns a reconstruction to the class of the most similar held-out image.

    labels: the classes that are shown.
    originals: a training image of each of them, as PNG in data URIs; empty for private records.
    num_classes: number of classes that are reconstructed.
    num_candidates: number of classes between which the referee decides.
    referee_accuracy: share of the training images whose class the referee names.
    expected_closer: share `closer` of images that do not depend on which images were used for
      training.
    steps: number of steps of each attack.
    confidence: confidence of each interval.
    """

    labels: tuple[_Count, ...]
    originals: tuple[str, ...]
    num_classes: _Count
    num_candidates: _Count
    referee_accuracy: _Share
    referee_interval: _Interval
    expected_closer: _Share
    steps: _Count
    confidence: _Share
    models: Annotated[tuple[InvertedModel, ...], Field(min_length=1)]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Entry:
    """A model of the report with its training, guarantee, utility and findings.

    defence: title of the defence; None without a defence.
    evidence: name of the file with the evidence of the attacks; None if none was saved.
    evidence_has_logits: whether that file has logits; a large one has signals in their place.
    scores: name of the table with the scores of all records; None if none was saved.
    game: repetitions of the training and the adversary who sees them; None if none were played.
    canaries: audit by canaries in one more training; None if the settings ask for none.
    defence_guarantee: guarantee of the defence; None without one.
    attribute: inference of the sensitive column; None if the settings name none.
    """

    name: str
    defence: str | None
    training: Training | None
    promise: Promise | None
    utility: Utility | None
    findings: Findings
    recommendation: Recommendation
    evidence: str | None
    evidence_has_logits: bool = True
    scores: str | None = None
    game: Game | None = None
    canaries: CanaryAudit | None = None
    defence_guarantee: DefenceGuarantee | None = None
    attribute: AttributeInference | None = None

    def exceeding_bound(self) -> tuple[float, float] | None:
        """Returns a lower bound for every mechanism above the guarantee, and its confidence.

        Each bound is compared with the guarantee under its own relation; None if none is above.
        """
        bounds: list[tuple[float, float, Relation]] = []
        audit, game = self.findings.audit, self.game
        if audit is not None:
            bounds.append((audit.one_run, audit.confidence, audit.relation))
        if game is not None:
            bounds.append((game.epsilon_lower_bound, game.bound_confidence, game.relation))
        if (canaries := self.canaries) is not None:
            bounds.append((canaries.largest, canaries.confidence, canaries.relation))
        for bound, confidence, relation in bounds:
            if self.promise is not None and self.promise.is_exceeded(bound, relation):
                return bound, confidence
        return None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Data:
    """Description of the records; None for unknown counts.

    class_names: names in the order of the class numbers.
    notes: conversions, omissions and imputations when the records were read.
    not_private: preprocessing that depends on the records and is not covered by epsilon.
    num_population: number of records used by no model, which some attacks need.
    largest_group: number of records of the largest group.
    by_coin: whether a fair coin decided the membership of each unit.
    """

    name: str
    source: str
    num_records: _Count
    num_classes: _Count | None
    class_names: tuple[str, ...] | None
    notes: tuple[str, ...]
    not_private: tuple[str, ...]
    num_members: _Count
    num_nonmembers: _Count
    num_population: _Count
    num_groups: _Count | None
    largest_group: _Count | None
    num_duplicates: _Count | None
    by_coin: bool


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Run:
    """Circumstances of a run, in which otherwise equal reports differ.

    seed: random seed; None if the key was secret.
    seconds: run time.
    versions: versions of Python and of packages, and the name of the device.
    """

    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    command: str
    seed: int | None
    seconds: _NonNegative
    jaxpriv: str
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Report:
    """A privacy report.

    unit: unit of privacy.
    blind: metrics of the attack on the inputs alone; None if there are no inputs.
    limits: sentences on what the report does not cover.
    inversion: reconstructions of the classes; None if no model was inverted.
    no_inversion: reason why no model of a report on classes was inverted.
    """

    schema_version: Literal[2]
    run: Run
    settings: Settings
    unit: Unit
    data: Data
    blind: Metrics | None
    entries: Annotated[tuple[Entry, ...], Field(min_length=1)]
    limits: tuple[str, ...]
    inversion: Inversion | None = None
    no_inversion: str | None = None
