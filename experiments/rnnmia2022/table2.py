"""Table 2 of rnnmia2022: translation models whose probabilities the Dirichlet mechanism answers.

Run:       python -m experiments run rnnmia2022/table2 --preset cpu
Time:      smoke 45 s, cpu not run yet (its models are those of fig4_5 in build/translation), paper
           not run yet
Paper:     attack accuracy 81.02 % without protection at BLEU 46.74; 67.53 %, 55.98 %, 53.42 %,
           50.42 % and 50.34 % at k = 100, 10, 1, 0.1 and 0.01, at a BLEU of 46.53 to 43.74
Ours:      not run yet

Needs Multi30K in JAXPRIV_DATA. Every token is answered by a draw of the mechanism, and a
translation takes the most probable token of the answer. `as trained` is PVMIA that learned from the
undefended shadow model; the adaptive ones learn from the shadow model with the same mechanism, and
see the mean of 1, 16 or 64 answers to every token of the reference. They see the entries that are
largest without the noise, that of the reference, and the sum of all others; the joint distribution
of these is a Dirichlet distribution again, so the draws are exact. An attacker cannot choose the
entries without noise, so the attack is at least as strong as one that he can run.

The mechanism protects one vector of probabilities against others that differ in two entries by at
most b, and neither the membership of a sentence nor a sentence of several tokens: every token and
every query spends the guarantee again. The paper states neither eta nor b, so the epsilons are for
those chosen here.
"""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments import translation, translation_measures
from experiments.rnnmia2022 import mechanism
from experiments.rnnmia2022.mechanism import Mechanism
from experiments.translation import Kind, Piece
from jaxpriv.attacks import sequence
from jaxpriv.defences import dirichlet
from jaxpriv.training.translation import reference_logits

PAPER = {
    None: (0.8102, 46.74),
    100.0: (0.6753, 46.53),
    10.0: (0.5598, 46.02),
    1.0: (0.5342, 44.57),
    0.1: (0.5042, 43.961),
    0.01: (0.5034, 43.74),
}
"""Attack accuracy and BLEU by k; None is the model without protection."""

_ABSENT = 1e-30
"""Concentration of an entry that is 0 in every draw."""


