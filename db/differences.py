"""A cell against a baseline, problem by problem: what tests of a margin are computed from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Engine, case, func, select
from sqlalchemy.orm import aliased

from db.paired import score_of
from db.schema import Sample

WHOLE = 1e-9  # a problem's difference this near to -1, 0 or 1 is that


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemDifferences:
    """Sums over the problems that both cells have; a problem's repeats are averaged first."""

    fingerprint: str
    problems: int
    total: float  # of the differences, each in -1..1
    squares: float
    gained: int  # problems with a difference of 1
    lost: int  # of -1
    partial: int  # of neither 1, 0 nor -1


def problem_differences(engine: Engine, baseline: str, fingerprints: Sequence[str]) -> dict[str, ProblemDifferences]:
    """Return the differences of cells from the cell `baseline`; cells without a common judged sample are left out.

    Refuses nothing: that all have one protocol is for the caller to see to.
    """
    other = aliased(Sample)
    of_problem = (
        select(Sample.fingerprint, func.avg(score_of(Sample) - score_of(other)).label("difference"))
        .join(other, (other.problem_id == Sample.problem_id) & (other.repeat == Sample.repeat))
        .where(Sample.fingerprint.in_(fingerprints), other.fingerprint == baseline)
        .where(Sample.outcome != "failed", other.outcome != "failed")
        .group_by(Sample.fingerprint, Sample.problem_id)
        .subquery()
    )
    difference = of_problem.c.difference
    up, down, none = difference > 1 - WHOLE, difference < WHOLE - 1, func.abs(difference) < WHOLE
    statement = select(
        of_problem.c.fingerprint,
        func.count().label("problems"),
        func.sum(difference).label("total"),
        func.sum(difference * difference).label("squares"),
        func.sum(case((up, 1), else_=0)).label("gained"),
        func.sum(case((down, 1), else_=0)).label("lost"),
        func.sum(case((up | down | none, 0), else_=1)).label("partial"),
    ).group_by(of_problem.c.fingerprint)
    with engine.connect() as connection:
        return {
            row.fingerprint: ProblemDifferences(
                fingerprint=row.fingerprint,
                problems=int(row.problems),
                total=float(row.total),
                squares=float(row.squares),
                gained=int(row.gained),
                lost=int(row.lost),
                partial=int(row.partial),
            )
            for row in connection.execute(statement)
        }
