"""Checkpoints: what is saved comes back, damage is refused, kills change nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpriv import grads, sampling, training
from jaxpriv.training import checkpoint

X = jax.random.normal(jax.random.key(4), (60, 3))
PARAMS = {"w": jnp.ones(3), "half": jnp.ones(2, jnp.bfloat16)}
TREE = {"a": np.arange(5.0), "b": [jnp.ones((2, 2), jnp.bfloat16), np.int32(7)]}


def loss(params, x, key):
    return jnp.sum((params["w"] - x) ** 2) + params["half"].astype(jnp.float32).sum()


def private(n=60):
    grad = grads.clipped_grad(loss, clip_norm=1.0)
    sampler = sampling.poisson(n, sampling_prob=0.2)
    return training.dpsgd(grad, optax.adam(0.1), sampler, noise_multiplier=1.0)


def saved(tmp_path, *steps, keep=2):
    kept = training.Checkpoints(directory=tmp_path / "c", keep=keep)
    for step in steps:
        tree = {**TREE, "a": np.arange(5.0) + step}
        kept.save(step, tree, fingerprint="run", extra={"step": step})
    return kept


def test_what_is_saved_comes_back_with_its_types(tmp_path):
    kept = saved(tmp_path, 3)
    found = kept.latest(fingerprint="run")
    assert (found.step, found.extra) == (3, {"step": 3})
    back = found.restore(TREE)
    np.testing.assert_array_equal(back["a"], np.arange(5.0) + 3)
    assert back["a"].dtype == np.float64
    assert back["b"][0].dtype == jnp.bfloat16
    assert back["b"][1] == 7


def test_the_newest_two_are_kept(tmp_path):
    saved(tmp_path, 1, 2, 3)
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["000000000002", "000000000003"]
    assert training.Checkpoints(directory=tmp_path / "none").latest(fingerprint="run") is None


def files_of(kept, step):
    folder = Path(kept.directory) / f"{step:012d}"
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)


def test_any_altered_truncated_or_missing_file_is_refused_for_the_one_before(tmp_path):
    kept = saved(tmp_path, 1, 2)
    for path in files_of(kept, 2):
        whole = path.read_bytes()
        flipped = bytes([whole[0] ^ 1]) + whole[1:]
        for damaged in (whole[:-1], flipped, None):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            if path.name == "manifest.json" and path.parent.name.isdigit() and damaged is None:
                assert kept.latest(fingerprint="run").step == 1
            else:
                with pytest.warns(UserWarning, match="damaged checkpoint"):
                    assert kept.latest(fingerprint="run").step == 1
            path.write_bytes(whole)
    assert kept.latest(fingerprint="run").step == 2
    (Path(kept.directory) / f"{2:012d}" / "stranger").write_text("more")
    with pytest.warns(UserWarning, match="damaged checkpoint"):
        assert kept.latest(fingerprint="run").step == 1


def test_nothing_saved_can_be_a_pickle(tmp_path):
    kept = saved(tmp_path, 1)
    for path in files_of(kept, 1):
        assert path.suffix not in {".pkl", ".pickle"}
        assert not path.read_bytes().startswith((b"\x80\x04", b"\x80\x05"))


def test_another_runs_checkpoints_are_refused(tmp_path, keys):
    a, b = keys(2)
    kept = training.Checkpoints(directory=tmp_path / "run")
    training.fit(a, private(), PARAMS, X, steps=12, checkpoints=kept)
    for key, data, steps in ((b, X, 12), (a, X + 1, 12), (a, X, 13)):
        with pytest.raises(ValueError, match="another run's"):
            training.fit(key, private(), PARAMS, data, steps=steps, checkpoints=kept)


@pytest.mark.parametrize(("clip_norm", "rate"), [(100.0, 0.1), (1.0, 7.0)])
def test_another_clip_norm_or_optimiser_is_another_run(tmp_path, keys, clip_norm, rate):
    (key,) = keys(1)
    sampler = sampling.poisson(60, sampling_prob=0.2)
    kept = training.Checkpoints(directory=tmp_path / "run")
    training.fit(key, private(), PARAMS, X, steps=12, checkpoints=kept)
    grad = grads.clipped_grad(loss, clip_norm=clip_norm)
    other = training.dpsgd(grad, optax.adam(rate), sampler, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="another run's"):
        training.fit(key, other, PARAMS, X, steps=12, checkpoints=kept)


def test_keeping_none_of_the_checkpoints_is_refused(tmp_path):
    with pytest.raises(ValueError, match="keep >= 1"):
        training.Checkpoints(directory=tmp_path, keep=0)


def test_fingerprints_tell_values_types_and_shapes_apart():
    ones = np.ones(4, np.float32)
    seen = [
        checkpoint.fingerprint(ones),
        checkpoint.fingerprint(ones.astype(np.float64)),
        checkpoint.fingerprint(ones.reshape(2, 2)),
        checkpoint.fingerprint(ones, "a"),
        checkpoint.fingerprint(jax.random.key(0)),
        checkpoint.fingerprint(jax.random.key(1)),
    ]
    assert len(set(seen)) == len(seen)
    assert seen[0] == checkpoint.fingerprint(jnp.ones(4))


def same(a, b):
    """Equal to the bit."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


class KilledError(Exception):
    pass


