"""Training steps of translation models, plain and by DP-SGD, against PyTorch and Opacus.

Run:       python -m experiments run benchmarks/seq2seq --preset cpu
Time:      smoke 30 s, cpu 3 min, paper not run yet (for one GPU)
Peers:     the same models in PyTorch, plain and with Opacus, with hooks and with ghost clipping
           (extra `bench`); those that are not installed are listed as missing
Goals:     on two cores: plain at least as fast as PyTorch, DP-SGD at most 1.5 times plain, and
           Opacus at least 5 times DP-SGD
Ours:      two cores, 2026-11-29: RNN 1.62 times as fast as PyTorch, DP-SGD 1.12 times plain, Opacus
           8.6 times DP-SGD (5.9 with ghost clipping); transformer 1.44, 1.30, 3.5 (2.5): the last
           goal is missed

A step draws dropout, computes the gradient of 64 sentences, clips, adds noise (DP-SGD) and applies
Adam. The batches are sentences of Multi30K, or of the package humanize if Multi30K is not in
JAXPRIV_DATA. Both sides have the same weights and batches. Here rows of a batch are cut to length
buckets; PyTorch gets batches that are padded to their longest sentence, and packs the sources for
the LSTM. Each method alternates with the one it is compared with (A B A B), and a ratio is the
median over rounds. PyTorch runs in a process of its own, so that it shares no threads with JAX.
`difference` is that of the gradients without dropout and noise, relative to their largest entry.
"""

import contextlib
import dataclasses
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import common, translation
from experiments.benchmarks import dpsgd_step
from experiments.translation import Kind
from jaxpriv import grads, sampling, training
from jaxpriv.training.translation import buckets, loss


@dataclass(frozen=True, kw_only=True)
class Settings:
    """kinds: architectures. batch: sentences of a batch. num_batches: trained on in one call.

    rows: sentences processed at a time. seconds: minimum time of a method in one of `repeats`
    rounds. peers: whether to run PyTorch and Opacus.
    """

    kinds: dict[str, Kind]
    batch: int = 64
    num_batches: int = 4
    widths: tuple[int, ...] = (16, 24)
    rows: int = 16
    repeats: int = 5
    seconds: float = 0.0
    peers: bool = True


PRESETS = {
    "smoke": Settings(
        kinds={"RNN": translation.SMALL_KINDS["RNN"]},
        batch=8,
        num_batches=1,
        widths=(),
        rows=8,
        repeats=1,
    ),
    "cpu": Settings(kinds=translation.KINDS),
    "paper": Settings(kinds=translation.KINDS, repeats=9),
}
PLAIN_CLIP_NORM, CLIP_NORM, NOISE_MULTIPLIER = 10.0, 1.0, 1.0
GOALS = {
    "DP-SGD / plain": {"at most": 1.5},
    "PyTorch / plain": {"at least": 1.0},
    "Opacus / DP-SGD": {"at least": 5.0},
}
PEERS = {"torch": ("PyTorch",), "opacus": ("Opacus", "Opacus ghost")}
"""Packages, and the methods that need them; Opacus also needs torch."""


def run(settings: Settings) -> dict[str, Any]:
    """Times the models; `rows` has a dict for each method, `missing` the peers not installed."""
    missing = [package for package in PEERS if not importlib.util.find_spec(package)]
    if "torch" in missing:
        missing = list(PEERS)
    peers = [] if not settings.peers else [p for p in PEERS if p not in missing]
    corpus, batches = read(settings)
    rows = []
    for name, kind in settings.kinds.items():
        rows += measure(name, kind, corpus, batches, settings, peers)
    return {
        "rows": rows,
        "corpus": corpus,
        "missing": missing if settings.peers else [],
        "goals": GOALS,
    }


def read(settings: Settings) -> tuple[str, list[Any]]:
    """Returns the name of the corpus, and batches of its sentences, each with leading axis b."""
    piece = piece_of("multi30k")
    try:
        translation.load(piece)
    except ValueError:  # not in JAXPRIV_DATA
        piece = piece_of("humanize")
    pairs = translation.load(piece).pairs
    count = settings.batch * settings.num_batches
    order = np.resize(np.arange(len(pairs.source_length)), count)
    parts = np.split(order, settings.num_batches)
    batches = [jax.tree.map(jnp.asarray, translation.take(pairs, part)) for part in parts]
    return piece.corpus, batches


def piece_of(corpus: str) -> translation.Piece:
    """Returns what the experiments read of a corpus."""
    return translation.Piece() if corpus == "multi30k" else translation.SMOKE


def steps(
    model: Any, settings: Settings, *, noise_multiplier: float = NOISE_MULTIPLIER
) -> dict[str, training.Algorithm]:
    """Returns the training algorithms on batches that are given."""
    cut = buckets(widths=settings.widths, rows=settings.rows) if settings.widths else None
    sampler = sampling.full_batch(settings.batch)
    sentence_loss, adam = loss(model), optax.adam(1e-3)
    clipped = grads.clipped_grad(sentence_loss, clip_norm=CLIP_NORM, buckets=cut)
    plain = optax.chain(optax.clip_by_global_norm(PLAIN_CLIP_NORM), adam)
    return {
        "plain": training.sgd(sentence_loss, plain, sampler, buckets=cut),
        "DP-SGD": training.dpsgd(clipped, adam, sampler, noise_multiplier=noise_multiplier),
    }


