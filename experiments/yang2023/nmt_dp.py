"""Section 5.2.2 of yang2023: a translation model with pretrained BERT, fine-tuned by DP-SGD.

Run:       python -m experiments run yang2023/nmt_dp --preset cpu
Time:      smoke 30 s, cpu 24 min on one core (build/translation keeps what is trained), paper not
           run yet
Paper:     BERT, 5,000 pairs of WMT14 English to French, clip norm 10, batch 128, 50 epochs,
           delta 1e-4: epsilon below 10 at a utility loss below 15 %
Ours:      not reproduced (cpu, 2026-11-29, MiniLM, 2,000 pairs of Multi30K, 10 epochs): at epsilon
           8 a utility loss of 99 % (BLEU 0.2 against 25.9); the AUC falls from 0.83 (0.80 to 0.87)
           to 0.51 (0.47 to 0.56)

Needs Multi30K and minilm, a folder with the files of a pretrained BERT encoder, in JAXPRIV_DATA.
The encoder is fine-tuned together with a new decoder; English is the language that it was trained
on. A sentence with its translation is the unit. The French vocabulary is that of the corpus and is
taken to be public, see `data.Vocabulary`. `auc` is that of the attack by the mean log-probability,
on members and on other pairs of their split, since sentences of the test split differ from them;
`loss` is that on the latter. The utility loss is 1 - BLEU / BLEU without privacy.
"""

import functools
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import common
from experiments.translation import in_blocks, take, translate
from jaxpriv import accounting, data, grads, metrics, models, sampling, signals, training
from jaxpriv.metrics import intervals
from jaxpriv.models import transformer
from jaxpriv.training import translation

