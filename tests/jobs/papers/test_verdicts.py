"""The rule by which a claim is supported: pure, and the same for a true effect, none, and too little data."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.papers.verdicts import (
    NOT_SUPPORTED,
    SUPPORTED,
    UNDECIDED,
    Difference,
    Expected,
    Verdict,
    judge,
    problems_needed,
    together,
)
from jobs.statistics import paired, smallest_effect

KINDS: tuple[Expected, ...] = ("higher", "lower", "same", "loses at most", "loses at least")
share = st.floats(0, 1)


def measured(n: int, first: float, second: float, seed: int = 1) -> Difference:
    """Two policies that solve these shares of n problems, each problem with its own luck."""
    rng = random.Random(seed)
    luck = [rng.random() for _ in range(n)]
    ours, theirs = ({f"{i:05d}": [float(x < level)] for i, x in enumerate(luck)} for level in (first, second))
    for side in (ours, theirs):  # some problems go either way
        side |= {f"{i:05d}": [float(rng.random() < 0.5)] for i in rng.sample(range(n), n // 20)}
    found = paired(ours, theirs, resamples=2_000)
    return Difference(found.policy, found.baseline, found.difference, found.low, found.high, found.p_value)


@pytest.mark.parametrize(
    ("expected", "n", "first", "second", "verdict"),
    [
        ("higher", 500, 0.7, 0.5, SUPPORTED),
        ("higher", 1500, 0.6, 0.6, NOT_SUPPORTED),
        ("higher", 500, 0.5, 0.7, NOT_SUPPORTED),
        ("higher", 8, 0.6, 0.5, UNDECIDED),
        ("lower", 500, 0.5, 0.7, SUPPORTED),
        ("lower", 1500, 0.6, 0.6, NOT_SUPPORTED),
        ("lower", 8, 0.5, 0.6, UNDECIDED),
        ("same", 1500, 0.6, 0.6, SUPPORTED),
        ("same", 500, 0.7, 0.5, NOT_SUPPORTED),
        ("same", 20, 0.6, 0.6, UNDECIDED),
        ("loses at most", 1500, 0.6, 0.6, SUPPORTED),
        ("loses at most", 1500, 0.4, 0.6, NOT_SUPPORTED),
        ("loses at most", 12, 0.6, 0.6, UNDECIDED),
        ("loses at least", 500, 0.2, 0.6, SUPPORTED),
        ("loses at least", 1500, 0.6, 0.6, NOT_SUPPORTED),
    ],
)
def test_true_effect_none_and_too_little(
    expected: Expected, n: int, first: float, second: float, verdict: Verdict
) -> None:
    assert judge(expected, measured(n, first, second), 0.05) == verdict


@pytest.mark.parametrize("level", [0.0, 0.04])
@pytest.mark.parametrize("expected", KINDS)
def test_nothing_is_concluded_at_the_floor(expected: Expected, level: float) -> None:
    assert judge(expected, Difference(level, 0.0, level, -0.001, level + 0.001, 0.001), 0.05) == UNDECIDED


def test_at_the_ceiling_no_policy_can_be_better_but_both_can_be_the_same() -> None:
    found = Difference(0.99, 0.99, 0.0, -0.01, 0.01, 1.0)
    assert [judge(kind, found, 0.05) for kind in KINDS] == [UNDECIDED, UNDECIDED, SUPPORTED, SUPPORTED, NOT_SUPPORTED]


@given(share, share, st.floats(0.0, 0.5), st.floats(0, 1), st.floats(0.001, 0.3))
def test_higher_and_lower_mirror_each_other(first: float, second: float, half: float, p: float, margin: float) -> None:
    value = first - second
    there = Difference(first, second, value, value - half, value + half, p)
    back = Difference(second, first, -value, -value - half, -value + half, p)
    assert judge("higher", there, margin) == judge("lower", back, margin)


@given(share, share, st.floats(0.0, 0.5), st.floats(0.001, 0.3), st.sampled_from(KINDS))
def test_a_large_p_alone_supports_nothing(
    first: float, second: float, half: float, margin: float, kind: Expected
) -> None:
    """With an interval that holds 0 and both margins, nothing is decided."""
    value, wide = first - second, half + margin + abs(first - second) + 0.001
    found = Difference(first, second, value, value - wide, value + wide, 1.0)
    assert judge(kind, found, margin) == UNDECIDED


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([SUPPORTED, SUPPORTED], SUPPORTED),
        ([SUPPORTED, UNDECIDED], UNDECIDED),
        ([UNDECIDED, NOT_SUPPORTED, SUPPORTED], NOT_SUPPORTED),
        ([], UNDECIDED),
    ],
)
def test_all_parts_have_to_hold(parts: list[Verdict], whole: Verdict) -> None:
    assert together(parts) == whole


@given(st.integers(8, 20_000), st.floats(0.02, 1.0))
def test_needed_problems_invert_the_smallest_effect(n: int, discordant: float) -> None:
    effect = smallest_effect(n, discordant=discordant)
    needed = problems_needed(effect, discordant)
    assert needed is not None
    if effect < 1:
        assert abs(needed - n) <= 1


def test_no_number_of_problems_shows_nothing() -> None:
    assert problems_needed(0.0, 0.5) is None
