"""Membership of sentences in the training of a sequence model, from its probabilities of tokens.

    probabilities [n, t, v] --reduce, a part at a time--> Outputs --attacks--> scores of sentences

The model is given the reference and predicts each of its tokens from those before it (teacher
forcing). An attacker has the probabilities of all v tokens of the vocabulary, or the largest k and
that of the reference token; with k = v nothing is lost. Attacks that train learn from sentences
whose membership is known, which shadow models supply. In the shapes below `n` counts sentences, `t`
tokens and `k` the largest probabilities that are stored.

References:
  On The Vulnerability of Recurrent Neural Networks to Membership Inference Attacks, under review,
  2022, section 3.1; Song and Shmatikov, Auditing Data Provenance in Text-Generation Models, 2019.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from jaxpriv import _check, signals
from jaxpriv._types import Params
from jaxpriv.attacks import _recurrent, _shadows, _tables, lira
from jaxpriv.attacks._networks import Training
from jaxpriv.attacks._tables import Attack
from jaxpriv.models import RecurrentMembershipNet

__all__ = [
    "Evidence",
    "Outputs",
    "Run",
    "applicable",
    "apply",
    "attacks",
    "fit",
    "join",
    "missing",
    "rank_histograms",
    "reduce",
    "run_all",
    "sequence_signals",
]

_SMALLEST = 1e-13
"""Probabilities below it count as this value where their logarithm is taken."""

_ROUNDING, _ROUNDING_OF_SUM = 1e-5, 1e-2
"""Excess over 1 that counts as rounding: of a probability, and of a sum in half precision."""

_MAX_TOKENS = 2**31
"""Ranks are int32."""

_PARTS = 64
"""Number of sentences that `reduce` takes at a time, so that sorting needs little memory."""


class Outputs(NamedTuple):
    """Outputs of a model for the tokens of references.

    What follows the end of a reference is padding: it changes no score, but its probabilities and
    ranks have to be in range as well.

    largest: the k largest probabilities at each token, descending.
    of_reference: probability of the reference token.
    rank: number of tokens of the vocabulary that are more probable than the reference token.
    lengths: number of tokens of each reference, in 1..t.
    """

    largest: Float[np.ndarray, "n t k"]
    of_reference: Float[np.ndarray, "n t"]
    rank: Int[np.ndarray, "n t"]
    lengths: Int[np.ndarray, " n"]


def reduce(
    probabilities: Float[Array | np.ndarray, "n t v"],
    references: Int[Array | np.ndarray, "n t"],
    lengths: Int[Array | np.ndarray, " n"],
    *,
    top: int,
) -> Outputs:
    """Reduces probabilities of a whole vocabulary to those that the attacks use.

    Probabilities and ranks of the reference tokens are exact; of the others the largest remain. A
    vocabulary of 10,000 is reduced batch by batch and joined, so that it is never in memory whole.

    Args:
      probabilities: probability of each token of the vocabulary at each place.
      references: tokens of the references; those of the padding are in 0..v-1 as well.
      lengths: number of tokens of each reference, in 1..t.
      top: k, the number of largest probabilities that are kept; at most v.

    Returns:
      The outputs, float32.

    Raises:
      ValueError: for shapes that do not fit, no sentence, NaN, probabilities that are outside
        [0, 1] or sum to more than 1, tokens or lengths that are not whole or out of range, or
        k > v.

    Example:
      >>> outputs = reduce(
      ...     np.array([[[0.1, 0.6, 0.3]]]), np.array([[2]]), np.array([1]), top=2)
      >>> outputs.largest.round(1).tolist(), outputs.rank.tolist()
      ([[[0.6000000238418579, 0.30000001192092896]]], [[1]])
    """
    probabilities = np.asarray(probabilities)
    _check.positive_int(top=top)
    if probabilities.ndim != 3 or 0 in probabilities.shape:
        raise ValueError(
            "Expected probabilities [n, t, v] of at least one sentence, "
            f"got shape {list(probabilities.shape)}."
        )
    num_sentences, num_steps, size = probabilities.shape
    if top > size:
        raise ValueError(f"Expected top of at most {size}, the vocabulary, got top={top}.")
    references = _check.whole_numbers("references", references, low=0, high=size - 1)
    lengths = _check.whole_numbers("lengths", lengths, low=1, high=num_steps)
    if references.shape != (num_sentences, num_steps) or lengths.shape != (num_sentences,):
        raise ValueError(
            f"Expected references [{num_sentences}, {num_steps}] and lengths [{num_sentences}], "
            f"got shapes {list(references.shape)} and {list(lengths.shape)}."
        )
    parts = []
    for i in range(0, num_sentences, _PARTS):
        part = probabilities[i : i + _PARTS]
        _check_distributions("probabilities", part)
        rows = part.astype(np.float32)
        tokens = references[i : i + _PARTS]
        own = np.take_along_axis(rows, tokens[..., None], axis=2)
        largest = -np.sort(-np.partition(rows, size - top, axis=2)[..., size - top :], axis=2)
        rank = (rows > own).sum(axis=2).astype(np.int32)
        parts.append(Outputs(largest, own[..., 0], rank, lengths[i : i + _PARTS]))
    return join(parts)


def _check_probabilities(name: str, values: Shaped[np.ndarray, "..."]) -> None:
    array = _check.real_array(name, values)
    wrong = array[(array < 0) | (array > 1 + _ROUNDING)]
    if wrong.size:
        raise ValueError(f"Expected {name} in [0, 1], got {float(wrong[0]):g}.")


def _check_distributions(name: str, values: Shaped[np.ndarray, "n t k"]) -> None:
    """Raises ValueError unless all values, or the largest, of a distribution are possible."""
    _check_probabilities(name, values)
    total = values.sum(axis=2, dtype=np.float64).max()
    if total > 1 + _ROUNDING_OF_SUM:
        raise ValueError(f"Expected {name} that sum to at most 1 at each token, got {total:g}.")


def _checked(name: str, outputs: Outputs, *, num_tokens: int = _MAX_TOKENS) -> Outputs:
    """Returns outputs in float32 and int32; raises ValueError for impossible ones."""
    largest, of_reference, rank, lengths = map(np.asarray, outputs)
    shapes = [list(part.shape) for part in (largest, of_reference, rank, lengths)]
    n, t, k = largest.shape if largest.ndim == 3 else (0, 0, 0)
    if shapes != [[n, t, k], [n, t], [n, t], [n]]:
        raise ValueError(
            f"Expected shapes [n, t, k], [n, t], [n, t] and [n] in {name}, "
            f"got {', '.join(map(str, shapes))}."
        )
    if not n * t * k:
        raise ValueError(f"Expected at least one sentence in {name}, got none.")
    _check_distributions(f"largest of {name}", largest)
    _check_probabilities(f"of_reference of {name}", of_reference)
    return Outputs(
        largest.astype(np.float32),
        of_reference.astype(np.float32),
        _check.whole_numbers(f"rank of {name}", rank, low=0, high=num_tokens - 1),
        _check.whole_numbers(f"lengths of {name}", lengths, low=1, high=t),
    )


def join(parts: Sequence[Outputs]) -> Outputs:
    """Joins outputs along the sentences.

    Args:
      parts: outputs with equal numbers of tokens and of largest probabilities.

    Returns:
      All of them.

    Raises:
      ValueError: without parts, or for unequal numbers of tokens or of largest probabilities.

    Example:
      >>> one = reduce(np.full((1, 2, 4), 0.25), np.zeros((1, 2), int), np.array([2]), top=1)
      >>> join([one, one]).lengths.tolist()
      [2, 2]
    """
    shapes = {np.shape(part.largest)[1:] for part in parts}
    if len(shapes) != 1:
        raise ValueError(
            "Expected parts with equal numbers of tokens and of largest probabilities, "
            f"got {', '.join(str(list(shape)) for shape in sorted(shapes)) or 'no parts'}."
        )
    return Outputs(*(np.concatenate(leaves) for leaves in zip(*parts, strict=True)))


def sequence_signals(
    outputs: Outputs, signal: Callable[[Array, Array], Array] = signals.mean_log_probability
) -> Float[np.ndarray, " n"]:
    """Computes a signal of each sentence, for LiRA, RMIA and the other attacks on signals.

    Args:
      outputs: outputs of a model.
      signal: `signal(token_log_probs [t], length)` of `signals`, such as `min_k_probability`.

    Returns:
      The signals.

    Raises:
      ValueError: for impossible outputs.

    Example:
      >>> one = reduce(np.full((1, 2, 4), 0.25), np.zeros((1, 2), int), np.array([2]), top=1)
      >>> sequence_signals(one).round(3)  # log 1/4
      array([-1.386])
    """
    outputs = _checked("outputs", outputs)
    logs = jnp.log(jnp.maximum(jnp.asarray(outputs.of_reference), _SMALLEST))
    return np.asarray(jax.vmap(signal)(logs, jnp.asarray(outputs.lengths)), np.float64)


def rank_histograms(
    outputs: Outputs, *, num_bins: int, num_tokens: int
) -> Float[np.ndarray, "n bins"]:
    """Counts in which part of the vocabulary, sorted by probability, the reference tokens are.

    Args:
      outputs: outputs of a model.
      num_bins: number of bins; their edges grow geometrically from rank 0 to the last one.
      num_tokens: size of the vocabulary, v.

    Returns:
      The share of the tokens of each sentence in each bin.

    Raises:
      ValueError: for impossible outputs, or ranks outside the vocabulary.

    References:
      Song and Shmatikov, Auditing Data Provenance in Text-Generation Models, 2019, section 4.

    Example:
      >>> rows = np.array([[[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]])
      >>> outputs = reduce(rows, np.array([[0, 2]]), np.array([2]), top=1)
      >>> rank_histograms(outputs, num_bins=2, num_tokens=3).tolist()
      [[0.5, 0.5]]
    """
    _check.positive_int(num_bins=num_bins, num_tokens=num_tokens)
    outputs = _checked("outputs", outputs, num_tokens=num_tokens)
    edges = np.expm1(np.linspace(0, np.log1p(num_tokens), num_bins + 1))
    place = np.clip(np.searchsorted(edges, outputs.rank, side="right") - 1, 0, num_bins - 1)
    is_token = np.arange(outputs.rank.shape[1]) < outputs.lengths[:, None]
    counts = np.zeros((len(place), num_bins))
    np.add.at(counts, (np.arange(len(place))[:, None], place), is_token)
    return counts / outputs.lengths[:, None]


_DEFAULT_TRAINING = Training(steps=1500, batch_size=64)


def fit(
    key: PRNGKeyArray,
    known: Outputs,
    is_member: Bool[np.ndarray, " n"],
    *,
    training: Training = _DEFAULT_TRAINING,
    width: int = 64,
) -> Params:
    """Trains a network to separate sentences of the training from others.

    Maximises the attacker's gain by Adam; half of every batch are members.

    Args:
      key: PRNG key.
      known: outputs for sentences of known membership, as those of shadow models.
      is_member: whether each was in the training of its model.
      training: options of the training.
      width: width of the network's layers.

    Returns:
      The parameters, for `apply`.

    Raises:
      ValueError: for impossible outputs, unequal lengths, membership other than 0 and 1, or
        without members or non-members.

    Example:
      >>> sure = np.repeat([[[0.97, 0.02, 0.01]]], 10, axis=0)
      >>> rows = np.concatenate([sure, np.full((10, 1, 3), 1 / 3)])
      >>> known = reduce(rows, np.zeros((20, 1), int), np.ones(20, int), top=3)
      >>> is_member = np.arange(20) < 10
      >>> options = Training(steps=40, batch_size=8, learning_rate=1e-2)
      >>> params = fit(jax.random.key(0), known, is_member, training=options, width=8)
      >>> scores = apply(params, known)
      >>> bool(scores[is_member].min() > scores[~is_member].max())
      True
    """
    _check.positive_int(width=width)
    net = RecurrentMembershipNet(width=width)
    known = _checked("known", known)
    steps = _tokens(known)
    return _recurrent.fit(key, steps, known.lengths, is_member, net=net, training=training)


def apply(fitted: Params, outputs: Outputs) -> Float[np.ndarray, " n"]:
    """Scores sentences by their log odds of membership.

    Args:
      fitted: parameters from `fit`.
      outputs: outputs of the target, with the same number of largest probabilities.

    Returns:
      Log odds at even priors, in nats; > 0 indicates a member.

    Raises:
      ValueError: for impossible outputs.

    Example:
      >>> outputs = reduce(np.full((2, 1, 3), 1 / 3), np.zeros((2, 1), int), np.ones(2, int), top=3)
      >>> net = RecurrentMembershipNet(width=4)
      >>> params = net.init(jax.random.key(0), jnp.zeros((1, 5)), jnp.int32(1))
      >>> apply(jax.tree.map(jnp.zeros_like, params), outputs)
      array([0., 0.])
    """
    outputs = _checked("outputs", outputs)
    return _recurrent.score(fitted, _tokens(outputs), outputs.lengths)


def _tokens(outputs: Outputs) -> Float[np.ndarray, "n t d"]:
    """Joins what the network reads of each token: probabilities, and those of the reference."""
    own = outputs.of_reference[..., None]
    features = (outputs.largest, own, np.log(np.maximum(own, _SMALLEST)) / 10)
    return np.concatenate(features, axis=2).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the attacker has; the membership of the judged sentences is not part of it.

    outputs: outputs of the target for the judged sentences.
    num_tokens: size of the vocabulary.
    known, known_is_member: outputs of shadow models for other sentences, and their membership.
    shadow_signals: signal of each judged sentence under each shadow model, from `sequence_signals`.
    shadow_is_member: which judged sentences each of these models was trained on.
    ids, known_ids: numbers or names of the judged and of the known sentences. With them, judged
      sentences that also train the attack are refused; without them nothing is compared.

    Raises:
      ValueError: if one of two parts that belong together is absent, shapes disagree, there is
        NaN, probabilities are outside [0, 1], ranks or lengths are out of range or not whole,
        membership is not 0 or 1, or a judged sentence is among the known ones.

    Example:
      >>> outputs = reduce(np.full((2, 1, 3), 1 / 3), np.zeros((2, 1), int), np.ones(2, int), top=1)
      >>> Evidence(outputs=outputs, num_tokens=3).known is None
      True
    """

    outputs: Outputs
    num_tokens: int
    known: Outputs | None = None
    known_is_member: Bool[np.ndarray, " k"] | None = None
    shadow_signals: Float[np.ndarray, "m n"] | None = None
    shadow_is_member: Bool[np.ndarray, "m n"] | None = None
    ids: Shaped[np.ndarray, " n"] | None = None
    known_ids: Shaped[np.ndarray, " k"] | None = None

    def __post_init__(self) -> None:
        _check.positive_int(num_tokens=self.num_tokens)
        outputs = _checked("outputs", self.outputs, num_tokens=self.num_tokens)
        if (self.known is None) != (self.known_is_member is None):
            raise ValueError("Expected known and known_is_member together, got one of them.")
        if (self.shadow_signals is None) != (self.shadow_is_member is None):
            raise ValueError("Expected shadow_signals and shadow_is_member together, got one.")
        if (self.ids is None) != (self.known_ids is None):
            raise ValueError("Expected ids and known_ids together, got one of them.")
        if self.known is not None and self.known_is_member is not None:
            known = _checked("known", self.known, num_tokens=self.num_tokens)
            is_member = _check.scores(self.known_is_member, name="known_is_member")
            is_member = _check.membership(is_member, name="known_is_member")
            _check.same_length(known=known.lengths, known_is_member=is_member)
            object.__setattr__(self, "known_is_member", is_member)
            widths = [part.largest.shape[2] for part in (outputs, known)]
            if widths[0] != widths[1]:
                raise ValueError(
                    f"Expected equally many largest probabilities, got {widths[0]} and {widths[1]}."
                )
        if self.shadow_signals is not None and self.shadow_is_member is not None:
            _check.real_array("shadow_signals", self.shadow_signals)
            is_member = _shadows.as_bool(self.shadow_is_member)
            shape = (len(is_member), len(outputs.lengths))
            if not self.shadow_signals.shape == is_member.shape == shape:
                raise ValueError(
                    f"Expected shadow_signals and shadow_is_member [m, {shape[1]}], got "
                    f"{list(self.shadow_signals.shape)} and {list(is_member.shape)}."
                )
            object.__setattr__(self, "shadow_is_member", is_member)
        if self.ids is not None and self.known_ids is not None:
            _check_ids(self.ids, self.known_ids, outputs, self.known)


def _check_ids(
    ids: Shaped[np.ndarray, " n"],
    known_ids: Shaped[np.ndarray, " k"],
    outputs: Outputs,
    known: Outputs | None,
) -> None:
    if known is None:
        raise ValueError("Expected known with known_ids, got none.")
    _check.same_length(outputs=outputs.lengths, ids=ids)
    _check.same_length(known=known.lengths, known_ids=known_ids)
    shared = np.intersect1d(ids, known_ids)
    if shared.size:
        raise ValueError(
            "Expected judged sentences that do not train the attack, "
            f"got sentence {shared[0]} among the known ones."
        )


_DESCRIPTIONS = {
    "known": "sentences of known membership",
    "shadow_signals": "signals of shadow models",
}
"""Parts of the evidence that an attack may need, as `missing` describes them."""

Run = Callable[[PRNGKeyArray, Evidence], Float[np.ndarray, " n"]]
"""`run(key, evidence) -> scores [n]` of the judged sentences, higher = more likely a member."""


def attacks(
    *, training: Training = _DEFAULT_TRAINING, width: int = 64, num_bins: int = 30
) -> tuple[Attack, ...]:
    """Lists the attacks on sentences, from the simplest to those that use shadow models.

    Args:
      training: options of the attack that trains a network.
      width: width of the network's layers.
      num_bins: number of bins of the histograms of ranks.

    Returns:
      The table.

    Example:
      >>> [attack.name for attack in attacks()]
      ['log_probability', 'min_k', 'rank_histogram', 'probability_vectors', 'lira']
    """

    def vectors(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
        known, is_member = _known(evidence)
        return apply(fit(key, known, is_member, training=training, width=width), evidence.outputs)

    return (
        Attack(
            name="log_probability",
            title="mean log-probability",
            needs=(),
            run=_of_signal(signals.mean_log_probability),
            reference="Yeom et al., Privacy Risk in Machine Learning, 2018",
        ),
        Attack(
            name="min_k",
            title="min-k probability",
            needs=(),
            run=_of_signal(signals.min_k_probability),
            reference="Shi et al., Detecting Pretraining Data from Large Language Models, 2024",
        ),
        Attack(
            name="rank_histogram",
            title="histogram of ranks (PRMIA)",
            needs=("known",),
            run=functools.partial(_by_ranks, num_bins),
            trains=True,
            decision_at_zero=True,
            reference="Song and Shmatikov, Auditing Data Provenance, 2019",
        ),
        Attack(
            name="probability_vectors",
            title="LSTM on probabilities (PVMIA)",
            needs=("known",),
            run=vectors,
            trains=True,
            decision_at_zero=True,
            reference="On The Vulnerability of Recurrent Neural Networks to MIAs, 2022",
        ),
        Attack(
            name="lira",
            title="LiRA on the mean log-probability",
            needs=("shadow_signals",),
            run=_lira,
            decision_at_zero=True,
            reference="Carlini et al., Membership Inference Attacks From First Principles, 2022",
        ),
    )


def applicable(table: Iterable[Attack], evidence: Evidence) -> tuple[Attack, ...]:
    """Selects the attacks that the evidence supports.

    Args:
      table: attacks, as from `attacks()`.
      evidence: what the attacker has.

    Returns:
      The attacks for which nothing is missing, in the order of the table.

    Example:
      >>> outputs = reduce(np.full((2, 1, 3), 1 / 3), np.zeros((2, 1), int), np.ones(2, int), top=1)
      >>> evidence = Evidence(outputs=outputs, num_tokens=3)
      >>> [attack.name for attack in applicable(attacks(), evidence)]
      ['log_probability', 'min_k']
    """
    return tuple(attack for attack in table if not missing(attack, evidence))


def missing(attack: Attack, evidence: Evidence) -> str:
    """Describes what an attack needs and the evidence lacks.

    Args:
      attack: a row of the table.
      evidence: what the attacker has.

    Returns:
      A phrase such as "needs signals of shadow models"; empty if nothing is missing.

    Example:
      >>> outputs = reduce(np.full((2, 1, 3), 1 / 3), np.zeros((2, 1), int), np.ones(2, int), top=1)
      >>> missing(attacks()[-1], Evidence(outputs=outputs, num_tokens=3))
      'needs signals of shadow models'
    """
    absent = [need for need in attack.needs if getattr(evidence, need) is None]
    return _tables.needs_phrase([_DESCRIPTIONS[need] for need in absent])


def run_all(
    key: PRNGKeyArray, evidence: Evidence, *, table: Iterable[Attack] | None = None
) -> dict[str, Float[np.ndarray, " n"]]:
    """Runs every attack that the evidence supports.

    Args:
      key: PRNG key; the key of an attack is derived from its name.
      evidence: what the attacker has.
      table: attacks; None takes `attacks()`.

    Returns:
      Scores of the judged sentences, by name of the attack; higher = more likely a member. The
      scores of a user with many sentences are their means: `units.canaries`.

    Example:
      >>> outputs = reduce(np.full((1, 1, 4), 0.25), np.zeros((1, 1), int), np.ones(1, int), top=1)
      >>> scores = run_all(jax.random.key(0), Evidence(outputs=outputs, num_tokens=4))
      >>> scores["log_probability"].round(3)
      array([-1.386])
    """
    table = attacks() if table is None else table
    return _tables.run_all(key, evidence, applicable(table, evidence))


def _of_signal(signal: Callable[..., Array]) -> Run:
    def run(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
        del key
        return sequence_signals(evidence.outputs, signal)

    return run


def _known(evidence: Evidence) -> tuple[Outputs, Bool[np.ndarray, " k"]]:
    if evidence.known is None or evidence.known_is_member is None:
        raise ValueError("Expected known sentences, got none.")
    return evidence.known, evidence.known_is_member


def _by_ranks(num_bins: int, key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
    """Scores sentences by a linear classifier on histograms of ranks, at even priors."""
    from sklearn.linear_model import LogisticRegression

    del key
    known, is_member = _known(evidence)
    _check.both_sides(is_member)
    histograms = functools.partial(
        rank_histograms, num_bins=num_bins, num_tokens=evidence.num_tokens
    )
    model: Any = LogisticRegression(C=10.0, max_iter=1000, class_weight="balanced")
    model.fit(histograms(known), is_member)
    return np.asarray(model.decision_function(histograms(evidence.outputs)), np.float64)


def _lira(key: PRNGKeyArray, evidence: Evidence) -> Float[np.ndarray, " n"]:
    del key
    if evidence.shadow_signals is None or evidence.shadow_is_member is None:
        raise ValueError("Expected shadow_signals, got none.")
    target = sequence_signals(evidence.outputs)
    return lira.online(target, evidence.shadow_signals, evidence.shadow_is_member)
