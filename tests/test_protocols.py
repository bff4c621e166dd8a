"""Every algorithm, attack, audit and defence keeps the contract of its kind."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpriv import audit, defences, grads, metrics, sampling, training
from jaxpriv._types import RELATIONS
from jaxpriv.attacks import Attack, Evidence, Training, inversion, suite
from jaxpriv.attacks import evidence as evidence_lib
from jaxpriv.audit import bounds
from tests import oracles

X = jax.random.normal(jax.random.key(8), (30, 4))
PARAMS = {"w": jnp.zeros(4), "b": jnp.zeros(())}


def loss(params, x, key):
    return (jnp.dot(params["w"], x) + params["b"] - 1.0) ** 2


def batch_loss(params, mean, batch, mask, key):
    values = jax.vmap(loss, in_axes=(None, 0, None))(params, batch - mean, key)
    return values.mean(), 0.9 * mean + 0.1 * batch.mean(axis=0)


def initial(name):
    """Initial parameters for an algorithm."""
    return training.Variables(PARAMS, jnp.zeros(4)) if name == "stateful_sgd" else PARAMS


def _private():
    grad = grads.clipped_grad(loss, clip_norm=1.0)
    return grad, optax.adam(0.1), sampling.poisson(30, sampling_prob=0.3)


ALGORITHMS = {
    "sgd": lambda: training.sgd(loss, optax.adam(0.1), sampling.poisson(30, sampling_prob=0.3)),
    "stateful_sgd": lambda: training.stateful_sgd(
        batch_loss, optax.adam(0.1), sampling.fixed_batch(30, batch_size=8)
    ),
    "dpsgd": lambda: training.dpsgd(*_private(), noise_multiplier=1.0),
    "adaptive_dpsgd": lambda: training.adaptive_dpsgd(
        *_private(), noise_multiplier=1.0, count_noise=2.0, target_quantile=0.5
    ),
    "class_dpsgd": lambda: training.class_dpsgd(
        grads.clipped_grad(loss, clip_norm=1.0, microbatch_size=2),
        optax.adam(0.1),
        sampling.by_class(np.arange(30) % 5, num_classes=6, sampling_prob=0.5),
        noise_multiplier=1.0,
    ),
    "averaged": lambda: training.averaged(
        training.dpsgd(*_private(), noise_multiplier=1.0), decay=0.9
    ),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms(name, keys):
    alg = ALGORITHMS[name]()
    assert isinstance(alg, training.Algorithm)
    hash(alg)  # a static argument of the compiled loop
    a, b = keys(2)
    indices, mask = alg.sampler.sample(a)
    batch, state = X[indices], alg.init(initial(name))
    assert state.step == 0
    new, info = jax.jit(alg.update)(b, state, batch, mask)
    again, _ = alg.update(b, state, batch, mask)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    assert new.step == 1
    units = mask if mask.ndim == 1 else mask.any(axis=1)
    assert int(info.batch_size) == int(units.sum())
    for x, y in zip(jax.tree.leaves(new.params), jax.tree.leaves(again.params), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    assert all(x.dtype == y.dtype for x, y in zip(*map(jax.tree.leaves, (new, state)), strict=True))
    oracles.assert_lowers(alg.update, b, state, batch, mask)
    assert alg.event(5) == alg.event(5)
    with pytest.raises(ValueError, match="steps"):
        alg.event(0)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_train_many_as_one(name, keys):
    alg = ALGORITHMS[name]()
    many = jax.tree.map(lambda p: jnp.stack([p, p + 1]), initial(name))
    members = np.stack([np.arange(30), np.arange(30)])
    states, _ = training.fit_many(
        keys(2), lambda size, _: alg, many, X, members=members, steps=3, hyper=None
    )
    for i, key in enumerate(keys(2)):
        alone, _ = training.fit(key, alg, jax.tree.map(lambda p, i=i: p[i], many), X, steps=3)
        for x, y in zip(*map(jax.tree.leaves, (states.params, alone.params)), strict=True):
            np.testing.assert_allclose(x[i], y, rtol=1e-5, atol=1e-6)


def full_evidence(seed=0):
    """Evidence with every part, on which members are sure of their labels; and the truth."""
    rng = np.random.default_rng(seed)
    records, shadows, classes, population = 120, 6, 3, 40
    labels, others = rng.integers(classes, size=records), rng.integers(classes, size=population)
    is_member, shadow_is_member = rng.random(records) < 0.5, rng.random((shadows, records)) < 0.5
    revealed = np.arange(records) % 5 == 0

    def logits(labels, lift):
        sure = np.eye(classes)[labels] * (1 + 2 * lift)[..., None]
        return (rng.normal(size=(*lift.shape, classes)) + sure).astype(np.float32)

    evidence = Evidence(
        inputs=rng.normal(size=(records, 2)).astype(np.float32),
        labels=labels,
        logits=logits(labels, is_member),
        signals=rng.normal(is_member),
        shadow_logits=logits(labels, shadow_is_member),
        shadow_is_member=shadow_is_member,
        population=Evidence(
            inputs=rng.normal(size=(population, 2)).astype(np.float32),
            labels=others,
            logits=logits(others, np.zeros(population)),
            shadow_logits=logits(others, np.zeros((shadows, population))),
        ),
        revealed=revealed,
        revealed_is_member=is_member & revealed,
        predict=lambda key, x: np.stack([x[:, 0], x[:, 1], -x[:, 0]], axis=1),
    )
    return evidence, is_member


def reordered(evidence, order):
    by_record = ("inputs", "labels", "logits", "signals", "revealed", "revealed_is_member")
    parts = {name: getattr(evidence, name)[order] for name in by_record}
    by_shadow = ("shadow_logits", "shadow_is_member")
    parts |= {name: getattr(evidence, name)[:, order] for name in by_shadow}
    return dataclasses.replace(evidence, **parts)


def check_attack(attack, evidence, is_member, keys):
    """The contract of an attack: what every row of the suite keeps."""
    assert suite.missing(attack, evidence) == ""
    key, other = keys(2)
    scores = np.asarray(attack.run(key, evidence), np.float64)
    assert scores.shape == (len(evidence),)
    assert np.isfinite(scores).all()
    assert (scores == attack.run(key, evidence)).all()
    metrics.membership(scores[evidence.judged], is_member[evidence.judged])
    empty = Evidence(labels=evidence.labels)
    assert suite.missing(attack, empty).startswith("needs ")
    assert suite.applicable([attack], empty) == ()
    with pytest.raises(ValueError, match=r"^Expected "):
        attack.run(key, empty)
    assert attack.title
    assert attack.reference
    if (scores == attack.run(other, evidence)).all():  # it draws nothing
        order = np.random.default_rng(0).permutation(len(evidence))
        shuffled = attack.run(key, reordered(evidence, order))
        np.testing.assert_allclose(shuffled, scores[order], rtol=1e-5, atol=1e-6)


SUITE = suite.attacks(training=Training(steps=2, batch_size=8), copies=2)


@pytest.mark.parametrize("attack", SUITE, ids=[attack.name for attack in SUITE])
def test_attacks(attack, keys):
    check_attack(attack, *full_evidence(), keys)


def test_attacks_have_names_of_their_own_and_decide_better_than_chance():
    evidence, is_member = full_evidence()
    assert len({attack.name for attack in SUITE}) == len({a.title for a in SUITE}) == len(SUITE)
    for attack in SUITE:
        if attack.name.startswith(("threshold", "lira", "rmia", "negative_loss", "margin")):
            scores = attack.run(jax.random.key(0), evidence)
            measured = metrics.membership(scores, is_member)
            assert measured.auc > 0.6, attack.name
            if attack.decision_at_zero:
                guess = scores > 0
                right = (guess[is_member].mean() + (~guess[~is_member]).mean()) / 2
                assert right > measured.balanced_accuracy - 0.15, attack.name


def test_a_toy_attack_keeps_the_contract_and_a_broken_one_does_not(keys):
    def toy(run):
        return Attack(name="toy", title="toy", needs=("logits",), run=run, reference="this test")

    good = toy(lambda key, evidence: evidence.require("logits")[0].max(axis=1))
    assert suite.applicable((*SUITE, good), full_evidence()[0])[-1] is good
    check_attack(good, *full_evidence(), keys)
    broken = {
        "shape": lambda key, evidence: evidence.require("logits")[0],
        "nan": lambda key, evidence: np.log(-np.abs(evidence.require("logits")[0][:, 0])),
        "order": lambda key, evidence: np.arange(len(evidence.require("logits")[0])),
        "needs": lambda key, evidence: np.zeros(len(evidence)),
    }
    for run in broken.values():
        with np.errstate(invalid="ignore"), pytest.raises((AssertionError, pytest.fail.Exception)):
            check_attack(toy(run), *full_evidence(), keys)


def inversion_target():
    weights = jax.random.normal(jax.random.key(3), (3, 5 * 4))
    return inversion.Target(predict=lambda x: weights @ x.reshape(-1), shape=(5, 4, 1))


def check_inversion(attack, keys):
    """The contract of an inversion attack: what every row of its table keeps."""
    target, labels = inversion_target(), jnp.array([2, 0])
    assert inversion.missing(attack, target) == ""
    key, *_ = keys(1)
    result = attack.run(key, target, labels)
    assert result.best.shape == result.last.shape == (2, 5, 4, 1)
    assert np.isfinite(result.best).all()
    assert result.best.min() >= 0
    assert result.best.max() <= 1
    np.testing.assert_allclose(result.loss, result.losses.min(axis=1), rtol=1e-6)
    for image, label, confidence in zip(result.best, labels, result.confidence, strict=True):
        expected = jax.nn.softmax(target.predict(image))[label]
        assert float(confidence) == pytest.approx(float(expected), abs=1e-5)
    again = attack.run(key, target, labels)
    assert (again.best == result.best).all()
    nothing = inversion.Target(predict=None, shape=())
    assert inversion.missing(attack, nothing).startswith("needs ")
    assert inversion.applicable([attack], nothing) == ()
    with pytest.raises(ValueError, match=r"^Expected "):
        attack.run(key, nothing, labels)
    assert attack.title
    assert attack.reference


INVERSIONS = inversion.attacks(restarts=2, steps=3)


@pytest.mark.parametrize("attack", INVERSIONS, ids=[attack.name for attack in INVERSIONS])
def test_inversion_attacks(attack, keys):
    check_inversion(attack, keys)


def test_the_tables_of_attacks_have_no_name_in_common():
    names = [attack.name for attack in (*SUITE, *INVERSIONS)]
    assert len(set(names)) == len(names)


def test_a_broken_inversion_attack_does_not_keep_the_contract(keys):
    good = INVERSIONS[0]

    def last(key, target, labels):
        result = good.run(key, target, labels)
        return result._replace(best=1 - result.best)

    with pytest.raises(AssertionError):
        check_inversion(dataclasses.replace(good, run=last), keys)


DEFENCES = {
    "adversarial": "adversarial:weight=2,attacker_steps=1",
    "dirichlet": "dirichlet:k=5,eta=0.01,b=0.1,delta=1e-5",
    "gaussian": "gaussian:sigma=0.1",
    "label_only": "label_only",
    "rounding": "rounding:decimals=2",
    "temperature": "temperature:temperature=3.5",
    "top_k": "top_k:k=2",
}


def check_audit(design, relation):
    rng = np.random.default_rng(4)
    is_member = rng.random(200) < 0.5
    scores = rng.normal(2.0 * is_member)

    def bound(scores, is_member=is_member, confidence=0.95):
        return audit.lower_bounds(
            scores,
            is_member,
            design=design,
            delta=1e-5,
            relation=relation,
            confidence=confidence,
        )

    before = scores.copy(), is_member.copy()
    found = bound(scores)
    np.testing.assert_array_equal(scores, before[0])
    np.testing.assert_array_equal(is_member, before[1])
    applicable = [key for key in bounds.KEYS if getattr(found, key) is not None]
    assert applicable
    assert set(found.not_applicable) == set(bounds.KEYS) - set(applicable)
    assert all(0 < getattr(found, key) < np.inf for key in applicable)
    json.dumps(found._asdict(), allow_nan=False)
    # Only the order of the scores counts, in whichever direction, type and order of rows.
    order = rng.permutation(200)
    assert bound(scores[order], is_member[order]) == found
    assert bound(jnp.asarray(np.argsort(np.argsort(scores))), jnp.asarray(is_member)) == found
    assert getattr(bound(-scores), applicable[0]) > 0
    stricter = bound(scores, confidence=0.999)
    nothing = bound(np.zeros(200))
    for key in applicable:
        assert getattr(stricter, key) < getattr(found, key)
        assert getattr(nothing, key) == 0
    with pytest.raises(ValueError, match="NaN"):
        bound(np.full(200, np.nan))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("design", bounds.DESIGNS)
def test_audits(design, relation):
    check_audit(design, relation)


def test_a_broken_audit_does_not_keep_the_contract(monkeypatch):
    monkeypatch.setattr(bounds.one_run, "epsilon_of_scores", lambda *_, **__: 1.0)
    with pytest.raises(AssertionError):
        check_audit("one_run", "add_or_remove_one")


def check_defence(defence, keys):
    """The contract of a defence of outputs."""
    key, *_ = keys(1)
    hard = jnp.array([[0.0, 90.0, 200.0], [-jnp.inf, 3.0, 3.0], [1e30, 0.0, -1e30], [0, 0, 0]])
    for logits in hard:
        answer = defence.respond(key, logits)
        assert answer.shape == logits.shape
        assert answer.dtype == logits.dtype
        assert np.isfinite(answer).all()
    oracles.assert_lowers(jax.vmap(defence.respond), jax.random.split(key, 4), hard)
    evidence, _ = full_evidence()
    defended = evidence_lib.defended(key, evidence, defence.respond)
    assert defended.logits.shape == evidence.logits.shape
    assert defended.shadow_logits.shape == evidence.shadow_logits.shape
    assert defended.population.logits.shape == evidence.population.logits.shape
    assert defended.signals is None
    queried = defended.predict(key, evidence.inputs)
    wrapped = defence.wrap(evidence.predict)(key, evidence.inputs)
    assert queried.shape == wrapped.shape == evidence.logits.shape
    # The adaptive attacker is the same suite on this evidence.
    lira = next(attack for attack in SUITE if attack.name == "lira")
    assert np.isfinite(lira.run(key, defended)).all()


@pytest.mark.parametrize("name", defences.base.DEFENCES)
def test_defences(name, keys):
    defence = defences.base.from_text(DEFENCES[name])
    assert defence.name == name
    if defence.algorithm is not None:
        check_training(defence, keys)
    elif defence.release is None:
        check_defence(defence, keys)
    else:
        check_release(defence, keys)


def check_training(defence, keys):
    """The contract of a defence of the training: an algorithm on members and reference records."""
    assert defence.guarantee is None
    assert 0 < defence.reference_share < 1
    key, attacker_key = keys(2)
    alg = defence.algorithm(
        lambda params, x, key: jnp.stack([params["w"] @ x, params["b"]]),
        optax.adam(0.1),
        sampling.fixed_batch(30, batch_size=4),
        reference=(X[:5], jnp.zeros(5, jnp.int32)),
        attacker_key=attacker_key,
    )
    assert isinstance(alg, training.Algorithm)
    indices, mask = alg.sampler.sample(key)
    batch = X[indices], jnp.zeros(len(indices), jnp.int32)
    state = alg.init(PARAMS)
    new, _ = jax.eval_shape(alg.update, key, state, batch, mask)
    assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, state)
    oracles.assert_lowers(alg.update, key, state, batch, mask)


def check_release(defence, keys):
    """The contract of a defence of parameters, which is applied once to every leaf."""
    key, other = keys(2)
    released = defence.release(key, PARAMS)
    assert jax.tree.map(jnp.shape, released) == jax.tree.map(jnp.shape, PARAMS)
    for before, after in zip(*map(jax.tree.leaves, (PARAMS, released)), strict=True):
        assert after.dtype == before.dtype
        assert (after != before).all()
    again, different = defence.release(key, PARAMS), defence.release(other, PARAMS)
    assert (again["w"] == released["w"]).all()
    assert (different["w"] != released["w"]).all()
    oracles.assert_lowers(defence.release, key, PARAMS)


def test_a_toy_defence_keeps_the_contract_and_is_made_from_text(keys, monkeypatch):
    def noise(*, std):
        def respond(key, logits):
            noisy = jax.nn.log_softmax(logits) + std * jax.random.normal(key, logits.shape)
            return jnp.maximum(noisy, defences.outputs.LOG_FLOOR)

        return defences.Defence(name="noise", title=f"noise {std:g}", respond=respond)

    monkeypatch.setitem(defences.base.DEFENCES, "noise", noise)
    toy = defences.base.from_text("noise:std=0.5")
    assert toy.title == "noise 0.5"
    check_defence(toy, keys)
    infinite = defences.Defence(name="none", title="none", respond=lambda key, logits: logits)
    with pytest.raises(AssertionError):
        check_defence(infinite, keys)
