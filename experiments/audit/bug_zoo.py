"""Faults in DP-SGD, one at a time: which of them do the audits catch, and in how many trainings?

Run:       python -m experiments run audit/bug_zoo --preset cpu
Time:      smoke 40 s, cpu 8 min with one thread, paper not run yet
Expected:  every fault is caught; the correct step is flagged in at most 18 of 200 audits at 95 %
Ours:      all of 19 caught in 2,000 trainings each (cpu, 2026-11-29); the correct step flagged in
           5 of 200 audits; one run of 1,000 canaries at epsilon 8 bounds it by 2.62 on average
           and by 3.33 at most, without noise by 4.65, where 4.88 is the ceiling

`rows` has one for each fault of `zoo.FAULTS`: the tests of the noise that reject it, and the
lower bound on epsilon beside the promise, at the delta of the probe. `correct` repeats the audit of
the correct step. `one_run` has the audit by 1,000 Dirac canaries in one training: bounds of a
correct training at epsilon 8 over many draws, and of a training without noise. Where jax-privacy is
installed its bound is computed from the same scores; where Opacus is, its validator sees a network
with BatchNorm, which is the only one of these faults that it looks for.
"""

import functools
import importlib.util
import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import common
from experiments.audit import zoo
from jaxpriv import accounting, audit, grads, sampling, training
from jaxpriv.audit import canaries, trainings
from jaxpriv.audit.canaries import Tagged


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Numbers of trainings and audits.

    faults: names in `zoo.FAULTS`.
    runs: number of trainings for each fault.
    audits, audit_runs: number of audits of the correct step, and of trainings for each.
    one_run_draws, num_canaries: number of trainings with many canaries, and of canaries.
    """

    faults: tuple[str, ...]
    runs: int
    audits: int
    audit_runs: int
    one_run_draws: int
    num_canaries: int = 1000


PRESETS = {
    "smoke": Settings(
        faults=("no_clipping",), runs=100, audits=2, audit_runs=60, one_run_draws=2, num_canaries=50
    ),
    "cpu": Settings(
        faults=tuple(zoo.FAULTS), runs=2000, audits=200, audit_runs=500, one_run_draws=100
    ),
    "paper": Settings(
        faults=tuple(zoo.FAULTS), runs=10_000, audits=1000, audit_runs=1000, one_run_draws=1000
    ),
}
LEVEL, EPSILON, DELTA = 0.05, 8.0, 1e-5
RELATION = "add_or_remove_one"


def run(settings: Settings) -> dict[str, Any]:
    """Audits each fault, then the correct step."""
    key = jax.random.key(22)
    return {
        "level": LEVEL,
        "num_params": sum(int(np.prod(shape)) for shape in zoo.LEAVES.values()),
        "rows": [_fault(key, name, settings.runs) for name in settings.faults],
        "correct": _correct(key, settings),
        "one_run": _one_run(key, settings),
    }


def _fault(key: jax.Array, name: str, runs: int) -> dict[str, Any]:
    fault = zoo.FAULTS[name]
    probe = zoo.PROBES[fault.probe]
    make = functools.partial(zoo.algorithm, fault.step, probe)
    started = time.monotonic()
    findings = zoo.check(key, probe, make, claimed=fault.step.claimed, runs=runs, level=LEVEL)
    bound = findings.bounds.clopper_pearson or 0.0
    return {
        "fault": fault.title,
        "probe": probe.title,
        "is_flagged": findings.is_flagged,
        "noise_tests": list(findings.noise.rejected),
        "promised": findings.promised,
        "bound": bound,
        "delta": probe.delta,
        "runs": runs,
        "seconds": round(time.monotonic() - started, 1),
        "jax_privacy_bound": _jax_privacy_bound(findings.outcomes, probe.delta),
        "opacus_refuses": _opacus_refuses(name),
    }


def _jax_privacy_bound(outcomes: trainings.Outcomes, delta: float) -> float | None:
    if importlib.util.find_spec("jax_privacy") is None:
        return None
    from jax_privacy import auditing

    scores, is_member = outcomes
    auditor = auditing.CanaryScoreAuditor(scores[is_member], scores[~is_member])
    bound = float(auditor.epsilon_clopper_pearson(LEVEL / 2, delta, one_sided=False))
    return bound if np.isfinite(bound) else None


def _opacus_refuses(name: str) -> bool | None:
    """Returns whether Opacus's validator refuses the network of a fault; None without Opacus."""
    if importlib.util.find_spec("opacus") is None:
        return None
    from opacus.validators import ModuleValidator
    from torch import nn

    layers = [nn.Linear(zoo.WIDTH, zoo.WIDTH), nn.ReLU(), nn.Linear(zoo.WIDTH, zoo.NUM_CLASSES)]
    if name == "batch_norm":
        layers.insert(1, nn.BatchNorm1d(zoo.WIDTH))
    return not ModuleValidator.is_valid(nn.Sequential(*layers))


