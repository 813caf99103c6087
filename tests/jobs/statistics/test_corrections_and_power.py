"""Holm's example by hand, published sample sizes, and power as simulated."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from statsmodels.stats.multitest import multipletests

from jobs.statistics import StatisticsError, binomial_error, holm, smallest_effect

P_VALUES = st.lists(st.none() | st.floats(0, 1), max_size=12)


def test_holm_by_hand() -> None:
    """Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1; the last can't be below the one before it."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_a_test_not_made_is_not_counted() -> None:
    assert holm([None, 0.01, None, 0.04]) == [None, pytest.approx(0.02), None, pytest.approx(0.04)]
    assert holm([]) == []
    assert holm([None]) == [None]


def test_holm_is_that_of_statsmodels() -> None:
    made = [0.012, 0.3, 0.04, 0.012, 0.9, 0.0001, 0.04]
    assert holm(made) == pytest.approx(list(multipletests(made, method="holm")[1]))


@given(P_VALUES)
def test_holm_lies_between_the_p_value_and_bonferroni(p_values: list[float | None]) -> None:
    made = sum(p is not None for p in p_values)
    for before, after in zip(p_values, holm(p_values), strict=True):
        if before is None:
            assert after is None
        else:
            assert after is not None
            assert before - 1e-12 <= after <= min(1.0, before * made) + 1e-12


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_what_is_no_p_value_is_refused(p: float) -> None:
    with pytest.raises(StatisticsError, match="p_values"):
        holm([0.5, p])


@pytest.mark.parametrize(("n", "points"), [(30, 9.1), (50, 7.1), (100, 5.0), (200, 3.5), (500, 2.2), (1319, 1.4)])
def test_binomial_error_at_a_half(n: int, points: float) -> None:
    assert round(100 * binomial_error(0.5, n), 1) == points


@pytest.mark.parametrize(("n", "discordant", "effect"), [(155, 0.2, 0.1), (312, 0.4, 0.1), (77, 0.4, 0.2)])
def test_connors_sample_sizes(n: int, discordant: float, effect: float) -> None:
    """n = (1.96 sqrt(d) + 0.8416 sqrt(d - e^2))^2 / e^2, rounded up."""
    assert smallest_effect(n, discordant=discordant) == pytest.approx(effect, rel=0.01)
    assert smallest_effect(n, discordant=discordant) <= effect < smallest_effect(n - 1, discordant=discordant)


def test_more_problems_and_less_discordance_show_less() -> None:
    by_n = [smallest_effect(n, discordant=0.2) for n in (5, 20, 50, 200, 1319)]
    by_share = [smallest_effect(50, discordant=share) for share in (0, 0.05, 0.2, 0.5, 1)]
    assert by_n == sorted(by_n, reverse=True)
    assert by_share == pytest.approx(sorted(by_share))
    assert by_share[0] == pytest.approx(by_share[1])  # below the effect itself the share doesn't count
    assert smallest_effect(50) == smallest_effect(50, discordant=0.5)  # unknown: as if both erred by themselves


def test_no_discordant_pair_seen_is_not_no_effect() -> None:
    assert smallest_effect(200, discordant=0) == pytest.approx(7.8 / 200, rel=0.02)
    assert smallest_effect(3, discordant=0) == 1


def test_the_smallest_effect_is_found_as_often_as_promised() -> None:
    """Exact McNemar keeps a little below the normal approximation."""
    n, share = 300, 0.2
    effect = smallest_effect(n, discordant=share)
    rng = np.random.default_rng(2)
    draws = rng.multinomial(n, [(share + effect) / 2, (share - effect) / 2, 1 - share], size=1000)
    found = np.mean([binomtest(int(gained), int(gained + lost)).pvalue < 0.05 for gained, lost, _ in draws])
    assert 0.7 <= found <= 0.85


WRONG = [{"n": 0}, {"n": 9, "power": 1}, {"n": 9, "power": 0.2}, {"n": 9, "alpha": 0}, {"n": 9, "accuracy": 2}]


@pytest.mark.parametrize("arguments", [*WRONG, {"n": 9, "discordant": -0.1}], ids=str)
def test_impossible_questions_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(StatisticsError, match=list(arguments)[-1]):
        smallest_effect(**arguments)  # type: ignore[arg-type]


def test_importing_the_package_imports_no_heavy_library() -> None:
    code = "import sys, jobs.statistics; sys.exit(any(m in sys.modules for m in ('torch', 'scipy', 'statsmodels')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
