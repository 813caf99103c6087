"""Accuracy from repeats: pass@1, pass@k and maj@k, each a mean over problems with its 95% interval."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np

from jobs.statistics.scores import Array, Scores, StatisticsError, check, exact


@dataclass(frozen=True)
class Estimate:
    """A mean over problems, all shares in 0..1.

    low, high       95% interval.
    standard_error  clustered by problem: the spread of the problems' values, n - 1 below; None with one problem.
    n_samples       generations that the value rests on.
    method          how the interval was made: `wilson` or `t over problems`.
    """

    value: float
    low: float
    high: float
    standard_error: float | None
    n_problems: int
    n_samples: int
    method: str


def pass_at_1(scores: Scores) -> Estimate:
    """The mean over problems of the mean over repeats, however many each has.

    Repeats of a problem share its difficulty, so the error comes from the spread between problems, which holds the
    spread between repeats too.
    """
    table = check(scores)
    return _estimate(np.array([row.mean() for row in table.values()]), sum(map(len, table.values())))


def pass_at_k(scores: Scores, k: int) -> Estimate:
    """The unbiased chance that at least one of k generations is right: 1 - C(n - c, k) / C(n, k) (2107.03374).

    StatisticsError when a problem has fewer than k generations, or a score that is neither 0 nor 1.
    """
    table = check(scores)
    if not exact(table):
        raise StatisticsError("pass_at_k: needs scores that are 0 or 1; graded scores have no right and wrong.")
    _enough({problem: len(row) for problem, row in table.items()}, k, "pass_at_k")
    counts = [(len(row), int(row.sum())) for row in table.values()]
    values = [1 - comb(n - right, k) / comb(n, k) for n, right in counts]
    return _estimate(np.array(values), sum(n for n, _ in counts))


def majority_at_k(answers: Mapping[str, Sequence[tuple[str | None, bool]]], k: int) -> Estimate:
    """The share of problems whose most frequent answer among the first k generations is right.

    answers  problem id -> (extracted answer or None, whether it is right), in order of repeat. Answers are one when
             their texts are equal, so write them in one form first: `0.5` and `1/2` would split a vote.

    Generations without an answer don't vote; a tie goes to the answer given first; no answer at all is wrong. The
    first k are taken, not an average over all choices of k, so it is the vote that a user with k generations sees.
    StatisticsError when a problem has fewer than k.
    """
    if not answers:
        raise StatisticsError("answers: has no problems; at least one finished problem is needed.")
    _enough({problem: len(given) for problem, given in answers.items()}, k, "majority_at_k")
    return _estimate(np.array([_vote(answers[problem][:k]) for problem in sorted(answers)]), k * len(answers))


def _vote(given: Sequence[tuple[str | None, bool]]) -> float:
    votes = Counter(answer for answer, _ in given if answer is not None)
    if not votes:
        return 0.0
    winner = max(votes, key=votes.__getitem__)  # the first of equals, and a Counter keeps the order of coming
    return float(next(right for answer, right in given if answer == winner))


def _enough(counts: Mapping[str, int], k: int, name: str) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise StatisticsError(f"{name}: k is a whole number from 1 (got {k!r}).")
    short = {problem: count for problem, count in counts.items() if count < k}
    if short:
        problem = min(short, key=lambda each: (short[each], each))
        raise StatisticsError(
            f"{name}: k={k} needs {k} generations of every problem; {len(short)} of {len(counts)} have fewer, "
            f"{problem!r} has {short[problem]}. Run more repeats, or ask for k <= {min(counts.values())}."
        )


def _estimate(values: Array, n_samples: int) -> Estimate:
    """The mean of the problems' values.

    Where every value is 0 or 1 they are trials, and Wilson's interval is right. Otherwise it is Student's t over
    problems, which needs no model of how repeats vary, cut at 0 and 1 because no share lies beyond. Where the values
    don't differ that interval would be a point; Wilson's takes the largest spread such a mean allows.
    """
    from scipy.stats import t
    from statsmodels.stats.proportion import proportion_confint

    n, mean = len(values), float(values.mean())
    error = float(values.std(ddof=1)) / sqrt(n) if n > 1 else None
    trials = bool(((values == 0) | (values == 1)).all())
    if trials or error is None or np.ptp(values) < 1e-12:
        low, high = proportion_confint(mean * n, n, method="wilson")
        method = "wilson"
    else:
        half_width = float(t.ppf(0.975, n - 1)) * error
        low, high = mean - half_width, mean + half_width
        method = "t over problems"
    return Estimate(mean, max(0.0, float(low)), min(1.0, float(high)), error, n, n_samples, method)
