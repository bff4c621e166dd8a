"""Validators return one form for all accepted layouts; errors are one line."""

import math
import re

import jax.numpy as jnp
import numpy as np
import pytest

from jaxpriv import _check, metrics
from tests import oracles


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32, jnp.bfloat16])
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
@pytest.mark.parametrize("num_classes", [4, None])
def test_labels_of_every_layout_are_class_indices(dtype, array, num_classes):
    labels = np.array([2, 0, 1, 3, 3])
    one_hot = np.eye(4)[labels]
    for layout in (labels, labels[:, None], one_hot):
        result = _check.labels(array(layout.astype(dtype)), num_classes=num_classes)
        assert result.dtype == np.int32
        assert result.tolist() == labels.tolist()
    as_bool = _check.labels(array(one_hot.astype(bool)), num_classes=num_classes)
    assert as_bool.tolist() == labels.tolist()
    assert _check.labels(np.zeros((3, 1), int), num_classes=1).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 10, 20], "labels in 0..2, got 10; numpy.unique"),
        ([1, 2, 3], "labels in 0..2, got 3; numpy.unique"),
        ([-1, 0, 1], "labels in 0..2, got -1; numpy.unique"),
        ([0.5, 1.0], "whole numbers in labels, got 0.5"),
        ([np.nan, 1.0], "labels without NaN, got 1 NaN"),
        ([np.inf, 1.0], "labels in 0..2, got inf"),
        (["cat", "dog"], "class indices in labels, got text; numpy.unique"),
        ([b"cat", b"dog"], "real numbers in labels, got |S3"),
        ([None, 1], "real numbers in labels, got object"),
        (np.array([0, 1], "datetime64[s]"), "real numbers in labels, got datetime64"),
        ([[1, 1, 0], [0, 0, 1]], "one-hot rows with a single 1 in labels"),
        ([[0.2, 0.8, 0.0]], "one-hot rows with a single 1 in labels"),
        ([[0, 1], [1, 0]], "labels of shape [n], [n, 1] or [n, 3], got [2, 2]"),
        (1, "labels of shape [n], [n, 1] or [n, 3], got []"),
    ],
)
def test_what_does_not_index_logits_is_refused(labels, message):
    with pytest.raises(ValueError, match=r"^Expected ") as caught:
        oracles.unhooked(_check.labels)(np.array(labels), num_classes=3)
    assert str(caught.value).startswith(f"Expected {message}")
    assert "\n" not in str(caught.value)


def test_whole_numbers_of_every_type_become_int32():
    for dtype in (np.int64, np.uint8, np.float32, jnp.bfloat16):
        values = np.array([[1, 3], [2, 2]]).astype(dtype)
        result = _check.whole_numbers("lengths", values, low=1, high=3)
        assert result.dtype == np.int32
        assert result.tolist() == values.tolist()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 0, 9], "lengths in 1..5, got 0."),
        ([1, 6], "lengths in 1..5, got 6."),
        ([1, np.inf], "lengths in 1..5, got inf."),
        ([1, 2.5], "whole numbers in lengths, got 2.5."),
        ([1, np.nan], "lengths without NaN, got 1 NaN."),
        (["1"], "real numbers in lengths, got <U1."),
    ],
)
def test_the_number_that_is_not_whole_or_out_of_range_is_named(values, message):
    with pytest.raises(ValueError, match=r"^Expected ") as caught:
        _check.whole_numbers("lengths", np.array(values), low=1, high=5)
    assert str(caught.value) == f"Expected {message}"


@pytest.mark.parametrize(
    "values",
    [
        np.array([2**53 + 1, 2**53], np.int64),
        np.array([-(2**60), 0], np.int64),
        np.array([2**64 - 1, 2**64 - 2], np.uint64),
        np.array([2**70, 2**70 + 1], object),
        np.array([0, 2.0**-60], np.longdouble) + 1,
        ["0.5", "0.7"],
        [1j, 0],
        np.array([b"12345678", b"12345679"], "V8"),
    ],
)
def test_scores_that_float64_cannot_hold_are_refused_rather_than_tied(values):
    if np.finfo(np.longdouble).bits == 64 and np.asarray(values).dtype == np.longdouble:
        pytest.skip("long doubles are float64 here")
    for call in (
        lambda: _check.scores(np.asarray(values)),
        lambda: metrics.membership(np.asarray(values), np.array([0, 1])),
    ):
        with pytest.raises(
            ValueError, match=r"^Expected (real numbers|numbers|integers) in scores"
        ):
            call()


def test_integers_up_to_2_to_the_53_keep_their_order():
    values = np.array([2**53 - 1, 2**53, -(2**53)])
    assert _check.scores(values).tolist() == values.tolist()
    assert metrics.membership(values[:2], np.array([0, 1])).auc == 1.0


@pytest.mark.parametrize("dtype", [bool, np.int8, np.float16, jnp.bfloat16, np.longdouble])
def test_scores_of_every_real_type_become_float64(dtype):
    result = _check.scores(np.array([[1], [0]]).astype(dtype))
    assert result.dtype == np.float64
    assert result.tolist() == [1.0, 0.0]


def test_membership_is_bool_or_0_and_1():
    assert _check.membership(np.array([0.0, 1.0])).tolist() == [False, True]
    with pytest.raises(ValueError, match="Expected only 0 and 1 in is_member, got 2"):
        _check.membership(np.array([0, 2]))


@pytest.mark.parametrize("value", [2.0, np.float64(2), np.float32(2), True, "2", math.inf])
def test_a_count_is_an_integer(value):
    for check in (_check.positive_int, _check.non_negative_int):
        with pytest.raises(ValueError, match="number for rows"):
            check(rows=value)


@pytest.mark.parametrize("value", [2, np.int64(2), np.uint8(2), np.array(2), jnp.int32(2)])
def test_integers_of_every_kind_are_counts(value):
    _check.positive_int(rows=value)
    with pytest.raises(ValueError, match="rows >= 1, got rows=0"):
        _check.positive_int(rows=value - value)
    _check.non_negative_int(rows=value - value)


@pytest.mark.parametrize(
    ("call", "got"),
    [
        (lambda: _check.labels(np.array([2.9999999]), num_classes=4), r"got 2\.9999999\."),
        (lambda: _check.membership(np.array([0.0, 1 + 1e-12])), r"got 1\.000000000001\."),
        (lambda: _check.whole_numbers("n", np.array([1e7 + 1]), low=0, high=9), "got 10000001"),
    ],
)
def test_a_number_is_not_rounded_to_one_that_is_allowed(call, got):
    with pytest.raises(ValueError, match=got):
        call()


def test_a_function_takes_the_arguments_of_a_signature():
    """Extra arguments may have defaults; functions without a signature are not judged."""
    for fits in (lambda x, key: None, lambda x, key, other=1: None, lambda *args: None, min):
        _check.takes("f(x, key)", fits)
    for wrong, message in (
        (3, "f(x, key) as a function, got int"),
        (lambda x: None, "f(x, key), got f(x)"),
        (lambda x, key, other: None, "f(x, key), got f(x, key, other)"),
        (lambda x, *, key: None, "f(x, key), got f(x, *, key)"),
    ):
        with pytest.raises(ValueError, match=f"^Expected {re.escape(message)}.$"):
            _check.takes("f(x, key)", wrong)
