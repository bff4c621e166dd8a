"""Checkpoints: what is saved comes back, damage is refused, kills change nothing."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxpriv import grads, sampling, training
from jaxpriv.models import MLP
from jaxpriv.training import _identity
from tests.training import kill_worker

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
    saved_run = training.Checkpoints(directory=tmp_path / "c", keep=keep)
    for step in steps:
        tree = {**TREE, "a": np.arange(5.0) + step}
        saved_run.save(step, tree, identity={"run": "1"}, extra={"step": step})
    return saved_run


def test_what_is_saved_comes_back_with_its_types(tmp_path):
    saved_run = saved(tmp_path, 3)
    checkpoint = saved_run.latest(identity={"run": "1"})
    assert (checkpoint.step, checkpoint.extra) == (3, {"step": 3})
    back = checkpoint.restore(TREE)
    np.testing.assert_array_equal(back["a"], np.arange(5.0) + 3)
    assert back["a"].dtype == np.float64
    assert back["b"][0].dtype == jnp.bfloat16
    assert back["b"][1] == 7


def test_the_newest_two_are_kept(tmp_path):
    saved(tmp_path, 1, 2, 3)
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["000000000002", "000000000003"]
    assert training.Checkpoints(directory=tmp_path / "none").latest(identity={"run": "1"}) is None


def files_of(saved_run, step):
    folder = Path(saved_run.directory) / f"{step:012d}"
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)


def test_any_altered_truncated_or_missing_file_is_refused_for_the_one_before(tmp_path):
    saved_run = saved(tmp_path, 1, 2)
    for path in files_of(saved_run, 2):
        content = path.read_bytes()
        flipped = bytes([content[0] ^ 1]) + content[1:]
        for damaged in (content[:-1], flipped, None):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            if path.name == "manifest.json" and path.parent.name.isdigit() and damaged is None:
                assert saved_run.latest(identity={"run": "1"}).step == 1
            else:
                with pytest.warns(UserWarning, match="damaged checkpoint"):
                    assert saved_run.latest(identity={"run": "1"}).step == 1
            path.write_bytes(content)
    assert saved_run.latest(identity={"run": "1"}).step == 2
    (Path(saved_run.directory) / f"{2:012d}" / "stranger").write_text("more")
    with pytest.warns(UserWarning, match="damaged checkpoint"):
        assert saved_run.latest(identity={"run": "1"}).step == 1


def test_nothing_saved_can_be_a_pickle(tmp_path):
    saved_run = saved(tmp_path, 1)
    for path in files_of(saved_run, 1):
        assert path.suffix not in {".pkl", ".pickle"}
        assert not path.read_bytes().startswith((b"\x80\x04", b"\x80\x05"))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"key": jax.random.key(1)}, r"key \("),
        ({"data": X + 1}, r"data \("),
        ({"params": {**PARAMS, "w": jnp.zeros(3)}}, r"params\['w'\]"),
        ({"clip_norm": 100.0}, r"clip_norm \(1.0 in the checkpoint, 100.0 now\)"),
        ({"rate": 7.0}, r"optimizer.*step_size \(-0.1 in the checkpoint, -7.0 now\)"),
        ({"noise_multiplier": 2.0}, r"noise_multiplier \(1.0 in the checkpoint, 2.0 now\)"),
        ({"q": 0.5}, r"sampling_prob \(0.2 in the checkpoint, 0.5 now\)"),
        ({"loss": lambda p, x, key: jnp.sum(p["w"] * x)}, r"loss"),
        ({"steps": 11}, r"Expected steps >= 12, the number planned in the checkpoint .*, got 11"),
    ],
)
def test_the_checkpoints_of_another_run_are_refused_with_what_differs(finished, change, name):
    with pytest.raises(ValueError, match=name) as caught:
        finished.run(**change)
    assert "\n" not in str(caught.value)


class Finished(NamedTuple):
    run: Any
    result: Any


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 12 steps, and the call that continues it or is refused."""
    checkpoints = training.Checkpoints(directory=tmp_path_factory.mktemp("finished"))

    def run(
        key=None,
        data=X,
        params=PARAMS,
        steps=12,
        clip_norm=1.0,
        rate=0.1,
        noise_multiplier=1.0,
        q=0.2,
        loss=loss,
    ):
        grad = grads.clipped_grad(loss, clip_norm=clip_norm)
        sampler = sampling.poisson(60, sampling_prob=q)
        alg = training.dpsgd(grad, optax.adam(rate), sampler, noise_multiplier=noise_multiplier)
        key = jax.random.key(0, impl="rbg") if key is None else key
        return training.fit(key, alg, params, data, steps=steps, checkpoints=checkpoints)

    return Finished(run, run())


