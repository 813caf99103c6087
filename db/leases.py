"""Who computes a cell now. Two coordinators never compute the same one: a lease has to be held, and expires by itself.

Times are the database's own on Postgres, so that the clocks of two machines need not agree; SQLite has one machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, delete, or_, select, text, update

from db.progress import KEYS_PER_STATEMENT
from db.rows import utc_now
from db.schema import Lease
from db.store import upsert

TTL = timedelta(seconds=90)  # several heartbeats: a coordinator that is only slow keeps its cells


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A cell's holder: host, process and a random part; `expires_at` moves on while it lives."""

    fingerprint: str
    holder: str
    sweep_id: str
    expires_at: datetime


def acquire(engine: Engine, fingerprints: Iterable[str], holder: str, sweep_id: str, ttl: timedelta = TTL) -> set[str]:
    """Take the cells that are free, expired or already this holder's; return those that it holds now."""
    held: set[str] = set()
    # In one order for all, so that two coordinators can't wait for each other.
    for names in _batches(sorted(set(fingerprints))):
        with engine.begin() as connection:
            now = _now(connection)
            inserted = upsert(connection, Lease)
            proposed = inserted.excluded
            statement = inserted.on_conflict_do_update(
                index_elements=["fingerprint"],
                set_={name: proposed[name] for name in ("holder", "sweep_id", "expires_at")},
                where=or_(Lease.expires_at < now, Lease.holder == proposed.holder),
            ).returning(Lease.fingerprint)
            rows = [
                {"fingerprint": name, "holder": holder, "sweep_id": sweep_id, "expires_at": now + ttl} for name in names
            ]
            held.update(connection.execute(statement, rows).scalars())
    return held


def renew(engine: Engine, holder: str, ttl: timedelta = TTL) -> set[str]:
    """Move the holder's leases on; return the cells that it still holds."""
    with engine.begin() as connection:
        statement = update(Lease).where(Lease.holder == holder).values(expires_at=_now(connection) + ttl)
        return set(connection.execute(statement.returning(Lease.fingerprint)).scalars())


def release(engine: Engine, holder: str, fingerprints: Sequence[str] | None = None) -> None:
    """Give cells back, all of the holder's if none are named."""
    mine = delete(Lease).where(Lease.holder == holder)
    with engine.begin() as connection:
        if fingerprints is None:
            connection.execute(mine)
            return
        for names in _batches(list(fingerprints)):
            connection.execute(mine.where(Lease.fingerprint.in_(names)))


def leases(engine: Engine, fingerprints: Iterable[str]) -> dict[str, LeaseInfo]:
    """Return the leases of these cells that have not expired."""
    found = {}
    with engine.connect() as connection:
        now = _now(connection)
        for names in _batches(sorted(set(fingerprints))):
            columns = (Lease.fingerprint, Lease.holder, Lease.sweep_id, Lease.expires_at)
            statement = select(*columns).where(Lease.fingerprint.in_(names), Lease.expires_at >= now)
            found.update({row.fingerprint: LeaseInfo(*row) for row in connection.execute(statement)})
    return found


def _batches(names: Sequence[str]) -> Iterable[Sequence[str]]:
    return (names[i : i + KEYS_PER_STATEMENT] for i in range(0, len(names), KEYS_PER_STATEMENT))


def _now(connection: Connection) -> datetime:
    if connection.dialect.name != "postgresql":
        return utc_now()
    found: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    return found
