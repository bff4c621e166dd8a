"""The attack on floor maps: its evidence, its measures and its table."""

import dataclasses

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from jaxpriv import envs, metrics, models
from jaxpriv.attacks import floor_map, suite
from jaxpriv.attacks.floor_map import Evidence, Trajectories

KEY = jax.random.key(0)
TRAINING = floor_map.Training(steps=60, batch_size=16, learning_rate=1e-2)
STEPS, ACTIONS = 6, 3


@pytest.fixture
def unchecked():
    """Makes evidence as outside pytest, where only the library checks types and shapes."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def episodes(seed, maps, is_member, *, per_map=5):
    """Members are walked quickly, by policies that agree with the label agent."""
    rng = np.random.default_rng(seed)
    map_id, truth = np.repeat(maps, per_map), np.repeat(is_member, per_map)
    lengths = np.where(truth, rng.integers(2, 5, len(truth)), rng.integers(3, 7, len(truth)))
    labels = rng.dirichlet(np.ones(ACTIONS), (len(truth), STEPS))
    others = rng.dirichlet(np.ones(ACTIONS), (len(truth), STEPS))
    policies = np.where(truth[:, None, None], labels, others)
    return Trajectories(
        map_id, policies.astype(np.float32), labels.astype(np.float32), lengths, 1 - 0.1 * lengths
    )


JUDGED = np.array([7, 3, 9, 4, 8, 1])
IS_MEMBER = np.array([True, False, True, False, True, False])


def full_evidence():
    rng = np.random.default_rng(5)
    known_maps, known = np.arange(20, 40), np.arange(20) % 2 == 0
    shadow_is_member = np.arange(4)[:, None] % 2 == np.arange(6) % 2
    return Evidence(
        trajectories=episodes(0, JUDGED, IS_MEMBER),
        known=episodes(1, known_maps, known),
        known_is_member=np.repeat(known, 5),
        shadow_returns=rng.normal(0.1 * shadow_is_member, 0.01),
        shadow_is_member=shadow_is_member,
    )


TABLE = floor_map.attacks(training=TRAINING, max_steps=5, width=8)


@pytest.mark.filterwarnings("ignore:.*shadow")
@pytest.mark.parametrize("attack", TABLE, ids=[attack.name for attack in TABLE])
def test_the_contract_of_an_attack(attack):
    evidence = full_evidence()
    assert floor_map.missing(attack, evidence) == ""
    scores = attack.run(KEY, evidence)
    assert scores.shape == evidence.map_ids.shape
    assert np.isfinite(scores).all()
    assert (scores == attack.run(KEY, evidence)).all()
    # In whichever order the episodes come, scores are those of the ascending maps.
    order = np.random.default_rng(2).permutation(len(evidence.trajectories.lengths))
    shuffled = Trajectories(*(np.asarray(part)[order] for part in evidence.trajectories))
    again = attack.run(KEY, dataclasses.replace(evidence, trajectories=shuffled))
    np.testing.assert_allclose(again, scores, atol=1e-5)
    bare = evidence.trajectories._replace(label_policies=None)
    poor = Evidence(trajectories=bare)
    if attack.needs:
        assert floor_map.missing(attack, poor).startswith("needs ")
        assert floor_map.applicable([attack], poor) == ()
        with pytest.raises(ValueError, match=r"^Expected "):
            attack.run(KEY, poor)
    assert attack.title
    assert attack.reference


@pytest.mark.filterwarnings("ignore:.*shadow")
def test_attacks_find_members_on_maps_that_they_never_saw():
    evidence = full_evidence()
    truth = IS_MEMBER[np.argsort(JUDGED)]
    scores = floor_map.run_all(KEY, evidence, table=TABLE)
    assert set(scores) == {attack.name for attack in TABLE}
    for name in ("episode_return", "episode_length", "policy_cross_entropy", "policy_network"):
        assert metrics.membership(scores[name], truth).auc > 0.8, name
    assert ((scores["policy_network"] > 0) == truth).mean() > 0.8
    plain = evidence.trajectories
    np.testing.assert_array_equal(
        scores["episode_return"], [plain.returns[plain.map_id == i].mean() for i in sorted(JUDGED)]
    )


def test_names_differ_from_those_of_the_suite():
    names = [attack.name for attack in (*TABLE, *suite.attacks())]
    assert len(set(names)) == len(names)


def test_a_judged_map_may_not_train_the_attack():
    evidence = full_evidence()
    known = evidence.known._replace(map_id=np.where(evidence.known.map_id == 23, 9, 21))
    with pytest.raises(ValueError, match="got map 9 among the known ones"):
        dataclasses.replace(evidence, known=known)


@pytest.mark.usefixtures("unchecked")
def test_wrong_evidence_is_refused():
    evidence = full_evidence()
    good = evidence.trajectories
    wrong = {
        "lengths of trajectories in 1..6, got": good._replace(lengths=good.lengths + 6),
        "lengths of trajectories in 1..6, got 0": good._replace(lengths=0 * good.lengths),
        "whole numbers in lengths of trajectories, got 1.5": good._replace(
            lengths=np.full(len(good.lengths), 1.5)
        ),
        r"Expected map_id \[n\] in trajectories": good._replace(map_id=good.map_id[:, None]),
        "Expected equal lengths": good._replace(returns=good.returns[1:]),
        "label_policies": good._replace(label_policies=good.label_policies[:, :2]),
        "without NaN": good._replace(returns=np.full(len(good.returns), np.nan)),
        "at least one episode": Trajectories(*(part[:0] for part in good)),
    }
    for message, trajectories in wrong.items():
        with pytest.raises(ValueError, match=message):
            Evidence(trajectories=trajectories)
    wrong_parts = {
        "together": {"known_is_member": None},
        "only 0 and 1 in known_is_member, got 2": {"known_is_member": np.arange(100) % 3},
        "only 0 and 1 in shadow_is_member, got 3": {"shadow_is_member": np.full((4, 6), 3)},
        r"got \[4, 6\] and \[3, 6\]": {"shadow_is_member": np.zeros((3, 6), bool)},
        "shadow_returns without NaN": {"shadow_returns": np.full((4, 6), np.nan)},
        "equally many actions, got 3 and 2": {
            "known": evidence.known._replace(
                policies=np.full((100, STEPS, 2), 0.5), label_policies=None
            )
        },
    }
    for message, changes in wrong_parts.items():
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(evidence, **changes)
    with pytest.raises(ValueError, match="column for each judged map"):
        dataclasses.replace(
            evidence,
            shadow_returns=evidence.shadow_returns[:, :3],
            shadow_is_member=evidence.shadow_is_member[:, :3],
        )
    with pytest.raises(ValueError, match="Expected members and non-members"):
        floor_map.fit(KEY, good, np.ones(len(good.lengths), bool), training=TRAINING)


@pytest.mark.parametrize("part", ["policies", "label_policies"])
def test_policies_are_distributions_at_every_step(part):
    evidence = full_evidence()
    good = evidence.trajectories
    logits = np.random.default_rng(0).normal(scale=50.0, size=good.policies.shape)
    scaled = 1.01 * getattr(good, part)
    after = np.arange(STEPS)[:, None] >= good.lengths[:, None, None]
    for values, message in (
        (logits, "probabilities >= 0"),
        (np.abs(logits), "probabilities that sum to 1"),
        (scaled, "probabilities that sum to 1 in .*, got sum 1.01"),
    ):
        bad = good._replace(**{part: values})
        for call in (
            lambda bad=bad: Evidence(trajectories=bad),
            lambda bad=bad: floor_map.entropy(bad),
            lambda bad=bad: floor_map.cross_entropy(bad),
            lambda bad=bad: floor_map.apply({}, bad),
            lambda bad=bad: floor_map.fit(KEY, bad, np.arange(30) < 15),
        ):
            with pytest.raises(ValueError, match=rf"^Expected {message}") as caught:
                call()
            assert f"in {part} of trajectories" in str(caught.value)
        with pytest.raises(ValueError, match=f"in {part} of known"):
            dataclasses.replace(
                evidence,
                known=bad._replace(map_id=good.map_id + 100),
                known_is_member=np.arange(30) < 15,
            )
        # What follows the end is padding.
        padded = np.where(after, values, getattr(good, part))
        Evidence(trajectories=good._replace(**{part: padded}))


def test_entropies_equal_loops():
    trajectories = episodes(3, JUDGED, IS_MEMBER)
    own, crossed = floor_map.entropy(trajectories), floor_map.cross_entropy(trajectories)
    for i, length in enumerate(trajectories.lengths):
        p = trajectories.policies[i, :length].astype(np.float64)
        q = trajectories.label_policies[i, :length].astype(np.float64)
        assert own[i] == pytest.approx(np.mean([-sum(r * np.log(r)) for r in p]), rel=1e-6)
        expected = np.mean([-sum(b * np.log(a)) for a, b in zip(p, q, strict=True)])
        assert crossed[i] == pytest.approx(expected, rel=1e-6)


def test_the_network_ignores_what_follows_the_end():
    net = models.RecurrentMembershipNet(width=4, num_layers=5)
    steps = jax.random.normal(KEY, (5, 6))
    params = net.init(KEY, steps, jnp.int32(5))
    full = net.apply(params, steps[:3], jnp.int32(3))
    padded = net.apply(params, steps, jnp.int32(3))
    np.testing.assert_allclose(full, padded, rtol=1e-5)
    assert float(net.apply(params, steps, jnp.int32(5))) != pytest.approx(float(full))
    dense = [name for name in params["params"] if name.startswith("Dense")]
    assert len(dense) == 6  # five ReLU layers and the output


def test_features_of_maps():
    maps = envs.stack(
        [envs.from_minigrid_seed(seed, num_rooms=2, max_room_size=4) for seed in (1, 2)]
    )
    features = floor_map.map_features(maps)
    np.testing.assert_array_equal(features[:, :2], maps.position)
    assert (features[:, 2:6].argmax(axis=1) == maps.direction).all()
    assert (features[:, -1] == 1).all()  # two rooms have a door between them
    assert (features[:, -3:].sum(axis=1) == 25 * 25 - 1).all()  # all cells but the goal


def test_label_policies_of_the_judged_maps_are_enough_for_the_cross_entropy():
    full = full_evidence()
    evidence = dataclasses.replace(full, known=full.known._replace(label_policies=None))
    missing = {attack.name: floor_map.missing(attack, evidence) for attack in TABLE}
    assert missing.pop("policy_network") == "needs policies of label agents"
    assert not any(missing.values())


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_policies_in_half_precision_are_taken(dtype, unchecked):
    """Their sums are off 1 by up to a hundredth."""
    policies = np.random.default_rng(0).dirichlet(np.ones(7), size=(50, 4))
    exact = Trajectories(np.arange(50), policies, policies, np.full(50, 4), np.zeros(50))
    rounded = policies.astype(dtype)
    half = exact._replace(policies=rounded, label_policies=rounded)
    np.testing.assert_allclose(floor_map.entropy(half), floor_map.entropy(exact), rtol=0.01)
