"""The hierarchy's question as a test: tables by hand, no effect and a known effect, grids with holes."""

from collections.abc import Mapping

import numpy as np
import pytest

from jobs.statistics import Independence, Scores, StatisticsError, independence
from jobs.statistics.levels import NO_CHANGE, ROUGH, equal_levels
from jobs.statistics.trends import Stratum, slope_test

Grid = Mapping[tuple[float, float], Scores]
HBM, EVICT = (0.3, 0.5, 0.7), (0.03, 0.05, 0.1)


def rows(*table: str) -> dict[str, np.ndarray]:
    """A table of 0s and 1s [problems, levels] as line_up gives it, one repeat each."""
    return {f"p{i:02d}": np.array([[float(digit)] for digit in line]) for i, line in enumerate(table)}


def test_cochrans_q_by_hand() -> None:
    """Column sums 6, 3, 1 and row sums 3, 2, 2, 1, 1, 1: Q = 2 (3 (36 + 9 + 1) - 100) / (30 - 20) = 7.6."""
    found = equal_levels(rows("111", "110", "110", "100", "100", "100"))
    assert (found.test, found.note) == ("cochran", ROUGH)
    assert found.statistic == pytest.approx(7.6)
    assert found.p_value == pytest.approx(np.exp(-7.6 / 2))  # chi-square with two degrees of freedom


def test_friedman_by_hand() -> None:
    """Four problems that rank three levels alike: 12 / (4 * 3 * 4) * (16 + 64 + 144) - 3 * 4 * 4 = 8."""
    found = equal_levels({f"p{i}": np.array([[0.1], [0.2], [0.3]]) + i / 10 for i in range(4)})
    assert found.test == "friedman"
    assert found.statistic == pytest.approx(8.0)
    assert found.p_value == pytest.approx(np.exp(-4))


def test_repeats_and_two_levels_choose_the_test() -> None:
    twice = {f"p{i}": np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]) for i in range(9)}
    assert equal_levels(twice).test == "friedman"
    found = equal_levels({problem: row[1:] for problem, row in twice.items()})
    assert (found.test, found.statistic) == ("sign-flip exact", -1)
    assert found.p_value == pytest.approx(2 / 2**9)


@pytest.mark.parametrize("level", [[0.0], [1.0], [0.4], [1.0, 0.0]])
@pytest.mark.parametrize("levels", [2, 3])
def test_equal_columns_are_p_1_and_said_so(level: list[float], levels: int) -> None:
    found = equal_levels({f"p{i}": np.array([level] * levels) for i in range(5)})
    assert (found.statistic, found.p_value, found.note) == (0, 1, NO_CHANGE)


def simulated(seed: int, *, problems: int = 60, evict_slope: float = 0.0, repeats: int = 1, own: float = 0.0) -> Grid:
    """A grid without an effect of the HBM ratio; `own` is a spread that each problem has between HBM ratios."""
    rng = np.random.default_rng(seed)
    ease = rng.uniform(0.3, 0.8, size=(problems, 1))
    quirk = {hbm: rng.uniform(-own, own, size=(problems, 1)) for hbm in HBM}

    def cell(hbm: float, evict: float) -> Scores:
        solved = rng.random((problems, repeats)) < ease + quirk[hbm] - evict_slope * evict
        return {f"p{i:03d}": row.astype(float).tolist() for i, row in enumerate(solved)}

    return {(hbm, evict): cell(hbm, evict) for hbm in HBM for evict in EVICT}


def test_the_rows_and_what_they_hold() -> None:
    found = independence(simulated(0, evict_slope=3.0), resamples=999)
    assert [(row.question, row.stratum) for row in found.rows] == [
        *(("hbm_ratio", evict) for evict in EVICT),
        *(("evict_ratio", hbm) for hbm in HBM),
    ]
    assert found.rows[0].levels == HBM
    assert found.rows[3].levels == EVICT
    assert found.hbm is not None
    assert (found.hbm.strata, found.hbm.n_problems) == (3, 60)
    for row in found.rows:
        assert row.test == "cochran"
        assert row.p_value is not None
        assert row.p_holm is not None
        assert row.p_value <= row.p_holm <= min(1, 3 * row.p_value)


def test_one_ratio_matters_and_the_other_does_not() -> None:
    found = independence(simulated(1, problems=200, evict_slope=3.0), resamples=2000)
    assert found.hbm is not None
    assert found.evict is not None
    assert found.evict.p_value < 0.01 < found.hbm.p_value
    assert found.evict.slope == pytest.approx(-3.0, abs=1.0)
    assert found.evict.smallest_effect < 3.0 * (EVICT[-1] - EVICT[0])


def strata(grid: Grid, own: int = 0) -> list[Stratum]:
    """One ratio's strata of a simulated grid, by hand: `independence` itself is too slow to run 200 times."""
    levels, others = (HBM, EVICT) if own == 0 else (EVICT, HBM)
    cells = {other: [grid[(level, other) if own == 0 else (other, level)] for level in levels] for other in others}
    return [Stratum(other, levels, level_rows(cells[other], mean=True)) for other in others]


