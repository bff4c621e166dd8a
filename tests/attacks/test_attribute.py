"""Attribute inference is Bayes' rule, and its gain over imputation is what the model adds."""

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from scipy import stats

from jaxpriv.attacks import attribute

COLOUR = attribute.Attribute.one_hot([1, 2, 3])


@pytest.fixture
def unchecked():
    """Calls the function as outside pytest, where only the library checks shapes."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def table(n, seed=0, strength=2.0):
    """Column 0 predicts the colour; the label depends on both."""
    rng = np.random.default_rng(seed)
    x0 = rng.normal(size=n)
    logits = strength * np.stack([x0, 0 * x0, -x0], axis=1) + rng.gumbel(size=(n, 3))
    colour = logits.argmax(axis=1)
    inputs = np.concatenate([x0[:, None], np.eye(3)[colour]], axis=1)
    p_label = label_probabilities(inputs)
    return inputs, (rng.random(n) < p_label[:, 1]).astype(int), colour


def label_probabilities(inputs):
    """The distribution of the label, as a perfect model knows it."""
    z = inputs @ np.array([0.5, 2.0, 0.0, -2.0])
    p = 1 / (1 + np.exp(-z))
    return np.stack([1 - p, p], axis=-1)


def test_queries_replace_the_attribute_alone():
    inputs, _, colour = table(6)
    queries = COLOUR.queries(inputs.astype(np.float32))
    assert queries.shape == (6, 3, 4)
    assert queries.dtype == np.float32
    np.testing.assert_array_equal(queries[np.arange(6), colour], inputs.astype(np.float32))
    assert (queries[:, :, 0] == inputs[:, :1].astype(np.float32)).all()
    assert (queries[:, :, 1:] == np.eye(3, dtype=np.float32)).all()
    assert (COLOUR.values(inputs) == colour).all()
    np.testing.assert_array_equal(COLOUR.without(inputs), inputs[:, :1])
    age = attribute.Attribute.number(0, [20, 30.5])
    assert age.values(np.array([[30.5, 1.0], [20.0, 2.0]])).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("codes", "entry", "value"),
    [
        ([0, 1], np.nan, None),
        ([0, 1], np.inf, None),
        ([0, 1], 1 + 1e-5, None),
        ([1e-7, 2e-7], 5e-7, None),
        ([1e-7, 2e-7], 2e-7, 1),
        ([100.1, 1e4], np.float32(100.1), 0),
        ([1e8, 1e8 + 1], 1e8 + 0.5, None),
        ([1e8, 1e8 + 1], 1e8 + 1, 1),
    ],
)
def test_entries_have_a_value_only_at_its_code(codes, entry, value):
    inputs = np.array([[codes[0]], [entry]], np.float64)
    numbers = attribute.Attribute.number(0, codes)
    if value is not None:
        assert numbers.values(inputs).tolist() == [0, value]
        return
    with pytest.raises(ValueError, match=r"columns \[0\], got .* in record 1\.") as caught:
        numbers.values(inputs)
    assert "\n" not in str(caught.value)


def test_entries_of_several_columns_are_compared_in_each():
    size = attribute.Attribute(columns=(0, 1), codes=np.array([[0.0, 1e6], [1.0, 1e6]]))
    assert size.values(np.array([[1.0, 1e6], [0.0, 1e6]])).tolist() == [1, 0]
    with pytest.raises(ValueError, match="in record 0"):
        size.values(np.array([[0.01, 1e6]]))
    with pytest.raises(ValueError, match="in record 0"):
        size.values(np.array([[0, 1e6 + 1]]))


def test_narrow_floats_are_read_and_queried_up_to_their_rounding():
    age = attribute.Attribute.number(0, [20, 30.1])
    inputs = np.array([[30.1], [20.0]], np.float16)
    assert age.values(inputs).tolist() == [1, 0]
    np.testing.assert_array_equal(age.queries(inputs)[0], np.array([[20], [30.1]], np.float16))
    assert age.values(np.array([[20], [20]])).tolist() == [0, 0]
    jax_inputs = jnp.asarray(inputs, jnp.bfloat16)
    assert age.values(jax_inputs).tolist() == [1, 0]
    assert age.queries(jax_inputs).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("codes", "dtype", "message"),
    [
        (
            [0, 0.5, 1],
            np.int64,
            r"a type that represents the codes, got int64 and the code \[0.5\]",
        ),
        ([-1, 1], np.uint8, r"got uint8 and the code \[-1.0\]"),
        ([1, 300], np.uint8, r"got uint8 and the code \[300.0\]"),
        ([0, 2], np.bool_, r"got bool and the code \[2.0\]"),
        ([0, 1e5], np.float16, r"got float16 and the code \[100000.0\]"),
        ([1e8, 1e8 + 1], np.float32, "Expected codes that differ .* got float32"),
    ],
)
def test_queries_that_would_round_the_codes_are_refused(codes, dtype, message):
    numbers = attribute.Attribute.number(1, codes)
    inputs = np.array([[3, 1]]).astype(dtype)
    with pytest.raises(ValueError, match=message) as caught:
        numbers.queries(inputs)
    assert "\n" not in str(caught.value)
    if np.issubdtype(dtype, np.floating):
        with pytest.raises(ValueError, match=message):
            numbers.values(inputs)


def test_integers_are_queried_with_whole_codes():
    numbers = attribute.Attribute.number(1, [1, 255])
    queries = numbers.queries(np.array([[3, 1]], np.uint8))
    assert queries.dtype == np.uint8
    assert queries.tolist() == [[[3, 1], [3, 255]]]


@pytest.mark.parametrize("prior", [None, "marginal", "of each record"])
def test_predictions_give_the_posterior_of_bayes_rule(prior):
    inputs, labels, colour = table(50)
    likelihood = label_probabilities(COLOUR.queries(inputs))
    p = {
        None: np.full(3, 1 / 3),
        "marginal": np.bincount(colour) / 50,
        "of each record": np.random.default_rng(1).dirichlet(np.ones(3), size=50),
    }[prior]
    log_prior = None if prior is None else np.log(p)
    result = attribute.from_predictions(np.log(likelihood), labels, log_prior=log_prior)
    for i in range(50):
        joint = [likelihood[i, v, labels[i]] * np.broadcast_to(p, (50, 3))[i, v] for v in range(3)]
        np.testing.assert_allclose(np.exp(result[i]), np.array(joint) / sum(joint), rtol=1e-4)


def test_imputation_reads_neither_the_attribute_nor_a_test_record():
    inputs, labels, colour = table(300, strength=4.0)
    population = {
        "attribute": COLOUR,
        "population_inputs": inputs[150:],
        "population_labels": labels[150:],
    }

    def imputed(x):
        return attribute.impute(np.random.default_rng(0), x, labels[:150], **population)

    result = imputed(inputs[:150])
    assert result.shape == (150, 3)
    np.testing.assert_allclose(np.exp(result).sum(axis=1), 1)
    hidden = inputs[:150].copy()
    hidden[:, 1:] = 0
    np.testing.assert_array_equal(imputed(hidden), result)
    accuracy = (result.argmax(axis=1) == colour[:150]).mean()
    assert accuracy > np.bincount(colour[:150]).max() / 150 + 0.1
    # A value that the population lacks stays possible.
    rows = colour[150:] != 2
    population["population_inputs"] = inputs[150:][rows]
    population["population_labels"] = labels[150:][rows]
    rare = imputed(inputs[:150])
    assert np.isfinite(rare).all()
    assert (rare.argmax(axis=1) != 2).all()


def shadows(rng, *, num_models, values, memory, is_member=None):
    """Outputs of two classes: members are surer of label 0 at their own value."""
    r, v = len(values), 3
    if is_member is None:
        is_member = rng.random((num_models, r)) < 0.5
    difficulty = rng.normal(size=(r, v))  # common to all models
    own = np.arange(v) == values[:, None]
    z = difficulty + memory * is_member[..., None] * own + 0.3 * rng.normal(size=(num_models, r, v))
    return np.stack([z, np.zeros_like(z)], axis=-1), is_member


def test_a_value_of_two_records_leaves_the_others_to_be_imputed():
    rng = np.random.default_rng(0)
    size = attribute.Attribute.one_hot([2, 3, 4, 5])

    def draw(n, *, num_rare):
        value = rng.integers(3, size=n)
        features = np.stack([value + rng.normal(0, 0.3, n), rng.integers(2, size=n)], axis=1)
        value[:num_rare] = 3
        return np.concatenate([features, np.eye(4)[value]], axis=1), value

    known, _ = draw(8000, num_rare=2)
    new, value = draw(500, num_rare=0)
    log_p = attribute.impute(
        rng,
        new,
        np.zeros(500, int),
        attribute=size,
        population_inputs=known,
        population_labels=np.zeros(8000, int),
    )
    # 0.16; without a penalty of the leaves 0.5, as those of the rare value exceed all others.
    assert -log_p[np.arange(500), value].mean() < 0.25


@pytest.mark.parametrize("memory", [0.0, 2.0])
def test_shadow_models_reveal_the_attribute_only_if_the_model_memorised_it(memory):
    rng = np.random.default_rng(0)
    values = rng.integers(3, size=400)
    logits, is_member = shadows(rng, num_models=9, values=values, memory=memory)
    prior = np.full((400, 3), -np.log(3))
    labels = np.zeros(400, int)
    fitted = attribute.fit(
        logits[1:], labels, values, shadow_is_member=is_member[1:], log_prior=prior
    )
    scores = attribute.apply(
        fitted,
        logits[0],
        labels,
        shadow_logits=logits[1:],
        shadow_is_member=is_member[1:],
        log_prior=prior,
    )
    guess = np.eye(3)[rng.integers(3, size=400)]
    gains = attribute.measure(scores, guess, values, is_member=is_member[0], confidence=0.99)
    plain = attribute.from_predictions(logits[0], labels)
    without = attribute.measure(plain, guess, values, is_member=is_member[0], confidence=0.99)
    assert gains.nonmembers.gain.lower < 0 < gains.nonmembers.gain.upper
    if memory:
        assert gains.members.gain.lower > 0
        # Difficulty common to all models hides the value from the attack without shadow models.
        assert gains.members.accuracy.value > without.members.accuracy.value + 0.1
        assert fitted.calibrated > 0.5
    else:
        assert gains.members.gain.lower < 0 < gains.members.gain.upper
        assert abs(fitted.confidence) + abs(fitted.calibrated) < 0.3


def test_the_weights_are_those_of_the_model_that_drew_the_values():
    rng = np.random.default_rng(0)
    n, true = 20_000, (0.0, 0.7, 1.2)
    difficulty, other = rng.normal(size=(2, n, 3))
    prior = np.log(rng.dirichlet(np.ones(3), size=n))
    # Model 0 is trained on all records, model 1 on none: it is the OUT model of each.
    z = np.stack([difficulty, other])
    logits = np.stack([z, np.zeros_like(z)], axis=-1)
    log_p = -np.logaddexp(0, -z)
    scores = true[0] * log_p[0] + true[1] * (log_p[0] - log_p[1]) + true[2] * prior
    values = (scores + rng.gumbel(size=(n, 3))).argmax(axis=1)
    fitted = attribute.fit(
        logits,
        np.zeros(n, int),
        values,
        shadow_is_member=np.array([[True] * n, [False] * n]),
        log_prior=prior,
    )
    # The penalty of 0.001 moves the weights by less than the standard errors of about 0.03.
    np.testing.assert_allclose(fitted, true, atol=0.15)
    assert fitted.prior > 1.05


def test_scores_are_weighted_sums_with_the_mean_over_out_models():
    rng = np.random.default_rng(0)
    logits, shadow_logits = rng.normal(size=(4, 3, 2)), rng.normal(size=(5, 4, 3, 2))
    labels, prior = np.array([0, 1, 1, 0]), rng.normal(size=(4, 3))
    is_member = np.arange(5)[:, None] < np.array([0, 1, 3, 4])
    scores = attribute.apply(
        attribute.Fitted(0.5, 2.0, 1.5),
        logits,
        labels,
        shadow_logits=shadow_logits,
        shadow_is_member=is_member,
        log_prior=prior,
    )
    for i in range(4):
        raw = []
        for v in range(3):
            log_p = [z - np.logaddexp(*z) for z in (logits[i, v], *shadow_logits[:, i, v])]
            target, *others = [row[labels[i]] for row in log_p]
            out = np.mean(
                [x for x, member in zip(others, is_member[:, i], strict=True) if not member]
            )
            raw.append(0.5 * target + 2.0 * (target - out) + 1.5 * prior[i, v])
        np.testing.assert_allclose(scores[i], raw - np.logaddexp.reduce(raw), atol=1e-5)


def test_records_without_an_out_model_are_not_calibrated():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 2, 2))
    arguments = {"shadow_logits": rng.normal(size=(4, 5, 2, 2)), "log_prior": np.zeros((5, 2))}
    everywhere = np.ones((4, 5), bool)
    weights = attribute.Fitted(1.0, 5.0, 1.0)
    scores = attribute.apply(
        weights, logits, np.zeros(5, int), shadow_is_member=everywhere, **arguments
    )
    plain = attribute.from_predictions(logits, np.zeros(5, int))
    np.testing.assert_allclose(scores, plain, rtol=1e-6)


def test_the_gain_counts_members_and_nonmembers_apart():
    values = np.array([0, 1, 0, 1, 0, 1])
    is_member = np.array([1, 1, 1, 1, 0, 0])
    attack, imputed = np.eye(2)[[0, 1, 0, 0, 0, 0]], np.eye(2)[[0, 0, 1, 1, 1, 1]]
    gains = attribute.measure(attack, imputed, values, is_member=is_member, confidence=0.9)
    assert gains.members.accuracy.value == 0.75
    assert gains.members.imputation.value == 0.5
    assert gains.members.gain.value == 0.25
    assert gains.members.gain.lower < 0.25 < gains.members.gain.upper
    assert (gains.members.num_records, gains.nonmembers.num_records) == (4, 2)
    assert gains.nonmembers.gain.value == 0.0
    interval = stats.binomtest(3, 4).proportion_ci(0.9, method="exact")
    assert gains.members.accuracy[1:] == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("size", [1, 5, 20])
def test_intervals_of_dependent_records_cover_at_their_confidence(size):
    """The records of a person are identical, and the model adds nothing to imputation."""
    rng = np.random.default_rng(0)
    people, repetitions = 60, 150
    person = np.repeat(np.arange(people), size)
    is_member = person % 2 == 0
    hits = np.zeros((2, 3))
    for _ in range(repetitions):
        u = rng.random(people)[person]
        values = np.zeros(people * size, int)
        attack, imputed = np.eye(2)[(u < 0.4).astype(int)], np.eye(2)[(u > 0.6).astype(int)]
        for i, unit_id in enumerate((person, None)):
            members = attribute.measure(
                attack, imputed, values, is_member=is_member, confidence=0.95, unit_id=unit_id
            ).members
            for j, truth in enumerate((0.6, 0.6, 0.0)):
                hits[i, j] += members[j].lower <= truth <= members[j].upper
    chance = 3 * np.sqrt(0.95 * 0.05 / repetitions)
    assert (hits[0] / repetitions > 0.95 - chance).all()
    if size > 1:
        assert (hits[1] / repetitions < 0.95 - chance).all()


N = {"logits": np.zeros((4, 3, 2)), "labels": np.zeros(4, int)}
SHADOWS = {
    "shadow_logits": np.zeros((2, 4, 3, 2)),
    "labels": np.zeros(4, int),
    "values": np.arange(4) % 3,
    "shadow_is_member": np.ones((2, 4), bool),
    "log_prior": np.zeros((4, 3)),
}
APPLIED = {
    "fitted": attribute.Fitted(1.0, 1.0, 1.0),
    "logits": np.zeros((4, 3, 2)),
    "labels": np.zeros(4, int),
    "shadow_logits": np.zeros((2, 4, 3, 2)),
    "log_prior": np.zeros((4, 3)),
}
GAIN = {
    "log_probabilities": np.zeros((4, 3)),
    "imputed": np.zeros((4, 3)),
    "values": np.arange(4) % 3,
    "is_member": np.arange(4) % 2,
    "confidence": 0.95,
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("from_predictions", N | {"labels": np.full(4, 2)}, "Expected labels in 0..1"),
        ("from_predictions", N | {"labels": np.zeros(3, int)}, "Expected equal lengths"),
        ("from_predictions", N | {"logits": np.zeros((4, 2))}, r"Expected logits \[n, v, c\]"),
        ("from_predictions", N | {"logits": np.full((4, 3, 2), np.nan)}, "NaN"),
        ("from_predictions", N | {"log_prior": np.zeros(2)}, r"Expected log_prior \[3\]"),
        ("measure", GAIN | {"is_member": np.ones(4)}, "Expected members and non-members"),
        ("measure", GAIN | {"values": np.full(4, 3)}, "Expected values in 0..2"),
        ("measure", GAIN | {"imputed": np.zeros((4, 2))}, "Expected scores"),
        ("measure", GAIN | {"confidence": 0.0}, "Expected 0 < confidence < 1"),
        (
            "measure",
            GAIN | {"is_member": (np.arange(4) % 2)[:, None]},
            r"Expected is_member of shape \[4\], got \[4, 1\]",
        ),
        (
            "measure",
            GAIN | {"unit_id": np.arange(3)},
            r"Expected unit_id of shape \[4\], got \[3\]",
        ),
        ("fit", SHADOWS | {"shadow_logits": np.zeros((0, 4, 3, 2))}, "of one model or more, got"),
        ("fit", SHADOWS | {"shadow_logits": np.zeros((4, 3, 2))}, "Expected shadow_logits"),
        ("fit", SHADOWS | {"shadow_is_member": np.zeros((2, 4))}, "Expected members of the shadow"),
        ("apply", APPLIED | {"shadow_logits": np.zeros((0, 4, 3, 2))}, "of one model or more, got"),
    ],
)
def test_bad_input_is_one_line(function, arguments, message):
    call = getattr(attribute, function)
    with pytest.raises(ValueError, match=message) as caught:
        call(*list(arguments.values())[:2], **dict(list(arguments.items())[2:]))
    assert "\n" not in str(caught.value)


def test_attributes_that_do_not_fit_are_one_line():
    inputs, labels, _ = table(20)
    with pytest.raises(ValueError, match=r"Expected codes \[v, 1\]"):
        attribute.Attribute(columns=(0,), codes=np.eye(2))
    with pytest.raises(ValueError, match="two or more different codes"):
        attribute.Attribute.number(0, [1.0, 1.0])
    with pytest.raises(ValueError, match="Expected different columns"):
        attribute.Attribute.one_hot([1, 1])
    with pytest.raises(ValueError, match=r"with the columns \[7, 8\]"):
        attribute.Attribute.one_hot([7, 8]).queries(inputs)
    with pytest.raises(ValueError, match="in record 3"):
        COLOUR.values(np.where(np.arange(20)[:, None] == 3, 0.5, inputs))
    red = inputs.copy()
    red[:, 1:] = [1, 0, 0]
    with pytest.raises(ValueError, match="in the population, got one"):
        attribute.impute(
            np.random.default_rng(0),
            inputs,
            labels,
            attribute=COLOUR,
            population_inputs=red,
            population_labels=labels,
        )


def test_a_value_with_one_record_in_a_large_population_is_imputed():
    """scikit-learn holds out records of every value for early stopping above 10,000 records."""
    rng = np.random.default_rng(0)
    values = np.append(2, rng.integers(2, size=10_100))
    inputs = np.eye(3)[values]
    table = np.concatenate([inputs, inputs[:, :1]], axis=1)
    result = attribute.impute(
        rng,
        table[:5],
        np.zeros(5, int),
        attribute=attribute.Attribute.one_hot([0, 1, 2]),
        population_inputs=table,
        population_labels=np.zeros(len(table), int),
    )
    assert (result[1:].argmax(axis=1) == values[1:5]).all()
