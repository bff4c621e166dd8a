"""Assessment: from evidence to findings, without any training."""

import base64
import dataclasses
import io

import jax
import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

from jaxpriv import _keys, metrics, units
from jaxpriv.attacks import suite
from jaxpriv.defences import Defence
from jaxpriv.metrics import intervals
from jaxpriv.reports import _assessment
from tests.reports import examples


def assess(evidence, is_member, **options):
    given = {
        "attacks": examples.cheap_attacks(),
        "unit": units.records(len(is_member)),
        "delta": 1e-4,
        "relation": "add_or_remove_one",
    }
    return _assessment.assess(examples.KEY, evidence, is_member, **given | options)


@pytest.fixture(scope="module")
def leaky():
    return examples.make_evidence(leak=1.0)


def test_every_attack_is_measured_as_the_metrics_measure_it(leaky):
    evidence, is_member = leaky
    result = assess(evidence, is_member)
    assert [attack.name for attack in result.attacks] == [
        *examples.CHEAP[1:5],
        "lira_offline",
        "lira",
    ]
    for attack in suite.applicable(examples.cheap_attacks(), evidence):
        scores = attack.run(examples.KEY, evidence)
        measured = result.attack(attack.name)
        assert measured.metrics.auc == pytest.approx(roc_auc_score(is_member, scores))
        expected = metrics.membership(scores, is_member, confidence=0.95)._asdict()
        assert dataclasses.asdict(measured.metrics) == expected
    assert result.gap_baseline == pytest.approx(
        (1 + evidence.correct[is_member].mean() - evidence.correct[~is_member].mean()) / 2
    )


def test_the_strongest_attack_and_the_leaks_carry_one_correction(leaky):
    evidence, is_member = leaky
    result = assess(evidence, is_member)
    assert result.corrected_confidence == pytest.approx(1 - 0.05 / 6)
    lower_ends = {a.name: a.corrected_auc_interval[0] for a in result.attacks}
    assert lower_ends[result.strongest] == max(lower_ends.values())
    assert {"lira", "lira_offline"} <= set(result.leaks)
    for attack in result.attacks:
        area = metrics.intervals.delong(
            attack_scores(attack.name, evidence), is_member, confidence=1 - 0.05 / 6
        )
        assert attack.corrected_auc_interval == pytest.approx((area.lower, area.upper))
        assert attack.leaks == (area.lower > 0.5 or attack.epsilon_lower_bound > 0)
    assert result.audit.one_run == max(a.epsilon_lower_bound for a in result.attacks) > 0
    assert result.audit.confidence == result.corrected_confidence


def attack_scores(name, evidence):
    attack = next(attack for attack in suite.attacks() if attack.name == name)
    return np.asarray(attack.run(examples.KEY, evidence), np.float64)


def test_no_leak_is_found_where_there_is_none():
    result = assess(*examples.make_evidence(leak=0.0))
    assert result.leaks == ()
    assert result.audit.one_run == 0


def test_a_toy_attack_in_the_table_is_in_the_findings(leaky):
    evidence, is_member = leaky
    result = assess(evidence, is_member, attacks=(*examples.cheap_attacks(), examples.TOY))
    expected = roc_auc_score(is_member, evidence.logits[:, 0])
    assert result.attack("toy").metrics.auc == pytest.approx(expected)
    assert result.attack("toy").title == "toy attack"
    assert result.corrected_confidence == pytest.approx(1 - 0.05 / 7)
    without = assess(evidence, is_member)
    for attack in without.attacks:
        assert result.attack(attack.name).metrics == attack.metrics


def test_a_toy_defence_has_an_entry_of_its_own_with_an_adaptive_attacker():
    constant = Defence(
        name="constant", title="constant answers", respond=lambda key, logits: 0 * logits
    )
    plain, defended = examples.make_entries(leak=1.0, defences=[constant], num_shadows=4)
    assert (plain.name, plain.defence) == ("Without DP", None)
    assert (defended.name, defended.defence) == ("Without DP, constant answers", "constant answers")
    assert plain.findings.leaks
    assert not defended.findings.leaks
    assert defended.findings.attack("lira").metrics.auc == 0.5
    assert defended.findings.num_shadows == 4