RELATION = "add_or_remove_one"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Sizes and privacy parameters.

    bert: folder of the encoder below JAXPRIV_DATA; None takes a small one without pretraining.
    epsilons: guarantees to be trained for; None trains without privacy.
    size, tested: numbers of pairs for training and for BLEU.
    width: width of the decoder.
    resumable: whether trained models are stored below build/translation.
    """

    bert: str | None = "minilm"
    corpus: str = "multi30k"
    test_split: str | None = "test_2016_flickr"
    size: int = 2000
    tested: int = 300
    epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 5e-4
    epsilons: tuple[float | None, ...] = (None, 8.0)
    delta: float = 1e-4
    clip_norm: float = 1.0
    width: int = 128
    num_layers: int = 2
    max_length: int = 40
    min_count: int = 3
    widths: tuple[int, ...] = (16, 24)
    resumable: bool = True


PRESETS = {
    "smoke": Settings(
        bert=None,
        corpus="humanize",
        test_split=None,
        size=16,
        tested=4,
        epochs=1,
        batch_size=8,
        epsilons=(8.0,),
        width=4,
        num_layers=1,
        max_length=8,
        min_count=1,
        widths=(),
        resumable=False,
    ),
    "cpu": Settings(),
    "paper": Settings(
        size=5000, tested=1000, epochs=50, batch_size=128, clip_norm=10.0, epsilons=(None, 8.0, 2.0)
    ),
}


class Task(NamedTuple):
    """Pairs from English to French, the model, and parameters with the pretrained encoder.

    nonmembers: pairs that were drawn like the members; those for BLEU are of another split.
    """

    members: translation.SentencePair
    nonmembers: translation.SentencePair
    tested: translation.SentencePair
    words: data.Vocabulary
    model: nn.Module
    params: Any


def prepare(settings: Settings) -> Task:
    """Reads the corpus and the encoder."""
    folder = Path(os.environ.get("JAXPRIV_DATA", "."), settings.bert or "")
    corpus, split = settings.corpus, settings.test_split
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # repeated pairs, which one split may have
        read = [data.load_pairs(corpus, languages=("en", "fr"))]
        read += (
            [] if split is None else [data.load_pairs(corpus, languages=("en", "fr"), split=split)]
        )
    words, english = (
        data.Vocabulary.build(side, min_count=settings.min_count, lower=True)
        for side in (read[0].target, read[0].source)
    )
    encoded = [_encode(pairs, settings, folder, english, words) for pairs in read]
    order = np.random.default_rng(0).permutation(len(encoded[0].source_length))
    members, rest = (
        take(encoded[0], rows) for rows in (order[: settings.size], order[settings.size :])
    )
    nonmembers = take(rest, slice(0, settings.tested))
    tested = take(encoded[1] if split else rest, slice(0, settings.tested))
    if settings.bert is None:
        bert = models.Bert(num_tokens=len(english), width=4, num_layers=1, num_heads=1, hidden=4)
        pretrained = None
    else:
        bert, pretrained = models.load_bert(folder)
    decoder = transformer.Decoder(
        num_tokens=len(words),
        width=settings.width,
        num_layers=settings.num_layers,
        num_heads=max(1, settings.width // 16),
        hidden=3 * settings.width,
        dropout=0.1,
        max_length=settings.max_length,
    )
    model = models.BertTranslator(bert, decoder)
    first = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), members)
    params = jax.jit(model.init)(jax.random.key(0), *first[:3])
    if pretrained is not None:
        params = {"params": {**params["params"], "bert": pretrained["params"]}}
    return Task(members, nonmembers, tested, words, model, params)


def _encode(
    pairs: data.Pairs,
    settings: Settings,
    folder: Path,
    english: data.Vocabulary,
    words: data.Vocabulary,
) -> translation.SentencePair:
    """Encodes pairs; those with a sentence that is too long are left out."""
    size = settings.max_length
    if settings.bert is None:
        source = data.pad(pairs.source, english, max_length=size)
    else:
        source = data.pad_word_pieces(pairs.source, folder / "tokenizer.json", max_length=size)
    target = data.pad(pairs.target, words, max_length=size)
    joined = translation.make_pairs(source.tokens, source.mask, target.tokens, target.mask)
    return take(joined, np.flatnonzero(~(source.is_cut | target.is_cut)))


def run(settings: Settings) -> dict[str, Any]:
    """Fine-tunes and measures under each guarantee."""
    task = prepare(settings)
    rows = []
    for epsilon in settings.epsilons:
        params, spent = fine_tune(settings, task, epsilon)
        rows.append({"epsilon": spent, **_measure(settings, task, params)})
    plain = [row["bleu"] for row in rows if row["epsilon"] is None and row["bleu"]]
    for row in rows:
        row["utility_loss"] = 1 - row["bleu"] / plain[0] if plain else None
    count = sum(leaf.size for leaf in jax.tree.leaves(task.params))
    return {"rows": rows, "parameters": count, "delta": settings.delta, "relation": RELATION}


def fine_tune(settings: Settings, task: Task, epsilon: float | None) -> tuple[Any, float | None]:
    """Fine-tunes a model; returns its parameters and the epsilon of the training."""
    steps = max(1, round(settings.epochs * settings.size / settings.batch_size))
    sampler = sampling.poisson(
        settings.size, sampling_prob=min(0.5, settings.batch_size / settings.size)
    )
    buckets = None
    if settings.widths:
        buckets = translation.buckets(widths=settings.widths, rows=settings.batch_size // 4)
    loss, optimizer = translation.loss(task.model), optax.adam(settings.learning_rate)
    spent = None
    if epsilon is None:
        alg = training.sgd(loss, optimizer, sampler, buckets=buckets)
    else:
        noise_multiplier = accounting.calibrate(
            sampler, steps=steps, epsilon=epsilon, delta=settings.delta, relation=RELATION
        )
        grad = grads.clipped_grad(loss, clip_norm=settings.clip_norm, buckets=buckets)
        alg = training.dpsgd(grad, optimizer, sampler, noise_multiplier=noise_multiplier)
        spent = accounting.epsilon(alg.event(steps), delta=settings.delta, relation=RELATION)
    checkpoints = None
    if settings.resumable:
        folder = Path("build") / "translation" / f"bert-{settings.size}-{epsilon}"
        checkpoints = training.Checkpoints(directory=folder)
    state, _ = training.fit(
        jax.random.key(1),
        alg,
        task.params,
        jax.tree.map(jnp.asarray, task.members),
        steps=steps,
        checkpoints=checkpoints,
    )
    return state.params, spent


def _measure(settings: Settings, task: Task, params: Any) -> dict[str, Any]:
    """Measures parameters: BLEU, losses, and the attack by the loss."""
    members = take(task.members, slice(0, settings.tested))
    log_probs = _log_probs(task.model)
    scores = [
        in_blocks(lambda block: log_probs(params, block), pairs)
        for pairs in (members, task.nonmembers)
    ]
    is_member = np.repeat([True, False], [len(side) for side in scores])
    auc = intervals.delong(np.concatenate(scores), is_member, confidence=0.95)
    texts = translate(task.model, params, task.tested, task.words, max_length=settings.max_length)
    references = [task.words.decode(row) for row in task.tested.target]
    return {
        "bleu": metrics.text.bleu(texts, references).score,
        "loss_of_members": float(-scores[0].mean()),
        "loss": float(-scores[1].mean()),
        "auc": list(auc),
    }


@functools.cache
def _log_probs(model: nn.Module) -> Any:
    """Compiles the mean log-probability of the tokens of each translation."""

    def of_one(params: Any, pair: Any) -> jax.Array:
        log_p = jax.nn.log_softmax(translation.reference_logits(model, params, pair))
        of_tokens = jnp.take_along_axis(log_p, pair.target[1:, None], axis=1)[:, 0]
        return signals.mean_log_probability(of_tokens, pair.target_length - 1)

    return jax.jit(jax.vmap(of_one, in_axes=(None, 0)))


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    return common.text_table(
        ("epsilon", "BLEU", "utility loss", "loss", "of members", "AUC of the loss"),
        (
            (
                "without" if row["epsilon"] is None else f"{row['epsilon']:.2f}",
                f"{row['bleu']:.1f}",
                "" if row["utility_loss"] is None else f"{row['utility_loss']:.2f}",
                f"{row['loss']:.2f}",
                f"{row['loss_of_members']:.2f}",
                common.cell(row["auc"], digits=3),
            )
            for row in record["rows"]
        ),
    )
