"""Looking after a database: is it sound, is anything waiting or missing, and giving back the space that it left."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, func, inspect, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex

from db.connection import masked
from db.errors import StorageError
from db.migrate import SCRIPTS, Status, current, head, status
from db.network_fs import network_filesystem
from db.progress import SILENT_AFTER
from db.rows import utc_now
from db.schema import Base, Sample, Sweep, SweepCell
from db.spool import Spool

RESTORE = "restore a backup; an SQLite file may be saved in part with: sqlite3 FILE .recover"
RUN_AGAIN = "run its sweep file again: what is stored is not computed twice"
UPGRADE_CODE = "upgrade tiercache-eval or use another database"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be, and what to do about it."""

    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a check saw: facts by name, rows by table, and what it found wrong."""

    facts: Mapping[str, str]
    size: int | None  # bytes, with the write-ahead log; None if it can't be told
    rows: Mapping[str, int]
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """Return whether nothing was found."""
        return not self.findings


def check(engine: Engine, spool: Spool | None = None) -> Report:
    """Look at a database of any revision without changing it; `engine` may be read-only.

    `spool` is where results of this database would wait, if not in the usual place.
    """
    facts = {"database": masked(engine.url)}
    size: int | None = None
    rows: dict[str, int] = {}
    findings: list[Finding] = []
    try:
        state, revision = status(engine), current(engine)
        facts |= {"revision": f"{revision or 'none'} (this version writes {head()})"}
        findings += _revision(state, revision)
        size = size_of(engine)
        with engine.connect() as connection:
            facts |= _facts(connection)
    except DBAPIError as error:
        findings.append(_unreadable(error))
    else:
        for step in (_place, _integrity, _tables, _sweeps):
            try:
                with engine.connect() as connection:
                    findings += step(connection, state)
            except DBAPIError as error:
                findings.append(_unreadable(error))
        with contextlib.suppress(DBAPIError), engine.connect() as connection:  # said above already
            rows |= {name: _count(connection, name) for name in our_tables(connection)}
    findings += _spooled(spool or Spool.beside(engine.url, None))
    return Report(facts, size, rows, tuple(dict.fromkeys(findings)))


def vacuum(engine: Engine, *, force: bool = False) -> tuple[int, int]:
    """Give back unused space and renew the planner's statistics; returns bytes before and after.

    Raises:
        StorageError: no tables of ours; SQLite and a sweep is running (unless `force`); locked, or no space.
    """
    try:
        if status(engine) == "empty":
            raise StorageError(f"database {masked(engine.url)} has no tables of tiercache; check --db")
        if engine.dialect.name == "sqlite":
            if not force:
                refuse_while_running(engine, "be vacuumed, as its coordinator could not write meanwhile")
            before = size_of(engine)
            _vacuum_sqlite(engine)
        else:
            before = size_of(engine)
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(text(f"VACUUM (ANALYZE) {', '.join(our_tables(connection))}"))
    except (DBAPIError, sqlite3.Error) as error:
        raise StorageError(
            f"database {masked(engine.url)} can't be vacuumed: {getattr(error, 'orig', error)}; "
            "it needs to be left alone for a moment, and as much free space as it is large"
        ) from error
    return before, size_of(engine)


def _vacuum_sqlite(engine: Engine) -> None:
    handle = engine.raw_connection()  # without our BEGIN: VACUUM can't be in a transaction
    try:
        # VACUUM leaves the whole new file in the log, hence the second checkpoint.
        for statement in ("PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM", "ANALYZE", "PRAGMA wal_checkpoint(TRUNCATE)"):
            handle.cursor().execute(statement)
    finally:
        handle.close()


def refuse_while_running(engine: Engine, act: str) -> None:
    """Raise StorageError if a sweep has a coordinator that lives."""
    with engine.connect() as connection:
        alive = [f"{name} ({id})" for id, name, silent in _running(connection) if not silent]
    if alive:
        raise StorageError(
            f"database {masked(engine.url)} can't {act}: sweep {', '.join(alive)} is running; let it end or stop it"
        )


def revisions() -> dict[str, str]:
    """Return every revision that this version knows, the oldest first, each with what it brought."""
    scripts = ScriptDirectory(str(SCRIPTS)).walk_revisions()
    return {script.revision: script.doc for script in reversed(list(scripts))}


def size_of(engine: Engine) -> int:
    """Return bytes: of an SQLite file and its write-ahead log, or of our tables on a Postgres server."""
    if engine.dialect.name == "sqlite":
        files = (Path(f"{engine.url.database}{end}") for end in ("", "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())
    with engine.connect() as connection:
        total = text("SELECT pg_total_relation_size(to_regclass(:name))")
        return sum(connection.execute(total, {"name": name}).scalar_one() for name in our_tables(connection))


def our_tables(connection: Connection) -> list[str]:
    """Return the names of the tables that are there and that this version knows."""
    present = set(inspect(connection).get_table_names())
    return [table.name for table in Base.metadata.sorted_tables if table.name in present]


def _count(connection: Connection, name: str) -> int:
    return connection.execute(select(func.count()).select_from(Base.metadata.tables[name])).scalar_one()


def _unreadable(error: DBAPIError) -> Finding:
    return Finding(f"can't be read in full: {' '.join(str(error.orig).split())}", RESTORE)


def _facts(connection: Connection) -> dict[str, str]:
    if connection.dialect.name != "sqlite":
        return {"server": f"Postgres {connection.exec_driver_sql('SHOW server_version').scalar_one()}"}
    path = Path(str(connection.engine.url.database))
    with path.open("rb") as file:  # the PRAGMA doesn't tell where the folder is read-only
        mode = {b"\x02": "WAL", b"": "none yet"}.get(file.read(20)[18:19], "rollback")
    return {"journal": mode, "file system": network_filesystem(path) or "local"}


def _place(connection: Connection, state: Status) -> Iterator[Finding]:
    facts = _facts(connection)
    if (kind := facts.get("file system", "local")) != "local":
        yield Finding(f"lies on {kind}, where locks are unreliable", "move it to a local disk, or use Postgres")
    if facts.get("journal") == "rollback":
        yield Finding("is not in WAL mode: whoever reads holds up the writer", "tiercache db vacuum sets it")


def _revision(state: Status, found: str | None) -> Iterator[Finding]:
    if state == "empty":
        yield Finding("has no tables of tiercache", "check --db, or make them with: tiercache db upgrade --create")
    elif state == "old":
        yield Finding(f"revision {found} is older than this version's {head()}", "tiercache db upgrade")
    elif state == "unknown":
        yield Finding(f"revision {found} is not known to this version (it writes {head()})", UPGRADE_CODE)


def _integrity(connection: Connection, state: Status) -> Iterator[Finding]:
    tables = our_tables(connection)
    if connection.dialect.name == "sqlite":
        for (line,) in connection.exec_driver_sql("PRAGMA integrity_check(10)"):
            if line != "ok":
                yield Finding(f"integrity: {line}", RESTORE)
        broken = Counter((row[0], row[2]) for row in connection.exec_driver_sql("PRAGMA foreign_key_check"))
    else:
        constraints = (
            "SELECT conrelid::regclass::text, conname FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid "
            "WHERE NOT convalidated AND pg_table_is_visible(conrelid) AND relname = ANY(:tables)"
        )
        for table, name in connection.execute(text(constraints), {"tables": tables}):
            remedy = f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}"
            yield Finding(f"constraint {name} of {table} is not valid", remedy)
        indexes = (
            "SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class ON pg_class.oid = indrelid "
            "WHERE NOT (indisvalid AND indisready) AND pg_table_is_visible(indrelid) AND relname = ANY(:tables)"
        )
        for (name,) in connection.execute(text(indexes), {"tables": tables}):
            yield Finding(f"index {name} is not valid", f"REINDEX INDEX {name}")
        broken = _orphans(connection) if state == "ready" else Counter()
    for (table, parent), n in sorted(broken.items()):
        yield Finding(
            f"{n} rows of {table} name a row of {parent} that isn't there",
            "run the sweep that made them again, which registers its cells, or delete them",
        )


def _orphans(connection: Connection) -> Counter[tuple[str, str]]:
    """Postgres holds what its keys say, unless rows were loaded with triggers off, as some restores do."""
    found: Counter[tuple[str, str]] = Counter()
    present = our_tables(connection)
    for key in (key for name in present for key in Base.metadata.tables[name].foreign_keys):
        if key.column.table.name in present:
            there = select(key.column).where(key.column == key.parent).exists()
            lost = select(func.count()).select_from(key.parent.table).where(key.parent.is_not(None), ~there)
            found[key.parent.table.name, key.column.table.name] += connection.execute(lost).scalar_one()
    return +found


def _tables(connection: Connection, state: Status) -> Iterator[Finding]:
    """Tables, columns, keys and indexes against what the code declares; what is there besides is nobody's harm."""
    if state != "ready":
        return
    for difference in compare_metadata(MigrationContext.configure(connection), Base.metadata):
        if isinstance(difference, tuple) and str(difference[0]).startswith("add_"):
            kind, thing = str(difference[0]).removeprefix("add_"), difference[-1]
            name = f"{thing.table.name}.{thing.name}" if kind == "column" else thing.name
            remedy = str(CreateIndex(thing).compile(connection)) if isinstance(thing, sa.Index) else RESTORE
            yield Finding(f"{kind} {name} is missing", remedy)
    inspector = inspect(connection)
    for name in our_tables(connection):
        wanted = [column.name for column in Base.metadata.tables[name].primary_key]
        if inspector.get_pk_constraint(name)["constrained_columns"] != wanted:
            yield Finding(f"{name} has no key over {', '.join(wanted)}: a row could be there twice", RESTORE)