def test_a_run_that_dies_between_chunks_goes_on_bit_for_bit(tmp_path, keys):
    """Parameters, history, evaluations and epsilon of the resumed run are the whole run's."""
    (key,) = keys(1)
    budget = training.Budget(epsilon=20.0, delta=1e-4, relation="add_or_remove_one")

    def run(checkpoints=None, dies_at=None):
        calls = []

        def evaluate(params):
            calls.append(1)
            if dies_at == len(calls):
                raise KilledError
            return {"w0": params["w"][0]}

        return training.fit(
            key,
            private(),
            PARAMS,
            X,
            steps=45,
            budget=budget,
            evaluate=evaluate,
            checkpoints=checkpoints,
        )

    whole = run()
    kept = training.Checkpoints(directory=tmp_path / "run", seconds=0.0)
    for dies_at in (1, 3, 2):
        with pytest.raises(KilledError):
            run(kept, dies_at)
    resumed = run(kept)
    same(resumed, whole)
    assert resumed[1].epsilon is not None
    same(run(kept, dies_at=1), whole)


def test_averaged_and_adaptive_runs_resume_too(tmp_path, keys):
    (key,) = keys(1)
    grad = grads.clipped_grad(loss, clip_norm=1.0)
    sampler = sampling.poisson(60, sampling_prob=0.2)
    adaptive = training.adaptive_dpsgd(
        grad,
        optax.adam(0.1),
        sampler,
        noise_multiplier=1.0,
        count_noise=2.0,
        target_quantile=0.5,
    )
    alg = training.averaged(adaptive, decay=0.9)
    kept = training.Checkpoints(directory=tmp_path / "run", seconds=0.0)
    whole, _ = training.fit(key, alg, PARAMS, X, steps=20, checkpoints=kept)
    last = sorted(Path(kept.directory).iterdir())[-1]
    for path in last.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    with pytest.warns(UserWarning, match="damaged"):
        resumed, _ = training.fit(key, alg, PARAMS, X, steps=20, checkpoints=kept)
    same(resumed, whole)


def test_a_sweep_that_dies_keeps_its_finished_chunks(tmp_path, keys, monkeypatch):
    members = np.arange(60).reshape(3, 20)
    args = (keys(3), lambda _: private(20), jax.tree.map(lambda p: jnp.stack([p] * 3), PARAMS), X)
    kept = training.Checkpoints(directory=tmp_path / "sweep", keep=None)
    whole, _ = training.fit_many(*args, members=members, steps=4, chunk=1)
    training.fit_many(*args, members=members, steps=4, chunk=1, checkpoints=kept)
    second = Path(kept.directory) / f"{1:012d}" / "manifest.json"
    second.unlink()
    made = []
    save = training.Checkpoints.save
    monkeypatch.setattr(training.Checkpoints, "save", lambda self, step, *a, **k: made.append(step))
    resumed, _ = training.fit_many(*args, members=members, steps=4, chunk=1, checkpoints=kept)
    assert made == [1]
    same(resumed, whole)
    monkeypatch.setattr(training.Checkpoints, "save", save)


WORKER = Path(__file__).parent / "kill_worker.py"


def run_worker(folder, kind, kill_after=None):
    """Runs the worker; kills it after some seconds, or lets it end. Returns its output file."""
    out = Path(folder) / f"{kind}.npz"
    process = subprocess.Popen([sys.executable, str(WORKER), kind, str(folder), str(out)])
    try:
        process.wait(timeout=kill_after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return None
    assert process.returncode == 0
    return dict(np.load(out))


def check_kills(tmp_path, kind, kills, rng):
    """SIGKILLs at random moments, of training and of writes alike; then the run must be whole."""
    started = time.monotonic()
    whole = run_worker(_folder(tmp_path / "whole"), kind)
    lasts = time.monotonic() - started
    folder, done, is_new = _folder(tmp_path / "killed"), 0, True
    for _ in range(kills):
        started = time.monotonic()
        if run_worker(folder, kind, kill_after=rng.uniform(0.3, 1.0) * lasts) is None:
            done, is_new = done + 1, False
            continue
        # It was done before its kill: again from the start, by what a whole run takes now.
        lasts = time.monotonic() - started if is_new else lasts
        shutil.rmtree(folder)
        _folder(folder)
        is_new = True
    resumed = run_worker(folder, kind)
    assert sorted(resumed) == sorted(whole)
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)
    return done


def _folder(path):
    path.mkdir(parents=True)
    return path


@pytest.mark.parametrize("kind", ["fit", "many"])
def test_a_sigkill_changes_nothing(tmp_path, kind):
    check_kills(tmp_path, kind, 1, np.random.default_rng(1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fit", "many"])
def test_twenty_sigkills_change_nothing(tmp_path, kind):
    done = check_kills(tmp_path, kind, 10, np.random.default_rng(2))
    assert done >= 5


def test_the_manifest_is_written_last(tmp_path):
    """Whatever a kill leaves is either not committed or whole."""
    kept = saved(tmp_path, 1)
    folder = Path(kept.directory) / f"{1:012d}"
    manifest = folder / "manifest.json"
    newest = max(os.stat(p).st_mtime_ns for p in folder.rglob("*") if p != manifest and p.is_file())
    assert manifest.stat().st_mtime_ns >= newest
    assert set(json.loads(manifest.read_text())["files"]) == {
        p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and p != manifest
    }
