"""Cases that the tables and figures of nasr2018 have in common, at three sizes.

`paper` has the numbers of Table 3. `cpu` has four sets of equal size of 10,000 records of purchases
and of the 5,010 of location30, 10 epochs of batches of 64, k = 5, and 3 seeds: it is not the
paper's setting, and these are other data sets than its Purchase-100 and Texas-100.
"""

import dataclasses

from experiments.nasr2018.recipe import Case, Recipe, Sizes

_SMOKE = Case(
    name="",
    data="synthetic_purchase",
    sizes=Sizes(members=40, reference=30, known_members=10, known_nonmembers=30, test=40),
    recipe=Recipe(epochs=2, batch_size=20, attacker="linear", attacker_steps=1),
    widths=(4,),
    attack_steps=2,
)
_QUARTER = Sizes(members=2500, reference=2500, known_members=625, known_nonmembers=2500, test=2500)
_QUARTER_OF_LOCATIONS = Sizes(
    members=1250, reference=1250, known_members=312, known_nonmembers=1250, test=1250
)
_CPU = Recipe(epochs=10, batch_size=64)
PURCHASES = Case(name="", data="purchases", sizes=_QUARTER, recipe=_CPU, attack_steps=400, seeds=3)
LOCATIONS = dataclasses.replace(PURCHASES, data="location30", sizes=_QUARTER_OF_LOCATIONS)
PURCHASE_100 = Case(
    name="",
    data="purchase100",
    sizes=Sizes(
        members=20_000, reference=20_000, known_members=5000, known_nonmembers=20_000, test=15_000
    ),
    recipe=Recipe(epochs=50),
)
TEXAS_100 = Case(
    name="",
    data="texas100",
    sizes=Sizes(
        members=10_000, reference=5000, known_members=5000, known_nonmembers=10_000, test=5000
    ),
    recipe=Recipe(epochs=50),
)
_CIFAR = Sizes(
    members=50_000, reference=5000, known_members=25_000, known_nonmembers=2500, test=2500
)
ALEXNET = Case(
    name="",
    data="cifar100",
    sizes=_CIFAR,
    recipe=Recipe(epochs=100, learning_rate=1e-4, dropout=0.2),
    network="alexnet",
)
DENSENET = Case(
    name="",
    data="cifar100",
    sizes=_CIFAR,
    recipe=Recipe(epochs=300, schedule=(1e-3, 1e-4, 1e-5), l2=5e-4),
    network="densenet",
)
CASES = {
    "smoke": (_SMOKE,),
    "cpu": (PURCHASES, LOCATIONS),
    "paper": (PURCHASE_100,),
}
"""Data sets of the tables on Purchase-100, by preset."""

WEIGHTS = {"texas100": 2.0, "cifar100": 6.0}
"""lambda of Table 3; 3 for all other data sets."""


def with_options(case: Case, name: str, **options: object) -> Case:
    """Returns a case with another name and other options of its recipe."""
    recipe = dataclasses.replace(case.recipe, **options)  # pyright: ignore[reportArgumentType]
    return dataclasses.replace(case, name=name, recipe=recipe)


def with_and_without(case: Case, *, prefix: str = "") -> tuple[Case, Case]:
    """Returns a case without the defence, and with the lambda of Table 3."""
    weight = WEIGHTS.get(case.data, 3.0)
    return (
        with_options(case, f"{prefix}without defence"),
        with_options(case, f"{prefix}with defence", weight=weight),
    )
