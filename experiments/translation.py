"""Translation models from French to English, and attacks on the sentences of their training.

    corpus --rows--> victim, shadow model --outputs--> PVMIA, PRMIA and baselines --judge--> rows

The victim and the shadow model are trained on disjoint pairs of the corpus, and an attack on the
victim's outputs learns from those of the shadow model. LiRA and RMIA have shadow models of their
own, on random halves of a pool that contains the judged pairs. All share one vocabulary, that of
the full corpus, or a word that is unknown would give a non-member away. In the shapes below `n`
counts sentences.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import translation_measures as measures
from experiments.translation_corpus import Piece, halves, load, rows, take
from experiments.translation_measures import DECIDED
from jaxpriv import data, metrics, models, sampling, sensitivity, signals, training
from jaxpriv.attacks import Evidence, Training, rmia, sequence, suite
from jaxpriv.data import vocabulary
from jaxpriv.metrics import intervals
from jaxpriv.training import translation

BY_SHADOWS = ("lira_offline", "lira", "rmia_offline", "rmia")
"""Attacks that compare a sentence with many shadow models, in the table of the suite."""

ATTACKS = {
    **{attack.name: attack.title for attack in sequence.attacks() if attack.name != "lira"},
    "reference_ratio": "ratio to the shadow model's probability",
    **{each.name: each.title for each in suite.attacks() if each.name in BY_SHADOWS},
}
"""Titles of the attacks."""

RMIA_GAMMA, RMIA_SLOPE = 1.0, 0.3
"""Ratio by which RMIA's sentence must dominate, and the slope if there are too few to tune it."""

