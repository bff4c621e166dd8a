"""Measures of the experiments on model inversion that no record would show to be wrong."""

import pytest
from scipy import stats

from experiments.zhang2020 import fig7_8


def rows_of(distances):
    """Returns the rows of three noises with two seeds each."""
    return [
        {"epsilon": {"add_or_remove_one": float(epsilon)}, "distances": pair}
        for epsilon, pair in zip((1, 2, 3), distances, strict=True)
    ]


def test_rank_correlation_pairs_each_seed_with_its_epsilon():
    found = fig7_8.rank_correlation(
        rows_of([[[9.0, 9.2], [8.0, 8.2]], [[7.0, 7.0], [6.0, 6.0]], [[5.0, 5.0], [4.0, 4.0]]]),
        "distances",
    )
    assert found is not None
    assert found["coefficient"] == pytest.approx(-0.956, abs=1e-3)


def test_there_is_no_rank_correlation_of_rounding_errors():
    nearly = [[[5.3 + 1e-7], [5.3]], [[5.3], [5.3 - 1e-7]], [[5.3], [5.3 - 2e-7]]]
    assert fig7_8.rank_correlation(rows_of(nearly), "distances") is None


def test_rounding_errors_are_ties():
    tied = [[[5.3 + 1e-7], [5.3]], [[5.3], [5.3 - 1e-7]], [[5.4], [5.4]]]
    found = fig7_8.rank_correlation(rows_of(tied), "distances")
    assert found is not None
    coefficient, _ = stats.spearmanr([1, 1, 2, 2, 3, 3], [0] * 4 + [1] * 2)
    assert found["coefficient"] == pytest.approx(coefficient)
