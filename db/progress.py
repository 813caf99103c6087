"""How far the sweeps are: their states, cells, events, and which samples need not be computed again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine, Select, case, func, select
from sqlalchemy.orm import InstrumentedAttribute

from db.migrate import status
from db.rows import utc_now
from db.schema import Cell, Event, Revision, Sample, Shard, Sweep, SweepCell

# A coordinator beats every few seconds; a sweep that has been silent for so long has lost it.
SILENT_AFTER = timedelta(seconds=120)
KEYS_PER_STATEMENT = 500


@dataclass(frozen=True, slots=True)
class SweepInfo:
    """One sweep and how far it is."""

    id: str
    name: str
    state: str  # as last written by its coordinator
    created_at: datetime
    heartbeat_at: datetime
    cells: int
    expected: int
    done: int
    failed: int
    spec: dict[str, Any]
    environment: dict[str, Any]

    def live_state(self, now: datetime | None = None) -> str:
        """Return the state, with 'silent' for a sweep that says it runs or waits but has lost its coordinator."""
        if self.state in ("running", "paused") and (now or utc_now()) - self.heartbeat_at > SILENT_AFTER:
            return "silent"
        return self.state


@dataclass(frozen=True, slots=True)
class CellProgress:
    """One cell of a sweep. `done` and `failed` count whichever sweep's samples, up to what this one expects."""

    fingerprint: str
    position: int
    model: str
    benchmark: str
    policy: str
    policy_name: str
    protocol: str
    expected: int
    done: int
    failed: int
    shards: int

    @property
    def state(self) -> str:
        """Return 'done', 'running' (some samples), or 'waiting'; 'failed' if all that is there failed."""
        if self.done + self.failed >= self.expected and self.failed == 0:
            return "done"
        if self.failed and self.done + self.failed >= self.expected:
            return "failed" if self.done == 0 else "partial"
        return "running" if self.done + self.failed else "waiting"


@dataclass(frozen=True, slots=True)
class EventInfo:
    """A line of a sweep's log."""

    id: int
    at: datetime
    kind: str
    fingerprint: str | None
    message: str
    data: dict[str, Any]


def change_token(engine: Engine) -> int:
    """Return a number that grows with every stored change (heartbeats aside); -1 without usable tables."""
    if status(engine) != "ready":
        return -1
    with engine.connect() as connection:
        return connection.execute(select(Revision.number)).scalar_one_or_none() or 0


def finished_keys(engine: Engine, fingerprints: Iterable[str]) -> set[tuple[str, str, int]]:
    """Return (fingerprint, problem_id, repeat) of the samples that exist and did not fail."""
    keys = select(Sample.fingerprint, Sample.problem_id, Sample.repeat).where(Sample.outcome != "failed")
    return keys_of(engine, keys, Sample.fingerprint, fingerprints)


def keys_of(
    engine: Engine,
    keys: Select[*tuple[Any, ...]],
    column: InstrumentedAttribute[str],
    fingerprints: Iterable[str],
) -> set[tuple[str, str, int]]:
    """Return the rows of `keys` whose `column` is one of the fingerprints, however many these are."""
    wanted = sorted(set(fingerprints))
    found: set[tuple[str, str, int]] = set()
    with engine.connect() as connection:
        for start in range(0, len(wanted), KEYS_PER_STATEMENT):
            rows = connection.execute(keys.where(column.in_(wanted[start : start + KEYS_PER_STATEMENT])))
            found.update((row.fingerprint, row.problem_id, row.repeat) for row in rows)
    return found


