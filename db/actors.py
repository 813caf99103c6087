"""Who works on a sweep, when each was last heard of, what was lost on the way, and how fast samples come in.

An actor has no row of its own: it is known by the shards that it ended, so its last sign of life is the end of the last
of them. A coordinator is known by the cells that it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Double, Engine, func, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from db.leases import TTL
from db.schema import Event, Lease, Sample, Shard, SweepCell

LOSSES = ("actor_died", "preempted", "stalled", "shard_failed")  # kinds of events, as coordinators write them
STARTED = "model_loaded"
RECENT = timedelta(minutes=10)


class seconds_between(FunctionElement[float]):
    """Seconds from the first moment to the second, on both databases."""

    type = Double()
    inherit_cache = True


@compiles(seconds_between)
def _in_postgres(element: seconds_between, compiler: Any, **options: Any) -> str:
    begin, end = (compiler.process(each, **options) for each in element.clauses)
    return f"CAST(EXTRACT(EPOCH FROM ({end} - {begin})) AS DOUBLE PRECISION)"


@compiles(seconds_between, "sqlite")
def _in_sqlite(element: seconds_between, compiler: Any, **options: Any) -> str:
    begin, end = (compiler.process(each, **options) for each in element.clauses)
    return f"(julianday({end}) - julianday({begin})) * 86400.0"


@dataclass(frozen=True, slots=True)
class ActorInfo:
    """A process that ran shards of a sweep on one device. `busy_s`: from each shard's begin to its end, summed."""

    actor: str
    host: str
    device: str
    shards: int
    samples: int
    busy_s: float
    first_at: datetime
    last_at: datetime  # the end of its last shard

    @property
    def on_cpu(self) -> bool:
        """Return whether it had no GPU."""
        return on_cpu(self.device)


@dataclass(frozen=True, slots=True)
class CoordinatorInfo:
    """Who holds cells of a sweep: host, process and a random part; `last_at` is when it last renewed them."""

    holder: str
    cells: int
    last_at: datetime


@dataclass(frozen=True, slots=True)
class Loss:
    """How often work was lost in one way, and when last."""

    kind: str
    times: int
    last_at: datetime


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Samples of a sweep's cells that ended between `since` and `until`."""

    samples: int
    since: datetime
    until: datetime

    @property
    def per_second(self) -> float | None:
        """Return the rate; None if nothing came."""
        span = (self.until - self.since).total_seconds()
        return self.samples / span if self.samples and span > 0 else None


def on_cpu(device: str) -> bool:
    """Return whether a shard's device is a CPU; workers call it 'cpu (x86_64)', a GPU by its own name."""
    return device.split(" ", 1)[0].lower() == "cpu"


def list_actors(engine: Engine, sweep_id: str) -> list[ActorInfo]:
    """Return the actors that ended a shard of the sweep, the last heard of first."""
    last = func.max(Shard.finished_at)
    place = (Shard.actor, Shard.host, Shard.device)
    statement = (
        select(
            *place,
            func.count().label("shards"),
            func.sum(Shard.samples).label("samples"),
            func.sum(seconds_between(Shard.started_at, Shard.finished_at)).label("busy_s"),
            func.min(Shard.started_at).label("first_at"),
            last.label("last_at"),
        )
        .where(Shard.sweep_id == sweep_id)
        .group_by(*place)
        .order_by(last.desc(), Shard.actor)
    )
    with engine.connect() as connection:
        return [
            ActorInfo(**{**row._mapping, "samples": int(row.samples), "busy_s": float(row.busy_s)})
            for row in connection.execute(statement)
        ]


def list_coordinators(engine: Engine, sweep_id: str) -> list[CoordinatorInfo]:
    """Return those that hold, or last held, cells for the sweep, the last heard of first."""
    last = func.max(Lease.expires_at)
    statement = (
        select(Lease.holder, func.count().label("cells"), last.label("until"))
        .where(Lease.sweep_id == sweep_id)
        .group_by(Lease.holder)
        .order_by(last.desc(), Lease.holder)
    )
    with engine.connect() as connection:
        return [CoordinatorInfo(row.holder, row.cells, row.until - TTL) for row in connection.execute(statement)]


def list_losses(engine: Engine, sweep_id: str) -> list[Loss]:
    """Return how often workers or shards of the sweep were lost, by kind, the most frequent first."""
    times = func.count()
    statement = (
        select(Event.kind, times.label("times"), func.max(Event.at).label("last_at"))
        .where(Event.sweep_id == sweep_id, Event.kind.in_(LOSSES))
        .group_by(Event.kind)
        .order_by(times.desc(), Event.kind)
    )
    with engine.connect() as connection:
        return [Loss(row.kind, row.times, row.last_at) for row in connection.execute(statement)]


def arrivals(engine: Engine, sweep_id: str, begun: datetime, now: datetime, window: timedelta = RECENT) -> Arrivals:
    """Return what ended in the last `window`, or since the run began if that is later.

    A sweep that goes on after a pause began when its model was loaded again, unless samples came before that within
    the window.
    """
    since = max(now - window, begun)
    own = select(SweepCell.fingerprint).where(SweepCell.sweep_id == sweep_id)
    counted = select(func.count(), func.min(Sample.finished_at)).where(
        Sample.fingerprint.in_(own), Sample.finished_at >= since, Sample.finished_at <= now
    )
    loaded = select(func.min(Event.at)).where(
        Event.sweep_id == sweep_id, Event.kind == STARTED, Event.at >= since, Event.at <= now
    )
    with engine.connect() as connection:
        samples, first = connection.execute(counted).one()
        started = connection.execute(loaded).scalar_one()
    if first is not None and started is not None and started <= first:
        since = started
    return Arrivals(samples, since, now)