def measure(
    name: str,
    kind: Kind,
    corpus: str,
    batches: list[Any],
    settings: Settings,
    peers: list[str],
) -> list[dict[str, Any]]:
    """Times the methods on one model, each in turn with the one that it is compared with."""
    piece = piece_of(corpus)
    model = kind.module(translation.load(piece).sizes, max_length=piece.max_length)
    first = jax.tree.map(lambda leaf: leaf[0], batches[0])
    params = jax.jit(model.init)(jax.random.key(0), *first[:3])
    calls = {
        label: _call(alg, params, batches, settings)
        for label, alg in steps(model, settings).items()
    }
    compared = [("DP-SGD", "plain")]
    differences: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        if peers:
            ask = stack.enter_context(_peer(model, params, batches, settings))
            exact = _gradients(model.clone(dropout=0.0), params, batches[0], settings)
            for label in (label for package in peers for label in PEERS[package]):
                base = "plain" if label == "PyTorch" else "DP-SGD"
                compared.append((label, base))
                calls[label] = lambda label=label: ask(f"step {label}")
                differences[label] = _difference(ask, label, exact[base])
        rows = [_row(name, *pair, calls, settings, differences) for pair in compared]
    return rows


def _call(
    alg: training.Algorithm, params: Any, batches: list[Any], settings: Settings
) -> Callable[[], Any]:
    update, start = jax.jit(alg.update), alg.init(params)
    mask, key = jnp.ones(settings.batch, bool), jax.random.key(1)

    def call():
        state = start
        for batch in batches:
            state, _ = update(key, state, batch, mask)
        return jax.block_until_ready(state)

    return call


def _row(
    name: str,
    label: str,
    base: str,
    calls: dict[str, Callable[[], Any]],
    settings: Settings,
    differences: dict[str, float],
) -> dict[str, Any]:
    times = common.interleaved(
        {base: calls[base], label: calls[label]},
        repeats=settings.repeats,
        seconds=settings.seconds,
    )
    ratios = [a / b for a, b in zip(times[label], times[base], strict=True)]
    row = {
        "model": name,
        "method": label,
        "against": base,
        "ratio": float(np.median(ratios)),
        "ratios": ratios,
        "seconds_a_step": float(np.median(times[label])) / settings.num_batches,
        "seconds_a_step_against": float(np.median(times[base])) / settings.num_batches,
        "difference": differences.get(label),
    }
    print(f"{name}: {label} / {base} {row['ratio']:.2f}", file=sys.stderr, flush=True)
    return row


def _named(tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(tree["params"])
    return {"/".join(k.key for k in key): np.asarray(value) for key, value in leaves}


def _gradients(
    model: Any, params: Any, batch: Any, settings: Settings
) -> dict[str, dict[str, np.ndarray]]:
    """Computes the mean loss, the mean gradient, and the clipped sum of DP-SGD."""
    sentence_loss, key = loss(model), jax.random.key(0)

    @jax.jit
    def mean(params, batch):
        losses = jax.vmap(sentence_loss, (None, 0, None))(params, batch, key)
        return losses.mean()

    value, gradient = jax.value_and_grad(mean)(params, batch)
    clipped = grads.clipped_grad(sentence_loss, clip_norm=CLIP_NORM)
    total = jax.jit(clipped)(params, batch, jnp.ones(settings.batch, bool), key).total
    return {
        "plain": {"loss": np.asarray(value), **_named(gradient)},
        "DP-SGD": {"loss": np.asarray(value), **_named(total)},
    }


@contextlib.contextmanager
def _peer(
    model: Any, params: Any, batches: list[Any], settings: Settings
) -> Iterator[Callable[[str], Path]]:
    """Starts PyTorch; yields a function that has a request answered and returns the folder."""
    fields = {
        field.name: getattr(model, field.name)
        for field in dataclasses.fields(model)
        if field.name not in ("parent", "name")
    }
    sizes = {
        **fields,
        "batch": settings.batch,
        "clip_norm": CLIP_NORM,
        "plain_clip_norm": PLAIN_CLIP_NORM,
        "noise_multiplier": NOISE_MULTIPLIER,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sizes.json").write_text(json.dumps(sizes))
        weights: dict[str, Any] = _named(params)
        np.savez(folder / "weights.npz", **weights)
        arrays = jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
        np.savez(folder / "batches.npz", **arrays._asdict())
        command = [sys.executable, "-m", "experiments.benchmarks.seq2seq_torch", name]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

        def ask(request: str) -> Path:
            assert process.stdin
            assert process.stdout
            process.stdin.write(f"{request}\n")
            process.stdin.flush()
            if process.stdout.readline().strip() != "done":
                raise RuntimeError(f"PyTorch failed at {request!r}; its error is above.")
            return folder

        with process:
            try:
                yield ask
            finally:
                assert process.stdin
                process.stdin.close()


def _difference(ask: Callable[[str], Path], label: str, exact: dict[str, np.ndarray]) -> float:
    """Returns the largest difference of loss and gradients, relative to the largest entries."""
    with np.load(ask(f"check {label}") / f"{label}.npz") as file:
        of_peer = {name: file[name] for name in file.files}
    loss_of_peer, loss_here = of_peer.pop("loss"), exact["loss"]
    gradient = {name: value for name, value in exact.items() if name != "loss"}
    of_loss = abs(float(loss_of_peer / loss_here) - 1)
    return max(of_loss, dpsgd_step.difference(of_peer, gradient))


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text, and names corpus and missing peers."""
    text = common.text_table(
        ("model", "method", "against", "ratio", "lowest", "highest", "ms a step", "difference"),
        (
            (
                row["model"],
                row["method"],
                row["against"],
                *(f"{x:.2f}" for x in (row["ratio"], min(row["ratios"]), max(row["ratios"]))),
                f"{1e3 * row['seconds_a_step']:.0f}",
                "" if row["difference"] is None else f"{row['difference']:.1e}",
            )
            for row in record["rows"]
        ),
    )
    notes = [f"sentences of {record['corpus']}"]
    notes += [f"missing: {package} (extra `bench`)" for package in record["missing"]]
    return "\n".join([text, *notes])