def _correct(key: jax.Array, settings: Settings) -> dict[str, Any]:
    """Repeats the audit of the correct step; the probe is that of a large gradient."""
    probe = zoo.PROBES["large gradient"]
    make = functools.partial(zoo.algorithm, zoo.CORRECT, probe)
    algorithm, noiseless = make(noise_multiplier=probe.noise_multiplier), make(noise_multiplier=0.0)
    params, exchange = zoo.initial_params(key), probe.exchange()
    noise_key, run_key = jax.random.split(key)
    data = jax.tree.map(lambda s, p: np.concatenate([s, p[None]]), *exchange[:2])
    noise_keys = jax.random.split(noise_key, (settings.audits, probe.steps))
    residuals = jax.vmap(
        lambda keys: trainings.residuals(keys, algorithm, params, data, noiseless=noiseless)
    )(noise_keys)
    rejected = []
    for i in range(settings.audits):
        each = jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), residuals)
        rejected.append(bool(audit.check_noise(each, std=probe.std(), level=LEVEL / 2).rejected))
    promised = accounting.epsilon(
        algorithm.event(probe.steps), delta=probe.delta, relation=probe.relation
    )
    assert probe.dirac is not None
    entry = canaries.Dirac(probe.dirac.positions[:1], probe.dirac.scales[:1])
    outcomes = trainings.repeat(
        run_key,
        algorithm,
        params,
        exchange,
        lambda released: -entry.losses(released)[0],
        steps=probe.steps,
        runs=settings.audits * settings.audit_runs,
    )
    exceeded = []
    for part in np.split(np.arange(len(outcomes.scores)), settings.audits):
        bounds = audit.lower_bounds(
            outcomes.scores[part],
            outcomes.is_member[part],
            design="independent_runs",
            delta=probe.delta,
            relation=probe.relation,
            confidence=1 - LEVEL / 2,
        )
        exceeded.append((bounds.clopper_pearson or 0.0) > promised)
    flagged = np.array(rejected) | np.array(exceeded)
    return {
        "audits": settings.audits,
        "flagged": int(flagged.sum()),
        "by_noise": int(np.sum(rejected)),
        "by_bound": int(np.sum(exceeded)),
    }


def _one_run(key: jax.Array, settings: Settings) -> dict[str, Any]:
    """Bounds epsilon by many Dirac canaries in one training, with and without noise."""
    count = settings.num_canaries
    params_key, canary_key, coin_key, train_key = jax.random.split(key, 4)
    params = zoo.initial_params(params_key)
    dirac = canaries.dirac(canary_key, params, count=count, scale=2 * zoo.CLIP_NORM)
    data = canaries.ordinary(zoo.records(zoo.NUM_RECORDS))
    present = canaries.with_dirac(data, dirac, np.ones(count, bool))
    absent = canaries.with_dirac(data, dirac, np.zeros(count, bool))
    pool = jax.tree.map(lambda a, b: np.concatenate([a, b[zoo.NUM_RECORDS :]]), present, absent)
    num_rows = zoo.NUM_RECORDS + count
    sampler = sampling.full_batch(num_rows)
    z = accounting.calibrate(
        sampler, steps=zoo.NUM_STEPS, epsilon=EPSILON, delta=DELTA, relation=RELATION
    )
    draws = settings.one_run_draws
    coins = np.asarray(jax.random.bernoulli(coin_key, shape=(draws, count)))
    bounds = _bounds(train_key, dirac, pool, coins, params, sampler, noise_multiplier=z)
    without = _bounds(train_key, dirac, pool, coins[:1], params, sampler, noise_multiplier=0.0)
    return {
        "canaries": count,
        "epsilon": EPSILON,
        "delta": DELTA,
        "draws": draws,
        "above": sum(bound > EPSILON for bound in bounds),
        "mean": float(np.mean(bounds)),
        "largest": max(bounds),
        "without_noise": without[0],
        "ceiling": audit.one_run.largest_epsilon(count, delta=DELTA, confidence=1 - 0.9 * LEVEL),
    }