def test_another_version_is_another_run(finished, monkeypatch):
    version = _identity.importlib.metadata.version
    monkeypatch.setattr(
        _identity.importlib.metadata, "version", lambda n: "9.9" if n == "optax" else version(n)
    )
    with pytest.raises(ValueError, match=r"version of optax \(.* in the checkpoint, 9.9 now\)"):
        finished.run()


def test_the_same_call_again_gives_the_same_result(finished):
    assert_same(finished.run(), finished.result)


def test_keeping_none_of_the_checkpoints_is_refused(tmp_path):
    with pytest.raises(ValueError, match="keep >= 1"):
        training.Checkpoints(directory=tmp_path, keep=0)


SCALE = 2.0


class Frozen:
    def __init__(self, weights):
        self.weights = weights


def scaled_loss(params, x, key):
    return SCALE * loss(params, x, key)


def test_descriptions_tell_values_types_shapes_and_code_apart(monkeypatch):
    ones = np.ones(4, np.float32)
    values = [
        ones,
        ones.astype(np.float64),
        ones.reshape(2, 2),
        [ones, "a"],
        jax.random.key(0),
        jax.random.key(1),
        {"a": 1},
        {"a": 1.0},
        lambda x: x + 1,
        lambda x: x + 2,
        lambda x: x + SCALE,
        scaled_loss,
        functools.partial(loss, key=1),
        optax.adam(0.1),
        optax.adam(0.2),
        MLP(widths=(3,), num_classes=2),
        MLP(widths=(4,), num_classes=2),
        nnx.Linear(2, 2, rngs=nnx.Rngs(0)),
        nnx.Linear(2, 2, rngs=nnx.Rngs(1)),
        functools.partial(scaled_loss, key=1),
        Frozen(np.ones(3)),
        Frozen(np.zeros(3)),
    ]
    texts = [str(_identity.describe(value=value)) for value in values]
    assert len(set(texts)) == len(values)
    assert texts == [str(_identity.describe(value=value)) for value in values]
    assert texts[0] == str(_identity.describe(value=jnp.ones(4)))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert str(_identity.describe(value=scaled_loss)) != texts[11]


def test_a_description_needs_no_address_and_survives_cycles():
    class Holder:
        pass

    holder = Holder()
    holder.itself, holder.lock = holder, object()
    text = str(_identity.describe(value=holder))
    assert "0x" not in text
    assert text == str(_identity.describe(value=holder))


def test_an_optional_argument_that_was_added_is_no_difference():
    saved = {"clip_norm": "1.0"}
    assert _identity.difference(saved, {**saved, "dtype": "None"}) == ""
    assert "dtype (absent in the checkpoint, 'bf16' now)" in _identity.difference(
        saved, {**saved, "dtype": "'bf16'"}
    )


def assert_same(a, b):
    """Equal to the bit."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        is_key = jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key)
        x, y = map(jax.random.key_data, (x, y)) if is_key else (x, y)
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


class KilledError(Exception):
    pass


def test_a_run_that_dies_between_chunks_goes_on_bit_for_bit(tmp_path, keys):
    """Parameters, history, evaluations and epsilon of the resumed run are the whole run's."""
    (key,) = keys(1)
    budget = training.Budget(epsilon=90.0, delta=1e-4, relation="add_or_remove_one")
    alg = training.dpsgd(
        grads.clipped_grad(loss, clip_norm=1.0),
        optax.adam(0.1),
        sampling.full_batch(60),  # its epsilon has a closed form
        noise_multiplier=1.0,
    )

    def run(checkpoints=None, dies_at=None):
        calls = []

        def evaluate(params, step):
            calls.append(step)
            if dies_at == len(calls):
                raise KilledError
            return training.Evaluation({"w0": params["w"][0]})

        return training.fit(
            key,
            alg,
            PARAMS,
            X,
            steps=45,
            budget=budget,
            evaluate=evaluate,
            checkpoints=checkpoints,
        )

    uninterrupted = run()
    saved_run = training.Checkpoints(directory=tmp_path / "run", seconds=0.0)
    for dies_at in (1, 3, 2):
        with pytest.raises(KilledError):
            run(saved_run, dies_at)
    resumed = run(saved_run)
    assert_same(resumed, uninterrupted)
    assert resumed[1].epsilon is not None
    assert_same(run(saved_run, dies_at=1), uninterrupted)


