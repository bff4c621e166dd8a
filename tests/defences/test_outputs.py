"""Defences of outputs against softmax by hand, and their names on the command line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from jaxpriv import defences, metrics
from jaxpriv.attacks import suite
from jaxpriv.attacks.evidence import defended
from jaxpriv.defences import base, outputs
from tests.attacks import stored

KEY = jax.random.key(0)
LOGITS = np.array([2.0, -1.0, 0.5, 1.9])
P = special.softmax(LOGITS)


def answer(defence, logits=LOGITS):
    return np.asarray(defence.respond(KEY, jnp.asarray(logits, jnp.float32)))


@pytest.mark.parametrize("k", [1, 2, 4])
def test_top_k_keeps_the_largest_probabilities_and_floors_the_rest(k):
    shown = np.argsort(-LOGITS)[:k]
    expected = np.full(4, np.log(1e-13))
    expected[shown] = np.log(P[shown])
    np.testing.assert_allclose(answer(outputs.top_k(k=k)), expected, rtol=1e-5)


@pytest.mark.parametrize("decimals", [1, 3])
def test_rounding_rounds_probabilities_and_floors_zero(decimals):
    rounded = np.round(special.softmax([0.0, 9.0, 1.0]), decimals)
    expected = np.log(np.maximum(rounded, 1e-13))
    result = answer(outputs.rounding(decimals=decimals), [0.0, 9.0, 1.0])
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_temperature_is_the_softmax_of_divided_logits():
    result = answer(outputs.temperature(temperature=4.0))
    np.testing.assert_allclose(result, special.log_softmax(LOGITS / 4), rtol=1e-5)
    assert answer(outputs.temperature(temperature=0.01)).min() == np.float32(np.log(1e-13))
    coldest = answer(outputs.temperature(temperature=1e-30))
    assert (coldest == np.where(LOGITS.max() == LOGITS, 0, np.float32(np.log(1e-13)))).all()


def test_label_only_shows_the_label():
    assert answer(outputs.label_only()).tolist() == [0.0, *[np.float32(np.log(1e-13))] * 3]
    tied = answer(outputs.label_only(), [1.0, 1.0, 0.0])
    assert (tied == 0).sum() == 1
    assert np.isnan(answer(outputs.label_only(), [np.nan, 1.0])).all()


@pytest.mark.parametrize("text", ["label_only", "rounding:decimals=3", "top_k:k=1"])
def test_the_predicted_label_stays(text):
    logits = np.random.default_rng(0).normal(size=(50, 5))
    for row in logits:
        result = answer(base.from_text(text), row)
        assert result[row.argmax()] == result.max()


def test_a_defence_without_a_response_leaves_predict_alone():
    def predict(key, x):
        return x

    assert defences.Defence(name="none", title="none").wrap(predict) is predict


def test_hiding_all_but_the_label_leaves_the_gap_attack():
    """Against labels alone, the loss tells right from wrong and no more."""
    evidence, is_member = stored.evidence()
    hidden = defended(KEY, evidence, outputs.label_only().respond)
    table = {attack.name: attack for attack in suite.attacks()}
    auc = {
        name: metrics.membership(table[name].run(KEY, hidden), is_member).auc
        for name in ("correctness", "negative_loss", "confidence", "margin")
    }
    assert len(set(auc.values())) == 1
    plain = metrics.membership(table["negative_loss"].run(KEY, evidence), is_member).auc
    assert plain > auc["negative_loss"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "nothing",
            "defence to be one of adversarial, dirichlet, gaussian, label_only, rounding",
        ),
        ("top_k", "top_k:k=NUMBER, got 'top_k'"),
        ("top_k:k=2,k=3", "top_k:k=NUMBER, got 'top_k:k=2,k=3'"),
        ("top_k:n=2", "top_k:k=NUMBER, got 'top_k:n=2'"),
        ("top_k:k=two", "a whole number for k, got 'two'"),
        ("top_k:k=0", "k >= 1, got k=0"),
        ("top_k:k=1.5", "a whole number for k, got '1.5'"),
        ("temperature:temperature=hot", "a number for temperature, got 'hot'"),
        ("label_only:k=2", "label_only, got 'label_only:k=2'"),
        ("rounding:decimals=8", "decimals of at most 7"),
        ("temperature:temperature=-1", "temperature > 0"),
        ("temperature:temperature=nan", "temperature > 0"),
        ("temperature:temperature=1e-40", "temperature >= 1e-30"),
    ],
)
def test_impossible_defences_are_one_line(text, message):
    with pytest.raises(ValueError, match="^Expected") as caught:  # noqa: RUF043
        base.from_text(text)
    assert str(caught.value).startswith(f"Expected {message}")


def test_more_probabilities_than_classes_are_refused():
    with pytest.raises(ValueError, match="Expected k of at most 4 classes, got k=5"):
        answer(outputs.top_k(k=5))
