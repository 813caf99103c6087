"""Holm's correction for several tests of one family."""

from collections.abc import Sequence

from jobs.statistics.scores import StatisticsError


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The p values adjusted by Holm's step-down (1979), in their order; None, a test not made, stays and isn't counted.

    It keeps the chance of any false finding in the family at the level, whatever the tests' dependence.
    """
    made = [p for p in p_values if p is not None]
    wrong = [p for p in made if not 0 <= p <= 1]
    if wrong:
        raise StatisticsError(f"p_values: a p value lies in 0..1 (got {wrong[0]}).")
    # statsmodels has this too, takes seconds to import, and collects garbage at each call: a page waits for this.
    order = sorted(range(len(made)), key=made.__getitem__)
    adjusted, most = [0.0] * len(made), 0.0
    for place, index in enumerate(order):
        most = max(most, min(1.0, (len(made) - place) * made[index]))
        adjusted[index] = most
    found = iter(adjusted)
    return [None if p is None else next(found) for p in p_values]