def list_sweeps(engine: Engine) -> list[SweepInfo]:
    """Return all sweeps, the newest first."""
    counts = _progress_by_cell().subquery()
    per_sweep = (
        select(
            counts.c.sweep_id,
            func.count().label("cells"),
            func.sum(counts.c.done).label("done"),
            func.sum(counts.c.failed).label("failed"),
        )
        .group_by(counts.c.sweep_id)
        .subquery()
    )
    statement = (
        select(Sweep.__table__, per_sweep.c.cells, per_sweep.c.done, per_sweep.c.failed)
        .outerjoin(per_sweep, per_sweep.c.sweep_id == Sweep.id)
        .order_by(Sweep.created_at.desc(), Sweep.id)
    )
    with engine.connect() as connection:
        return [
            SweepInfo(
                id=row.id,
                name=row.name,
                state=row.state,
                created_at=row.created_at,
                heartbeat_at=row.heartbeat_at,
                cells=row.cells or 0,
                expected=row.total_samples,
                done=int(row.done or 0),
                failed=int(row.failed or 0),
                spec=row.spec,
                environment=row.environment,
            )
            for row in connection.execute(statement)
        ]


def sweep_progress(engine: Engine, sweep_id: str) -> list[CellProgress]:
    """Return the cells of a sweep in its order; empty for an unknown sweep."""
    counts = _progress_by_cell(sweep_id).where(SweepCell.sweep_id == sweep_id).subquery()
    shards = select(Shard.fingerprint, func.count().label("shards")).group_by(Shard.fingerprint).subquery()
    statement = (
        select(
            Cell.fingerprint,
            counts.c.position,
            Cell.model,
            Cell.benchmark,
            Cell.policy,
            Cell.policy_name,
            Cell.protocol,
            counts.c.expected,
            counts.c.done,
            counts.c.failed,
            func.coalesce(shards.c.shards, 0).label("shards"),
        )
        .join(counts, counts.c.fingerprint == Cell.fingerprint)
        .outerjoin(shards, shards.c.fingerprint == Cell.fingerprint)
        .order_by(counts.c.position)
    )
    with engine.connect() as connection:
        return [CellProgress(**row._mapping) for row in connection.execute(statement)]


def list_events(engine: Engine, sweep_id: str, limit: int = 100) -> list[EventInfo]:
    """Return a sweep's last events, the newest first."""
    statement = select(Event).where(Event.sweep_id == sweep_id).order_by(Event.id.desc()).limit(limit)
    with engine.connect() as connection:
        return [
            EventInfo(row.id, row.at, row.kind, row.fingerprint, row.message, row.data)
            for row in connection.execute(statement)
        ]


def _progress_by_cell(sweep_id: str | None = None) -> Select[*tuple[Any, ...]]:
    """Per (sweep, cell): samples done and failed, never more than the sweep expects, a done one first."""
    present = select(
        Sample.fingerprint,
        func.count().label("present"),
        func.coalesce(func.sum(case((Sample.outcome == "failed", 1), else_=0)), 0).label("failed"),
    )
    if sweep_id is not None:
        own = select(SweepCell.fingerprint).where(SweepCell.sweep_id == sweep_id)
        present = present.where(Sample.fingerprint.in_(own))
    counts = present.group_by(Sample.fingerprint).subquery()
    expected = SweepCell.expected_samples
    failed = func.coalesce(counts.c.failed, 0)
    done = func.coalesce(counts.c.present, 0) - failed
    shown_done = case((done > expected, expected), else_=done)
    return select(
        SweepCell.sweep_id,
        SweepCell.fingerprint,
        SweepCell.position,
        expected.label("expected"),
        shown_done.label("done"),
        case((failed > expected - shown_done, expected - shown_done), else_=failed).label("failed"),
    ).outerjoin(counts, counts.c.fingerprint == SweepCell.fingerprint)


def cell_configs(engine: Engine, sweep_id: str) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return (policy label, configuration) of each cell of a sweep, by fingerprint and in its order."""
    statement = (
        select(Cell.fingerprint, Cell.policy, Cell.config)
        .join(SweepCell, SweepCell.fingerprint == Cell.fingerprint)
        .where(SweepCell.sweep_id == sweep_id)
        .order_by(SweepCell.position)
    )
    with engine.connect() as connection:
        return {fingerprint: (policy, config) for fingerprint, policy, config in connection.execute(statement)}