def test_attacks_that_lack_evidence_are_listed_with_what_they_need(leaky):
    evidence, is_member = leaky
    alone = dataclasses.replace(evidence, shadow_logits=None, shadow_is_member=None)
    result = assess(alone, is_member, attacks=suite.attacks())
    assert [attack.name for attack in result.attacks] == [
        "correctness", "negative_loss", "confidence", "entropy", "modified_entropy", "margin",
    ]  # fmt: skip
    missing = {attack.name: attack.reason for attack in result.missing}
    assert "shadow models" in missing["lira"]
    assert "population" in missing["quantile"]
    assert result.num_shadows == 0


def test_evidence_for_no_attack_is_one_line(leaky):
    evidence, is_member = leaky
    only_labels = dataclasses.replace(
        evidence, logits=None, shadow_logits=None, shadow_is_member=None
    )
    with pytest.raises(ValueError, match=r"^Expected evidence for at least one attack.*\.$"):
        assess(only_labels, is_member)


def test_without_fair_coins_there_is_no_audit(leaky):
    result = assess(*leaky, no_audit="no coins were tossed")
    assert result.audit is None
    assert result.no_audit == "no coins were tossed"
    assert {attack.epsilon_lower_bound for attack in result.attacks} == {None}


def test_groups_are_judged_by_the_mean_score_of_their_records():
    evidence, is_member = examples.make_evidence(leak=1.0, n=600)
    group = np.arange(600) // 3
    is_member = is_member[3 * group]
    unit = units.groups(group)
    result = assess(evidence, is_member, unit=unit, attacks=[examples.TOY])
    means = evidence.logits[:, 0].reshape(200, 3).mean(1)
    measured = result.attack("toy").metrics
    assert measured.auc == pytest.approx(roc_auc_score(is_member[::3], means))
    assert measured.num_members + measured.num_nonmembers == 200
    assert result.audit.unit == "group"
    by_class = next(slices for slices in result.slices if slices.by == "class")
    counts = [part.num_members + part.num_nonmembers for part in by_class.parts]
    assert counts == [len(np.unique(group[evidence.labels == c])) for c in range(3)]
    chosen = evidence.labels == 0
    pieces = np.unique(group[chosen])
    means = [evidence.logits[chosen & (group == g), 0].mean() for g in pieces]
    expected = roc_auc_score(is_member[3 * pieces], means)
    assert by_class.parts[0].auc == pytest.approx(expected)


def test_revealed_records_are_not_judged():
    revealed = np.arange(300) < 60
    evidence, is_member = examples.make_evidence(
        leak=1.0, revealed=revealed, revealed_is_member=np.arange(300) < 30
    )
    result = assess(evidence, is_member)
    for attack in result.attacks:
        assert attack.metrics.num_members == is_member[60:].sum()
    for slices in result.slices:
        assert sum(p.num_members + p.num_nonmembers for p in slices.parts) == 240


def test_every_part_of_a_partition_is_there_even_empty_ones(leaky):
    evidence, is_member = leaky
    ties = dataclasses.replace(evidence, logits=np.sign(evidence.logits))
    for slices in assess(ties, is_member).slices:
        counts = sum(part.num_members for part in slices.parts)
        assert counts == is_member.sum()
        if slices.by == "loss decile":
            assert [part.value for part in slices.parts] == list(range(10))
            assert "empty" in {part.reason for part in slices.parts}


