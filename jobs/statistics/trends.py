"""Whether scores rise or fall with a ratio, over strata in which the other ratio is fixed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jobs.statistics.paired import RESAMPLES
from jobs.statistics.scores import Array

_DRAWS_HELD = 4_000_000  # permuted numbers held at once: 32 MB


@dataclass(frozen=True)
class Stratum:
    """One row or column of a grid: the other ratio's `value`, this ratio's levels, and problem id -> [levels] means."""

    value: float
    levels: tuple[float, ...]
    means: dict[str, Array]


def slope_test(strata: Sequence[Stratum], *, seed: int = 0, resamples: int = RESAMPLES) -> tuple[float, float]:
    """The slope of the score against the ratio within strata, pooled, and its two-sided permutation p value.

    Without an effect a problem's scores could stand at any of its levels. So its levels are shuffled, the same way in
    all strata with the same levels: a problem's scores in two strata go together, and are no independent evidence.
    The observed order counts as one of the shuffles, so that p is never 0.
    """
    grids: dict[tuple[float, ...], dict[str, Array]] = {}  # scores summed over the strata with the same levels
    scale = 0.0
    for stratum in strata:
        centred = _centred(stratum.levels)
        scale += float(centred @ centred) * len(stratum.means)
        sums = grids.setdefault(stratum.levels, {})
        for problem, row in stratum.means.items():
            sums[problem] = sums.get(problem, 0.0) + row
    rng = np.random.default_rng(seed)
    observed, shuffled = 0.0, np.zeros(resamples)
    for levels in sorted(grids):
        table = np.array([grids[levels][problem] for problem in sorted(grids[levels])])  # [problems, levels]
        table = table[np.ptp(table, axis=1) > 1e-12]  # level problems add nothing in any order
        observed += float((table @ _centred(levels)).sum())
        shuffled += _shuffled_sums(table, _centred(levels), resamples, rng)
    as_far = int((np.abs(shuffled) >= abs(observed) - 1e-9).sum())
    return observed / scale, (as_far + 1) / (resamples + 1)


def _centred(levels: Sequence[float]) -> Array:
    centred: Array = np.asarray(levels) - np.mean(levels)
    return centred


def _shuffled_sums(table: Array, weights: Array, resamples: int, rng: np.random.Generator) -> Array:
    """[resamples] weighted sums of `table` [problems, levels], each problem's levels shuffled by themselves."""
    sums = np.zeros(resamples)
    if not table.size:
        return sums
    batch = max(1, _DRAWS_HELD // table.size)
    for start in range(0, resamples, batch):
        count = min(batch, resamples - start)
        drawn = rng.permuted(np.broadcast_to(table, (count, *table.shape)), axis=2)
        sums[start : start + count] = (drawn @ weights).sum(axis=1)
    return sums
