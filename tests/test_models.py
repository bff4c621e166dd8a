"""Networks: one example equals a batch of one, and every product has a ghost norm."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpriv import grads, models
from tests import oracles

KEY = jax.random.key(0)
BATCH = 3
IMAGES = jnp.zeros((2, 8, 8, 3))
NETWORKS = {
    "mlp": (models.MLP(widths=(8,), num_classes=4), (6,)),
    "cnn": (models.CNN(num_classes=4, channels=(3, 5), width=7), (9, 12, 2)),
    "rnn": (models.RNN(num_classes=4, width=6), (5, 3)),
    "transformer": (
        models.Classifier(num_tokens=11, num_classes=4, width=8, num_layers=1, num_heads=2),
        (5,),
    ),
    "densenet": (models.DenseNet(num_classes=4, depth=10, growth_rate=3), (8, 8, 3)),
}


def setup(name):
    module, shape = NETWORKS[name]
    if name == "transformer":
        x = jax.random.randint(KEY, (BATCH, *shape), 0, 11)
    else:
        x = jax.random.normal(KEY, (BATCH, *shape))
    return module, oracles.quick_jit(module.init)(KEY, x[0]), x


@pytest.mark.parametrize("name", NETWORKS)
def test_a_batch_is_one_example_after_the_other(name):
    module, params, x = setup(name)
    apply = oracles.quick_jit(module.apply)
    together = apply(params, x)
    assert together.shape == (BATCH, 4)
    np.testing.assert_allclose(together, [apply(params, row) for row in x], atol=1e-5)


@pytest.mark.parametrize("name", oracles.slow_after(3, NETWORKS))
def test_products_have_ghost_norms(name):
    module, params, x = setup(name)

    def loss(params, example, key):
        del key
        x, y = example
        logits = module.apply(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y)

    grad = grads.clipped_grad(loss, clip_norm=0.5)
    explained = grad.explain(params, (x[0], jnp.int32(1)), KEY, batch_size=BATCH)
    matrices = [choice for choice in explained.choices if len(choice.shape) > 1]
    assert matrices
    assert not any(choice.reason for choice in matrices)
    batch, mask = (x, jnp.array([0, 1, 3])), jnp.array([True, True, False])
    found = oracles.quick_jit(grad)(params, batch, mask, KEY)
    expected = oracles.clipped_sum(loss, params, batch, mask, KEY, clip_norm=0.5)
    oracles.assert_same_sum(found, expected, rtol=1e-4)


def test_large_images_do_not_enlarge_the_hidden_layer():
    """From 8x8 to 64x64 pixels the flattened maps stay within 8x8."""
    module = models.CNN(num_classes=2, channels=(2,), width=3)
    sizes = []
    for side in (16, 64, 128):
        shapes = jax.eval_shape(module.init, KEY, jnp.zeros((side, side, 1)))
        sizes.append(sum(leaf.size for leaf in jax.tree.leaves(shapes)))
    assert sizes[0] == sizes[1] == sizes[2]


def test_a_large_image_is_averaged_before_the_first_convolution():
    module = models.CNN(num_classes=2, channels=(2,), width=3)
    large = jax.random.uniform(KEY, (66, 34, 1))
    small = large.reshape(33, 2, 17, 2, 1).mean((1, 3))
    params = module.init(KEY, small)
    np.testing.assert_allclose(module.apply(params, large), module.apply(params, small), rtol=1e-5)
    assert module.apply(params, jax.random.uniform(KEY, (33, 17, 1))).shape == (2,)


@pytest.mark.parametrize(
    ("module", "num_classes", "count"),
    [
        (models.AlexNet, 10, 2_472_266),
        (models.AlexNet, 100, 2_495_396),
        (models.DenseNet, 100, 800_032),
    ],
)
def test_networks_for_small_images_have_the_published_numbers_of_parameters(
    module, num_classes, count
):
    """2.5 million for AlexNet; 0.8 million for DenseNet-BC of depth 100 and growth rate 12."""
    variables = jax.eval_shape(module(num_classes=num_classes).init, KEY, jnp.zeros((32, 32, 3)))
    assert sum(leaf.size for leaf in jax.tree.leaves(variables["params"])) == count


def test_batch_statistics_are_state_and_no_parameters():
    shapes = [
        jax.eval_shape(models.DenseNet(num_classes=4, depth=10, norm=norm).init, KEY, IMAGES)
        for norm in ("group", "batch")
    ]
    sizes = [sum(x.size for x in jax.tree.leaves(each["params"])) for each in shapes]
    assert sizes[0] == sizes[1]
    assert [set(each) for each in shapes] == [{"params"}, {"params", "batch_stats"}]
    with pytest.raises(ValueError, match="depth of 6 k"):
        jax.eval_shape(models.DenseNet(num_classes=4, depth=12).init, KEY, IMAGES)


def test_the_classifier_of_purchases_has_small_normal_weights():
    """Weights and biases of N(0, 0.01^2), tanh, and the published widths."""
    module = models.MLP(
        widths=(1024, 512, 256), num_classes=100, activation=jnp.tanh, init_std=0.01
    )
    params = module.init(KEY, jnp.zeros(600))["params"]
    values = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    assert len(values) == 600 * 1024 + 1024 * 512 + 512 * 256 + 256 * 100 + 1024 + 512 + 256 + 100
    assert 0.0099 < values.std() < 0.0101
    assert params["Dense_0"]["bias"].std() > 0.009


def test_dropout_is_of_training_alone():
    module = models.MLP(widths=(64,), num_classes=2, dropout=0.5)
    params, x = module.init(KEY, jnp.ones(3)), jnp.ones(3)
    drawn = [
        module.apply(params, x, deterministic=False, rngs={"dropout": key})
        for key in jax.random.split(KEY, 2)
    ]
    assert not np.allclose(*drawn)
    plain = models.MLP(widths=(64,), num_classes=2)
    np.testing.assert_array_equal(module.apply(params, x), plain.apply(params, x))


@pytest.mark.parametrize(
    ("model", "width", "message"),
    [
        (models.AlexNet(num_classes=3), 28, "at least 29 x 29 pixels"),
        (models.DenseNet(num_classes=3, depth=10), 3, "at least 4 x 4 pixels"),
    ],
)
def test_images_of_which_the_poolings_leave_nothing_are_refused(model, width, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(model.init, KEY, jnp.zeros((width, width, 3)))
    jax.eval_shape(model.init, KEY, jnp.zeros((width + 1, width + 1, 3)))
