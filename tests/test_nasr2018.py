"""The recipe of the experiments of nasr2018: disjoint sets, options, and resuming."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.nasr2018 import cases, frontier, recipe, table4, table5, table7
from experiments.nasr2018.recipe import Recipe, Sizes
from jaxpriv import data

SIZES = Sizes(members=50, reference=30, known_members=20, known_nonmembers=40, test=45)


def dataset(*, grouped):
    n = 300
    return data.Dataset(
        x=np.zeros((n, 2), np.float32),
        y=np.zeros(n, np.int32),
        name="toy",
        num_classes=2,
        source="made",
        group=np.arange(n) // 3 if grouped else None,
    )


@pytest.mark.parametrize("grouped", [False, True])
def test_the_sets_are_disjoint_and_do_not_depend_on_the_reference_size(grouped):
    toy = dataset(grouped=grouped)
    first = recipe.splits(toy, SIZES, seeds=3)
    small = recipe.splits(toy, dataclasses.replace(SIZES, reference=9), seeds=3)
    for split, other in zip(first, small, strict=True):
        parts = [split.members, split.reference, split.known_nonmembers, split.test]
        assert len(np.unique(np.concatenate(parts))) == sum(map(len, parts))
        assert set(split.known_members) < set(split.members)
        assert len(split.known_members) == 20
        assert len(other.reference) == 9
        for name in ("members", "known_members", "known_nonmembers", "test"):
            np.testing.assert_array_equal(getattr(split, name), getattr(other, name))
        if grouped:
            households = [set(toy.group[rows]) for rows in parts]
            assert sum(map(len, households)) == len(set.union(*households))
    assert len({len(split.members) for split in first}) == 1


def test_the_attack_is_judged_on_as_many_unseen_members_as_nonmembers():
    """h is 1 for the members that the attacker has, which therefore must not count."""
    (split,) = recipe.splits(dataset(grouped=False), SIZES, seeds=1)
    h = np.zeros(300)
    h[split.known_members] = h[split.reference] = h[split.known_nonmembers] = 1
    found = recipe._accuracies(np.eye(2)[np.zeros(300, int)], np.zeros(300, int), h, split)
    assert (found["attack_accuracy"], found["attack_at_half"]) == (0.5, 0.5)
    assert found["train_accuracy"] == 1
    h[np.setdiff1d(split.members, split.known_members)] = 0.75
    found = recipe._accuracies(np.eye(2)[np.zeros(300, int)], np.zeros(300, int), h, split)
    assert (found["attack_accuracy"], found["attack_at_half"]) == (0.875, 1.0)


def test_gaps_of_the_distributions():
    """Members are right with probability 1, others with 1/2; the entropies are 0 and 1."""
    (split,) = recipe.splits(dataset(grouped=False), SIZES, seeds=1)
    outputs = np.full((300, 2), 0.5)
    outputs[split.members] = [1, 0]
    found = recipe._distributions(outputs, np.zeros(300, int), split)
    for name in ("accuracy", "entropy"):
        assert found[name]["largest_gap"] == 1
        assert found[name]["mean_gap"] == pytest.approx(2 / recipe.NUM_BINS)
    assert found["class_output"]["members"] == [1.0, 0.0]
    assert found["class_gaps"] == [0.0]


def test_early_stopping_and_dp_are_options_of_the_recipe():
    """With the labels of the validation set reversed, the first evaluation is the best one."""
    x = np.linspace(-1, 1, 80, dtype=np.float32)[:, None]
    y = (x[:, 0] > 0).astype(np.int32)
    y[60:] = 1 - y[60:]
    small = dataclasses.replace(cases.CASES["smoke"][0], data="toy")
    rows = np.stack([np.random.default_rng(0).permutation(60) for _ in range(2)])
    for options in ({"stops": 1}, {"epsilon": 8.0}):
        made = Recipe(epochs=40, batch_size=20, learning_rate=0.1, **options)
        trained = recipe.train(
            jax.random.key(0),
            made,
            recipe.module_of(small, 2),
            (jnp.asarray(x), jnp.asarray(y)),
            members=rows,
            reference=rows[:, :5],
            validation=np.arange(60, 80),
            folder=None,
        )
        assert trained.steps < 120 if made.stops else trained.steps == 120
        assert jax.tree.leaves(trained.params)[0].shape[0] == 2
        assert np.asarray(trained.info.batch_size).shape == (2, trained.steps)
    with pytest.raises(ValueError, match="one of weight, label_smoothing and epsilon"):
        recipe.algorithm(Recipe(epochs=1, weight=1.0, epsilon=2.0), None, (x, y), steps=1)


def test_a_finished_case_is_read_and_a_missing_data_set_is_named(tmp_path, monkeypatch):
    (plain, _) = cases.with_and_without(*cases.CASES["smoke"])
    missing = dataclasses.replace(plain, name="of a file", data="purchase100")
    monkeypatch.setattr(recipe, "is_present", lambda name: name != "purchase100")
    calls = []
    monkeypatch.setattr(
        recipe, "measure", lambda case, folder: calls.append(folder) or dict.fromkeys(recipe._ROW)
    )
    settings = recipe.Settings(cases=(plain, missing), folder=str(tmp_path))
    record = recipe.run(settings)
    renamed = dataclasses.replace(plain, name="renamed")
    again = recipe.run(dataclasses.replace(settings, cases=(renamed,)))
    assert len(calls) == 1
    assert [row["case"] for row in record["rows"] + again["rows"]] == [plain.name, "renamed"]
    assert record["left_out"] == ["purchase100, of a file: the files of purchase100 are missing"]
    with pytest.raises(ValueError, match="Expected the files of one of the data sets"):
        recipe.run(dataclasses.replace(settings, cases=(missing,)))


def test_the_presets_are_the_settings_of_the_paper():
    """Table 3, and k and the epochs of the preset `cpu`."""
    by_name = {(case.data, case.name): case for case in table4.PRESETS["paper"].cases}
    assert set(by_name) == set(table4.PAPER)
    weights = {key: case.recipe.weight for key, case in by_name.items() if "with " in key[1]}
    assert set(weights.values()) == {2.0, 3.0, 6.0}
    for module in (table5, table7):
        names = {(case.data, case.name) for case in module.PRESETS["paper"].cases}
        assert names == set(module.PAPER)
    for case in table5.PRESETS["cpu"].cases:
        assert (case.recipe.attacker_steps, case.recipe.epochs, case.seeds) == (5, 10, 3)
    assert frontier.PRESETS["cpu"].num_shadows == 8
    names = [defence.name for defence in frontier.PRESETS["cpu"].defences]
    assert len(set(names)) == len(names)
