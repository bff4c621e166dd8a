"""The sentences and cells of a report, from its numbers."""

import math
from collections.abc import Sequence
from typing import Any

_RELATION_NAMES = {
    "add_or_remove_one": "one record added or removed",
    "replace_one": "one record replaced",
}

_ATTACK_NAMES = {
    "lira": "likelihood ratio (LiRA, online)",
    "lira_offline": "likelihood ratio (LiRA, offline)",
    "rmia": "relative likelihood (RMIA, online)",
    "rmia_offline": "relative likelihood (RMIA, offline)",
    "shadow_classifier": "shadow classifier",
    "quantile": "quantile regression",
    "threshold": "loss threshold",
    "threshold_per_class": "loss threshold, one a class",
    "entropy": "entropy",
}


def percent(share: float, digits: int = 1) -> str:
    """0.9123 -> '91.2 %', unbreakable."""
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def upper(bound: float, digits: int = 2) -> str:
    """A bound as printed: never below what it is."""
    scale = 10**digits
    return f"{math.ceil(bound * scale * (1 - 1e-12)) / scale:.{digits}f}"


def lower(bound: float, digits: int = 2) -> str:
    """A lower bound as printed: never above what it is."""
    scale = 10**digits
    return f"{math.floor(bound * scale * (1 + 1e-12)) / scale:.{digits}f}"


def interval(ends: Sequence[float] | None, *, as_percent: bool = False) -> str:
    """(0.5, 0.6) -> '0.500 to 0.600', or in percent, unbreakable; '' for None."""
    if ends is None:
        return ""
    low, high = ends
    text = f"{100 * low:.1f} to {100 * high:.1f} %" if as_percent else f"{low:.3f} to {high:.3f}"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def relation_name(relation: str) -> str:
    """What the relation says of neighbouring data sets, in words."""
    return _RELATION_NAMES[relation]


def attack_name(name: str) -> str:
    """What an attack is called on the page."""
    return _ATTACK_NAMES[name]


def exposed(model: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the page's table of kinds of records: both predictions, ends of the loss, a class."""
    slices = model["slices"]
    rows = [{**part, "records": f"predicted {part['value']}"} for part in slices["prediction"]]
    deciles = slices["loss decile"]
    for part, which in ((deciles[0], "lowest"), (deciles[-1], "highest")):
        rows.append({**part, "records": f"{which} loss, a tenth or so"})
    known = [part for part in slices["class"] if part["auc"] is not None]
    if known:
        worst = max(known, key=lambda part: part["auc_interval"][0])
        told = f"class {worst['value']}, the most exposed of {len(slices['class'])}"
        rows.append({**worst, "records": told})
    return rows


def tpr_rows(attack: dict[str, Any]) -> list[dict[str, str]]:
    """TPR at each fixed FPR, with its interval and what to think of it."""
    rows = []
    for key, tpr in attack["tpr_at_fpr"].items():
        note = "coarse" if key in attack["coarse"] else ""
        if tpr is None:
            note = f"not resolvable with {attack['num_nonmembers']} non-members"
        rows.append(
            {
                "fpr": f"{100 * float(key):g} %",
                "tpr": "n/a" if tpr is None else percent(tpr),
                "interval": interval(attack["tpr_at_fpr_interval"][key], as_percent=True),
                "note": note,
            }
        )
    return rows


def finding(model: dict[str, Any]) -> str:
    """What all attacks and the audit show of one model, in one word or two."""
    proved = model["audit"] is not None and model["audit"]["one_run"] > 0
    return "membership leaks" if model["leaks"] or proved else "no leak detected"


def summary(report: dict[str, Any]) -> str:
    """One paragraph in plain words.

    Args:
      report: from `run.run_report`.

    Returns:
      The paragraph, as text.
    """
    data, (plain, *private) = report["data"], report["models"]
    sentences = [
        f"{_capital(data['name'])}: {data['num_examples']:,} records. "
        f"A model trained without protection on {data['num_members']:,} of them classifies "
        f"{percent(plain['accuracy']['test'])} of the others correctly. {_attacked(plain)}"
    ]
    for model in private:
        relation = report["settings"]["relation"]
        promise = model["guarantee"][relation]
        # Each record is in by its own fair coin, so in and out differ by this one record alone.
        most = model["guarantee"]["add_or_remove_one"]["advantage_bound"]
        sentences.append(
            f"Trained with DP-SGD it is {percent(model['accuracy']['test'])} correct and carries a "
            f"guarantee: epsilon = {upper(promise['epsilon'])} at delta = {promise['delta']:g} "
            f"({relation_name(relation)}). {_attacked(model)}"
        )
        if data["num_groups"] is None:
            sentences.append(
                f"Whatever the attack, the share of members found minus the share of non-members "
                f"wrongly accused is at most {upper(100 * most, 0)}\N{NO-BREAK SPACE}% on average "
                f"over trainings; a single sample can show more by chance."
            )
    return " ".join(sentences)


def _attacked(model: dict[str, Any]) -> str:
    attack = model["attacks"]["lira"]
    low, high = attack["auc_interval"]
    result = (
        "tells members from non-members better than chance"
        if low > 0.5
        else "does not do measurably better than chance at telling members from non-members"
    )
    text = (
        f"The likelihood-ratio attack {result} (AUC {attack['auc']:.3f}, 95 % interval {low:.3f} "
        f"to {high:.3f}; 0.5 is guessing)"
    )
    tpr = attack["tpr_at_fpr"]["0.01"]
    if tpr is not None:
        text += f", and finds {percent(tpr)} of the members at 1 % false alarms"
    others = [attack_name(name) for name in model["leaks"] if name != "lira"]
    if low <= 0.5 and others:
        text += f"; but others do better than chance: {', '.join(others)}"
    return text + "."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
