"""Convolutions in loops have the order of XLA's routine, and the same values as before."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.extend.core import primitives

from jaxpriv import _convolutions, grads, models, sampling, training
from jaxpriv.training import _scan

LAYOUTS = {
    "of images": ((2, 6, 7, 3), (3, 2, 3, 4), ("NHWC", "HWIO", "NHWC")),
    "of channels first": ((2, 3, 6, 7), (4, 3, 3, 2), ("NCHW", "OIHW", "NCHW")),
    "of series": ((2, 9, 3), (3, 3, 4), ("NWC", "WIO", "NWC")),
    "of mixed order": ((3, 6, 2, 7), (3, 4, 3, 2), ("CHNW", "IOHW", "WNHC")),
}
OPTIONS = {
    "plain": {},
    "strides": {"window_strides": 2},
    "dilations": {"lhs_dilation": 2, "rhs_dilation": 2},
    "asymmetric padding": {"padding": (0, 2)},
}


def convolution(layout, options):
    """Returns the loss of a kernel, and its shape; every space axis has the same options."""
    shape, kernel_shape, order = LAYOUTS[layout]
    rank = len(shape) - 2
    given = {name: (value,) * rank for name, value in OPTIONS[options].items()}
    given = {"window_strides": (1,) * rank, "padding": ((1, 1),) * rank} | given
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)
    apply = functools.partial(lax.conv_general_dilated, x, dimension_numbers=order, **given)
    return lambda kernel: jnp.square(apply(kernel)).sum(), kernel_shape


def orders(jaxpr):
    """Whether each convolution of a jaxpr and its bodies has the order of XLA's routine."""
    for eqn in jaxpr.eqns:
        if eqn.primitive is primitives.conv_general_dilated_p:
            rank = eqn.invars[0].aval.ndim
            yield eqn.params["dimension_numbers"] == _convolutions._order(rank)
        for value in jax.tree.leaves(list(eqn.params.values())):
            body = getattr(value, "jaxpr", value)
            if hasattr(body, "eqns"):
                yield from orders(body)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_are_the_same_in_the_order_of_the_routine(layout, options):
    loss, shape = convolution(layout, options)
    kernel = jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)
    gradient = jax.value_and_grad(loss)
    rearranged = _convolutions.for_loops(gradient)
    for one, other in zip(gradient(kernel), rearranged(kernel), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5)
    before, after = (list(orders(jax.make_jaxpr(f)(kernel).jaxpr)) for f in (gradient, rearranged))
    assert not all(before)
    assert len(after) == len(before)
    assert all(after)


BODIES = {
    "scan": lambda f: lambda w: lax.scan(lambda w, _: (w - 1e-3 * f(w), None), w, length=2)[0],
    "map": lambda f: lambda w: lax.map(lambda s: f(s * w), jnp.arange(1.0, 3.0)).sum(0),
    "while": lambda f: lambda w: lax.fori_loop(0, jnp.int32(2), lambda i, w: w - 1e-3 * f(w), w),
    "cond": lambda f: lambda w: lax.cond(w.sum() > 0, f, jnp.negative, w),
    "jit": jax.jit,
    "remat": lambda f: jax.grad(jax.checkpoint(lambda w: (f(w) * w).sum())),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_of_loops_and_conditionals_are_rearranged(name):
    loss, shape = convolution("of images", "plain")
    kernel = jnp.asarray(np.abs(np.random.default_rng(1).normal(size=shape)), jnp.float32)
    function = BODIES[name](jax.grad(loss))
    rearranged = _convolutions.for_loops(function)
    np.testing.assert_allclose(function(kernel), rearranged(kernel), rtol=1e-4)
    assert not all(orders(jax.make_jaxpr(function)(kernel).jaxpr))
    assert all(orders(jax.make_jaxpr(rearranged)(kernel).jaxpr))


def test_a_function_without_convolutions_is_traced_as_it_is():
    def function(key, tree, empty):
        assert empty is None
        return {"a": jax.random.normal(key, (3,)) + tree["b"]}, lax.stop_gradient(tree["b"])

    given = jax.random.key(0), {"b": jnp.arange(3.0)}, None
    one, other = function(*given), _convolutions.for_loops(function)(*given)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    np.testing.assert_array_equal(one[0]["a"], other[0]["a"])


@pytest.mark.parametrize("microbatch_size", [None, 3])
@pytest.mark.parametrize("is_private", [False, True])
def test_training_has_no_other_convolution(is_private, microbatch_size):
    module = models.CNN(num_classes=2, channels=(2, 3), width=4)
    x, y = jnp.ones((6, 8, 8, 1)), jnp.arange(6) % 2

    def loss(params, record, key):
        logits = module.apply(params, record[0])
        return optax.softmax_cross_entropy_with_integer_labels(logits, record[1])

    sampler, optimizer = sampling.poisson(6, sampling_prob=0.5), optax.sgd(0.1)
    if is_private:
        grad = grads.clipped_grad(loss, clip_norm=1.0, microbatch_size=microbatch_size)
        alg = training.dpsgd(grad, optimizer, sampler, noise_multiplier=1.0)
    else:
        alg = training.sgd(loss, optimizer, sampler, microbatch_size=microbatch_size)
    state = alg.init(module.init(jax.random.key(0), x[0]))

    def run(key, state):
        return _scan.scan_steps(alg, 2, key, state, (x, y), jnp.int32(2), None)

    found = list(orders(jax.make_jaxpr(run)(jax.random.key(1), state).jaxpr))
    assert len(found) >= 3
    assert all(found)


def test_other_platforms_keep_the_convolutions(monkeypatch):
    loss, shape = convolution("of images", "plain")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    rearranged = _convolutions.for_loops(jax.grad(loss))
    assert not all(orders(jax.make_jaxpr(rearranged)(jnp.ones(shape)).jaxpr))