MECHANISM = Mechanism(eta=1e-5)
"""The floor is below 1 / 10,000, as vocabularies require."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """piece, kind: sizes and architecture. mechanism: the mechanism and its attackers."""

    piece: Piece
    kind: Kind
    mechanism: Mechanism = MECHANISM


PRESETS = {
    "smoke": Settings(
        piece=translation.SMOKE,
        kind=translation.SMALL_KINDS["RNN"],
        mechanism=dataclasses.replace(MECHANISM, concentrations=(1.0,), queries=(1, 2)),
    ),
    "cpu": Settings(piece=Piece(size=2000), kind=translation.LSTM),
    "paper": Settings(piece=Piece(size=10_000, tested=1000, judged=2000), kind=translation.LSTM),
}


def run(settings: Settings) -> dict[str, Any]:
    """Attacks one victim at every k."""
    piece, options = settings.piece, settings.mechanism
    sides, corpus = _sentences(piece), translation.load(piece)
    undefended = _attack(settings, sides, None, 1)
    lengths = corpus.pairs.target_length[sides["victim"]] - 1
    length = max(1, round(float(np.median(lengths))))
    rows: list[dict[str, Any]] = []
    for k in (None, *options.concentrations):
        row: dict[str, Any] = {"k": k, "paper": PAPER[k], "utility": _bleu(settings, k)}
        row["as_trained"] = _accuracy(settings, undefended, sides, k, 1)
        row |= {"adaptive": {}, "epsilon": {}}
        if k is not None:
            row["epsilon"] = options.epsilons(k, length=length, num_classes=corpus.sizes[1])
            for queries in options.queries:
                adapted = _attack(settings, sides, k, queries)
                accuracy = _accuracy(settings, adapted, sides, k, queries)
                row["adaptive"][str(queries)] = accuracy
        rows.append(row)
    return {"rows": rows, "mechanism": dataclasses.asdict(options)}


def _sentences(piece: Piece) -> dict[str, np.ndarray]:
    """Returns the sentences that each role is judged on: members, then as many non-members."""
    rows = translation.rows(piece, 0)
    return {
        role: np.concatenate([rows[role][: piece.judged], rows[f"{role}_nonmembers"]])
        for role in ("victim", "shadow")
    }


def _is_member(piece: Piece, sentences: np.ndarray) -> np.ndarray:
    return np.arange(len(sentences)) < len(sentences) - piece.judged


def _attack(settings: Settings, sides: dict[str, np.ndarray], k: float | None, queries: int) -> Any:
    """Trains PVMIA on the answers of the shadow model."""
    piece, known = settings.piece, sides["shadow"]
    return sequence.fit(
        jax.random.key(1),
        _answers(settings, "shadow", known, k, queries),
        _is_member(piece, known),
        training=piece.attack,
        width=piece.attack_width,
    )


def _accuracy(
    settings: Settings,
    network: Any,
    sides: dict[str, np.ndarray],
    k: float | None,
    queries: int,
) -> list[float]:
    """Computes the balanced accuracy of PVMIA on the answers of the victim."""
    is_member = _is_member(settings.piece, sides["victim"])
    log_odds = sequence.apply(network, _answers(settings, "victim", sides["victim"], k, queries))
    return translation_measures.balanced_accuracy((log_odds > 0) == is_member, is_member)


def _answers(
    settings: Settings, role: str, sentences: np.ndarray, k: float | None, queries: int
) -> sequence.Outputs:
    """Queries a model with the references of sentences."""
    piece = settings.piece
    corpus = translation.load(piece)
    model = settings.kind.module(corpus.sizes, max_length=piece.max_length)
    params = translation.train(piece, settings.kind, role, 0)[-1]
    answer = _answerer(model, piece.top, settings.mechanism.eta, k is not None, queries)

    def query(block: Any) -> sequence.Outputs:
        pairs, keys = block
        largest, of_reference, rank = answer(params, pairs, keys, k or 1.0)
        return sequence.Outputs(largest, of_reference, rank, pairs.target_length - 1)

    keys = jax.random.split(jax.random.key(queries), len(sentences))
    return translation.in_blocks(query, (translation.take(corpus.pairs, sentences), keys))


@functools.cache
def _answerer(model: nn.Module, top: int, eta: float, is_defended: bool, queries: int) -> Any:
    """Compiles the mean of several answers to each token of the references of a block."""

    def one(params: Any, pair: Any, key: jax.Array, k: Any) -> tuple[jax.Array, ...]:
        logits = reference_logits(model, params, pair)
        floor = functools.partial(dirichlet.floored_log_probabilities, eta=eta)
        p = jnp.exp(jax.vmap(floor)(logits)) if is_defended else jax.nn.softmax(logits)
        reference = pair.target[1:, None]
        p_largest, indices = jax.lax.top_k(p, top)
        p_reference = jnp.take_along_axis(p, reference, axis=1)
        is_reference = indices == reference
        is_listed = is_reference.any(axis=1, keepdims=True)
        entries = jnp.concatenate([p_largest, jnp.where(is_listed, 0.0, p_reference)], axis=1)
        if is_defended:
            entries = _mean_answer(key, entries, k, queries)
        listed = jnp.where(is_reference, entries[:, :top], 0).sum(axis=1)
        of_reference = jnp.where(is_listed[:, 0], listed, entries[:, top])
        largest = -jnp.sort(-entries[:, :top], axis=1)
        rank = (entries[:, :top] > of_reference[:, None]).sum(axis=1)
        return largest, of_reference, rank

    return jax.jit(jax.vmap(one, in_axes=(None, 0, 0, None)))


def _mean_answer(key: jax.Array, entries: jax.Array, k: Any, queries: int) -> jax.Array:
    """Draws the entries of a Dirichlet vector, of which all others are known by their sum."""
    rest = jnp.maximum(1 - entries.sum(axis=1, keepdims=True), 0)
    concentrations = jnp.maximum(k * jnp.concatenate([entries, rest], axis=1), _ABSENT)

    def add(total: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
        return total + jax.nn.softmax(jax.random.loggamma(key, concentrations)), None

    keys = jax.random.split(key, queries)
    total, _ = jax.lax.scan(add, jnp.zeros_like(concentrations), keys)
    return total[:, :-1] / queries


def _bleu(settings: Settings, k: float | None) -> float:
    """Computes the BLEU of translations by the answers to every token."""
    piece = settings.piece
    params = translation.train(piece, settings.kind, "victim", 0)[-1]
    respond = None if k is None else settings.mechanism.defence(k, 1).respond
    return translation.bleu(piece, settings.kind, params, translation.load(piece).tested, respond)


def table(record: dict[str, Any]) -> str:
    """Formats the rows beside those of the paper."""
    return mechanism.table(
        record["rows"],
        record["mechanism"],
        utility="BLEU",
        decimals=2,
        label=lambda row: "",
        protects="the answers to a sentence, not of sentences",
    )
