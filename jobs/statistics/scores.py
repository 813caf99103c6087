"""Scores as they come in: checked, and lined up between conditions."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tiercache.errors import TierCacheError

Scores: TypeAlias = Mapping[str, Sequence[float]]
"""Problem id -> its scores, 0 to 1, one per repeat; position j is repeat j in every condition."""

Array: TypeAlias = NDArray[np.float64]
Table: TypeAlias = dict[str, Array]  # in order of problem id, so that no result depends on the order they came in


class StatisticsError(TierCacheError):
    """A number can't be computed from these scores."""


def check(scores: Scores, name: str = "scores") -> Table:
    """The scores as arrays [repeats]; StatisticsError for none at all, and for a score that is no number in 0..1."""
    if not scores:
        raise StatisticsError(f"{name}: has no problems; at least one finished problem is needed.")
    return {problem: _row(scores[problem], f"{name}[{problem!r}]") for problem in sorted(scores)}


def _row(values: Sequence[float], where: str) -> Array:
    try:
        row = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise StatisticsError(f"{where}: is a list of numbers from 0 to 1.") from None
    if row.ndim != 1 or not len(row):
        raise StatisticsError(f"{where}: has no list of scores; leave a problem without any out.")
    wrong = row[~((row >= 0) & (row <= 1))]  # NaN is neither
    if len(wrong):
        raise StatisticsError(f"{where}: a score is a number from 0 to 1 (got {wrong[0]}).")
    return row


def line_up(*tables: Table) -> Table:
    """Problem id -> [tables, repeats], for the problems that all tables have, and the repeats of each that all have."""
    common = sorted(set.intersection(*map(set, tables)))
    return {
        problem: np.stack([table[problem][: min(len(each[problem]) for each in tables)] for table in tables])
        for problem in common
    }


def exact(rows: Mapping[str, Array]) -> bool:
    """Whether every score is 0 or 1, as exact graders give them."""
    return all(bool(((row == 0) | (row == 1)).all()) for row in rows.values())
