"""When a claim is supported. Pure functions of the statistics: no database, no names.

A difference is the first policy's accuracy less the second's, with its 95% interval, both shares in -1..1. `margin` is
the smallest difference that would matter to the claim.

    expected            supported                   not supported
    higher              p < 0.05, above 0, and      p < 0.05 and below 0, or the interval ends below the margin
                        the margin is possible
    lower               the same, mirrored          the same, mirrored
    same                interval within +-margin    p < 0.05
    loses at most       interval above -margin      interval below -margin
    loses at least      interval below -margin      interval above -margin

The first column that holds counts. Whatever is neither can't be decided with this n: the absence of a difference is
never concluded from a large p alone. Nor is anything concluded where both accuracies are at the floor (at most 5%), or
about a difference where both are at the ceiling (at least 95%): there policies can't be told apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import NormalDist
from typing import Literal, TypeAlias, assert_never

Expected: TypeAlias = Literal["higher", "lower", "same", "loses at most", "loses at least"]
Verdict: TypeAlias = Literal["supported", "not supported", "can't be decided with this n"]

LEVEL, POWER = 0.05, 0.8
FLOOR, CEILING = 0.05, 0.95
SUPPORTED: Verdict = "supported"
NOT_SUPPORTED: Verdict = "not supported"
UNDECIDED: Verdict = "can't be decided with this n"


@dataclass(frozen=True)
class Difference:
    """Two accuracies, the first less the second with its 95% interval, and the two-sided p of the test."""

    first: float
    second: float
    value: float
    low: float
    high: float
    p: float


def judge(expected: Expected, found: Difference, margin: float) -> Verdict:
    """The verdict on one difference, whose p is already corrected for the claim's other tests."""
    if at_limit(expected, found):
        return UNDECIDED
    shown, value, low, high = found.p < LEVEL, found.value, found.low, found.high
    match expected:
        case "higher":
            yes, no = shown and value > 0 and high >= margin, (shown and value < 0) or high < margin
        case "lower":
            yes, no = shown and value < 0 and low <= -margin, (shown and value > 0) or low > -margin
        case "same":
            yes, no = -margin < low and high < margin, shown
        case "loses at most":
            yes, no = low > -margin, high < -margin
        case "loses at least":
            yes, no = high < -margin, low > -margin
        case _:
            assert_never(expected)
    return SUPPORTED if yes else NOT_SUPPORTED if no else UNDECIDED


def at_limit(expected: Expected, found: Difference) -> str:
    """`floor` or `ceiling` where both accuracies are there and so say nothing about the claim, else an empty text."""
    if max(found.first, found.second) <= FLOOR:
        return "floor"
    both_high = min(found.first, found.second) >= CEILING
    return "ceiling" if both_high and expected in ("higher", "lower") else ""


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """A claim of several parts: one that fails fails it, and all are needed to support it."""
    if NOT_SUPPORTED in verdicts:
        return NOT_SUPPORTED
    return SUPPORTED if verdicts and set(verdicts) == {SUPPORTED} else UNDECIDED


def problems_needed(effect: float, discordant: float) -> int | None:
    """About how many problems show `effect` with 80% power, where `discordant` of them differ (Connor 1987).

    None for an effect of 0, which no number shows.
    """
    if effect <= 0:
        return None
    spread = max(discordant, effect)
    level, power = NormalDist().inv_cdf(1 - LEVEL / 2), NormalDist().inv_cdf(POWER)
    root = level * sqrt(spread) + power * sqrt(max(0.0, spread - effect * effect))
    return ceil((root / effect) ** 2)
