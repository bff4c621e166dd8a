"""The networks of the agents, against PyTorch's definition of their layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpriv import models
from tests import oracles

KEY = jax.random.key(0)
IMAGE = jax.random.randint(KEY, (7, 7, 3), 0, 11).astype(jnp.uint8)
AGENTS = {
    # (agent, all parameters, those of the actor's head)
    "torch_ac": (models.ActorCritic(num_actions=7), 19_384, 4_615),
    "torch_ac_lstm": (models.ActorCritic(num_actions=7, lstm_units=64), 52_664, 4_615),
    "yang2023_feed_forward": (
        # 5,335 in the paper: the head alone, without convolutions (10,544) and critic (4,225).
        models.ActorCritic(num_actions=7, actor_widths=(74,)),
        20_104,
        5_335,
    ),
    "yang2023_recurrent": (
        # 5,216 in the paper, which the stated widths do not give: LSTM 1,120, head 1,447.
        models.ActorCritic(
            num_actions=7, actor_widths=(32, 32), critic_widths=(32, 32), lstm_units=4
        ),
        14_360,
        1_447,
    ),
    "rnnmia2022_feed_forward": (
        models.ActorCritic(num_actions=7, actor_widths=(64, 64), critic_widths=(64, 64)),
        27_704,
        8_775,
    ),
    "rnnmia2022_recurrent": (
        models.ActorCritic(
            num_actions=7, actor_widths=(64, 64), critic_widths=(64, 64), lstm_units=8
        ),
        22_904,
        5_191,
    ),
}


def initial(agent, key=KEY, observation=IMAGE):
    return oracles.quick_jit(agent.init)(key, agent.initial_memory(), observation)


def count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", AGENTS)
def test_numbers_of_parameters(name):
    agent, total, actor = AGENTS[name]
    params = jax.eval_shape(agent.init, KEY, agent.initial_memory(), IMAGE)["params"]
    assert count(params) == total
    assert count({k: v for k, v in params.items() if k.startswith("actor")}) == actor
    convolutions = count({k: v for k, v in params.items() if k.startswith("conv")})
    assert convolutions == (12 * 16 + 16) + (64 * 32 + 32) + (128 * 64 + 64)


def slow_convolution(image, kernel, bias):
    """2x2 windows, by loops; kernel [2, 2, in, out]."""
    h, w, _ = image.shape
    result = np.zeros((h - 1, w - 1, kernel.shape[-1]))
    for i in range(h - 1):
        for j in range(w - 1):
            window = image[i : i + 2, j : j + 2]
            result[i, j] = np.einsum("xyc,xyco->o", window, kernel) + bias
    return result


def slow_forward(params, memory, image, units):
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])
    x = np.asarray(image, np.float64)
    for i in range(3):
        kernel = params[f"conv_{i}"]["kernel"]
        kernel = kernel.reshape(2, 2, x.shape[-1], -1)
        x = np.maximum(slow_convolution(x, kernel, params[f"conv_{i}"]["bias"]), 0)
        if i == 0:
            pooled = np.zeros((3, 3, 16))
            for a in range(3):
                for b in range(3):
                    pooled[a, b] = x[2 * a : 2 * a + 2, 2 * b : 2 * b + 2].max((0, 1))
            x = pooled
    x = x.reshape(-1)

    def dense(name, x):
        return x @ params[name]["kernel"] + params[name]["bias"]

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    memory = np.asarray(memory, np.float64)
    if units:
        h, c = memory[:units], memory[units:]
        gates = dense("lstm_input", x) + dense("lstm_memory", h)
        i, f, g, o = (gates[k * units : (k + 1) * units] for k in range(4))
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        x = sigmoid(o) * np.tanh(c)
        memory = np.concatenate([x, c])
    logits = dense("actor_1", np.tanh(dense("actor_0", x)))
    value = dense("critic_1", np.tanh(dense("critic_0", x)))
    return memory, logits, value[0]


@pytest.mark.parametrize("units", [0, 4])
def test_the_forward_pass_equals_loops(units):
    agent = models.ActorCritic(num_actions=7, lstm_units=units)
    params = initial(agent)
    memory = jax.random.normal(jax.random.key(1), agent.initial_memory().shape)
    found = oracles.quick_jit(agent.apply)(params, memory, IMAGE)
    for x, y in zip(found, slow_forward(params, memory, IMAGE, units), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-5)


def test_windows_are_a_convolution():
    """The kernel [2, 2, in, out] as XLA's convolution has it."""
    x = jax.random.normal(KEY, (6, 5, 3))
    kernel = jax.random.normal(jax.random.key(1), (12, 4))
    windows = models.actor_critic._windows(x)
    expected = jax.lax.conv_general_dilated(
        x[None], kernel.reshape(2, 2, 3, 4), (1, 1), "VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip
    np.testing.assert_allclose(windows @ kernel, expected[0], atol=1e-5)


def test_initial_weights_are_those_of_torch_ac():
    agent = models.ActorCritic(num_actions=7, actor_widths=(500,), lstm_units=64)
    params = initial(agent)["params"]
    for name in ("actor_0", "actor_1", "critic_0"):
        norms = jnp.linalg.norm(params[name]["kernel"], axis=0)
        np.testing.assert_allclose(norms, 1, rtol=1e-5)
        assert not params[name]["bias"].any()
    kernel = params["actor_0"]["kernel"]  # directions are uniform: no entry is favoured
    assert abs(float(kernel.mean())) < 5 / np.sqrt(kernel.size) / 8
    bounds = {"conv_0": 12, "conv_1": 64, "conv_2": 128, "lstm_input": 64, "lstm_memory": 64}
    for name, fan_in in bounds.items():
        for values in params[name].values():
            assert float(jnp.abs(values).max()) <= fan_in**-0.5
            if values.size > 1000:
                assert float(jnp.abs(values).max()) > 0.98 * fan_in**-0.5
                assert float(values.std()) == pytest.approx((3 * fan_in) ** -0.5, rel=0.05)


def test_a_vector_is_its_own_embedding():
    agent = models.ActorCritic(num_actions=3, actor_widths=(5,), critic_widths=(6,))
    params = initial(agent, observation=jnp.zeros(4))
    assert count(params) == (4 * 5 + 5 + 5 * 3 + 3) + (4 * 6 + 6 + 6 + 1)


@pytest.mark.parametrize("shape", [(5, 5, 3), (6, 9, 3), (7, 7), ()])
def test_observations_of_which_the_convolutions_leave_nothing_are_refused(shape):
    """The agent would act blindly."""
    with pytest.raises(ValueError, match="Expected a vector or an image of at least 7 x 7"):
        jax.eval_shape(models.ActorCritic(num_actions=3).init, KEY, jnp.zeros(0), jnp.zeros(shape))