def test_utility_has_an_interval_and_the_majority_baseline():
    evidence, is_member = examples.make_evidence(leak=1.0)
    utility = _assessment.utility(evidence, is_member, units.records(len(is_member)))
    correct = evidence.logits.argmax(1) == evidence.labels
    assert utility.train == pytest.approx(correct[is_member].mean())
    assert utility.test == pytest.approx(correct[~is_member].mean())
    assert utility.test_interval[0] < utility.test < utility.test_interval[1]
    most = np.bincount(evidence.labels[is_member]).argmax()
    assert utility.majority == pytest.approx((evidence.labels[~is_member] == most).mean())
    assert utility.is_useful()
    useless = dataclasses.replace(evidence, logits=evidence.logits[:, [1, 2, 0]])
    assert not _assessment.utility(useless, is_member, units.records(len(is_member))).is_useful()
    pairs = units.groups(np.arange(len(is_member)) // 2)
    wide = _assessment.utility(evidence, is_member, pairs).test_interval
    index = pairs.index[~is_member]
    assert wide == intervals.korn_graubard(correct[~is_member], index, confidence=0.95)
    no_labels = dataclasses.replace(evidence, labels=None)
    assert _assessment.utility(no_labels, is_member, units.records(len(is_member))) is None


def test_roc_curves_are_thinned_and_keep_their_low_rates():
    rng = np.random.default_rng(0)
    is_member = np.arange(4000) < 2000
    scores = rng.normal(is_member)
    unit = units.records(4000)
    curve = _assessment._roc(units.canaries(unit, scores, is_member))
    exact = metrics.roc_curve(scores, is_member)
    assert len(curve.fpr) <= 200
    assert (curve.fpr[0], curve.fpr[-1], curve.tpr[-1]) == (0, 1, 1)
    for fpr, tpr in zip(curve.fpr, curve.tpr, strict=True):
        assert tpr == exact.tpr[exact.fpr == fpr].max()
    assert curve.fpr[1:20] == pytest.approx(np.arange(1, 20) / 2000)


def test_stored_scores_are_read_again_and_others_are_not(leaky, tmp_path):
    evidence, is_member = leaky
    calls = []

    def counting(attack):
        def run(key, given):
            calls.append(attack.name)
            return attack.run(key, given)

        return dataclasses.replace(attack, run=run)

    attacks = [counting(attack) for attack in examples.cheap_attacks()]
    store = _assessment.Store(tmp_path / "attacks")
    first = assess(evidence, is_member, attacks=attacks, store=store)
    assert len(calls) == 6
    assert assess(evidence, is_member, attacks=attacks, store=store) == first
    assert len(calls) == 6
    assert all(path.stat().st_mode & 0o077 == 0 for path in store_files(tmp_path))
    other = dataclasses.replace(evidence, logits=evidence.logits + 1e-3)
    assess(other, is_member, attacks=attacks, store=store)
    assert len(calls) == 12
    damaged = next(store_files(tmp_path))
    damaged.write_bytes(damaged.read_bytes()[:-40])
    with pytest.warns(UserWarning, match="damaged"):
        again = assess(other, is_member, attacks=attacks, store=store)
    assert len(calls) == 13
    assert again == assess(other, is_member, attacks=attacks)


def store_files(folder):
    return (folder / "attacks").glob("*.npz")


def test_the_blind_attack_sees_a_shift_and_stays_at_guessing_without_one(tmp_path):
    rng = np.random.default_rng(0)
    is_member, x = np.arange(300) < 150, rng.normal(size=(300, 4))
    unit, store = units.records(300), _assessment.Store(None)
    fair = _assessment.blind_metrics(examples.KEY, x, is_member, unit, store=store)
    assert fair.auc_interval[0] < 0.5
    shifted = _assessment.blind_metrics(
        examples.KEY, x + is_member[:, None], is_member, unit, store=store
    )
    assert shifted.auc_interval[0] > 0.7


def test_a_named_key_depends_on_its_name_alone():
    a, b = (_keys.named(examples.KEY, name) for name in ("lira", "rmia"))
    assert not (jax.random.key_data(a) == jax.random.key_data(b)).all()


def test_the_most_exposed_members_are_listed(tmp_path):
    """The strongest attack is an oracle on 7 members; two attacks of three flag those."""
    evidence, is_member = examples.make_evidence(leak=0.0, n=200)
    members = np.flatnonzero(is_member)
    wanted = members[:7]
    scores = is_member + 0.0
    scores[wanted] = np.arange(7, 0, -1) + 5.0
    table = [
        dataclasses.replace(examples.TOY, name=name, title=name, run=lambda *_, s=s: s)
        for name, s in (("oracle", scores), ("again", scores), ("noise", np.zeros(200)))
    ]
    rows = 3 * np.arange(200)
    path = tmp_path / "evidence" / "scores.csv"
    result = assess(evidence, is_member, attacks=table, rows=rows, table_path=path)
    exposed = result.exposed
    assert len(exposed) == 10
    assert [each.row for each in exposed[:7]] == rows[wanted].tolist()
    assert [each.label for each in exposed[:7]] == evidence.labels[wanted].tolist()
    assert {each.num_flags for each in exposed} == {2}
    assert all(is_member[each.row // 3] for each in exposed)
    assert path.stat().st_mode & 0o077 == 0
    lines = path.read_text("utf8").splitlines()
    assert lines[0] == "row,is_member,label,oracle,again,noise"
    assert len(lines) == 201
    i = int(wanted[0])
    assert lines[1 + i] == f"{3 * i},1,{evidence.labels[i]},12.0,12.0,0.0"


def test_the_histogram_counts_every_score_once():
    evidence, is_member = examples.make_evidence(leak=1.0)
    outlier = np.where(np.arange(len(is_member)) == 0, 1e9, is_member + 0.0)
    table = [dataclasses.replace(examples.TOY, run=lambda *_: outlier)]
    histogram = assess(evidence, is_member, attacks=table).histogram
    assert sum(histogram.members) == is_member.sum()
    assert sum(histogram.nonmembers) == (~is_member).sum()
    assert histogram.edges[-1] < 10
    assert histogram.nonmembers[0] >= (~is_member).sum() - 1


@pytest.mark.parametrize(("channels", "high"), [(1, 1.0), (3, 255.0), (1, 7e3)])
def test_pictures_of_exposed_members_are_shown_when_inputs_are_kept(channels, high):
    evidence, is_member = examples.make_evidence(leak=1.0)
    images = np.linspace(0, high, len(is_member) * 4 * 4 * channels, dtype=np.float32)
    images = images.reshape(len(is_member), 4, 4, channels)
    evidence = dataclasses.replace(evidence, inputs=images)
    assert assess(evidence, is_member).exposed[0].picture is None
    first = assess(evidence, is_member, show_inputs=True).exposed[0]
    prefix, _, code = first.picture.partition(",")
    assert prefix == "data:image/png;base64"
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(code))), float)
    image = images[first.row].squeeze()
    low, top = (image.min(), image.max()) if high == 7e3 else (0, high)
    np.testing.assert_allclose(pixels, 255 * (image - low) / (top - low), atol=0.51)
    flat = dataclasses.replace(evidence, inputs=images.reshape(len(is_member), -1))
    assert assess(flat, is_member, show_inputs=True).exposed[0].picture is None


def test_exposed_groups_are_named_by_their_first_record():
    evidence, is_member = examples.make_evidence(leak=0.0, n=200)
    unit = units.groups(np.arange(200) // 2)
    is_member = np.repeat(is_member[::2], 2)
    result = assess(evidence, is_member, unit=unit)
    assert all(each.row % 2 == 0 and is_member[each.row] for each in result.exposed)
    assert {each.label for each in result.exposed} == {None}


@pytest.mark.parametrize("extreme", [-np.inf, 1e308])
def test_the_histogram_counts_infinite_and_huge_scores(extreme):
    evidence, is_member = examples.make_evidence(leak=1.0)
    scores = np.where(np.arange(len(is_member)) % 3 == 0, extreme, is_member + 0.0)
    scores[1::6] = -extreme
    table = [dataclasses.replace(examples.TOY, run=lambda *_: scores)]
    histogram = assess(evidence, is_member, attacks=table).histogram
    assert sum(histogram.members) == is_member.sum()
    assert sum(histogram.nonmembers) == (~is_member).sum()
    assert np.isfinite(histogram.edges).all()
    assert (np.diff(histogram.edges) > 0).all()
