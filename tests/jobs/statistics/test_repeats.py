"""pass@1, pass@k and maj@k: against brute force, and intervals that cover what they promise."""

from itertools import combinations
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from db.intervals import wilson
from jobs.statistics import StatisticsError, majority_at_k, pass_at_1, pass_at_k
from tiercache.errors import TierCacheError

SCORES = st.dictionaries(st.text(max_size=3), st.lists(st.floats(0, 1), min_size=1, max_size=5), min_size=1, max_size=8)


def test_one_repeat_of_an_exact_grader_is_wilson() -> None:
    found = pass_at_1({f"p{index}": [float(index < 43)] for index in range(50)})
    assert (found.value, found.n_problems, found.n_samples, found.method) == (0.86, 50, 50, "wilson")
    assert (found.low, found.high) == pytest.approx(wilson(43, 50))
    assert found.standard_error == pytest.approx(sqrt(0.86 * 0.14 / 49))


def test_pass_at_1_weighs_problems_alike_and_not_samples() -> None:
    found = pass_at_1({"easy": [1, 1, 1, 1, 1, 1], "hard": [0, 1]})
    assert (found.value, found.n_samples) == (0.75, 8)
    assert found.standard_error == pytest.approx(0.25)


def test_repeats_that_agree_add_no_certainty() -> None:
    """Eight copies of each sample are the same evidence: the error is clustered by problem."""
    once = {f"p{index}": [float(index % 3 == 0)] for index in range(30)}
    copied = {problem: row * 8 for problem, row in once.items()}
    assert pass_at_1(copied).standard_error == pass_at_1(once).standard_error
    assert pass_at_1(copied).low == pass_at_1(once).low


@pytest.mark.parametrize("scores", [{"a": [1, 0]}, {"a": [0.5], "b": [0.5]}, {"a": [1, 1], "b": [1, 1]}])
def test_no_spread_between_problems_is_no_certainty(scores: dict[str, list[float]]) -> None:
    found = pass_at_1(scores)
    assert found.low < found.value - 0.2 or found.high > found.value + 0.2
    assert found.standard_error == (None if len(scores) == 1 else 0.0)


@given(SCORES)
@settings(deadline=None, max_examples=50)
def test_intervals_hold_their_value_and_stay_in_range(scores: dict[str, list[float]]) -> None:
    found = pass_at_1(scores)
    assert 0 <= found.low <= found.value + 1e-9
    assert found.value - 1e-9 <= found.high <= 1
    assert found == pass_at_1(dict(reversed(scores.items())))


@pytest.mark.parametrize("n", range(1, 7))
def test_pass_at_k_is_the_mean_over_all_subsets(n: int) -> None:
    for right in range(n + 1):
        row = [1] * right + [0] * (n - right)
        for k in range(1, n + 1):
            subsets = [any(chosen) for chosen in combinations(row, k)]
            assert pass_at_k({"p": row}, k).value == pytest.approx(sum(subsets) / len(subsets))


def test_pass_at_1_is_pass_at_k_of_one() -> None:
    scores = {f"p{index}": [float(index % (repeat + 2) == 0) for repeat in range(4)] for index in range(20)}
    one, k = pass_at_1(scores), pass_at_k(scores, 1)
    assert (k.value, k.low, k.high) == pytest.approx((one.value, one.low, one.high))
    assert pass_at_k(scores, 4).method == "wilson"  # with all repeats used a problem is solved or isn't


def test_pass_at_k_of_many_generations_does_not_overflow() -> None:
    assert pass_at_k({"p": [1] + [0] * 1999}, 1000).value == pytest.approx(0.5)


VOTES = [
    ([("4", True), ("4", True), ("5", False)], 3, 1.0),
    ([("5", False), ("4", True), ("4", True)], 3, 1.0),
    ([("5", False), ("4", True)], 2, 0.0),  # a tie goes to the first
    ([("4", True), ("5", False)], 2, 1.0),
    ([(None, False), (None, False), ("4", True)], 3, 1.0),  # silence has no vote
    ([(None, False), (None, False)], 2, 0.0),
    ([("4", True), ("5", False), ("5", False)], 1, 1.0),  # only the first k vote
]


@pytest.mark.parametrize(("given_answers", "k", "value"), VOTES)
def test_majority(given_answers: list[tuple[str | None, bool]], k: int, value: float) -> None:
    found = majority_at_k({"p": given_answers}, k)
    assert (found.value, found.n_samples) == (value, k)


def test_a_long_vote_is_quick() -> None:
    answers: list[tuple[str | None, bool]] = [(str(index), False) for index in range(200_000)]
    assert majority_at_k({"p": answers}, 200_000).value == 0


def test_too_few_generations_are_refused_with_the_numbers() -> None:
    scores = {"a": [1.0] * 8, "b": [0.0] * 3, "c": [0.0] * 5}
    with pytest.raises(StatisticsError, match=r"k=8 .* 2 of 3 have fewer, 'b' has 3.* k <= 3"):
        pass_at_k(scores, 8)
    with pytest.raises(StatisticsError, match=r"k=2 .* 'a' has 1"):
        majority_at_k({"a": [("1", True)]}, 2)


@pytest.mark.parametrize("k", [0, -1, True, 1.5])
def test_k_is_a_whole_number(k: int) -> None:
    with pytest.raises(StatisticsError, match="whole number"):
        pass_at_k({"a": [1, 0]}, k)


BAD = [
    {},
    {"p": []},
    {"p": [float("nan")]},
    {"p": [1.5]},
    {"p": [-0.1]},
    {"p": ["x"]},
    {"p": [None]},
    {"p": [[1], [0]]},
]


@pytest.mark.parametrize("scores", BAD, ids=str)
def test_what_is_no_score_is_refused(scores: dict[str, list[float]]) -> None:
    with pytest.raises(StatisticsError, match=r"scores"):
        pass_at_1(scores)


def test_refusals_are_the_projects_errors() -> None:
    with pytest.raises(TierCacheError, match="0 or 1"):
        pass_at_k({"a": [0.5, 1]}, 1)
    with pytest.raises(TierCacheError, match="no problems"):
        majority_at_k({}, 1)


@pytest.mark.parametrize(("a", "b", "repeats"), [(2, 2, 4), (4, 1, 8), (0.5, 0.5, 2)])
def test_the_interval_covers_the_truth_19_times_in_20(a: float, b: float, repeats: int) -> None:
    """Problems with difficulties of their own, from a beta distribution, 50 at a time."""
    rng = np.random.default_rng(11)
    trials, covered = 300, 0
    for _ in range(trials):
        solved = rng.random((50, repeats)) < rng.beta(a, b, size=(50, 1))
        found = pass_at_1({str(index): row.astype(float).tolist() for index, row in enumerate(solved)})
        covered += found.low <= a / (a + b) <= found.high
    assert 0.92 <= covered / trials <= 0.98
