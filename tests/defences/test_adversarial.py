"""Adversarial regularisation: the game by hand, its directions, and plain training as its limit."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import special

from jaxpriv import sampling, training
from jaxpriv.defences import adversarial
from jaxpriv.defences.adversarial import Attacker, Game

RATE = 0.3
X, Y = np.array([0.5, -1.0, 2.0], np.float32), np.array([0, 1, 0], np.int32)
REFERENCE = (np.array([0.7, 0.7], np.float32), np.array([1, 1], np.int32))
LINEAR = Attacker(lambda key, p, y: jnp.float32(0.8), lambda v, p, y: v * p[0])


def predict(w, x, key):
    """Two classes, of which the first has logit w x."""
    return jnp.stack([w * x, jnp.zeros_like(x)])


def play(game, w=0.6, reference=REFERENCE, **options):
    """One step of the game from w, with the members as the batch of the classifier."""
    alg = adversarial.algorithm(
        predict,
        optax.sgd(RATE),
        sampling.full_batch(len(X)),
        reference=reference,
        game=game,
        attacker=LINEAR,
        attacker_key=jax.random.key(0),
        **options,
    )
    batch = jax.tree.map(lambda leaf: jnp.tile(leaf, game.attacker_steps + 1), (X, Y))
    mask = jnp.ones(len(batch[0]), bool)
    start = alg.init(jnp.float32(w))
    state, info = jax.jit(alg.update)(jax.random.key(1), start, batch, mask)
    return start, state, info


@pytest.mark.parametrize("gain", ["log", "squared"])
@pytest.mark.parametrize("sees", ["probabilities", "logits"])
def test_both_steps_equal_those_by_hand(gain, sees):
    """Adam moves a single parameter by its rate against the sign of the first gradient."""
    w, v, weight, rate = 0.6, 0.8, 2.0, 0.01
    game = Game(weight=weight, attacker_steps=1, gain=gain, sees=sees, learning_rate=rate)
    start, state, info = play(game, w=w)
    assert start.attacker_params == np.float32(v)

    def seen(x):
        return w * x if sees == "logits" else special.expit(w * x)

    inside, outside = v * seen(X), v * seen(REFERENCE[0])
    if gain == "log":
        slopes = -special.expit(-inside), special.expit(outside)
    else:
        slopes = (
            -2 * special.expit(-inside) ** 2 * special.expit(inside),
            2 * special.expit(outside) ** 2 * special.expit(-outside),
        )
    gradient = ((slopes[0] * seen(X)).mean() + (slopes[1] * seen(REFERENCE[0])).mean()) / 2
    v -= rate * np.sign(gradient)
    assert float(state.attacker_params) == pytest.approx(v, rel=1e-5)

    chance = special.expit(w * X)
    loss_slope = (chance - (Y == 0)) * X
    seen_slope = X if sees == "logits" else chance * (1 - chance) * X
    odds = v * seen(X)
    h = special.expit(odds)
    gain_slope = (1 - h if gain == "log" else h * (1 - h)) * v * seen_slope
    expected = w - RATE * (loss_slope + weight * gain_slope).mean()
    assert float(state.params) == pytest.approx(expected, rel=1e-5)
    losses = -np.log(np.where(Y == 0, chance, 1 - chance))
    assert float(info.loss) == pytest.approx(losses.mean(), rel=1e-5)


@hypothesis.given(
    w=st.floats(-2, 2), weight=st.floats(0.1, 5), gain=st.sampled_from(["log", "squared"])
)
@hypothesis.settings(max_examples=10)
def test_small_steps_move_the_gain_up_for_the_attacker_and_down_for_the_classifier(w, weight, gain):
    game = Game(weight=weight, attacker_steps=1, gain=gain, learning_rate=1e-4)
    start, state, _ = play(game, w=w)

    def attacker_value(v, w):
        inside, outside = v * special.expit(w * X), v * special.expit(w * REFERENCE[0])
        if gain == "log":
            return np.log(special.expit(inside)).mean() + np.log(special.expit(-outside)).mean()
        return -(special.expit(-inside) ** 2).mean() - (special.expit(outside) ** 2).mean()

    v0, v1 = float(start.attacker_params), float(state.attacker_params)
    assert attacker_value(v1, w) >= attacker_value(v0, w) - 1e-9

    def classifier_value(w):
        losses = np.logaddexp(0, np.where(Y == 0, -w * X, w * X))
        h = special.expit(v1 * special.expit(w * X))
        return losses.mean() + weight * (np.log(h) if gain == "log" else h).mean()

    # The exact gradient's direction descends: a hundredth of the step, along the same line.
    moved = w + (float(state.params) - w) / 100
    assert classifier_value(moved) <= classifier_value(w) + 1e-9


def test_weight_zero_and_warm_up_are_plain_training(keys):
    """Weight 0 is `sgd` to the bit; a game that only warms up takes the same batches."""
    (key,) = keys(1)
    x = np.asarray(jax.random.normal(jax.random.key(5), (40,)), np.float32)
    data = (x, (x > 0).astype(np.int32))
    sampler = sampling.fixed_batch(40, batch_size=8)

    def loss(w, record, key):
        return optax.softmax_cross_entropy_with_integer_labels(
            predict(w, record[0], key), record[1]
        )

    plain, _ = training.fit(
        key, training.sgd(loss, optax.sgd(RATE), sampler), jnp.float32(0.1), data, steps=6
    )
    for game, is_exact in (
        (Game(weight=0.0, attacker_steps=3), True),
        (Game(weight=2.0, attacker_steps=3, warmup_steps=6), False),
    ):
        alg = adversarial.algorithm(
            predict,
            optax.sgd(RATE),
            sampler,
            reference=REFERENCE,
            game=game,
            attacker=LINEAR,
            attacker_key=key,
        )
        state, _ = training.fit(key, alg, jnp.float32(0.1), data, steps=6)
        if is_exact:
            assert state.params == plain.params
        else:
            np.testing.assert_allclose(state.params, plain.params, rtol=1e-5)
            assert state.attacker_params == np.float32(0.8)


def test_padded_rows_take_no_part_and_a_constant_attacker_is_stuck():
    """Rows that are not real may hold any record."""
    game = Game(weight=1.0, attacker_steps=1)
    constant = Attacker(lambda key, p, y: jnp.float32(0), lambda v, p, y: 0 * v)
    results = []
    for filler in (0.0, 70.0):
        alg = adversarial.algorithm(
            predict,
            optax.sgd(RATE),
            sampling.poisson(4, sampling_prob=0.5, capacity=4),
            reference=REFERENCE,
            game=game,
            attacker=constant,
            attacker_key=jax.random.key(0),
        )
        x = jnp.array([*X, filler, *X, filler])
        batch = x, jnp.array([*Y, 0, *Y, 0])
        mask = jnp.array([True, True, True, False] * 2)
        state, info = alg.update(jax.random.key(1), alg.init(jnp.float32(0.6)), batch, mask)
        results.append(float(state.params))
        assert info.attacker_is_stuck
        assert float(info.gain) == pytest.approx(-np.log(2), rel=1e-6)
        assert float(info.attacker_accuracy) == 0.5
        assert int(info.batch_size) == 3
    assert results[0] == results[1]


def test_a_separable_game_is_won_by_the_attacker():
    """Members with larger outputs than the reference are told apart after some steps."""
    _, _, info = play(Game(weight=1.0, attacker_steps=400, learning_rate=0.05), w=5.0)
    assert not info.attacker_is_stuck


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": -1.0, "attacker_steps": 1}, "weight >= 0"),
        ({"weight": 1.0, "attacker_steps": 0}, "attacker_steps"),
        ({"weight": 1.0, "attacker_steps": 1, "learning_rate": 0.0}, "learning_rate > 0"),
        ({"weight": 1.0, "attacker_steps": 1, "warmup_steps": -1}, "warmup_steps >= 0"),
    ],
)
def test_impossible_games_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Game(**options)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([0.7, 0.7], [0, 2], r"reference labels in 0\.\.1, got 2"),
        ([0.7, 0.7, 0.7], [0, 1], "equal numbers of rows in reference"),
    ],
)
def test_impossible_reference_records_are_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        play(Game(weight=1.0, attacker_steps=1), reference=(np.float32(x), np.int32(y)))
