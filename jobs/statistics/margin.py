"""Does a policy lose less than a margin against its baseline? A test of each side, and the interval that fits them.

"No difference was found" isn't "there is none": what is tested here is that the loss is below a stated margin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import NormalDist

from jobs.statistics.corrections import holm
from jobs.statistics.scores import StatisticsError

Z_95 = 1.959963984540054
ONE_SIDED = 0.025  # a 95% interval that stays on one side of the margin
POWER = 0.8


@dataclass(frozen=True)
class Differences:
    """Paired differences by problem, summed up: a problem's mean score under the policy less under the baseline.

    gained, lost  problems with a difference of 1, of -1; None where some differ by a part (part marks, repeats).
    squares       sum of squared differences.
    """

    n: int
    total: float
    squares: float
    gained: int | None
    lost: int | None

    def __post_init__(self) -> None:
        if self.n < 1:
            raise StatisticsError(f"differences: at least one problem is needed (got {self.n}).")

    @property
    def mean(self) -> float:
        return self.total / self.n

    @property
    def spread(self) -> float:
        """Mean squared difference; for whole ones the share of problems that differ."""
        return self.squares / self.n


@dataclass(frozen=True)
class Margin:
    """A difference beside a margin.

    low, high   95% interval of the difference.
    p_holds     one-sided p of "it loses the margin or more": small where it loses less.
    p_fails     one-sided p of "it loses the margin or less": small where it loses more.
    """

    n: int
    difference: float
    low: float
    high: float
    p_holds: float
    p_fails: float


def against_margin(found: Differences, margin: float) -> Margin:
    """Test the loss against `margin`, a share of 1 above 0.

    Whole differences take Tango's score test and interval (1998), which keep their level where few problems differ or
    none; a problem that differs by a part, Agresti and Min's adjusted Wald interval (2005).
    """
    if not 0 < margin < 1:
        raise StatisticsError(f"margin: lies between 0 and 1 (got {margin}).")
    z = _z(found, -margin)
    low, high = _interval(found)
    return Margin(found.n, found.mean, low, high, NormalDist().cdf(-z), NormalDist().cdf(z))


def held(margins: Sequence[Margin]) -> list[tuple[float, float]]:
    """(p_holds, p_fails) of each, by Holm over all: to be read at `ONE_SIDED`."""
    sides = ([each.p_holds for each in margins], [each.p_fails for each in margins])
    return list(zip(*(holm(side) for side in sides), strict=True))


def problems_to_decide(found: Differences, margin: float, tests: int = 1) -> int | None:
    """About how many problems decide on which side of the margin the loss lies, with 80% power, if what was seen stays.

    tests: that are corrected for together, each at its share of the level. None where the difference seen is the margin
    itself, which no number decides.
    """
    gap = found.mean + margin
    if abs(gap) < 1e-9:
        return None
    variance = max(found.spread - found.mean**2, 1 / (found.n + 2))  # none seen to differ isn't none
    reach = NormalDist().inv_cdf(1 - ONE_SIDED / tests) + NormalDist().inv_cdf(POWER)
    return ceil(reach**2 * variance / gap**2)


def _interval(found: Differences) -> tuple[float, float]:
    if found.gained is None:
        n = found.n + 2  # a tie, and a half each of a win and a loss
        half = Z_95 * sqrt(max(0.0, found.squares + 1 - found.total**2 / n)) / n
        return max(-1.0, found.total / n - half), min(1.0, found.total / n + half)
    return _reach(found, -1.0, Z_95), _reach(found, 1.0, -Z_95)


def _reach(found: Differences, edge: float, z: float) -> float:
    """Where the score of a hypothesised difference is z; it falls as the difference rises."""
    inner, outer = found.mean, edge
    if inner == outer:
        return edge
    for _ in range(60):
        middle = (inner + outer) / 2
        if abs(_z(found, middle)) < abs(z):
            inner = middle
        else:
            outer = middle
    return (inner + outer) / 2


def _z(found: Differences, delta: float) -> float:
    """How far the differences lie above `delta`, in standard errors under `delta`."""
    n = found.n
    if found.gained is None or found.lost is None:
        n += 2
        error = sqrt(max(0.0, found.squares + 1 - found.total**2 / n)) / n
        return (found.total / n - delta) / error
    gained, lost = found.gained, found.lost
    above = gained - lost - n * delta
    a, b, c = 2 * n, -gained - lost + (2 * n - gained + lost) * delta, -lost * delta * (1 - delta)
    share = (sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)  # of losses, most likely under `delta`
    variance = n * (2 * share + delta * (1 - delta))
    return above / sqrt(variance) if variance > 0 else (0.0 if above == 0 else float("inf") * above)
