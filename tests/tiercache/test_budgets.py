"""Budgets that are unevenly divided: arithmetic on the host."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tiercache.budgets import divide, pyramid


@given(st.integers(1, 80), st.floats(1, 50))
def test_a_pyramid_falls_linearly_and_keeps_the_mean(layers: int, beta: float) -> None:
    weights = pyramid(layers, beta)
    assert abs(sum(weights) / layers - 1) < 1e-9
    steps = [a - b for a, b in pairwise(weights)]
    assert all(step >= -1e-12 and abs(step - steps[0]) < 1e-9 for step in steps)
    assert layers == 1 or abs(weights[-1] - 1 / beta) < 1e-9


@given(st.lists(st.tuples(st.floats(0.1, 2), st.integers(0, 50)), min_size=1, max_size=12), st.integers(0, 400))
def test_parts_add_up_and_respect_their_limits(entries: list[tuple[float, int]], total: int) -> None:
    weights, most = zip(*entries, strict=True)
    parts = divide(total, weights, most)
    assert sum(parts) == min(total, sum(most))
    assert all(0 <= part <= limit for part, limit in zip(parts, most, strict=True))


@given(st.lists(st.floats(0.1, 2), min_size=1, max_size=12), st.integers(0, 400))
def test_without_limits_each_part_is_within_one_of_its_share(weights: list[float], total: int) -> None:
    for weight, part in zip(weights, divide(total, weights, [1000] * len(weights)), strict=True):
        assert abs(part - total * weight / sum(weights)) < 1 + 1e-9


def test_known_answers() -> None:
    """Four layers, 100 tokens on average, beta 4; then with room for 150 in each: the rest in proportion."""
    assert divide(400, pyramid(4, 4), [1000] * 4) == [175, 125, 75, 25]
    assert divide(400, pyramid(4, 4), [150] * 4) == [150, 139, 83, 28]
