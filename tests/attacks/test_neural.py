"""The neural attack against the Bayes-optimal one, its printed shape, the null, and bad input."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics

from jaxpriv import metrics, models
from jaxpriv.attacks import Training, neural
from tests import oracles

GAP, RECORDS = 1.5, 1500
BAYES = stats.norm.cdf(GAP / math.sqrt(2))
ERROR = math.sqrt(BAYES * (1 - BAYES) / RECORDS)
SMALL = {"training": Training(steps=180, batch_size=64)}


def outputs(rng, *, gap):
    """Two classes; the log odds of the label are N(gap, 1)."""
    labels = rng.integers(2, size=RECORDS)
    sure = 1 / (1 + np.exp(-rng.normal(gap, size=RECORDS)))
    return neural.Outputs(
        np.where(np.arange(2) == labels[:, None], *[sure[:, None], 1 - sure[:, None]]), labels
    )


def auc(params, members, nonmembers):
    scores = [neural.apply(params, side) for side in (members, nonmembers)]
    return metrics.membership(np.concatenate(scores), np.repeat([1, 0], RECORDS)).auc


@pytest.fixture(scope="module")
def params():
    rng = np.random.default_rng(0)
    key = jax.random.key(1)
    return neural.fit(key, outputs(rng, gap=GAP), outputs(rng, gap=0.0), **SMALL)


def test_comes_close_to_the_best_attack_and_no_farther(params):
    rng = np.random.default_rng(1)
    result = auc(params, outputs(rng, gap=GAP), outputs(rng, gap=0.0))
    assert BAYES - 0.03 < result < BAYES + 4 * ERROR


def test_finds_nothing_where_there_is_nothing(keys):
    rng = np.random.default_rng(2)
    drawn = [outputs(rng, gap=0.0) for _ in range(4)]
    null = neural.fit(keys(1)[0], *drawn[:2], **SMALL)
    assert abs(auc(null, *drawn[2:]) - 0.5) < 4 * math.sqrt(1 / 6 / RECORDS)


def test_the_network_is_that_of_figure_3(keys):
    net = models.MembershipNet()
    params = jax.jit(net.init)(keys(1)[0], jnp.zeros(100), 0)["params"]
    kernels = sorted(layer["kernel"].shape for layer in params.values())
    printed = [(100, 1024), (1024, 512), (512, 64), (100, 512), (512, 64)]
    assert kernels == sorted([*printed, (128, 256), (256, 64), (64, 1)])
    assert all((layer["bias"] == 0).all() for layer in params.values())
    weights = np.concatenate([layer["kernel"].ravel() for layer in params.values()])
    assert stats.kstest(weights[::97], "norm", (0, 0.01), method="asymp").pvalue > 1e-3
    assert stats.kstest(weights[::97], "norm", (0, 0.015), method="asymp").pvalue < 1e-6


def test_one_example_is_numpy_by_hand(params):
    layers = [params["params"][f"Dense_{i}"] for i in range(8)]
    seen, label_layer = np.array([0.8, 0.2], np.float32), np.array([0.0, 1.0], np.float32)
    for i, layer in enumerate(layers):
        if i < 3:
            seen = np.maximum(seen @ layer["kernel"] + layer["bias"], 0)
        elif i < 5:
            label_layer = np.maximum(label_layer @ layer["kernel"] + layer["bias"], 0)
    joined = np.concatenate([seen, label_layer])
    for layer in layers[5:7]:
        joined = np.maximum(joined @ layer["kernel"] + layer["bias"], 0)
    expected = float((joined @ layers[7]["kernel"] + layers[7]["bias"])[0])
    result = neural.log_odds(params, jnp.array([0.8, 0.2]), 1)
    assert float(result) == pytest.approx(expected, rel=1e-4)


def test_gain_is_minus_half_the_two_cross_entropies(params):
    rng = np.random.default_rng(3)
    members, nonmembers = outputs(rng, gap=GAP), outputs(rng, gap=0.0)
    nonmembers = neural.Outputs(*(leaf[:100] for leaf in nonmembers))
    h = [1 / (1 + np.exp(-neural.apply(params, side))) for side in (members, nonmembers)]
    losses = [
        sklearn_metrics.log_loss(np.full(len(p), label), p, labels=[0, 1])
        for label, p in zip((1, 0), h, strict=True)
    ]
    as_jax = [
        neural.Outputs(*(jnp.asarray(leaf) for leaf in side)) for side in (members, nonmembers)
    ]
    as_jax = [side._replace(predictions=side.predictions.astype(jnp.float32)) for side in as_jax]
    result = float(jax.jit(neural.gain)(params, *as_jax))
    assert result == pytest.approx(-sum(losses) / 2, rel=1e-4)
    assert result > -math.log(2)


def test_log_odds_have_a_gradient_in_the_prediction_and_lower(params):
    at, eps = jnp.array([0.7, 0.3]), 1e-2
    slope = jax.jit(jax.grad(neural.log_odds, argnums=1))(params, at, 0)
    for i in range(2):
        step = eps * jnp.eye(2)[i]
        rise = neural.log_odds(params, at + step, 0) - neural.log_odds(params, at - step, 0)
        assert float(slope[i]) == pytest.approx(float(rise) / (2 * eps), rel=0.05, abs=1e-3)
    assert float(slope[0]) > 0 > float(slope[1])  # surer of the label: more likely a member
    oracles.assert_lowers(neural.log_odds, params, at, 0)


def test_equal_keys_give_equal_parameters(params):
    rng = np.random.default_rng(0)
    again = neural.fit(jax.random.key(1), outputs(rng, gap=GAP), outputs(rng, gap=0.0), **SMALL)
    assert all((a == b).all() for a, b in zip(*map(jax.tree.leaves, (params, again)), strict=True))


def test_order_of_records_does_not_matter(params):
    members = outputs(np.random.default_rng(5), gap=GAP)
    scores = neural.apply(params, members)
    order = np.random.default_rng(0).permutation(RECORDS)
    shuffled = neural.apply(params, neural.Outputs(*(leaf[order] for leaf in members)))
    np.testing.assert_allclose(shuffled, scores[order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_small_floats_are_taken_exactly(dtype, params):
    members = outputs(np.random.default_rng(6), gap=GAP)
    small = members._replace(predictions=jnp.asarray(members.predictions, dtype))
    exact = members._replace(predictions=np.asarray(small.predictions).astype(np.float64))
    assert (neural.apply(params, small) == neural.apply(params, exact)).all()


def test_constant_outputs_are_no_evidence(params):
    constant = neural.Outputs(np.full((RECORDS, 2), 0.5), np.zeros(RECORDS, int))
    assert auc(params, constant, constant) == 0.5


GOOD = neural.Outputs(np.full((4, 2), 0.5), np.array([0, 1, 0, 1]))
BAD = {
    "nan": (GOOD._replace(predictions=np.full((4, 2), np.nan)), "predictions without NaN, got 8"),
    "inf": (GOOD._replace(predictions=np.full((4, 2), np.inf)), "finite predictions, got 8 inf"),
    "label": (GOOD._replace(labels=np.array([0, 1, 2, 0])), r"labels in 0..1, got 2"),
    "none": (
        neural.Outputs(np.zeros((0, 2)), np.zeros(0, int)),
        "members and non-members, got 0 and 4",
    ),
    "classes": (GOOD._replace(predictions=np.full((4, 3), 0.5)), "equally many classes, got 3"),
    "shape": (GOOD._replace(predictions=np.zeros(4)), r"predictions \[n, c\], got shape \[4\]"),
}


@pytest.mark.parametrize("case", BAD)
def test_refuses_in_one_line(case, keys):
    members, message = BAD[case]
    with pytest.raises(ValueError, match=rf"^Expected {message}[^\n]*\.$"):
        oracles.unhooked(neural.fit)(
            keys(1)[0], members, GOOD, training=Training(steps=1, batch_size=2)
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 3}, "Expected an even batch_size, got batch_size=3"),
        ({"steps": 0}, "Expected steps >= 1, got steps=0"),
        ({"learning_rate": 0.0}, "Expected learning_rate > 0"),
    ],
)
def test_training_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Training(**options)
