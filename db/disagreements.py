"""Where a cell and a baseline disagree: the samples that one of them has right and the other has not."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import Engine, Select, func, select
from sqlalchemy.orm import aliased

from db.samples import SampleInfo, filtered
from db.schema import Sample

Disagreement = Literal["lost", "gained"]


def list_disagreements(
    engine: Engine,
    fingerprint: str,
    baseline: str,
    kind: Disagreement = "lost",
    search: str | None = None,
    limit: int = 50,
    offset: int = 0,
) -> list[SampleInfo]:
    """Return one page of a cell's samples by problem and repeat: right only with the baseline, or only here.

    These are the samples that `db.paired.paired_deltas` counts as lost and gained; those that failed are neither.
    """
    columns = [getattr(Sample, name) for name in SampleInfo.__dataclass_fields__]
    statement = (
        _disagreeing(select(*columns), fingerprint, baseline, kind, search)
        .order_by(Sample.problem_id, Sample.repeat)
        .limit(limit)
        .offset(offset)
    )
    with engine.connect() as connection:
        return [SampleInfo(**row._mapping) for row in connection.execute(statement)]


def count_disagreements(
    engine: Engine, fingerprint: str, baseline: str, kind: Disagreement = "lost", search: str | None = None
) -> int:
    """Return how many samples `list_disagreements` would page through."""
    statement = _disagreeing(select(func.count()).select_from(Sample), fingerprint, baseline, kind, search)
    with engine.connect() as connection:
        return int(connection.execute(statement).scalar_one())


def _disagreeing(
    statement: Select[*tuple[Any, ...]], fingerprint: str, baseline: str, kind: Disagreement, search: str | None
) -> Select[*tuple[Any, ...]]:
    other = aliased(Sample)
    right, other_right = Sample.outcome == "correct", other.outcome == "correct"
    return (
        filtered(statement, fingerprint, None, search)
        .join(other, (other.problem_id == Sample.problem_id) & (other.repeat == Sample.repeat))
        .where(other.fingerprint == baseline, Sample.outcome != "failed", other.outcome != "failed")
        .where(~right & other_right if kind == "lost" else right & ~other_right)
    )
