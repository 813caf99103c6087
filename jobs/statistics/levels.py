"""Whether the levels of one knob differ, on problems that all levels have."""

from dataclasses import dataclass

import numpy as np

from jobs.statistics.paired import RESAMPLES, sign_flip
from jobs.statistics.scores import Array, Table, exact

NO_CHANGE = "no problem's score differs between the levels"
ROUGH = "few problems differ between the levels, so the chi-square p is rough"
_ENOUGH = 24  # levels x problems that differ, below which chi-square is rough (Tate and Brown 1970)


@dataclass(frozen=True)
class Verdict:
    """A test's name, statistic and p value, and what a reader has to know of them."""

    test: str
    statistic: float
    p_value: float
    note: str = ""


def equal_levels(rows: Table, *, seed: int = 0, resamples: int = RESAMPLES) -> Verdict:
    """Test that all levels score alike; `rows` is problem id -> [levels, repeats], of two levels or more.

    Cochran's Q for 0/1 scores with one repeat. Otherwise on the problems' means: Friedman's test, and for two levels,
    which it doesn't take, sign flips of the differences (statistic: the mean of last less first). Where no problem
    differs the formulas divide 0 by 0; that is a statistic of 0 and p = 1.
    """
    from scipy.stats import friedmanchisquare
    from statsmodels.stats.contingency_tables import cochrans_q

    table = level_means(rows)  # [problems, levels]
    differ = int((np.ptp(table, axis=1) > 1e-12).sum())
    note = NO_CHANGE if not differ else ROUGH if differ * table.shape[1] < _ENOUGH else ""
    if exact(rows) and all(row.shape[1] == 1 for row in rows.values()):
        name, found = "cochran", cochrans_q(table) if differ else None
    elif table.shape[1] > 2:
        name, found = "friedman", friedmanchisquare(*table.T) if differ else None
    else:
        change = table[:, -1] - table[:, 0]
        p_value, name = sign_flip(change, seed=seed, resamples=resamples)
        return Verdict(name, float(change.mean()), p_value, "" if differ else NO_CHANGE)
    return Verdict(name, float(found.statistic), float(found.pvalue), note) if found else Verdict(name, 0.0, 1.0, note)


def level_means(rows: Table) -> Array:
    """[problems, levels], each the mean over repeats."""
    return np.array([row.mean(axis=1) for row in rows.values()])
