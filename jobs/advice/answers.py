"""Which policies keep the full cache's accuracy within a budget, which don't, and what this n can't decide.

A policy *holds* if "it loses the tolerated points or more" is refuted at 2.5% one-sided, and *loses more* if "it loses
the tolerated points or less" is; both corrected by Holm over the policies that the budget admits. All others are open,
whatever their point estimate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from db.queries import CellSummary
from jobs.advice.budgets import Budget, Size, size_of
from jobs.advice.evidence import Evidence, Setting
from jobs.papers.verdicts import FLOOR
from jobs.statistics.margin import ONE_SIDED, Margin, against_margin, held, problems_to_decide
from tiercache.errors import SpecError

Verdict: TypeAlias = Literal["holds", "loses more", "open", "too large", "not known"]
LOSS = 0.02  # two points: what 500 problems can refute for a dozen policies at once


@dataclass(frozen=True)
class Question:
    """`loss`: how much accuracy less than the full cache's is still fine, a share of 1."""

    budget: Budget
    loss: float = LOSS

    def __post_init__(self) -> None:
        if not 0 < self.loss < 1:
            raise SpecError(f"loss: lies between 0 and 100 points (got {100 * self.loss:g}).")


@dataclass(frozen=True)
class Candidate:
    """A policy and what is to be said of it.

    margin            its difference beside the tolerated loss; None where nothing could be compared.
    p_holds, p_fails  by Holm over those that the budget admits; None for the others.
    needed            about how many problems would decide.
    why               the reason of a verdict that isn't the test's.
    """

    evidence: Evidence
    size: Size
    margin: Margin | None
    verdict: Verdict
    p_holds: float | None = None
    p_fails: float | None = None
    needed: int | None = None
    why: str = ""

    @property
    def cell(self) -> CellSummary:
        return self.evidence.cell


@dataclass(frozen=True)
class Answer:
    """`candidates`: the least device bytes first. `beyond`: all policies tested without a budget, for what it costs."""

    question: Question
    setting: Setting
    candidates: tuple[Candidate, ...]
    beyond: tuple[Candidate, ...]

    def having(self, verdict: Verdict) -> list[Candidate]:
        return [each for each in self.candidates if each.verdict == verdict]

    @property
    def admitted(self) -> list[Candidate]:
        return [each for each in self.candidates if each.size.fits]


def answer(setting: Setting, question: Question) -> Answer:
    """Answer the question from what was measured in one setting."""
    sized = [(each, size_of(each.cell, question.budget)) for each in setting.others]
    sized.sort(key=lambda pair: (pair[1].share is None, pair[1].share or 0.0, pair[0].cell.policy))
    sizeless = [(each, replace(size, fits=True, why="")) for each, size in sized if each.found]
    floor = setting.full is not None and (setting.full.accuracy or 0.0) <= max(FLOOR, question.loss)
    candidates, beyond = (
        [_candidate(each, size, question.loss, floor) for each, size in pairs] for pairs in (sized, sizeless)
    )
    return Answer(question, setting, *(tuple(_tested(each, question.loss)) for each in (candidates, beyond)))


def _candidate(evidence: Evidence, size: Size, loss: float, floor: bool) -> Candidate:
    margin = against_margin(evidence.found, loss) if evidence.found else None
    if size.fits is None:
        return Candidate(evidence, size, margin, "not known", why=size.why)
    if margin is None or evidence.found is None:
        return Candidate(evidence, size, None, "not known", why=evidence.why)
    if not size.fits:
        return Candidate(evidence, size, margin, "too large")
    if floor:
        return Candidate(evidence, size, margin, "not known", why="the full cache itself solves next to nothing")
    return Candidate(evidence, size, margin, "open", why=size.differs)


def _tested(candidates: Sequence[Candidate], loss: float) -> list[Candidate]:
    """What is open gets its test, corrected over all of these."""
    family = [each.margin for each in candidates if each.verdict == "open" and each.margin is not None]
    corrected = iter(held(family))
    return [
        _judged(each, *next(corrected), loss, len(family)) if each.verdict == "open" else each for each in candidates
    ]


def _judged(candidate: Candidate, p_holds: float, p_fails: float, loss: float, tests: int) -> Candidate:
    """Where a plan keeps less than was measured, a loss stays one, but nothing holds."""
    verdict: Verdict = "open"
    if p_fails < ONE_SIDED:
        verdict = "loses more"
    elif p_holds < ONE_SIDED and not candidate.size.differs:
        verdict = "holds"
    found = candidate.evidence.found
    needed = problems_to_decide(found, loss, tests) if found and verdict == "open" else None
    return replace(candidate, verdict=verdict, p_holds=p_holds, p_fails=p_fails, needed=needed)
