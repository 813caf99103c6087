"""Intervals of proportions, of differences of proportions, and of means."""

from __future__ import annotations

from math import sqrt

# The 97.5% point of the standard normal distribution: two sides, 95% in between.
Z_95 = 1.959963984540054


def wilson(successes: int, trials: int, z: float = Z_95) -> tuple[float, float] | None:
    """Return Wilson's (1927) interval (low, high) for `successes` of `trials`, or None without trials.

    It stays inside [0, 1] and keeps a width at 0% and 100%, where the textbook one collapses to a point. It takes
    the trials as independent; repeats of one problem are not quite, so with many repeats it is somewhat too narrow.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"successes={successes} must lie in 0..{trials}")
    if trials == 0:
        return None
    share = successes / trials
    centre = share + z * z / (2 * trials)
    half_width = z * sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    # The closed form meets 0 and 1 exactly at the ends; rounding can step a hair outside.
    low = 0.0 if successes == 0 else (centre - half_width) / scale
    high = 1.0 if successes == trials else (centre + half_width) / scale
    return low, high


def paired_difference(gained: int, lost: int, pairs: int, z: float = Z_95) -> tuple[float, float, float] | None:
    """Return (difference, low, high) of two proportions measured on the same samples, or None without pairs.

    `gained` counts samples right only with the policy, `lost` those right only with the baseline. The interval is
    Agresti and Min's (2005): Wald's after half a sample is added to each cell of the 2x2 table.
    """
    if min(gained, lost) < 0 or gained + lost > pairs:
        raise ValueError(f"gained={gained} and lost={lost} must be at least 0 and sum to at most pairs={pairs}")
    if pairs == 0:
        return None
    more, less, total = gained + 0.5, lost + 0.5, pairs + 2
    centre = (more - less) / total
    half_width = z * sqrt(more + less - (more - less) ** 2 / total) / total
    return (gained - lost) / pairs, max(-1.0, centre - half_width), min(1.0, centre + half_width)


def normal(
    total: float, squares: float, n: int, least: float, most: float, z: float = Z_95
) -> tuple[float, float, float] | None:
    """Return (mean, low, high) from a sum and a sum of squares, or None without values.

    The ordinary interval of a mean, cut to what values can be. Of one value it spans all of that: nothing is known of
    how values vary.
    """
    if n == 0:
        return None
    mean = total / n
    if n == 1:
        return mean, least, most
    half_width = z * sqrt(max(0.0, squares - n * mean * mean) / (n - 1) / n)
    return mean, max(least, mean - half_width), min(most, mean + half_width)