RMIA_SLOPES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Slopes that are tried for RMIA offline."""

BLOCK = 50
"""Number of sentences that are translated or scored at a time."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Architecture of a translation model: that of the LSTM, or of the transformer if it has heads.

    width: width of the decoder, and of all layers of a transformer.
    embedding: width of the embeddings of an LSTM.
    dropout: rate of dropout.
    num_heads, num_layers, hidden: of the transformer; 0 for an LSTM.
    """

    width: int
    dropout: float
    embedding: int = 0
    num_heads: int = 0
    num_layers: int = 0
    hidden: int = 0

    def module(self, sizes: tuple[int, int], *, max_length: int) -> nn.Module:
        """Returns the network for vocabularies of these sizes."""
        num_source, num_target = sizes
        if self.num_heads:
            return models.Transformer(
                num_source_tokens=num_source,
                num_target_tokens=num_target,
                width=self.width,
                dropout=self.dropout,
                num_heads=self.num_heads,
                num_layers=self.num_layers,
                hidden=self.hidden,
                max_length=max_length,
            )
        return models.Seq2Seq(
            num_source_tokens=num_source,
            num_target_tokens=num_target,
            embedding=self.embedding,
            hidden=self.width,
            dropout=self.dropout,
        )


LSTM = Kind(width=200, embedding=150, dropout=0.2)
TRANSFORMER = Kind(width=128, num_heads=8, num_layers=3, hidden=384, dropout=0.1)
KINDS = {"RNN": LSTM, "transformer": TRANSFORMER}
SMALL_KINDS = {
    "RNN": Kind(width=6, embedding=4, dropout=0.2),
    "transformer": Kind(width=4, num_heads=1, num_layers=1, hidden=4, dropout=0.1),
}


SMOKE = Piece(
    corpus="humanize",
    test_split=None,
    size=16,
    stages=(1,),
    judged=8,
    tested=4,
    batch_size=8,
    max_length=8,
    min_count=1,
    widths=(),
    top=2,
    attack=Training(steps=2, batch_size=4),
    attack_width=2,
    resumable=False,
)


@functools.cache
def algorithm(piece: Piece, kind: Kind, size: int) -> training.Algorithm:
    """Returns the training of a kind on `size` pairs by Adam, with gradients clipped to norm 10."""
    model = kind.module(load(piece).sizes, max_length=piece.max_length)
    optimizer = optax.chain(
        optax.clip_by_global_norm(10.0),
        optax.add_decayed_weights(piece.weight_decay),
        optax.adam(piece.learning_rate),
    )
    buckets = None
    if piece.widths:
        buckets = translation.buckets(widths=piece.widths, rows=piece.batch_size // 4)
    sampler = sampling.fixed_batch(size, batch_size=min(piece.batch_size, size))
    return training.sgd(translation.loss(model), optimizer, sampler, buckets=buckets)


@functools.cache
def train(piece: Piece, kind: Kind, role: str, seed: int) -> tuple[Any, ...]:
    """Trains the victim or the shadow model; returns its parameters after each stage or part."""
    key = jax.random.key(2 * seed + (role == "shadow"))
    return _train(piece, kind, key, rows(piece, seed)[role], f"{role}-{seed}")


@functools.cache
def train_on_half(piece: Piece, kind: Kind, seed: int, number: int) -> tuple[Any, ...]:
    """Trains a shadow model of LiRA and RMIA; returns its parameters after each stage."""
    pool, is_member = halves(piece, seed)
    key = jax.random.fold_in(jax.random.key(2 * seed), number)
    label = f"half-{number}-of-{piece.shadows}-{seed}"
    return _train(piece, kind, key, pool[is_member[number]], label)


def _train(
    piece: Piece, kind: Kind, key: jax.Array, members: np.ndarray, label: str
) -> tuple[Any, ...]:
    corpus = load(piece)
    init_key, run_key = jax.random.split(key)
    state = initial(piece, kind, init_key)
    snapshots = []
    for name, part, steps in _schedule(piece, members):
        pairs = jax.tree.map(jnp.asarray, take(corpus.pairs, part))
        checkpoints = None
        if piece.resumable:
            checkpoints = training.Checkpoints(directory=_folder(piece, kind, label, name))
        key = jax.random.fold_in(run_key, steps if piece.parts > 1 else 0)
        alg = algorithm(piece, kind, len(part))
        state, _ = training.fit(key, alg, state, pairs, steps=steps, checkpoints=checkpoints)
        snapshots.append(state.params)
    return tuple(snapshots)


def initial(piece: Piece, kind: Kind, key: jax.Array) -> Any:
    """Initialises the parameters of a model."""
    corpus = load(piece)
    model = kind.module(corpus.sizes, max_length=piece.max_length)
    return jax.jit(model.init)(key, *jax.tree.map(jnp.asarray, take(corpus.pairs, 0))[:3])


def sample_pairs(
    piece: Piece, kind: Kind, *, num_pairs: int, checkpoints: training.Checkpoints | None
) -> sensitivity.SampledPairs:
    """Trains models in pairs whose data sets, of `piece.size` pairs, differ in one.

    A piece without widths keeps every other pair of sentences in its place of the batch.
    """
    return sensitivity.sample_pairs(
        jax.random.key(1),
        lambda size, _: algorithm(piece, kind, size),
        initial(piece, kind, jax.random.key(0)),
        jax.tree.map(jnp.asarray, load(piece).pairs),
        num_pairs=num_pairs,
        num_records=piece.size,
        steps=piece.stages[-1] * piece.epoch,
        chunk=2 if checkpoints else None,
        checkpoints=checkpoints,
    )


def _schedule(piece: Piece, members: np.ndarray) -> list[tuple[str, np.ndarray, int]]:
    """Lists the stages, or the parts: a name, the pairs, and the total number of steps after it."""
    if piece.parts == 1:
        starts = (0, *piece.stages[:-1])
        return [
            (f"epochs-{start}-to-{end}", members, end * piece.epoch)
            for start, end in zip(starts, piece.stages, strict=True)
        ]
    (epochs,) = piece.stages
    size = piece.size // piece.parts
    return [
        (
            f"part-{i + 1}-of-{piece.parts}-{epochs}-epochs",
            members[i * size : (i + 1) * size],
            (i + 1) * epochs * piece.epoch,
        )
        for i in range(piece.parts)
    ]


def _folder(piece: Piece, kind: Kind, role: str, stage: str) -> Path:
    sizes = dataclasses.asdict(kind)
    label = "-".join(f"{value:g}" for value in sizes.values() if value)
    decay = f"-decay-{piece.weight_decay:g}" if piece.weight_decay else ""
    name = f"{piece.corpus}-{piece.size}-{label}{decay}-{role}"
    return Path("build") / "translation" / name / stage


@functools.cache
def _scorer(model: nn.Module) -> Any:
    @jax.jit
    def score(params: Any, pairs: Any) -> tuple[jax.Array, jax.Array]:
        logits = jax.vmap(lambda pair: translation.reference_logits(model, params, pair))(pairs)
        log_p = jax.nn.log_softmax(logits)
        return jnp.exp(log_p), -(jnp.exp(log_p) * log_p).sum(axis=-1)

    return score


def in_blocks(function: Callable[[Any], Any], batch: Any) -> Any:
    """Applies a function to the rows of a batch, a block at a time, so that memory stays small.

    Every block has `BLOCK` rows, so that the function is compiled once.

    Args:
      function: function of a block; its results have the rows as their leading axis.
      batch: pytree with leading axis n.

    Returns:
      The results of all rows as NumPy arrays, with leading axis n.
    """
    count, results = len(jax.tree.leaves(batch)[0]), []
    for start in range(0, count, BLOCK):
        chosen = np.resize(np.arange(start, min(start + BLOCK, count)), BLOCK)
        result = jax.tree.map(np.asarray, function(take(batch, chosen)))
        results.append(take(result, slice(0, count - start)))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *results)


class Scored(NamedTuple):
    """Outputs of a model for the references of sentences.

    outputs: what an attack reads.
    entropies: mean entropy of the predictions of each sentence, in nats.
    """

    outputs: sequence.Outputs
    entropies: np.ndarray


def score(piece: Piece, kind: Kind, params: Any, chosen: np.ndarray) -> Scored:
    """Queries a model with sentences."""
    corpus = load(piece)
    function = _scorer(kind.module(corpus.sizes, max_length=piece.max_length))

    def query(pairs: Any) -> Scored:
        probabilities, entropy = (np.asarray(leaf) for leaf in function(params, pairs))
        references, lengths = pairs.target[:, 1:], pairs.target_length - 1
        reduced = sequence.reduce(
            np.minimum(probabilities, 1.0), references, lengths, top=piece.top
        )
        is_token = np.arange(references.shape[1]) < lengths[:, None]
        return Scored(reduced, (entropy * is_token).sum(axis=1) / lengths)

    return in_blocks(query, take(corpus.pairs, chosen))


@functools.cache
def _translator(
    model: nn.Module, max_length: int, beams: int, respond: models.decoding.Respond | None
) -> Any:
    def decode(params: Any, source: Any, length: Any, key: Any) -> jax.Array:
        return models.beam_search(
            model,
            params,
            source,
            length,
            width=beams,
            max_length=max_length,
            bos=vocabulary.BOS,
            eos=vocabulary.EOS,
            length_penalty=1.0 if beams > 1 else 0.0,
            respond=respond,
            key=None if respond is None else key,
        ).tokens

    return jax.jit(jax.vmap(decode, in_axes=(None, 0, 0, 0)))


def translate(
    model: nn.Module,
    params: Any,
    pairs: Any,
    words: data.Vocabulary,
    *,
    max_length: int,
    beams: int = 1,
    respond: models.decoding.Respond | None = None,
) -> list[str]:
    """Translates the sources of pairs; `respond` is a defence of the outputs."""
    function = _translator(model, max_length, beams, respond)
    keys = jax.random.split(jax.random.key(2), len(pairs.source_length))
    tokens = in_blocks(
        lambda block: function(params, *block), (pairs.source, pairs.source_length, keys)
    )
    return [words.decode(row) for row in tokens]


def translate_pairs(
    piece: Piece,
    kind: Kind,
    params: Any,
    pairs: Any,
    respond: models.decoding.Respond | None = None,
) -> list[str]:
    """Translates pairs by a model of a piece."""
    corpus = load(piece)
    return translate(
        kind.module(corpus.sizes, max_length=piece.max_length),
        params,
        pairs,
        corpus.words[1],
        max_length=piece.max_length,
        beams=piece.beams,
        respond=respond,
    )


def bleu(
    piece: Piece,
    kind: Kind,
    params: Any,
    pairs: Any,
    respond: models.decoding.Respond | None = None,
) -> float:
    """Computes the BLEU of translations, in lower case and with unknown words as they are."""
    references = [load(piece).words[1].decode(row) for row in pairs.target]
    texts = translate_pairs(piece, kind, params, pairs, respond)
    return metrics.text.bleu(texts, references).score


class Judged(NamedTuple):
    """Results of the attacks on a victim.

    scores: scores of the sentences by name of the attack.
    is_member: whether each sentence was in the training; members come first.
    victim: outputs of the victim for the sentences.
    users: user of each sentence; None if the corpus does not name them.
    """

    scores: dict[str, np.ndarray]
    is_member: np.ndarray
    victim: Scored
    users: np.ndarray | None = None


@functools.cache
def judge(
    piece: Piece, kind: Kind, seed: int, *, stage: int = -1, shadow: Kind | None = None
) -> Judged:
    """Attacks a victim after a stage of its training.

    Args:
      piece: sizes.
      kind: architecture of the victim.
      seed: number of the victim.
      stage: index of the stage.
      shadow: architecture of the shadow model; None takes that of the victim.
    """
    shadow = shadow or kind
    roles = rows(piece, seed)
    members = {role: _judged_members(piece, roles[role]) for role in ("victim", "shadow")}
    num_members = len(members["victim"])
    is_member = np.arange(num_members + piece.judged) < num_members
    params = train(piece, shadow, "shadow", seed)[stage]
    known = np.concatenate([members["shadow"], roles["shadow_nonmembers"]])
    judged = np.concatenate([members["victim"], roles["victim_nonmembers"]])
    victim = score(piece, kind, train(piece, kind, "victim", seed)[stage], judged)
    evidence = sequence.Evidence(
        outputs=victim.outputs,
        num_tokens=load(piece).sizes[1],
        known=score(piece, shadow, params, known).outputs,
        known_is_member=is_member,
        ids=judged,
        known_ids=known,
    )
    table = sequence.attacks(training=piece.attack, width=piece.attack_width)
    scores = sequence.run_all(jax.random.key(seed), evidence, table=table)
    without = score(piece, shadow, params, judged).outputs
    scores["reference_ratio"] = signals.reference_ratio(
        sequence.sequence_signals(victim.outputs), sequence.sequence_signals(without)
    )
    if piece.shadows:
        scores |= by_shadows(piece, kind, seed, judged, victim, stage=stage, shadow=shadow)
    users = load(piece).users
    return Judged(scores, is_member, victim, None if users is None else users[judged])


def by_shadows(
    piece: Piece,
    kind: Kind,
    seed: int,
    judged: np.ndarray,
    victim: Scored,
    *,
    stage: int,
    shadow: Kind,
) -> dict[str, np.ndarray]:
    """Runs LiRA and RMIA on the mean log-probability of a sentence.

    Online attacks use shadow models with and without a sentence, offline ones those without it.
    RMIA takes the mean for the log-probability of a label, that is the geometric mean of the
    probabilities of the tokens; its population are non-members of every model, and its slope is
    tuned on shadow models.

    Args:
      piece, kind, seed: sizes, architecture and number of the victim.
      judged: pairs that are judged.
      victim: outputs of the victim for them.
      stage: index of the stage of victim and shadow models.
      shadow: architecture of the shadow models.

    Returns:
      Scores of the judged sentences by name of the attack.
    """
    population = rows(piece, seed)["shadow_nonmembers"]
    trained = train(piece, kind, "victim", seed)[stage]
    signal = sequence.sequence_signals
    target = signal(victim.outputs)
    target_population = signal(score(piece, kind, trained, population).outputs)
    known = []
    for number in range(piece.shadows):
        params = train_on_half(piece, shadow, seed, number)[stage]
        asked = np.concatenate([judged, population])
        known.append(signal(score(piece, shadow, params, asked).outputs))
    shadows, of_population = np.split(np.stack(known), [len(judged)], axis=1)
    pool, is_member = halves(piece, seed)
    place = {row: i for i, row in enumerate(pool.tolist())}
    is_member = is_member[:, [place[row] for row in judged.tolist()]]
    evidence = Evidence(signals=target, shadow_signals=shadows, shadow_is_member=is_member)
    table = [each for each in suite.attacks() if each.name in BY_SHADOWS]
    scores = suite.run_all(jax.random.key(seed), evidence, table=table)
    options: dict[str, Any] = {
        "population": rmia.Population(target_population, of_population),
        "gamma": RMIA_GAMMA,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rmia.TiesWarning)  # a small population resolves little
        slope = RMIA_SLOPE
        if rmia.can_tune(is_member):
            tuned = rmia.tune(lambda _: shadows, is_member, temperatures=(1.0,), slopes=RMIA_SLOPES)
            slope = tuned.a or 0.0
        scores["rmia_offline"] = rmia.offline(target, shadows, is_member, a=slope, **options)
        scores["rmia"] = rmia.online(target, shadows, is_member, **options)
    return scores


def _judged_members(piece: Piece, members: np.ndarray) -> np.ndarray:
    """Returns evenly spaced members, which are in the order of the parts of the training."""
    if len(members) <= piece.judged:
        return members
    return members[np.linspace(0, len(members) - 1, piece.judged).astype(int)]


def is_right(judged: Judged, name: str) -> np.ndarray:
    """Returns whether an attack that decides is right about each sentence."""
    return (judged.scores[name] > 0) == judged.is_member


def measure(judged: Judged) -> dict[str, Any]:
    """Measures every attack on a victim, and the entropy of its predictions on both sides."""
    truth, entropies = judged.is_member, judged.victim.entropies
    return {
        "attacks": measures.by_sentence(judged.scores, truth),
        "users": measures.by_user(judged.scores, truth, judged.users),
        "entropy": {
            "member": float(entropies[truth].mean()),
            "nonmember": float(entropies[~truth].mean()),
        },
    }


def row(
    piece: Piece, name: str, kind: Kind, seed: int, *, stage: int = -1, shadow: Kind | None = None
) -> dict[str, Any]:
    """Trains, translates and attacks: a row of a table."""
    params = train(piece, kind, "victim", seed)[stage]
    corpus = load(piece)
    members = take(corpus.pairs, rows(piece, seed)["victim"][: piece.tested])
    return {
        "kind": name,
        "corpus": piece.corpus,
        "size": piece.size,
        "epochs": piece.stages[stage],
        "seed": seed,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "left_out": corpus.num_left_out,
        "bleu": bleu(piece, kind, params, corpus.tested),
        "bleu_of_members": bleu(piece, kind, params, members),
        **measure(judge(piece, kind, seed, stage=stage, shadow=shadow)),
    }


def by_stage(piece: Piece, kinds: dict[str, Kind], seed: int = 0) -> list[dict[str, Any]]:
    """Measures each kind after each stage of its training."""
    return [
        row(piece, name, kind, seed, stage=stage)
        for name, kind in kinds.items()
        for stage in range(len(piece.stages))
    ]


def by_part(piece: Piece, name: str, kind: Kind, seed: int = 0) -> list[dict[str, Any]]:
    """Attacks a victim that was trained on the parts of its pairs one after the other.

    A row has the balanced accuracy on the members of a part and all non-members, at the end of the
    training, and BLEU of these members right after their part and at the end.
    """
    corpus, snapshots = load(piece), train(piece, kind, "victim", seed)
    judged = judge(piece, kind, seed)
    truth, num_members = judged.is_member, int(judged.is_member.sum())
    part_of = np.arange(num_members) * piece.parts // num_members
    parts = _schedule(piece, rows(piece, seed)["victim"])
    result = []
    for i, (_, members, _) in enumerate(parts):
        counted = np.concatenate([part_of == i, ~truth[num_members:]])
        members = take(corpus.pairs, members[: piece.tested])
        result.append(
            {
                "kind": name,
                "size": piece.size,
                "part": i + 1,
                "bleu": bleu(piece, kind, snapshots[i], corpus.tested),
                "bleu_of_members": bleu(piece, kind, snapshots[i], members),
                "bleu_of_members_at_end": bleu(piece, kind, snapshots[-1], members),
                "attacks": {
                    attack: {
                        "accuracy": measures.balanced_accuracy(
                            is_right(judged, attack)[counted], truth[counted]
                        )
                    }
                    for attack in DECIDED
                },
            }
        )
    return result


def compare(judged: Sequence[Judged], first: str, second: str) -> dict[str, Any]:
    """Tests which of two attacks decides better, sentence by sentence over all victims.

    The difference of the accuracies has the interval of `paired_difference`, and the p-value is
    that of McNemar's exact test. Sentences that one attack network judges count as independent.
    """
    from scipy import stats

    right = [np.concatenate([is_right(each, name) for each in judged]) for name in (first, second)]
    difference = intervals.paired_difference(right[0], right[1], confidence=0.95)
    only_first, only_second = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
    discordant = only_first + only_second
    p_value = stats.binomtest(only_first, discordant, 0.5).pvalue if discordant else 1.0
    return {
        "first": first,
        "second": second,
        "difference": list(difference),
        "p_value": float(p_value),
        "winner": _winner(first, second, difference),
    }


def compare_kinds(piece: Piece, kinds: dict[str, Kind], seed: int = 0) -> dict[str, Any] | None:
    """Tests whether PVMIA decides better about one of two architectures, sentence by sentence."""
    if len(kinds) != 2:
        return None
    first, second = (is_right(judge(piece, kind, seed), DECIDED[0]) for kind in kinds.values())
    difference = intervals.paired_difference(first, second, confidence=0.95)
    return {"kinds": list(kinds), "difference": list(difference)}


def _winner(first: str, second: str, difference: intervals.Share) -> str | None:
    if difference.lower > 0:
        return first
    return second if difference.upper < 0 else None


def examples(piece: Piece, kind: Kind, seed: int, *, count: int = 10) -> list[dict[str, str]]:
    """Translates the first test sentences, to be read."""
    corpus = load(piece)
    pairs = take(corpus.tested, slice(0, count))
    translations = translate_pairs(piece, kind, train(piece, kind, "victim", seed)[-1], pairs)
    return [
        {
            "source": corpus.words[0].decode(source),
            "reference": corpus.words[1].decode(target),
            "translation": text,
        }
        for source, target, text in zip(pairs.source, pairs.target, translations, strict=True)
    ]