def test_averaged_and_adaptive_runs_resume_too(tmp_path):
    key = jax.random.key(5, impl="rbg")
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
    saved_run = training.Checkpoints(directory=tmp_path / "run", seconds=0.0)
    uninterrupted, _ = training.fit(key, alg, PARAMS, X, steps=20, checkpoints=saved_run)
    last = sorted(Path(saved_run.directory).iterdir())[-1]
    for path in last.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    with pytest.warns(UserWarning, match="damaged"):
        resumed, _ = training.fit(key, alg, PARAMS, X, steps=20, checkpoints=saved_run)
    assert_same(resumed, uninterrupted)


def test_a_sweep_that_dies_keeps_its_finished_chunks(tmp_path, keys, monkeypatch):
    members = np.arange(60).reshape(3, 20)
    optimizer = optax.chain(optax.add_noise(0.1, 0.5, seed=1), optax.adam(0.1))  # has a key

    def make_alg(size, _):
        return training.sgd(loss, optimizer, sampling.full_batch(size))

    args = (keys(3), make_alg, jax.tree.map(lambda p: jnp.stack([p] * 3), PARAMS), X)
    saved_run = training.Checkpoints(directory=tmp_path / "sweep", keep=None)
    uninterrupted, _ = training.fit_many(
        *args, members=members, steps=4, chunk=1, checkpoints=saved_run
    )
    second = Path(saved_run.directory) / f"{1:012d}" / "manifest.json"
    second.unlink()
    made = []
    save = training.Checkpoints.save
    monkeypatch.setattr(training.Checkpoints, "save", lambda self, step, *a, **k: made.append(step))
    resumed, _ = training.fit_many(*args, members=members, steps=4, chunk=1, checkpoints=saved_run)
    assert made == [1]
    assert_same(resumed, uninterrupted)
    with pytest.raises(ValueError, match=r"differ: steps \(4 in the checkpoint, 5 now\);"):
        training.fit_many(*args, members=members, steps=5, chunk=1, checkpoints=saved_run)
    monkeypatch.setattr(training.Checkpoints, "save", save)


ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; from tests.training import kill_worker; kill_worker.main(*sys.argv[1:])"


def num_checkpoints(folder):
    """Old checkpoints may vanish during the walk, which `os.walk` passes over."""
    return sum("manifest.json" in files for _, _, files in os.walk(folder))


def killed(folder, kind, delay):
    """Starts the worker, kills it some seconds after its next checkpoint; False if it ended."""
    before = num_checkpoints(folder)
    command = [sys.executable, "-c", PROGRAM, kind, str(folder), str(folder / "out.npz")]
    process = subprocess.Popen(command, cwd=ROOT)
    while process.poll() is None and num_checkpoints(folder) <= before:
        time.sleep(0.01)
    try:
        process.wait(timeout=delay)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return True
    assert process.returncode == 0
    return False


def check_kills(tmp_path, kind, kills, rng):
    """SIGKILLs at random moments, of training and of writes alike; then the run must be whole."""
    (tmp_path / "whole").mkdir()
    expected = kill_worker.main(kind, tmp_path / "whole", tmp_path / "whole.npz")
    folder, count = tmp_path / "killed", 0
    folder.mkdir()
    for _ in range(kills):
        if killed(folder, kind, rng.uniform(0, 0.5)):
            count += 1
        else:
            shutil.rmtree(folder)
            folder.mkdir()
    resumed = kill_worker.main(kind, folder, tmp_path / "resumed.npz")
    assert sorted(resumed) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)
    return count


@pytest.mark.parametrize("kind", ["fit", "many"])
def test_a_sigkill_changes_nothing(tmp_path, kind):
    assert check_kills(tmp_path, kind, 1, np.random.default_rng(1)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fit", "many"])
def test_ten_sigkills_change_nothing(tmp_path, kind):
    assert check_kills(tmp_path, kind, 10, np.random.default_rng(2)) >= 5


def test_the_manifest_is_written_last(tmp_path):
    """Whatever a kill leaves is either not committed or whole."""
    saved_run = saved(tmp_path, 1)
    folder = Path(saved_run.directory) / f"{1:012d}"
    manifest = folder / "manifest.json"
    newest = max(os.stat(p).st_mtime_ns for p in folder.rglob("*") if p != manifest and p.is_file())
    assert manifest.stat().st_mtime_ns >= newest
    assert set(json.loads(manifest.read_text())["files"]) == {
        p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and p != manifest
    }
