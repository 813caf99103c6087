"""The single writer. The coordinator holds it; everyone else reads.

Nothing that was handed over is lost: if the database is away, samples, shards, events and states go to the spool and
are replayed at the next write or open. Statements are idempotent, so a commit whose answer got lost does no harm.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Engine, delete, update
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError

from db.connection import BUSY_TIMEOUT_S, masked, open_engine, parse_url
from db.errors import StorageError
from db.migrate import upgrade
from db.rows import (
    SWEEP_STATES,
    CellRow,
    DiagnosticRow,
    GradeRow,
    SampleRow,
    ShardRow,
    SweepState,
    TierMapRow,
    require_member,
    utc_now,
)
from db.schema import Cell, Sweep, SweepCell
from db.spool import Spool
from db.store import Entry, clean, count_up, store, upsert

log = logging.getLogger(__name__)

# What the database says of the data itself. Any other complaint (locked, full, read-only, gone) means: not now.
REFUSED = (IntegrityError, DataError)


class Writer:
    """Writes sweeps, cells, samples, shards and events. Threads may share it; processes may not."""

    def __init__(self, engine: Engine, spool: Spool) -> None:
        self.engine = engine
        self.spool = spool
        self._lock = threading.RLock()
        self._away = False

    @classmethod
    def open(cls, url: str, spool_dir: str | Path | None = None, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Writer:
        """Open the database, make or migrate its tables, and replay what an earlier run had to spool.

        Raises:
            StorageError: the database can't be opened, or was made by a newer version.
        """
        engine = open_engine(url, busy_timeout_s=busy_timeout_s)
        try:
            upgrade(engine)
            writer = cls(engine, Spool.beside(parse_url(url), Path(spool_dir) if spool_dir else None))
            writer._replay()
        except SQLAlchemyError as error:
            engine.dispose()
            raise StorageError(f"database {masked(url)} can't be set up: {_reason(error)}") from error
        except StorageError:
            engine.dispose()
            raise
        return writer

    def register_sweep(
        self,
        sweep_id: str,
        name: str,
        spec: Mapping[str, Any],
        environment: Mapping[str, Any],
        cells: Sequence[CellRow],
        *,
        created_at: datetime | None = None,
    ) -> None:
        """Say what a sweep consists of, and that it runs now. Doing so again replaces name, spec and list of cells.

        Raises:
            StorageError: the database is away. There is no spooling here: nothing has been computed yet.
        """
        now = utc_now()
        sweep = {
            "id": sweep_id,
            "name": name,
            "spec": dict(spec),
            "environment": dict(environment),
            "state": "running",
            "total_samples": sum(cell.expected_samples for cell in cells),
            "created_at": created_at or now,
            "heartbeat_at": now,
            "control": None,
        }
        with self._lock, self._or_storage_error("register the sweep"), self.engine.begin() as connection:
            inserted = upsert(connection, Sweep).values(clean(sweep))
            connection.execute(
                inserted.on_conflict_do_update(
                    index_elements=["id"],
                    set_={key: inserted.excluded[key] for key in sweep if key not in ("id", "created_at")},
                )
            )
            connection.execute(delete(SweepCell).where(SweepCell.sweep_id == sweep_id))
            # In the order of fingerprints, so that two coordinators can't wait for each other's cells.
            for position, cell in sorted(enumerate(cells), key=lambda pair: pair[1].fingerprint):
                values = asdict(cell)
                expected = values.pop("expected_samples")
                values["config"] = dict(cell.config)
                inserted = upsert(connection, Cell).values(clean(values))
                connection.execute(
                    inserted.on_conflict_do_update(
                        index_elements=["fingerprint"],
                        set_={
                            key: inserted.excluded[key] for key in values if key not in ("fingerprint", "created_at")
                        },
                    )
                )
                listed = upsert(connection, SweepCell).values(
                    sweep_id=sweep_id, fingerprint=cell.fingerprint, position=position, expected_samples=expected
                )
                connection.execute(listed.on_conflict_do_nothing())
            count_up(connection)

    def record(self, samples: Sequence[SampleRow]) -> int:
        """Store finished samples; returns how many were new or replaced a failed one (0 while they wait in the spool).

        A success is never overwritten. When this returns, the samples are safe: in the database or in the spool.

        Raises:
            StorageError: a cell isn't registered, or neither the database nor the spool can be written.
        """
        return self._write([Entry("sample", _values(sample)) for sample in samples])

    def record_diagnostics(self, rows: Sequence[DiagnosticRow]) -> None:
        """Store what was measured of samples. What is there already stays."""
        self._write([Entry("diagnostic", asdict(row)) for row in rows])

    def record_tier_maps(self, rows: Sequence[TierMapRow]) -> None:
        """Store where samples' tokens lay. What is there already stays."""
        self._write([Entry("tier_map", asdict(row)) for row in rows])

    def record_shard(self, shard: ShardRow) -> None:
        """Store what one engine call cost. A second shard of the same id is ignored."""
        self._write([Entry("shard", asdict(shard))])

    def event(
        self,
        sweep_id: str,
        kind: str,
        message: str,
        *,
        fingerprint: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a line to a sweep's log."""
        values = {
            "uid": uuid.uuid4().hex,
            "sweep_id": sweep_id,
            "at": utc_now(),
            "kind": kind,
            "fingerprint": fingerprint,
            "message": message,
            "data": dict(data or {}),
        }
        self._write([Entry("event", values)])

    def set_state(self, sweep_id: str, state: SweepState) -> None:
        """Say that a sweep has ended, or runs again."""
        require_member("state", state, SWEEP_STATES)
        self._write([Entry("state", {"sweep_id": sweep_id, "state": state, "at": utc_now()})])

    def set_kv_bytes(self, fingerprints: Sequence[str], kv_bytes_per_token: int) -> None:
        """Say what a token takes of cells whose model wasn't known before it was loaded."""
        self._write([Entry("kv_bytes", {"fingerprint": each, "bytes": kv_bytes_per_token}) for each in fingerprints])

    def regrade(self, grades: Sequence[GradeRow]) -> None:
        """Give stored generations new verdicts; failed samples, which have none, keep their outcome."""
        self._write([Entry("grade", asdict(grade)) for grade in grades])

    def heartbeat(self, sweep_id: str) -> bool:
        """Say that the coordinator lives; returns False while the database is away. Readers' caches stay valid."""
        try:
            with self._lock, self.engine.begin() as connection:
                connection.execute(update(Sweep).where(Sweep.id == sweep_id).values(heartbeat_at=utc_now()))
        except DBAPIError as error:
            log.warning("no heartbeat, the database is away: %s", _reason(error))
            return False
        return True

    def close(self) -> None:
        """Replay what waits, if the database is back, and let go of the connections."""
        with self._lock:
            try:
                self._replay()
            except DBAPIError as error:
                log.warning("results still wait in the spool, the database is away: %s", _reason(error))
            self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, entries: list[Entry]) -> int:
        if not entries:
            return 0
        with self._lock:
            try:
                self._replay()
                with self.engine.begin() as connection:
                    new = store(connection, entries)
                self._is_away(None)
                return new
            except REFUSED as error:
                raise StorageError(
                    f"{entries[0].kind} can't be stored: {_reason(error)}; "
                    "its sweep and cell must be registered first, with Writer.register_sweep"
                ) from error
            except DBAPIError as error:
                path = self.spool.append(entries)
                self._is_away(f"{_reason(error)}; results wait in {path}")
                return 0

    def _is_away(self, why: str | None) -> None:
        """Says so when it goes and when it is back, not at each write in between."""
        if why is not None and not self._away:
            log.warning("database is away (%s)", why)
        elif why is None and self._away:
            log.warning("database is back; what waited is in it")
        self._away = why is not None

    def _replay(self) -> None:
        if not self.spool.waiting():
            return
        with self.engine.connect():  # before a long spool is read, to find the database still away
            pass

        def replay(entries: list[Entry]) -> None:
            try:
                with self.engine.begin() as connection:
                    store(connection, entries)
            except REFUSED:
                self._replay_singly(entries)

        replayed = self.spool.drain(replay)
        log.info("%d spooled results are in the database now", replayed)

    def _replay_singly(self, entries: list[Entry]) -> None:
        """One entry that the database refuses must not hold back the others for ever."""
        for entry in entries:
            try:
                with self.engine.begin() as connection:
                    store(connection, [entry])
            except REFUSED as error:
                self.spool.set_aside(self.spool.paths[0], [Spool.line(entry), f"# {_reason(error)}"])

    def _or_storage_error(self, act: str) -> _Translated:
        return _Translated(f"database {masked(self.engine.url)} can't {act}")


def _values(sample: SampleRow) -> dict[str, Any]:
    """The row as a dict. `asdict` would copy every value, which is most of what a sample costs here."""
    return {name: getattr(sample, name) for name in _SAMPLE_FIELDS}


_SAMPLE_FIELDS = [field.name for field in fields(SampleRow)]


class _Translated:
    """Turns the database's exceptions into ours, for writes that aren't spooled."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, SQLAlchemyError):
            raise StorageError(f"{self.what}: {_reason(error)}") from error


def _reason(error: SQLAlchemyError) -> str:
    """Return the driver's words in one line; SQLAlchemy's own text would repeat whole prompts as parameters."""
    return " ".join(str(getattr(error, "orig", error)).split())[:500]
