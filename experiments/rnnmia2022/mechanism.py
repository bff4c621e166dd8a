"""The Dirichlet mechanism of rnnmia2022, as tables 1 and 2 apply it, and their common columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from experiments import common
from jaxpriv import defences
from jaxpriv.defences import dirichlet


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Settings of the mechanism, and of those who attack it.

    concentrations: k of the mechanism.
    queries: numbers of answers that adaptive attackers average; the first is 1.
    eta, b, delta: floor of the probabilities, L1 distance of neighbours, and delta.
    """

    concentrations: tuple[float, ...] = (100.0, 10.0, 1.0, 0.1, 0.01)
    queries: tuple[int, ...] = (1, 16, 64)
    eta: float = 0.01
    b: float = 0.1
    delta: float = 1e-5

    def defence(self, k: float, queries: int) -> defences.Defence:
        """Returns the defence at one k, for attackers who average some answers."""
        return dirichlet.noised_outputs(
            k=k, eta=self.eta, b=self.b, delta=self.delta, queries=queries
        )

    def epsilons(self, k: float, *, length: int, num_classes: int) -> dict[str, float]:
        """Computes epsilon for one answer, and for all answers to a sequence of some length."""

        def epsilon(queries: int) -> float:
            guarantee = self.defence(k, queries).output_guarantee
            assert guarantee is not None
            return guarantee(num_classes).epsilon

        whole = {f"{queries} x {length}": epsilon(queries * length) for queries in self.queries}
        return {"1": epsilon(1), **whole}


def table(
    rows: Sequence[dict[str, Any]],
    mechanism: dict[str, Any],
    *,
    utility: str,
    decimals: int,
    label: Callable[[dict[str, Any]], str],
    protects: str,
) -> str:
    """Formats rows beside those of the paper.

    Args:
      rows: `k`, `as_trained`, `adaptive` and `epsilon` by number of answers, `utility` with its
        interval or alone, and `paper`, its accuracy and utility.
      mechanism: fields of `Mechanism`.
      utility: name of the utility.
      decimals: number of decimals of the utility.
      label: begins the name of a row.
      protects: completes "is local differential privacy of".
    """
    queries = [str(count) for count in mechanism["queries"]]
    columns = (
        "", "attack, %: paper", "as trained", *(f"adaptive, {count}" for count in queries),
        f"{utility}: paper", "ours", "epsilon of 1 answer", "of a sequence", f"x {queries[-1]}",
    )  # fmt: skip
    cells = []
    for row in rows:
        accuracy, paper_utility = row["paper"]
        adaptive, epsilons = row["adaptive"], list(row["epsilon"].values())
        shown = [f"{epsilons[i]:.4g}" for i in (0, 1, -1)] if epsilons else ["infinite"] * 3
        value = row["utility"]
        cells.append(
            (
                label(row) + ("no protection" if row["k"] is None else f"k = {row['k']:g}"),
                f"{100 * accuracy:.2f}",
                common.percent(row["as_trained"]),
                *(common.percent(adaptive[count]) if adaptive else "" for count in queries),
                f"{paper_utility:.{decimals}f}",
                common.cell(value, digits=decimals)
                if isinstance(value, list)
                else f"{value:.{decimals}f}",
                *shown,
            )
        )
    note = (
        f"epsilon at delta {mechanism['delta']:g}, eta {mechanism['eta']:g} and b "
        f"{mechanism['b']:g} is local differential privacy of {protects}."
    )
    return common.text_table(columns, cells) + "\n\n" + note
