"""When a claim is supported. Pure functions of the statistics: no database, no names.

A difference is the first policy's accuracy less the second's, with its 95% interval, both shares in -1..1. `margin` is
the smallest difference that would matter to the claim.

    expected            supported                   not supported
    higher              p < 0.05 and above 0        p < 0.05 and below 0, or the interval ends below the margin
    lower               p < 0.05 and below 0        p < 0.05 and above 0, or the interval begins above -margin
    same                interval within +-margin    p < 0.05
    loses at most       interval above -margin      interval below -margin
    loses at least      interval below -margin      interval above -margin

Whatever is neither can't be decided with this n. Absence of a difference is thus never concluded from a large p alone.
"""

from collections.abc import Sequence
from math import ceil
from statistics import NormalDist
from typing import Literal, TypeAlias, assert_never

Expected: TypeAlias = Literal["higher", "lower", "same", "loses at most", "loses at least"]
Verdict: TypeAlias = Literal["supported", "not supported", "can't be decided with this n"]

LEVEL = 0.05
POWER = 0.8
UNDECIDED: Verdict = "can't be decided with this n"


def judge(expected: Expected, difference: float, low: float, high: float, p: float, margin: float) -> Verdict:
    """The verdict on one difference; `p` two-sided, already corrected for the claim's other tests."""
    shown = p < LEVEL
    match expected:
        case "higher":
            yes, no = shown and difference > 0, (shown and difference < 0) or high < margin
        case "lower":
            yes, no = shown and difference < 0, (shown and difference > 0) or low > -margin
        case "same":
            yes, no = -margin < low and high < margin, shown
        case "loses at most":
            yes, no = low > -margin, high < -margin
        case "loses at least":
            yes, no = high < -margin, low > -margin
        case _:
            assert_never(expected)
    return "supported" if yes else "not supported" if no else UNDECIDED


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """A claim of several parts: one that fails fails it, and all are needed to support it."""
    if "not supported" in verdicts:
        return "not supported"
    return "supported" if verdicts and set(verdicts) == {"supported"} else UNDECIDED


def problems_needed(effect: float, discordant: float) -> int | None:
    """About how many problems show `effect` with 80% power, where `discordant` of them differ (Connor 1987).

    None for an effect of 0, which no number shows.
    """
    if effect <= 0:
        return None
    spread = max(discordant, effect)
    level, power = NormalDist().inv_cdf(1 - LEVEL / 2), NormalDist().inv_cdf(POWER)
    root = level * spread**0.5 + power * max(0.0, spread - effect * effect) ** 0.5
    return ceil((root / effect) ** 2)
