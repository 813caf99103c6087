"""Samples for which there is no generation, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine, select

from db.counted import samples_of
from db.schema import Cell, SweepCell


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSample:
    """A failed sample of a sweep and the cell that it belongs to."""

    fingerprint: str
    model: str
    benchmark: str
    policy: str
    problem_id: str
    repeat: int
    error: str


def failed_samples(engine: Engine, sweep_id: str) -> list[FailedSample]:
    """Return the failed ones among the samples that count for a sweep, in its order."""
    source = samples_of(sweep_id, ("fingerprint", "problem_id", "repeat", "outcome", "error"))
    columns = (source.c.fingerprint, Cell.model, Cell.benchmark, Cell.policy, source.c.problem_id, source.c.repeat)
    statement = (
        select(*columns, source.c.error)
        .join(Cell, Cell.fingerprint == source.c.fingerprint)
        .join(SweepCell, SweepCell.fingerprint == source.c.fingerprint)
        .where(SweepCell.sweep_id == sweep_id, source.c.outcome == "failed")
        .order_by(SweepCell.position, source.c.repeat, source.c.problem_id)
    )
    with engine.connect() as connection:
        return [
            FailedSample(**{**row._mapping, "error": row.error or "no reason is stored"})
            for row in connection.execute(statement)
        ]
