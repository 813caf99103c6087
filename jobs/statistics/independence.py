"""Whether accuracy depends on the HBM ratio, on the eviction ratio, or on both: a hierarchy's question (2605.09490)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal, TypeAlias

import numpy as np

from jobs.statistics.corrections import holm
from jobs.statistics.levels import equal_levels, level_means
from jobs.statistics.paired import RESAMPLES
from jobs.statistics.power import smallest_effect
from jobs.statistics.scores import Array, Scores, StatisticsError, Table, check, line_up
from jobs.statistics.trends import Stratum, slope_test

Question: TypeAlias = Literal["hbm_ratio", "evict_ratio"]
Cells: TypeAlias = dict[tuple[float, float], Table]


@dataclass(frozen=True)
class LevelTest:
    """One ratio's levels compared while the other stays at `stratum`.

    means            accuracy at each level, on the n_problems that all levels have; empty without any.
    test             `cochran`, `friedman`, `sign-flip exact`, `sign-flip`, or `none`, with statistic and p None.
    p_holm           corrected over the question's strata.
    smallest_effect  difference between the outer levels that n_problems could have shown, given how many problems
                     differ between them.
    note             what limits the test, or empty.
    """

    question: Question
    stratum: float
    levels: tuple[float, ...]
    means: tuple[float, ...]
    n_problems: int
    test: str
    statistic: float | None
    p_value: float | None
    p_holm: float | None
    smallest_effect: float | None
    note: str


@dataclass(frozen=True)
class Trend:
    """One ratio's slope over all strata: one test a question, so it needs no correction over strata.

    slope            change of the score for a change of the ratio by 1; -0.5: ten points of ratio cost five of score.
    smallest_effect  difference between the outer levels, averaged over strata, that n_problems could have shown.
    """

    question: Question
    n_problems: int
    strata: int
    slope: float
    p_value: float
    smallest_effect: float


@dataclass(frozen=True)
class Independence:
    """Tests of both questions; a trend is None where no stratum has two levels with problems in common.

    That a p value is large does not show independence: read it beside `smallest_effect`.
    """

    rows: tuple[LevelTest, ...]
    hbm: Trend | None
    evict: Trend | None


def independence(
    grid: Mapping[tuple[float, float], Scores], *, seed: int = 0, resamples: int = RESAMPLES
) -> Independence:
    """Test a grid (hbm_ratio, evict_ratio) -> scores: does either ratio matter while the other is held?

    Each stratum with two levels or more is tested on the problems that all its levels have (Cochran's Q, Friedman's or
    sign flips), with Holm's correction over a question's strata; the slope over all strata is one test more.
    StatisticsError when no two cells differ in just one ratio.
    """
    cells = {_key(key): check(scores, f"grid[{key}]") for key, scores in grid.items()}
    hbm_rows, hbm = _ask("hbm_ratio", cells, seed, resamples)
    evict_rows, evict = _ask("evict_ratio", cells, seed, resamples)
    if not hbm_rows and not evict_rows:
        raise StatisticsError(
            f"grid: needs two cells that differ in one ratio only (got {sorted(cells)}). "
            "Run at least two HBM ratios at one eviction ratio, or two eviction ratios at one HBM ratio."
        )
    return Independence((*hbm_rows, *evict_rows), hbm, evict)


def _key(key: tuple[float, float]) -> tuple[float, float]:
    try:
        hbm, evict = map(float, key)
    except (TypeError, ValueError):
        raise StatisticsError(f"grid: a key is (hbm_ratio, evict_ratio), two numbers (got {key!r}).") from None
    if not (isfinite(hbm) and isfinite(evict)):
        raise StatisticsError(f"grid: a ratio is a finite number (got {key!r}).")
    return hbm, evict


def _ask(question: Question, cells: Cells, seed: int, resamples: int) -> tuple[list[LevelTest], Trend | None]:
    own = 0 if question == "hbm_ratio" else 1
    rows: list[LevelTest] = []
    strata: list[Stratum] = []
    for value in sorted({key[1 - own] for key in cells}):
        keys = sorted(key for key in cells if key[1 - own] == value)
        if len(keys) < 2:
            continue
        levels, table = tuple(key[own] for key in keys), line_up(*(cells[key] for key in keys))
        if not table:
            note = "no problem has scores at all levels"
            rows.append(LevelTest(question, value, levels, (), 0, "none", None, None, None, None, note))
            continue
        found, means = equal_levels(table, seed=seed, resamples=resamples), level_means(table)
        rows.append(
            LevelTest(
                question=question,
                stratum=value,
                levels=levels,
                means=tuple(map(float, means.mean(axis=0))),
                n_problems=len(table),
                test=found.test,
                statistic=found.statistic,
                p_value=found.p_value,
                p_holm=None,
                smallest_effect=_could_show(means[:, -1] - means[:, 0]),
                note=found.note,
            )
        )
        strata.append(Stratum(value, levels, dict(zip(table, means, strict=True))))
    corrected = holm([row.p_value for row in rows])
    rows = [replace(row, p_holm=p) for row, p in zip(rows, corrected, strict=True)]
    return rows, _trend(question, strata, seed, resamples) if strata else None


def _trend(question: Question, strata: list[Stratum], seed: int, resamples: int) -> Trend:
    slope, p_value = slope_test(strata, seed=seed, resamples=resamples)
    changes: dict[str, list[float]] = {}
    for stratum in strata:
        for problem, row in stratum.means.items():
            changes.setdefault(problem, []).append(float(row[-1] - row[0]))
    return Trend(
        question=question,
        n_problems=len(changes),
        strata=len(strata),
        slope=slope,
        p_value=p_value,
        smallest_effect=_could_show(np.array([np.mean(each) for each in changes.values()])),
    )


def _could_show(changes: Array) -> float:
    """For graded scores the mean squared change stands for the share of discordant problems, which it is for 0/1."""
    return smallest_effect(len(changes), discordant=float(np.mean(changes**2)))
