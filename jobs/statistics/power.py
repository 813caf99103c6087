"""What n problems could have shown. "No difference found" says little where only a large one could have been."""

from math import sqrt

from jobs.statistics.scores import StatisticsError


def binomial_error(p: float, n: int) -> float:
    """The standard error of a share p measured on n problems once: 0.5 on 30 problems is off by 0.091."""
    _share("p", p)
    _count(n)
    return sqrt(p * (1 - p) / n)


def smallest_effect(
    n: int, *, discordant: float | None = None, accuracy: float = 0.5, alpha: float = 0.05, power: float = 0.8
) -> float:
    """The smallest true difference of two accuracies that a paired test on n problems finds with the given power.

    discordant  share of problems that exactly one of the two solves; for graded scores, the mean squared difference.
                None: unknown, taken as 2 * accuracy * (1 - accuracy), as if the two erred independently, which is more
                than policies of one model show.
    accuracy    used only for that.
    alpha       two-sided level of the test.
    returns     a share in 0..1; 1 also where not even that would show (n < 4 at the usual level).

    The normal approximation of McNemar's test (Connor 1987):
    effect * sqrt(n) = z(alpha / 2) * sqrt(d) + z(power) * sqrt(d - effect ** 2). A difference needs at least its own
    share of discordant problems, so d is never taken below the effect: with none observed the answer is about 7.8 / n,
    where all discordant problems fall on one side, and not 0.
    """
    _count(n)
    _share("accuracy", accuracy)
    if not 0 < alpha < 1:
        raise StatisticsError(f"alpha: lies between 0 and 1, 0.05 as a rule (got {alpha}).")
    if not 0.5 <= power < 1:
        raise StatisticsError(f"power: lies in 0.5..1, 1 left out, 0.8 as a rule (got {power}).")
    if discordant is not None:
        _share("discordant", discordant)
    from scipy.optimize import brentq
    from scipy.stats import norm

    share = 2 * accuracy * (1 - accuracy) if discordant is None else discordant
    z_level, z_power = float(norm.isf(alpha / 2)), float(norm.ppf(power))

    def missing(effect: float) -> float:
        """By how much the effect falls short; its one root is the answer."""
        spread = max(share, effect)
        return z_level * sqrt(spread) + z_power * sqrt(spread - effect * effect) - effect * sqrt(n)

    return 1.0 if missing(1.0) >= 0 else float(brentq(missing, 1e-12, 1.0))


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise StatisticsError(f"{name}: is a share in 0..1 (got {value}).")


def _count(n: int) -> None:
    if n < 1:
        raise StatisticsError(f"n: a number of problems, 1 or more (got {n}).")
