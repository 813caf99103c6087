"""A cell against a baseline, sample by sample, and the score that both are compared by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Engine, case, func, select
from sqlalchemy.orm import aliased

from db.intervals import normal, paired_difference
from db.schema import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDelta:
    """A cell against a baseline on the samples that both have."""

    fingerprint: str
    pairs: int
    gained: int  # right here, not with the baseline
    lost: int  # right with the baseline, not here
    delta: float
    low: float  # 95% interval
    high: float


def score_of(of: Any) -> ColumnElement[Any]:
    """A sample's score. What an older version left in the spool has none: there, right or wrong is all there is."""
    return func.coalesce(of.score, case((of.outcome == "correct", 1.0), else_=0.0))


def paired_deltas(engine: Engine, baseline: str, fingerprints: Sequence[str]) -> dict[str, PairedDelta]:
    """Compare cells with the cell `baseline`, sample by sample; cells without a common sample are left out.

    Refuses nothing: that all have one protocol is for the caller to see to.
    """
    other = aliased(Sample)
    right, other_right = Sample.outcome == "correct", other.outcome == "correct"
    difference = score_of(Sample) - score_of(other)
    statement = (
        select(
            Sample.fingerprint,
            func.count().label("pairs"),
            func.sum(case((right & ~other_right, 1), else_=0)).label("gained"),
            func.sum(case((~right & other_right, 1), else_=0)).label("lost"),
            func.sum(difference).label("sum"),
            func.sum(difference * difference).label("squares"),
        )
        .join(other, (other.problem_id == Sample.problem_id) & (other.repeat == Sample.repeat))
        .where(Sample.fingerprint.in_(fingerprints), other.fingerprint == baseline)
        .where(Sample.outcome != "failed", other.outcome != "failed")
        .group_by(Sample.fingerprint)
    )
    deltas = {}
    with engine.connect() as connection:
        for fingerprint, pairs, gained, lost, total, squares in connection.execute(statement):
            if squares == gained + lost:  # no part marks
                interval = paired_difference(int(gained), int(lost), pairs)
            else:
                interval = normal(float(total), float(squares), pairs, -1.0, 1.0)
            assert interval is not None, "a group has at least one pair"
            delta, low, high = interval
            deltas[fingerprint] = PairedDelta(
                fingerprint=fingerprint,
                pairs=pairs,
                gained=int(gained),
                lost=int(lost),
                delta=delta,
                low=low,
                high=high,
            )
    return deltas