def _running(connection: Connection) -> list[tuple[str, str, bool]]:
    """(id, name, whether it has lost its coordinator) of the sweeps that say they run."""
    if Sweep.__tablename__ not in our_tables(connection):
        return []
    found = connection.execute(select(Sweep.id, Sweep.name, Sweep.heartbeat_at).where(Sweep.state == "running"))
    return [(id, name, utc_now() - beat > SILENT_AFTER) for id, name, beat in found]


def _sweeps(connection: Connection, state: Status) -> Iterator[Finding]:
    for id, name, silent in _running(connection):
        if silent:
            yield Finding(f"sweep {name} ({id}) says that it runs, but has no heartbeat", RUN_AGAIN)
    if not {"samples", "sweep_cells", "sweeps"} <= set(our_tables(connection)):
        return
    present = select(Sample.fingerprint, func.count().label("n")).group_by(Sample.fingerprint).subquery()
    missing = SweepCell.expected_samples - func.coalesce(present.c.n, 0)
    statement = (
        select(Sweep.name, Sweep.id, Sweep.state, func.count(), func.sum(missing))
        .join(SweepCell, SweepCell.sweep_id == Sweep.id)
        .outerjoin(present, present.c.fingerprint == SweepCell.fingerprint)
        .where(missing > 0, Sweep.state != "running")
        .group_by(Sweep.name, Sweep.id, Sweep.state)
        .order_by(Sweep.name, Sweep.id)
    )
    for name, id, ended, cells, samples in connection.execute(statement):
        yield Finding(f"sweep {name} ({id}, {ended}) lacks {samples} samples of {cells} cells", RUN_AGAIN)


def _spooled(spool: Spool) -> Iterator[Finding]:
    for path in spool.paths:
        if path.exists() and path.stat().st_size:
            with path.open("rb") as file:
                lines = sum(1 for _ in file)
            yield Finding(f"{lines} results wait in {path}", "the next tiercache run on this database stores them")
        aside = path.with_suffix(".rejected")
        if aside.exists():
            yield Finding(f"lines that can't be stored lie in {aside}", "look at them; then remove the file")
