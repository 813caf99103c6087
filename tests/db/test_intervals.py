"""Intervals against published and independently computed values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from db.intervals import normal, paired_difference, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Newcombe (1998), Statistics in Medicine 17: table I, method 3
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_published_values(successes, trials, low, high):
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 3000).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials))))
def test_equals_scipy_and_contains_the_estimate(case):
    successes, trials = case
    low, high = wilson(successes, trials)
    expected = binomtest(successes, trials).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert 0 <= low <= successes / trials <= high <= 1


def test_edges():
    assert wilson(0, 0) is None
    assert paired_difference(0, 0, 0) is None
    for bad in ((-1, 3), (4, 3)):
        with pytest.raises(ValueError, match="successes"):
            wilson(*bad)
    with pytest.raises(ValueError, match="gained"):
        paired_difference(2, 2, 3)


def test_paired_difference_is_antisymmetric_and_shrinks():
    delta, low, high = paired_difference(10, 4, 100)
    back, back_low, back_high = paired_difference(4, 10, 100)
    assert (delta, low, high) == pytest.approx((-back, -back_high, -back_low))
    assert delta == pytest.approx(0.06)
    assert low < delta < high
    _, wide_low, wide_high = paired_difference(1, 0, 10)
    assert wide_high - wide_low > high - low


def test_the_interval_of_a_mean():
    values = [0.2, 0.5, 0.9, 0.4]
    found = normal(sum(values), sum(v * v for v in values), 4, 0.0, 1.0)
    mean, half = 0.5, 1.959964 * (0.26 / 3 / 4) ** 0.5
    assert found == pytest.approx((mean, mean - half, mean + half), abs=1e-6)
    assert normal(0.4, 0.16, 1, 0.0, 1.0) == (0.4, 0.0, 1.0)
    assert normal(1.98, 1.9602, 2, 0.0, 1.0)[2] <= 1.0
    assert normal(0.0, 0.0, 0, 0.0, 1.0) is None
