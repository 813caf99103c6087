"""Opening a database: one function for a bare path, SQLite or Postgres, read-write or read-only.

SQLite is opened in WAL mode with a busy timeout, and transactions begin explicitly: IMMEDIATE for writers, because a
deferred one that turns into a write can be refused at once ("database is locked") without waiting for the timeout.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from db.errors import DatabaseMissing, StorageError
from db.network_fs import network_filesystem

ENVIRONMENT_VARIABLE = "TIERCACHE_DB"
DEFAULT_URL = "sqlite:///tiercache.db"
ALLOWED = "a file path, sqlite:///path or postgresql://user:password@host/name"
BUSY_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5

log = logging.getLogger(__name__)


def default_url() -> str:
    """Return the database named by TIERCACHE_DB, else tiercache.db in the working directory."""
    return os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_URL


def parse_url(url: str) -> URL:
    """Turn a bare path or a URL into a normal form with our driver in it.

    Raises:
        StorageError: the URL is malformed, names a database we don't support, or an in-memory one.
    """
    if not url.strip():
        raise StorageError(f"database url is empty; allowed: {ALLOWED}; set {ENVIRONMENT_VARIABLE} or pass --db")
    if "://" not in url:
        return URL.create("sqlite", database=str(Path(url).expanduser().absolute()))
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # The text can hold a password where no parser finds it, so only its scheme is repeated.
        raise StorageError(f"database url {url.split('://')[0]}://… can't be read; allowed: {ALLOWED}") from None
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        if parsed.database in (None, "", ":memory:"):
            raise StorageError(f"database url {url!r} lives in one connection's memory; allowed: {ALLOWED}")
        return URL.create("sqlite", database=str(Path(str(parsed.database)).expanduser().absolute()))
    if parsed.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    raise StorageError(f"database url names {parsed.drivername!r}; allowed: {ALLOWED}")


def masked(url: URL | str) -> str:
    """Return a URL fit for messages and logs: *** in place of the password."""
    return (parse_url(url) if isinstance(url, str) else url).render_as_string(hide_password=True)


def open_engine(url: str, *, read_only: bool = False, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Engine:
    """Open `url` and prove that it answers.

    A read-only engine never creates a file and can't write: SQLite opens with mode=ro, Postgres with read-only
    transactions.

    Raises:
        DatabaseMissing: read-only, and the file isn't there.
        StorageError: bad URL, missing driver, unreachable server, unreadable file.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        engine = _sqlite_engine(Path(str(parsed.database)), read_only, busy_timeout_s)
    else:
        engine = _postgres_engine(parsed, read_only)
    try:
        with engine.connect():
            pass
    except (DBAPIError, sqlite3.Error, OSError) as error:
        engine.dispose()
        reason = str(getattr(error, "orig", error)).strip()
        if parsed.password:
            reason = reason.replace(str(parsed.password), "***")
        raise StorageError(
            f"database {masked(parsed)} doesn't answer: {reason}; check that it is there and may be used"
        ) from None
    return engine


def _sqlite_engine(path: Path, read_only: bool, busy_timeout_s: float) -> Engine:
    if path.is_dir():
        raise StorageError(f"database path {path} is a directory; allowed: {ALLOWED}")
    if read_only and not path.exists():
        raise DatabaseMissing(f"database {path} doesn't exist yet; make it with: tiercache run sweeps/demo.yaml")
    if not read_only:
        if not path.parent.is_dir():
            raise StorageError(f"database path {path}: folder {path.parent} doesn't exist; make it first")
        if kind := network_filesystem(path):
            log.warning("SQLite file %s lies on %s, where its locks are unreliable; use Postgres there", path, kind)
    target = "file:" + quote(str(path)) + ("?mode=ro" if read_only else "?mode=rwc")
    if read_only and not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
        target += "&immutable=1"  # a WAL reader needs a -shm file, which can't be made here, and nobody writes

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            target, uri=True, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA foreign_keys = ON")
        if not read_only:
            _use_wal(connection, busy_timeout_s)
            connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    engine = create_engine(URL.create("sqlite", database=str(path)), creator=connect)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    return engine


def _use_wal(connection: sqlite3.Connection, patience_s: float) -> None:
    """Switch to WAL. The switch needs the file alone and ignores the busy timeout, so racing processes retry here."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _postgres_engine(url: URL, read_only: bool) -> Engine:
    options = f"-c timezone=utc -c default_transaction_read_only={'on' if read_only else 'off'}"
    if "options" in url.query:
        options = f"{url.query['options']} {options}"
        url = url.difference_update_query(["options"])
    arguments: dict[str, Any] = {"options": options}
    if "connect_timeout" not in url.query:
        arguments["connect_timeout"] = CONNECT_TIMEOUT_S
    try:
        return create_engine(url, connect_args=arguments, pool_pre_ping=True)
    except (ModuleNotFoundError, NoSuchModuleError):
        raise StorageError(
            f"database {masked(url)} needs the psycopg driver; pip install 'tiercache-eval[postgres]'"
        ) from None
