"""The migrations make exactly the tables that the code declares, however many processes make them at once."""

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from db import queries
from db.connection import open_engine
from db.errors import StorageError
from db.migrate import current, downgrade, head, status, upgrade
from db.schema import Base
from db.writer import Writer


@pytest.fixture
def engine(url):
    opened = open_engine(url)
    yield opened
    opened.dispose()


def tables(engine):
    return set(sa.inspect(engine).get_table_names()) - {"alembic_version"}


def test_migrations_equal_the_declared_tables(engine):
    upgrade(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    inspector = sa.inspect(engine)
    for table in Base.metadata.sorted_tables:  # names of constraints aren't compared by Alembic
        assert inspector.get_pk_constraint(table.name)["name"] == table.primary_key.name
        assert {key["name"] for key in inspector.get_foreign_keys(table.name)} == {
            key.name for key in table.foreign_key_constraints
        }
        found = [column["name"] for column in inspector.get_columns(table.name)]
        assert sorted(found) == sorted(table.columns.keys())
        if engine.dialect.name == "sqlite":  # it reads a row from the left: numbers first, long texts last
            assert found == table.columns.keys()


def test_down_and_up_again(engine):
    assert (current(engine), status(engine)) == (None, "empty")
    upgrade(engine)
    assert (current(engine), status(engine)) == (head(), "ready")
    upgrade(engine)
    assert tables(engine) == set(Base.metadata.tables)
    downgrade(engine, "base")
    assert tables(engine) == set()
    assert status(engine) == "empty"
    upgrade(engine)
    assert tables(engine) == set(Base.metadata.tables)


def test_older_samples_get_the_score_of_their_outcome(engine):
    upgrade(engine, "0003")
    with engine.begin() as connection:
        for table, values in OLD_ROWS:
            names = ", ".join(values)
            marks = ", ".join(f":{name}" for name in values)
            connection.execute(sa.text(f"INSERT INTO {table} ({names}) VALUES ({marks})"), values)
    upgrade(engine)
    with engine.begin() as connection:
        found = dict(connection.execute(sa.text("SELECT outcome, score FROM samples")).all())
    assert found == {"correct": 1.0, "truncated": 0.0, "failed": None}
    downgrade(engine, "0003")
    upgrade(engine)
    with engine.begin() as connection:
        assert connection.execute(sa.text("SELECT count(*), sum(score) FROM samples")).one() == (3, 1.0)


OLD_CELL = {
    "fingerprint": "f",
    "model": "m",
    "benchmark": "b",
    "policy": "p",
    "policy_name": "p",
    "protocol": "x",
    "kv_bytes_per_token": 1,
    "created_at": "2026-01-01 00:00:00+00:00",
    "config": "{}",
}
OLD_ROWS = [("cells", OLD_CELL)] + [
    (
        "samples",
        {
            "fingerprint": "f",
            "problem_id": outcome,
            "repeat": 0,
            "attempt": 1,
            "seed": 1,
            "outcome": outcome,
            "finish_reason": "eos",
            "finished_at": "2026-01-01 00:00:00+00:00",
            "reference": "r",
            "prompt": "p",
            "output": "o",
        },
    )
    for outcome in ("correct", "truncated", "failed")
]


def test_a_newer_database_is_refused(engine, url):
    upgrade(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    assert status(engine) == "unknown"
    assert queries.change_token(engine) == -1
    with pytest.raises(StorageError, match=r"9999.*upgrade tiercache-eval"):
        Writer.open(url)


def test_a_failed_migration_leaves_nothing(engine):
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE events (id INTEGER)")  # in the way of the last step
    with pytest.raises(sa.exc.DBAPIError):
        upgrade(engine)
    assert tables(engine) == {"events"}
