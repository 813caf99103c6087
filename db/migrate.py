"""Bringing a database to this version's tables, from code: users need neither alembic.ini nor the alembic command."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text

from db.errors import StorageError

SCRIPTS = Path(__file__).parent / "migrations"
# Any constant will do: it names our lock among the advisory locks of a Postgres server.
ADVISORY_LOCK = 0x7163_6163_6865

Status = Literal["empty", "old", "ready", "unknown"]


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Create or migrate the tables. Safe when several processes do so at once, and cheap when there is nothing to do.

    Raises:
        StorageError: the database was made by another version, whose revision this one doesn't know.
    """
    if revision == "head" and status(engine) == "ready":
        return
    _locked(engine, lambda config: command.upgrade(config, revision))


def downgrade(engine: Engine, revision: str) -> None:
    """Go back to `revision` ("base" removes everything)."""
    _locked(engine, lambda config: command.downgrade(config, revision))


def current(engine: Engine) -> str | None:
    """Return the revision that the database is at, or None if it has no tables of ours."""
    with engine.connect() as connection:
        return _current(connection)


@cache  # readers ask on every refresh, and the answer is read from disk
def head() -> str:
    """Return the revision that this version of the code writes."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None, "the migrations folder holds at least the initial migration"
    return revision


def status(engine: Engine) -> Status:
    """Say whether the tables can be used: empty (none), old (to be migrated), ready, or unknown (a newer version's)."""
    found = current(engine)
    if found is None:
        return "empty"
    if found == head():
        return "ready"
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    return "old" if found in known else "unknown"


def _current(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return MigrationContext.configure(connection).get_current_revision()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    return config


def _locked(engine: Engine, step: Callable[[Config], None]) -> None:
    """Run `step` in one transaction that no other process can be in (SQLite's writers begin IMMEDIATE already)."""
    if status(engine) == "unknown":
        raise StorageError(
            f"database revision={current(engine)!r} is not known to this version (it writes {head()!r}); "
            "upgrade tiercache-eval or use another database"
        )
    config = _config()
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
        config.attributes["connection"] = connection
        step(config)
