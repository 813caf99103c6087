"""A policy against its baseline on the same problems and repeats.

Both see each problem with the same prompt and sampling seed, so most of the spread between problems is common and
drops out of the difference. A test for two separate groups, Fisher's for one, throws that away.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from jobs.statistics.scores import Array, Scores, StatisticsError, check, exact, line_up

RESAMPLES = 10_000
_BATCH = 1_000  # resamples held at once: 1,000 x 10,000 problems are 80 MB
_FEW = 10  # problems below which a bootstrap sees too little to resample
_Z_95 = 1.959963984540054


@dataclass(frozen=True)
class Paired:
    """What changes from the baseline to the policy, on the samples that both have.

    pairs             samples, each a problem's repeat that both have.
    gained, lost      pairs right only with the policy, only with the baseline; None for graded scores.
    policy, baseline  means over problems of the mean over these repeats; `difference` is the first less the second.
    low, high         95% interval of the difference, made by `interval`.
    p_value           two-sided, from `test`: `mcnemar exact`, `sign-flip exact` or `sign-flip`.
    """

    n_problems: int
    pairs: int
    gained: int | None
    lost: int | None
    policy: float
    baseline: float
    difference: float
    low: float
    high: float
    interval: str
    p_value: float
    test: str


def paired(policy: Scores, baseline: Scores, *, seed: int = 0, resamples: int = RESAMPLES) -> Paired:
    """Compare two sets of scores problem by problem; problems and repeats that only one has are left out.

    The interval is a percentile bootstrap over problems, a problem's repeats staying together. Percentile and not BCa:
    where few problems differ, BCa's acceleration is estimated from those few and covers 88-92% instead of 95%
    (simulated, 30 and 50 problems). With fewer than 10 problems, or no spread at all to resample, it is Agresti and
    Min's. The test is McNemar's exact one for 0/1 scores with one repeat, otherwise sign flips of the problems'
    differences. StatisticsError when the two share no problem.
    """
    rows = line_up(check(policy, "policy"), check(baseline, "baseline"))
    if not rows:
        raise StatisticsError(
            f"policy and baseline: share no problem ({len(policy)} and {len(baseline)} problems, none in common). "
            "Compare runs of one benchmark with the same subset."
        )
    ours, theirs = np.array([row.mean(axis=1) for row in rows.values()]).T
    differences = ours - theirs  # [problems]
    gained = lost = None
    if exact(rows):
        gained = sum(int((row[0] > row[1]).sum()) for row in rows.values())
        lost = sum(int((row[0] < row[1]).sum()) for row in rows.values())
    if gained is not None and all(row.shape[1] == 1 for row in rows.values()):
        from statsmodels.stats.contingency_tables import mcnemar

        p_value, test = float(mcnemar([[0, gained], [lost, 0]], exact=True).pvalue), "mcnemar exact"
    else:
        p_value, test = sign_flip(differences, seed=seed, resamples=resamples)
    low, high, interval = _interval(differences, seed, resamples)
    return Paired(
        n_problems=len(rows),
        pairs=sum(row.shape[1] for row in rows.values()),
        gained=gained,
        lost=lost,
        policy=float(ours.mean()),
        baseline=float(theirs.mean()),
        difference=float(differences.mean()),
        low=low,
        high=high,
        interval=interval,
        p_value=p_value,
        test=test,
    )


def sign_flip(differences: Array, *, seed: int = 0, resamples: int = RESAMPLES) -> tuple[float, str]:
    """Two-sided p of a mean difference [problems], and the test's name.

    Without an effect each difference is as likely with either sign. All flips are tried where they number at most
    `resamples` (13 problems that differ, at 10,000); otherwise that many are drawn, and the observed one counts as one
    more, so that p is never 0.
    """
    from scipy.stats import permutation_test

    moved = differences[np.abs(differences) > 1e-12]  # the others add nothing under either sign
    if len(moved) < 2:  # one difference is as far from 0 with either sign
        return 1.0, "sign-flip exact"
    result = permutation_test(
        (moved,),
        np.sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        batch=_BATCH,
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue), "sign-flip exact" if 2 ** len(moved) <= resamples else "sign-flip"


def _interval(differences: Array, seed: int, resamples: int) -> tuple[float, float, str]:
    if len(differences) < _FEW or np.ptp(differences) < 1e-12:
        return *_agresti_min(differences), "agresti-min"
    from scipy.stats import bootstrap

    found = bootstrap(
        (differences,),
        np.mean,
        method="percentile",
        vectorized=True,
        n_resamples=resamples,
        batch=_BATCH,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high), "bootstrap over problems"


def _agresti_min(differences: Array) -> tuple[float, float]:
    """Wald's interval after two problems are added: a tie, and a half each of a win and a loss (Agresti and Min 2005).

    Written for differences of any size in -1..1; it keeps a width where no problem differs.
    """
    total, n = float(differences.sum()), len(differences) + 2
    squares = float(differences @ differences) + 1
    half_width = _Z_95 * sqrt(squares - total * total / n) / n
    return max(-1.0, total / n - half_width), min(1.0, total / n + half_width)
