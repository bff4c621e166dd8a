"""The README's tour runs as it stands and prints what it says."""

import contextlib
import io
import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text("utf8")
TOUR = README.split("## The tour")[1].split("\n## ")[0]
DESIGNED = """\
sampler = jp.sampling.poisson(len(x), sampling_prob=0.02)
z = jp.accounting.calibrate(sampler, steps=1500, epsilon=4.0, delta=1e-5, relation=RELATION)
grad = jp.grads.clipped_grad(loss, clip_norm=1.0)
alg = jp.training.dpsgd(grad, optax.adam(1e-3), sampler, noise_multiplier=z)
state, history = jp.training.fit(key, alg, params, (x, y), steps=1500)
jp.accounting.epsilon(alg.event(1500), delta=1e-5, relation=RELATION)
scores = jp.attacks.lira.online(signals, shadow_signals, shadow_is_member)
jp.metrics.membership(scores, is_member)"""


def test_the_tour_runs_and_prints_what_it_says():
    code = "\n".join(re.findall(r"```python\n(.*?)```", TOUR, re.S))
    expected = "".join(re.findall(r"```text\n(.*?)```", TOUR, re.S))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue() == expected


def test_a_model_of_another_library_trains_and_explains_itself():
    section = README.split("## Any JAX function")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.S)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert re.search(r"embed.* lookup", printed.getvalue())
    assert "explicit" in printed.getvalue()


def test_the_tour_is_the_designed_one():
    for line in DESIGNED.splitlines():
        assert line in TOUR
