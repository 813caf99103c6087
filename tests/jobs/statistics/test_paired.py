"""Paired comparisons: known p values, calibration without an effect, and effects that are found."""

from itertools import product
from math import comb

import numpy as np
import pytest
from numpy.typing import NDArray

from db.intervals import paired_difference
from jobs.statistics import Scores, StatisticsError, paired
from jobs.statistics.paired import _agresti_min, sign_flip


def exact_pair(gained: int, lost: int, same: int) -> tuple[Scores, Scores]:
    rows = [(1.0, 0.0)] * gained + [(0.0, 1.0)] * lost + [(1.0, 1.0)] * same
    return {f"p{i}": [row[0]] for i, row in enumerate(rows)}, {f"p{i}": [row[1]] for i, row in enumerate(rows)}


@pytest.mark.parametrize(("gained", "lost"), [(0, 6), (1, 5), (8, 2), (3, 3), (0, 0), (12, 1)])
def test_mcnemar_is_twice_the_binomial_tail(gained: int, lost: int) -> None:
    found = paired(*exact_pair(gained, lost, 40))
    total = gained + lost
    tail = sum(comb(total, count) for count in range(min(gained, lost) + 1)) / 2**total
    assert found.p_value == pytest.approx(min(1.0, 2 * tail))
    assert (found.test, found.gained, found.lost, found.pairs) == ("mcnemar exact", gained, lost, total + 40)
    assert found.difference == pytest.approx((gained - lost) / (total + 40))
    assert found.low <= found.difference <= found.high


def test_few_sign_flips_are_all_tried() -> None:
    differences = np.array([0.5, 0.25, -0.25, 0.75, 0.0, 0.5])
    sums = [abs(np.dot(signs, differences)) for signs in product((-1, 1), repeat=6)]
    expected = np.mean(np.array(sums) >= differences.sum() - 1e-9)
    p_value, test = sign_flip(differences)
    assert test == "sign-flip exact"
    assert p_value == pytest.approx(expected)


def test_drawn_sign_flips_come_near_all_of_them() -> None:
    differences = np.linspace(-0.3, 0.6, 14)
    assert sign_flip(differences, resamples=2**14)[0] == pytest.approx(sign_flip(differences)[0], abs=0.015)
    assert sign_flip(differences)[1] == "sign-flip"


def test_a_drawn_p_is_never_zero() -> None:
    assert sign_flip(np.full(200, 0.5), resamples=1000)[0] >= 1 / 1001
    assert sign_flip(np.zeros(200))[0] == 1


def test_only_common_problems_and_repeats_are_compared() -> None:
    found = paired({"a": [1, 1, 0], "b": [1], "c": [0, 0]}, {"a": [0, 1], "c": [1, 0, 1], "d": [1]})
    assert (found.n_problems, found.pairs, found.gained, found.lost) == (2, 4, 1, 1)
    assert (found.policy, found.baseline, found.difference) == (0.5, 0.5, 0)


def test_one_difference_shows_nothing() -> None:
    assert sign_flip(np.array([0.0, -0.4, 0.0])) == (1.0, "sign-flip exact")


def test_graded_scores_have_no_gained_and_lost() -> None:
    found = paired({"a": [0.5], "b": [1]}, {"a": [0.25], "b": [1]})
    assert (found.gained, found.lost, found.test) == (None, None, "sign-flip exact")
    assert found.difference == pytest.approx(0.125)


@pytest.mark.parametrize(("gained", "lost", "same"), [(0, 0, 50), (1, 0, 0), (2, 1, 5), (7, 0, 0)])
def test_where_nothing_varies_the_interval_keeps_a_width(gained: int, lost: int, same: int) -> None:
    found, expected = paired(*exact_pair(gained, lost, same)), paired_difference(gained, lost, gained + lost + same)
    assert expected is not None
    assert (found.low, found.high) == pytest.approx(expected[1:])
    assert found.interval == "agresti-min"


def test_agresti_min_takes_differences_of_any_size() -> None:
    low, high = _agresti_min(np.full(20, 0.1))
    assert low < 0.1 < high
    assert -1 <= low < high <= 1


def noisy(rng: np.random.Generator, problems: int, repeats: int, effect: float = 0.0) -> tuple[Scores, Scores]:
    """Two sets of 0/1 scores whose problems have a common difficulty; the first is better by `effect`."""
    ease = rng.uniform(0.2, 0.7, size=(problems, 1))
    ours, theirs = (rng.random((problems, repeats)) < chance for chance in (ease + effect, ease))
    return by_problem(ours), by_problem(theirs)


def by_problem(solved: NDArray[np.bool_]) -> Scores:
    return {f"p{i:03d}": row.astype(float).tolist() for i, row in enumerate(solved)}


@pytest.mark.parametrize(("problems", "repeats"), [(60, 1), (60, 3)])
def test_without_an_effect_p_is_seldom_small(problems: int, repeats: int) -> None:
    rng = np.random.default_rng(3)
    found = [paired(*noisy(rng, problems, repeats), resamples=999).p_value for _ in range(200)]
    assert np.mean(np.array(found) < 0.05) <= 0.08


def test_a_true_effect_is_found() -> None:
    rng = np.random.default_rng(4)
    found = [paired(*noisy(rng, 100, 4, effect=0.2), resamples=999).p_value for _ in range(20)]
    assert np.mean(np.array(found) < 0.05) >= 0.95


@pytest.mark.parametrize(("repeats", "effect"), [(1, 0.1), (4, 0.2)])
def test_the_interval_covers_the_truth_19_times_in_20(repeats: int, effect: float) -> None:
    rng = np.random.default_rng(5)
    found = [paired(*noisy(rng, 60, repeats, effect), resamples=1000) for _ in range(300)]
    assert 0.92 <= np.mean([each.low <= effect <= each.high for each in found]) <= 0.98


@pytest.mark.parametrize("repeats", [1, 3])
def test_neither_order_nor_side_matters(repeats: int) -> None:
    ours, theirs = noisy(np.random.default_rng(6), 40, repeats, effect=0.1)
    found, back = paired(ours, theirs), paired(theirs, ours)
    assert found == paired({problem: ours[problem] for problem in sorted(ours, reverse=True)}, theirs)
    assert (back.difference, back.low, back.high) == pytest.approx((-found.difference, -found.high, -found.low))
    assert back.p_value == pytest.approx(found.p_value)


def test_no_common_problem_is_refused() -> None:
    with pytest.raises(StatisticsError, match=r"share no problem \(1 and 2 problems"):
        paired({"a": [1]}, {"b": [1], "c": [0]})
    with pytest.raises(StatisticsError, match=r"baseline: has no problems"):
        paired({"a": [1]}, {})
    with pytest.raises(StatisticsError, match=r"baseline\['a'\].*got 2"):
        paired({"a": [1]}, {"a": [2]})
