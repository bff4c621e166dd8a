"""Table 2 of rnnmia2022: translation models whose probabilities the Dirichlet mechanism answers.

Run:       python -m experiments run rnnmia2022/table2 --preset cpu
Time:      smoke 30 s, cpu not run yet (its models are those of fig4_5 in build/translation), paper
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

import functools
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments import common, translation
from experiments.translation import Kind, Piece
from jaxpriv import metrics, models
from jaxpriv.attacks import sequence
from jaxpriv.data import vocabulary
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


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Sizes, and the mechanism.

    concentrations: k of the mechanism.
    queries: numbers of answers to each token that adaptive attackers average; the first is 1.
    eta, b, delta: floor of the probabilities, L1 distance of neighbours, and delta.
    """

    piece: Piece
    kind: Kind
    concentrations: tuple[float, ...] = (100.0, 10.0, 1.0, 0.1, 0.01)
    queries: tuple[int, ...] = (1, 16, 64)
    eta: float = 1e-5
    b: float = 0.1
    delta: float = 1e-5


PRESETS = {
    "smoke": Settings(
        piece=translation.SMOKE,
        kind=translation.SMALL_KINDS["RNN"],
        concentrations=(1.0,),
        queries=(1, 2),
    ),
    "cpu": Settings(piece=Piece(size=2000), kind=translation.LSTM),
    "paper": Settings(piece=Piece(size=10_000, tested=1000, judged=2000), kind=translation.LSTM),
}


def run(settings: Settings) -> dict[str, Any]:
    """Attacks one victim at every k."""
    piece = settings.piece
    sides = _sentences(piece)
    undefended = _attack(settings, sides, None, 1)
    lengths = translation.load(piece).pairs.target_length[sides["victim"]] - 1
    tokens = max(1, round(float(np.median(lengths))))
    rows = [
        {
            "k": None,
            "bleu": _bleu(settings, None),
            "as_trained": _accuracy(settings, undefended, sides, None, 1),
            "adaptive": {},
            "epsilon": {},
            "paper": PAPER[None],
        }
    ]
    for k in settings.concentrations:
        row: dict[str, Any] = {"k": k, "bleu": _bleu(settings, k), "adaptive": {}}
        row["as_trained"] = _accuracy(settings, undefended, sides, k, 1)
        row["epsilon"] = {"1": _epsilon(settings, k, 1)}
        for queries in settings.queries:
            adapted = _attack(settings, sides, k, queries)
            accuracy = _accuracy(settings, adapted, sides, k, queries)
            row["adaptive"][str(queries)] = accuracy
            row["epsilon"][f"{queries} x {tokens}"] = _epsilon(settings, k, queries * tokens)
        rows.append({**row, "paper": PAPER[k]})
    shared = {"tokens": tokens, "eta": settings.eta, "b": settings.b, "delta": settings.delta}
    return {"rows": rows, **shared}


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
    return translation.balanced_accuracy((log_odds > 0) == is_member, is_member)


def _epsilon(settings: Settings, k: float, queries: int) -> float:
    defence = dirichlet.noised_outputs(
        k=k, eta=settings.eta, b=settings.b, delta=settings.delta, queries=queries
    )
    assert defence.output_guarantee is not None
    return defence.output_guarantee(translation.load(settings.piece).sizes[1]).epsilon


def _model(settings: Settings) -> nn.Module:
    piece = settings.piece
    return settings.kind.module(translation.load(piece).sizes, max_length=piece.max_length)


def _answers(
    settings: Settings, role: str, sentences: np.ndarray, k: float | None, queries: int
) -> sequence.Outputs:
    """Queries a model with the references of sentences, a block at a time."""
    piece = settings.piece
    pairs = translation.load(piece).pairs
    params = translation.train(piece, settings.kind, role, 0)[-1]
    answer = _answerer(_model(settings), piece.top, settings.eta, k is not None, queries)
    parts, size = [], translation.BLOCK
    for start in range(0, len(sentences), size):
        block = sentences[start : start + size]
        batch = jax.tree.map(lambda leaf, block=block: leaf[np.resize(block, size)], pairs)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(queries), start), size)
        largest, of_reference, rank = (
            np.asarray(leaf)[: len(block)] for leaf in answer(params, batch, keys, k or 1.0)
        )
        lengths = np.asarray(pairs.target_length[block]) - 1
        parts.append(sequence.Outputs(largest, of_reference, rank, lengths))
    return sequence.join(parts)


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
    """Translates the test sentences, by the answers to every token, and computes BLEU."""
    piece = settings.piece
    corpus = translation.load(piece)
    params = translation.train(piece, settings.kind, "victim", 0)[-1]
    if k is None:
        return translation.bleu(piece, settings.kind, params, corpus.tested)
    decode = _decoder(_model(settings), piece.max_length, settings.eta)
    pairs, size, texts = corpus.tested, translation.BLOCK, []
    for start in range(0, len(pairs.source_length), size):
        rows = np.arange(start, min(start + size, len(pairs.source_length)))
        block = np.resize(rows, size)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(2), start), size)
        tokens = decode(params, pairs.source[block], pairs.source_length[block], keys, k)
        texts += [corpus.words[1].decode(row) for row in np.asarray(tokens)[: len(rows)]]
    references = [corpus.words[1].decode(row) for row in pairs.target]
    return metrics.text.bleu(texts, references).score


@functools.cache
def _decoder(model: nn.Module, max_length: int, eta: float) -> Any:
    def decode(params: Any, source: Any, length: Any, key: jax.Array, k: Any) -> jax.Array:
        return models.greedy(
            model,
            params,
            source,
            length,
            max_length=max_length,
            bos=vocabulary.BOS,
            eos=vocabulary.EOS,
            respond=functools.partial(dirichlet.noised_answer, k=k, eta=eta),
            key=key,
        ).tokens

    return jax.jit(jax.vmap(decode, in_axes=(None, 0, 0, 0, None)))


def table(record: dict[str, Any]) -> str:
    """Formats the rows beside those of the paper."""
    queries = list(record["rows"][-1]["adaptive"])
    columns = (
        "", "attack, %: paper", "as trained", *(f"adaptive, {q}" for q in queries), "BLEU: paper",
        "ours", "epsilon of 1 answer", "of a sentence", f"x {queries[-1]}",
    )  # fmt: skip
    rows = []
    for row in record["rows"]:
        accuracy, bleu = row["paper"]
        adaptive, epsilons = row["adaptive"], list(row["epsilon"].values())
        shown = [f"{epsilons[i]:.4g}" for i in (0, 1, -1)] if epsilons else ["infinite"] * 3
        rows.append(
            (
                "no protection" if row["k"] is None else f"k = {row['k']:g}",
                f"{100 * accuracy:.2f}",
                common.percent(row["as_trained"]),
                *(common.percent(adaptive[q]) if adaptive else "" for q in queries),
                f"{bleu:.2f}",
                f"{row['bleu']:.2f}",
                *shown,
            )
        )
    note = (
        f"epsilon at delta {record['delta']:g}, eta {record['eta']:g} and b {record['b']:g} is "
        f"local differential privacy of the answers to {record['tokens']} tokens, not of sentences."
    )
    return common.text_table(columns, rows) + "\n\n" + note