def _bounds(
    key: jax.Array,
    dirac: canaries.Dirac,
    pool: Tagged,
    coins: np.ndarray,
    params: Any,
    sampler: sampling.Poisson,
    *,
    noise_multiplier: float,
) -> list[float]:
    loss = canaries.loss_with_canaries(zoo.loss, canaries=dirac)
    grad = grads.clipped_grad(loss, clip_norm=zoo.CLIP_NORM)
    optimizer = optax.sgd(zoo.LEARNING_RATE)
    algorithm = training.dpsgd(grad, optimizer, sampler, noise_multiplier=noise_multiplier)
    draws, count = coins.shape
    ordinary = np.tile(np.arange(zoo.NUM_RECORDS), (draws, 1))
    rows = zoo.NUM_RECORDS + np.arange(count) + np.where(coins, 0, count)
    scores, _ = training.fit_many(
        jax.random.split(key, draws),
        lambda k, hyper: algorithm,
        jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (draws, *leaf.shape)), params),
        pool,
        members=np.column_stack([ordinary, rows]),
        steps=zoo.NUM_STEPS,
        keep=lambda state: dirac.scores(before=params, after=state.params),
    )
    bounds = [
        audit.lower_bounds(
            np.asarray(score),
            is_member,
            design="one_run",
            delta=DELTA,
            relation=RELATION,
            confidence=1 - LEVEL,
        )
        for score, is_member in zip(scores, coins, strict=True)
    ]
    return [each.one_run or 0.0 for each in bounds]


def table(record: dict[str, Any]) -> str:
    """Formats the rows as text."""
    columns = (
        "fault", "caught by", "bound", "promised", "delta", "trainings", "seconds", "jax-privacy",
        "Opacus",
    )  # fmt: skip
    rows = []
    for row in record["rows"]:
        peer, refuses = row["jax_privacy_bound"], row["opacus_refuses"]
        rows.append(
            (
                row["fault"],
                caught_by(row),
                f"{row['bound']:.2f}",
                f"{row['promised']:.2f}",
                f"{row['delta']:g}",
                str(row["runs"]),
                f"{row['seconds']:.0f}",
                "" if peer is None else f"{peer:.2f}",
                "" if refuses is None else ("refuses" if refuses else "accepts"),
            )
        )
    correct, one = record["correct"], record["one_run"]
    return "\n".join(
        [
            common.text_table(columns, rows),
            f"correct step: flagged in {correct['flagged']} of {correct['audits']} audits "
            f"({correct['by_noise']} by the noise, {correct['by_bound']} by the bound)",
            f"one training, {one['canaries']} canaries, epsilon {one['epsilon']:g}: bound above it "
            f"in {one['above']} of {one['draws']}, mean {one['mean']:.2f}, largest "
            f"{one['largest']:.2f}; without noise {one['without_noise']:.2f}; "
            f"ceiling {one['ceiling']:.2f}",
        ]
    )


def caught_by(row: dict[str, Any]) -> str:
    """Returns in words what caught a fault."""
    kinds = dict.fromkeys(name.split(" [")[0] for name in row["noise_tests"])
    parts = [f"noise ({', '.join(kinds)})"] if kinds else []
    if row["bound"] > row["promised"]:
        parts.append("bound")
    return " and ".join(parts) or "not caught"
