"""Databases of every version, with rows in every table, come up to this one and go back without losing a value."""

import time
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from db import queries
from db.connection import open_engine
from db.maintenance import check, revisions
from db.migrate import downgrade, head, status, upgrade
from db.rows import FINISH_REASONS, OUTCOMES, PEAK_SOURCES, SWEEP_STATES
from db.scores import verdicts
from db.writer import Writer

ROWS = 6
OUTCOMES_THEN_FAILED = sorted(OUTCOMES, key=lambda outcome: outcome == "failed")
MEMBERS = {
    "outcome": OUTCOMES_THEN_FAILED,
    "finish_reason": FINISH_REASONS,
    "state": SWEEP_STATES,
    "device_peak_source": PEAK_SOURCES,
}
SINGLE = {"revision"}  # tables of one row


@pytest.fixture
def engine(url):
    opened = open_engine(url)
    yield opened
    opened.dispose()


def tables_of(engine):
    """The tables as they are in the database, those that others refer to first."""
    found = sa.MetaData()
    found.reflect(engine)
    return [table for table in found.sorted_tables if table.name != "alembic_version"]


def fill(engine, rows=ROWS, **texts):
    """Put rows into every table, made from the types of its columns alone."""
    tables = tables_of(engine)
    with engine.begin() as connection:
        for table in tables:
            made = []
            for number in range(1 if table.name in SINGLE else rows):
                made.append(
                    {
                        column.name: value_of(engine, column, number, texts)
                        for column in table.columns
                        if not counts(column)
                    }
                )
            for start in range(0, len(made), 200):
                connection.execute(table.insert(), made[start : start + 200])


def counts(column):
    """Whether Postgres numbers the rows: what is given there it would give again."""
    return column.primary_key and (column.server_default is not None or column.identity is not None)


def value_of(engine, column, number, texts):
    if column.foreign_keys:  # whatever the row of that number has over there
        (key,) = column.foreign_keys
        return value_of(engine, key.column, number, texts)
    if column.name in MEMBERS:
        return MEMBERS[column.name][number % len(MEMBERS[column.name])]
    if column.nullable and number % 3 == 2:
        return None
    kind = column.type
    if isinstance(kind, sa.Boolean):
        return number % 2 == 0
    if isinstance(kind, sa.Integer):
        return number + (1 if column.primary_key else 2**40)
    if isinstance(kind, sa.Float | sa.Numeric):
        return number + 0.1
    if isinstance(kind, sa.LargeBinary):
        return bytes([number, 0, 255])
    if isinstance(kind, sa.JSON):
        return {"repeats": ROWS + 1, "text": "ü\n'\"", "list": [None, number, 0.1]}
    if isinstance(kind, sa.DateTime):
        moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC) + timedelta(days=number)
        return moment.replace(tzinfo=None) if engine.dialect.name == "sqlite" else moment
    assert isinstance(kind, sa.String), f"{column}: a kind of column that this test must learn: {kind!r}"
    return f"{column.name}-{number}" + texts.get(column.name, " ü'\"%\n{x}" if not column.primary_key else "")


def snapshot(engine, tables):
    """Every value of the tables' columns: table -> rows, by key."""
    with engine.connect() as connection:
        return {
            table.name: [
                dict(row._mapping) for row in connection.execute(sa.select(table).order_by(*table.primary_key))
            ]
            for table in tables
        }


def shared(before, after):
    """`after`, cut down to the tables and columns of `before`; a table that is gone is missing."""
    return {
        name: [{column: row[column] for column in rows[0] if column in row} for row in after[name]]
        for name, rows in before.items()
        if name in after
    }


@pytest.mark.parametrize("revision", list(revisions()))
def test_up_and_down_with_data_in_every_table(engine, revision):
    upgrade(engine, revision)
    fill(engine)
    old = tables_of(engine)
    before = snapshot(engine, old)
    assert all(rows for rows in before.values())

    upgrade(engine)
    assert status(engine) == "ready"
    assert shared(before, snapshot(engine, tables_of(engine))) == before
    reads_all(engine)

    downgrade(engine, revision)
    assert [table.name for table in tables_of(engine)] == [table.name for table in old]
    assert snapshot(engine, old) == before
    upgrade(engine)
    assert shared(before, snapshot(engine, tables_of(engine))) == before


def reads_all(engine):
    """Each query of the dashboard finds what was put in."""
    assert queries.change_token(engine) > 0
    sweeps = queries.list_sweeps(engine)
    assert len(sweeps) == ROWS
    fingerprints = [summary.fingerprint for summary in queries.cell_summaries(engine)]
    assert len(fingerprints) == ROWS
    outcomes = []
    for sweep in sweeps:
        (summary,) = queries.cell_summaries(engine, sweep.id)
        (progress,) = queries.sweep_progress(engine, sweep.id)
        (sample,) = queries.list_samples(engine, summary.fingerprint)
        assert (summary.n + summary.failed, progress.done + progress.failed, summary.shards) == (1, 1, 1)
        detail = queries.get_sample(engine, summary.fingerprint, sample.problem_id, sample.repeat)
        assert detail.output.startswith("output-")
        assert detail.finished_at.tzinfo is not None
        assert len(queries.list_events(engine, sweep.id)) == 1
        assert len(verdicts(engine, sweep.id)) == len(queries.finished_keys(engine, [summary.fingerprint]))
        outcomes.append(detail.outcome)
        if detail.outcome == "correct":
            assert summary.correct == 1
    assert set(outcomes) == set(OUTCOMES)
    assert len(queries.finished_keys(engine, fingerprints)) == sum(outcome != "failed" for outcome in outcomes)
    queries.diagnostic_summaries(engine)
    assert len(queries.tier_map_keys(engine, fingerprints)) in (0, ROWS)
    queries.list_tier_maps(engine, sweeps[0].id)


@pytest.mark.parametrize("revision", list(revisions()))
def test_a_migrated_database_is_sound_and_takes_new_results(engine, url, tmp_path, revision, make_cell, make_sample):
    upgrade(engine, revision)
    fill(engine)
    with Writer.open(url, tmp_path / "spool") as writer:
        writer.register_sweep("new", "new", {}, {}, [make_cell("a", 1)])
        assert writer.record([make_sample("a")]) == 1
        writer.event("new", "note", "after the migration")
        writer.set_state("new", "finished")
    about = ("revision", "integrity", "index", "table", "column", "constraint", "rows", "can't")
    findings = [finding.what for finding in check(engine).findings]
    assert [what for what in findings if any(word in what for word in about)] == []
    assert any("silent" in what or "heartbeat" in what for what in findings), "the filled sweeps ran long ago"
    assert len(queries.list_sweeps(engine)) == ROWS + 1


def test_many_long_texts_migrate_in_seconds(engine):
    upgrade(engine, next(iter(revisions())))
    fill(engine, 2000, output="x" * 20_000)
    started = time.monotonic()
    upgrade(engine)
    assert time.monotonic() - started < 20
    with engine.connect() as connection:
        count, length = connection.execute(sa.text("SELECT count(*), min(length(output)) FROM samples")).one()
    assert count == 2000
    assert length > 20_000
    assert status(engine) == "ready", head()