def level_rows(cells: list[Scores], *, mean: bool = False) -> dict[str, np.ndarray]:
    stacked = {problem: np.array([cell[problem] for cell in cells]) for problem in cells[0]}
    return {problem: row.mean(axis=1) for problem, row in stacked.items()} if mean else stacked


@pytest.mark.parametrize("own", [0.0, 0.5])
def test_without_a_trend_its_p_is_seldom_small(own: float) -> None:
    """Also where a problem's quirks at a ratio return in each stratum: shuffling strata alone would be fooled."""
    grids = [simulated(seed, problems=40, own=own) for seed in range(100, 300)]
    found = [slope_test(strata(grid), resamples=499)[1] for grid in grids]
    assert 0.01 <= np.mean(np.array(found) < 0.05) <= 0.08


def test_without_an_effect_the_levels_p_is_seldom_small() -> None:
    grids = [simulated(seed, problems=40) for seed in range(100, 300)]
    found = [equal_levels(level_rows([grid[hbm, 0.1] for hbm in HBM])).p_value for grid in grids]
    assert 0.01 <= np.mean(np.array(found) < 0.05) <= 0.08


def test_a_true_trend_is_found() -> None:
    grids = [simulated(seed, problems=100, evict_slope=3.0) for seed in range(30)]
    found = [slope_test(strata(grid, own=1), resamples=499)[1] for grid in grids]
    assert np.mean(np.array(found) < 0.05) >= 0.9


def test_the_slope_is_least_squares_within_strata() -> None:
    grid = {(hbm, 0.1): {"p": [0.9 - hbm]} for hbm in (0.1, 0.2, 0.6)} | {(0.1, 0.2): {"p": [0.1]}}
    found = independence(grid)
    assert found.hbm is not None
    assert found.evict is not None
    assert found.hbm.slope == pytest.approx(-1)
    assert found.evict.slope == pytest.approx((0.1 - 0.8) / 0.1)


@pytest.mark.parametrize("repeats", [1, 3])
def test_the_order_of_problems_and_cells_does_not_matter(repeats: int) -> None:
    grid = simulated(2, repeats=repeats)
    backwards = [f"p{i:03d}" for i in reversed(range(60))]
    shuffled = {key: {problem: grid[key][problem] for problem in backwards} for key in sorted(grid, reverse=True)}
    assert independence(grid, resamples=499) == independence(shuffled, resamples=499)


def test_nothing_changes_anywhere() -> None:
    scores = {f"p{i}": [float(i % 2)] for i in range(100)}
    found = independence({(hbm, evict): scores for hbm in HBM for evict in EVICT})
    assert {(row.statistic, row.p_value, row.p_holm, row.note) for row in found.rows} == {(0, 1, 1, NO_CHANGE)}
    assert found.hbm is not None
    assert (found.hbm.slope, found.hbm.p_value) == (0, 1)
    assert found.hbm.smallest_effect == pytest.approx(0.077, abs=0.001)


def test_a_grid_with_holes() -> None:
    """One stratum of one level is left out, one without common problems says so and isn't counted by Holm."""
    one, other = {f"p{i}": [float(i % 2)] for i in range(30)}, {f"p{i}": [float(i % 3 == 0)] for i in range(20)}
    grid = {(0.3, 0.1): one, (0.5, 0.1): other, (0.3, 0.2): one, (0.5, 0.2): {"q": [1.0]}, (0.7, 0.3): one}
    found: Independence = independence(grid)
    first, second = found.rows[:2]
    assert (first.levels, first.n_problems, first.p_holm) == ((0.3, 0.5), 20, first.p_value)
    assert (second.n_problems, second.test, second.p_value, second.p_holm) == (0, "none", None, None)
    assert "no problem" in second.note
    assert found.hbm is not None
    assert found.hbm.strata == 1


def test_one_question_alone() -> None:
    found = independence({(0.3, 0.1): {"p": [1]}, (0.5, 0.1): {"p": [0]}})
    assert found.evict is None
    assert found.hbm is not None


@pytest.mark.parametrize("grid", [{}, {(0.3, 0.1): {"p": [1]}}, {(0.3, 0.1): {"p": [1]}, (0.5, 0.2): {"p": [1]}}])
def test_a_grid_without_a_question_is_refused(grid: Grid) -> None:
    with pytest.raises(StatisticsError, match="two HBM ratios"):
        independence(grid)


@pytest.mark.parametrize("key", [(0.3, float("nan")), (0.3,), ("a", 0.1), 5], ids=str)
def test_a_key_is_two_ratios(key: tuple[float, float]) -> None:
    with pytest.raises(StatisticsError, match="grid"):
        independence({key: {"p": [1]}})
