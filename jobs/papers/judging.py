"""A claim's tests on the cells of one setting."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from jobs.compare import compare
from jobs.papers.kinds import Along, Claim, Contrast, Resident, Speed, Test
from jobs.papers.picks import budget
from jobs.papers.settings import Setting
from jobs.papers.verdicts import (
    NOT_SUPPORTED,
    SUPPORTED,
    UNDECIDED,
    Difference,
    Expected,
    Verdict,
    at_limit,
    judge,
    problems_needed,
    together,
)
from jobs.statistics import Scores, holm, paired, smallest_effect

_Z_95 = 1.959963984540054


@dataclass(frozen=True)
class Finding:
    """One test of a claim.

    what          the cells, by their labels.
    found         None for a count or a rate, which `says` then states, and where no problem is common.
    shown         smallest difference that these problems could have shown with 80% power.
    needed        problems that would show the claim's margin, about.
    baseline      the label that `tiercache compare --baseline` takes to give the numbers; None for a grid's.
    """

    what: str
    expected: Expected | None
    margin: float
    found: Difference | None
    n: int
    test: str
    shown: float | None
    needed: int | None
    says: str
    verdict: Verdict
    baseline: str | None


@dataclass(frozen=True)
class Judged:
    claim: Claim
    setting: Setting
    verdict: Verdict
    findings: tuple[Finding, ...]


def judged(claim: Claim, setting: Setting) -> Judged | None:
    """The verdict, each p corrected by Holm over the claim's tests.

    None where the setting lacks one of its cells, or has them at different budgets only.
    """
    if any(setting.find(pick) is None for pick in claim.picks) or not all(_fair(test, setting) for test in claim.tests):
        return None
    findings = [_measure(test, setting) for test in claim.tests]
    corrected = holm([each.found.p if each.found else None for each in findings])
    findings = [_decide(each, p) for each, p in zip(findings, corrected, strict=True)]
    return Judged(claim, setting, together([each.verdict for each in findings]), tuple(findings))


def _fair(test: Test, setting: Setting) -> bool:
    """Two policies that both have a budget have the same."""
    if not isinstance(test, Contrast):
        return True
    cells = (setting.find(test.first), setting.find(test.second))
    return len({size for cell in cells if cell and (size := budget(setting.policy(cell)))}) < 2


def _decide(finding: Finding, p: float | None) -> Finding:
    if finding.found is None or finding.expected is None or p is None:
        return finding
    found = replace(finding.found, p=p)
    limit = at_limit(finding.expected, found)
    says = f"both accuracies are at the {limit}, where policies can't be told apart" if limit else ""
    return replace(finding, found=found, verdict=judge(finding.expected, found, finding.margin), says=says)


def _measure(test: Test, setting: Setting) -> Finding:
    match test:
        case Contrast():
            return _contrast(test, setting)
        case Along():
            return _along(test, setting)
        case Resident():
            return _resident(test, setting)
        case Speed():
            return _speed(test, setting)
        case _:
            assert_never(test)


def _contrast(test: Contrast, setting: Setting) -> Finding:
    first, second = setting.find(test.first), setting.find(test.second)
    assert first is not None
    assert second is not None
    (group,) = compare([first, second], setting.verdicts, setting.configs, baseline=second.fingerprint)
    versus = group.cells[0].versus
    what = f"{first.policy} less {second.policy}"
    if versus is None:
        return _nothing(what, test.expected, test.margin, "no problem is common to both")
    margin = test.margin * versus.baseline if test.relative else test.margin
    found = Difference(versus.policy, versus.baseline, versus.difference, versus.low, versus.high, versus.p_value)
    differ = None if versus.gained is None or versus.lost is None else (versus.gained + versus.lost) / versus.pairs
    if versus.pairs > versus.n_problems:
        differ = None  # repeats of a problem agree: fewer problems differ than pairs
    return _finding(what, test.expected, margin, found, versus.n_problems, versus.test, second.policy, differ)


def _along(test: Along, setting: Setting) -> Finding:
    axis = 0 if test.ratio == "hbm" else 1
    cells = {ratios: setting.find(pick) for ratios, pick in test.grid}
    known = {ratios: cell for ratios, cell in cells.items() if cell}
    scores = {ratios: setting.scores(cell) for ratios, cell in known.items()}
    levels = sorted({ratios[axis] for ratios in scores})
    strata = sorted({ratios[1 - axis] for ratios in scores})
    what = f"{test.ratio} {levels[-1]:g} less {levels[0]:g}, over {len(strata)} levels of the other ratio"
    common = set.intersection(*(set(each) for each in scores.values()))
    found = setting.independence(known)
    trend = found.hbm if test.ratio == "hbm" else found.evict
    if not common or trend is None:
        return _nothing(what, test.expected, test.margin, "no problem is common to all levels")

    def at(level: float) -> Scores:
        keys = [(level, other) if axis == 0 else (other, level) for other in strata]
        return {problem: [_mean(scores[key][problem]) for key in keys] for problem in common}

    outer = paired(at(levels[-1]), at(levels[0]))
    difference = Difference(outer.policy, outer.baseline, outer.difference, outer.low, outer.high, trend.p_value)
    return _finding(what, test.expected, test.margin, difference, outer.n_problems, "permutation of the slope", None)


def _finding(
    what: str,
    expected: Expected,
    margin: float,
    found: Difference,
    n: int,
    test: str,
    baseline: str | None,
    differ: float | None = None,
) -> Finding:
    """`differ`: share of problems that differ; where it isn't known, their mean squared difference, by the interval."""
    by_interval = n * ((found.high - found.low) / 2 / _Z_95) ** 2 + found.value**2
    spread = min(1.0, by_interval) if differ is None else differ
    shown, needed = smallest_effect(n, discordant=spread), problems_needed(margin, spread)
    return Finding(what, expected, margin, found, n, test, shown, needed, "", UNDECIDED, baseline)


def _nothing(what: str, expected: Expected, margin: float, says: str) -> Finding:
    return Finding(what, expected, margin, None, 0, "none", None, None, says, UNDECIDED, None)


def _resident(test: Resident, setting: Setting) -> Finding:
    cell = setting.find(test.policy)
    assert cell is not None
    share, label = cell.resident_share, f"{cell.policy}: device bytes of the full cache's"
    kind, size = budget(setting.policy(cell)) or ("", None)
    at_most = test.at_most if test.at_most is not None else size if kind == "bytes" else None
    if share is None or at_most is None:
        return _count(label, "bytes were not measured, or the budget isn't one of bytes", UNDECIDED)
    verdict = SUPPORTED if share <= at_most else NOT_SUPPORTED
    return _count(label, f"{100 * share:.1f}%, claimed at most {100 * at_most:.1f}%", verdict)


def _speed(test: Speed, setting: Setting) -> Finding:
    first, second = setting.find(test.first), setting.find(test.second)
    assert first is not None
    assert second is not None
    label = f"decode rate of {first.policy} over {second.policy}"
    ours, theirs = first.decode_tokens_per_s, second.decode_tokens_per_s
    if not ours or not theirs:
        return _count(label, f"not measured; published {test.published:.2f}", UNDECIDED)
    shared = "" if first.exclusive and second.exclusive else ", measured beside other engines"
    says = f"{ours / theirs:.2f}{shared}; published {test.published:.2f}. One rate a cell has no interval"
    return _count(label, says, UNDECIDED)


def _count(what: str, says: str, verdict: Verdict) -> Finding:
    return Finding(what, None, 0.0, None, 0, "none", None, None, says, verdict, None)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
