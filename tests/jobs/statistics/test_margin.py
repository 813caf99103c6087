"""Tests of a loss against a margin: published intervals, symmetry, and the level they are read at."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.statistics import StatisticsError, holm
from jobs.statistics.margin import ONE_SIDED, Differences, against_margin, held, problems_to_decide


def whole(n: int, gained: int, lost: int) -> Differences:
    return Differences(n, gained - lost, gained + lost, gained, lost)


def test_where_nothing_differs_the_interval_is_the_closed_form() -> None:
    """Tango's score interval is then z² / (n + z²) on both sides; 0.0664 for his 54 pairs."""
    found = against_margin(whole(54, 0, 0), 0.1)
    assert (found.low, found.high) == pytest.approx((-0.0664, 0.0664), abs=5e-5)
    assert against_margin(whole(500, 0, 0), 0.02).p_holds < 0.001
    assert against_margin(whole(20, 0, 0), 0.02).p_holds > 0.2, "twenty problems show nothing about two points"


@settings(deadline=None)  # the machine may be busy
@given(st.integers(1, 300), st.data())
def test_properties_of_the_interval(n: int, data: st.DataObject) -> None:
    gained = data.draw(st.integers(0, n))
    lost = data.draw(st.integers(0, n - gained))
    found, mirrored = (against_margin(whole(n, *pair), 0.05) for pair in ((gained, lost), (lost, gained)))
    assert -1 <= found.low <= found.difference <= found.high <= 1
    assert found.low == pytest.approx(-mirrored.high, abs=1e-6)
    assert found.p_holds + found.p_fails == pytest.approx(1)
    if abs(found.low + 0.05) > 1e-6:
        assert (found.p_holds < ONE_SIDED) == (found.low > -0.05), "test and interval say the same"
    if abs(found.high + 0.05) > 1e-6:
        assert (found.p_fails < ONE_SIDED) == (found.high < -0.05)


@pytest.mark.parametrize(("n", "lost", "gained", "margin"), [(500, 0.03, 0.01, 0.02), (100, 0.05, 0.0, 0.05)])
def test_the_level_is_kept_where_the_loss_is_the_margin(n: int, lost: float, gained: float, margin: float) -> None:
    draws = np.random.default_rng(0).multinomial(n, [gained, lost, 1 - gained - lost], 1500)
    wrong = sum(against_margin(whole(n, int(up), int(down)), margin).p_holds < ONE_SIDED for up, down, _ in draws)
    assert wrong / len(draws) < 0.04


def test_parts_of_a_point_take_the_adjusted_wald_interval() -> None:
    found = against_margin(Differences(100, -1.0, 4.0, None, None), 0.1)
    assert found.low < -0.01 < found.high
    assert found.p_holds < ONE_SIDED
    assert against_margin(Differences(100, -30.0, 12.0, None, None), 0.1).p_fails < ONE_SIDED


@pytest.mark.parametrize("shares", [[0.03], [0.05, 0.02, 0.02, 0.3], [0.1, 0.04, 0.12, 0.03, 0.06, 0.5]])
def test_the_correction_is_holms(shares: list[float]) -> None:
    margins = [against_margin(whole(200, 0, round(200 * share)), 0.1) for share in shares]
    for place, name in enumerate(("p_holds", "p_fails")):
        wanted = holm([getattr(each, name) for each in margins])
        assert [pair[place] for pair in held(margins)] == pytest.approx(wanted)


def test_problems_that_decide() -> None:
    assert problems_to_decide(whole(100, 0, 2), 0.02) is None, "on the margin itself no number decides"
    few, many = (problems_to_decide(whole(1000, 0, 0), margin) for margin in (0.05, 0.01))
    assert few is not None
    assert many is not None
    assert few < many
    assert (problems_to_decide(whole(1000, 0, 0), 0.05, tests=10) or 0) > few
    # With 5% differing either way and no mean loss: (1.96 + 0.84)² * 0.05 / 0.02².
    assert problems_to_decide(Differences(10**6, 0.0, 0.05 * 10**6, None, None), 0.02) == 982


def test_nonsense_is_refused() -> None:
    with pytest.raises(StatisticsError, match="at least one problem"):
        whole(0, 0, 0)
    with pytest.raises(StatisticsError, match="margin"):
        against_margin(whole(5, 0, 0), 0.0)
