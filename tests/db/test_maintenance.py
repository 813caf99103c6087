"""`check` finds each kind of damage and nothing in a sound database; `vacuum` gives back space; queries use indexes."""

import contextlib
import os
import re
import sqlite3
from datetime import timedelta

import pytest
import sqlalchemy as sa

from db import maintenance, queries
from db.connection import open_engine
from db.errors import StorageError
from db.maintenance import check, refuse_while_running, revisions, vacuum
from db.migrate import downgrade, head
from db.rows import CellRow, SampleRow, utc_now
from db.schema import Base, Sample
from db.spool import Spool
from db.store import Entry
from db.writer import Writer


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def change(writer):
    """Return a function that runs SQL as a person with a database shell would, keys unchecked."""
    unchecked = (
        "PRAGMA foreign_keys = OFF; BEGIN"
        if writer.engine.dialect.name == "sqlite"
        else ("SET LOCAL session_replication_role = replica")
    )

    def run(*statements):
        handle = writer.engine.raw_connection()
        for statement in (*unchecked.split(";"), *statements, "COMMIT"):
            handle.cursor().execute(statement)
        handle.invalidate()

    return run


def found(engine, **more):
    """The findings, each as `what; remedy`."""
    return [f"{finding.what}; {finding.remedy}" for finding in check(engine, **more).findings]


def test_a_sound_database(writer, url, make_sample):
    writer.record([make_sample()])
    engine = open_engine(url, read_only=True)
    report = check(engine)
    assert (report.findings, report.sound) == ((), True)
    assert set(report.rows) == set(Base.metadata.tables)
    assert (report.rows["samples"], report.rows["cells"]) == (1, 2)
    assert report.size > 10_000
    assert head() in report.facts["revision"]
    engine.dispose()


def test_checking_changes_nothing(writer, url, make_sample):
    before = queries.change_token(writer.engine), queries.list_sweeps(writer.engine)
    check(writer.engine)
    assert (queries.change_token(writer.engine), queries.list_sweeps(writer.engine)) == before


def test_no_tables_older_tables_and_newer_ones(url, writer, change):
    change("UPDATE alembic_version SET version_num = '9999'")
    assert any("9999" in line and "upgrade tiercache-eval" in line for line in found(writer.engine))
    change(f"UPDATE alembic_version SET version_num = '{head()}'")
    downgrade(writer.engine, next(iter(revisions())))
    (line,) = found(writer.engine)
    assert line.startswith("revision 0001 is older")
    assert line.endswith("tiercache db upgrade")
    downgrade(writer.engine, "base")
    (line,) = found(writer.engine)
    assert "upgrade --create" in line


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DELETE FROM cells WHERE fingerprint = 'a'", "1 rows of samples name a row of cells"),
        ("DELETE FROM cells WHERE fingerprint = 'a'", "1 rows of sweep_cells name a row of cells"),
        ("DROP INDEX ix_samples_fingerprint_outcome", "CREATE INDEX ix_samples_fingerprint_outcome ON samples"),
        ("DROP TABLE diagnostics", "table diagnostics is missing"),
        ("ALTER TABLE shards DROP COLUMN transfer_s", "column shards.transfer_s is missing"),
    ],
)
def test_what_a_shell_can_break(writer, change, make_sample, statement, words):
    writer.record([make_sample()])
    change(statement)
    assert any(words in line for line in found(writer.engine))


def test_a_table_without_its_key(writer, change):
    change("CREATE TABLE copy AS SELECT * FROM samples", "DROP TABLE samples", "ALTER TABLE copy RENAME TO samples")
    assert any("samples has no key over fingerprint, problem_id, repeat" in line for line in found(writer.engine))


@pytest.mark.filterwarnings("ignore:Can't validate argument 'dialect_options'")  # Alembic of NOT VALID
def test_postgres_constraints_and_indexes(postgres_url, make_cell, make_sample):
    with Writer.open(postgres_url) as writer:
        writer.register_sweep("s", "s", {}, {}, [make_cell("a", 0)])
        with writer.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE samples ADD CONSTRAINT low CHECK (repeat < 9) NOT VALID")
            connection.exec_driver_sql(
                "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ix_shards_fingerprint'::regclass"
            )
        assert found(writer.engine) == [
            "constraint low of samples is not valid; ALTER TABLE samples VALIDATE CONSTRAINT low",
            "index ix_shards_fingerprint is not valid; REINDEX INDEX ix_shards_fingerprint",
        ]


def test_a_damaged_file(tmp_path, make_cell, make_sample):
    path = tmp_path / "r.db"
    with Writer.open(str(path)) as writer:
        writer.register_sweep("s", "s", {}, {}, [make_cell("a", 200)])
        writer.record([make_sample(problem=str(i), output="x" * 3000) for i in range(200)])
    with path.open("r+b") as file:
        for page in range(60, path.stat().st_size // 4096, 3):
            file.seek(page * 4096)
            file.write(os.urandom(4096))
    engine = open_engine(str(path), read_only=True)
    lines = found(engine)
    assert lines
    assert all("restore a backup" in line for line in lines)
    engine.dispose()
    path.write_bytes(b"certainly not a database " * 400)
    engine = open_engine(str(path), read_only=True)
    assert "not a database" in found(engine)[0]
    engine.dispose()


def test_the_place_of_a_file(tmp_path, monkeypatch, make_cell):
    Writer.open(str(tmp_path / "r.db")).close()
    engine = open_engine(str(tmp_path / "r.db"), read_only=True)
    monkeypatch.setattr(maintenance, "network_filesystem", lambda path: "nfs4")
    assert any("lies on nfs4" in line and "Postgres" in line for line in found(engine))
    monkeypatch.undo()
    engine.dispose()
    with contextlib.closing(sqlite3.connect(tmp_path / "r.db")) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    engine = open_engine(str(tmp_path / "r.db"), read_only=True)
    assert any("not in WAL mode" in line for line in found(engine))
    engine.dispose()
    writing = open_engine(str(tmp_path / "r.db"))
    vacuum(writing)
    assert found(writing) == []
    writing.dispose()


def test_sweeps_that_lost_their_coordinator_or_samples(writer, make_cell, make_sample, monkeypatch):
    writer.record([make_sample("a", problem=str(i)) for i in range(9)])
    assert found(writer.engine) == []  # it is running: that samples are missing is how it should be
    writer.register_sweep("full", "full", {}, {}, [make_cell("a", 9)])
    writer.set_state("full", "finished")
    writer.set_state("s", "finished")
    assert [line.split(";")[0] for line in found(writer.engine)] == [
        "sweep test sweep (s, finished) lacks 11 samples of 2 cells"
    ]
    writer.set_state("s", "running")
    monkeypatch.setattr(maintenance, "utc_now", lambda: utc_now() + timedelta(minutes=3))
    assert [line.split(";")[0] for line in found(writer.engine)] == [
        "sweep test sweep (s) says that it runs, but has no heartbeat"
    ]


def test_results_that_wait(writer, tmp_path):
    spool = Spool([tmp_path / "elsewhere"], "x")
    spool.append([Entry("event", {"uid": "1"}), Entry("event", {"uid": "2"})])
    Spool.set_aside(spool.paths[0], ["torn"])
    waiting, aside = found(writer.engine, spool=spool)
    assert waiting.startswith("2 results wait in")
    assert "x.spool.rejected" in aside
    assert spool.waiting()


def test_vacuum_gives_back_space(writer, change, make_cell, make_sample):
    writer.register_sweep("s", "s", {}, {}, [make_cell("a", 500)])
    writer.record([make_sample(problem=str(i), output="x" * 4000) for i in range(500)])
    writer.set_state("s", "finished")
    change("DELETE FROM samples WHERE problem_id <> '1'")
    before, after = vacuum(writer.engine)
    if writer.engine.dialect.name == "sqlite":
        assert before > 2_000_000
        assert after < 300_000
    else:
        assert after <= before
    assert queries.count_samples(writer.engine, "a") == 1
    statistics = "sqlite_stat1" if writer.engine.dialect.name == "sqlite" else "pg_stats WHERE tablename = 'samples'"
    with writer.engine.connect() as connection:
        assert connection.exec_driver_sql(f"SELECT count(*) FROM {statistics}").scalar_one() > 0


def test_vacuum_leaves_a_running_sweep_alone(writer, monkeypatch):
    with pytest.raises(StorageError, match=r"test sweep \(s\) is running; let it end"):
        refuse_while_running(writer.engine, "x")
    if writer.engine.dialect.name == "sqlite":
        with pytest.raises(StorageError, match="can't be vacuumed"):
            vacuum(writer.engine)
    vacuum(writer.engine, force=True)
    monkeypatch.setattr(maintenance, "utc_now", lambda: utc_now() + timedelta(minutes=3))
    vacuum(writer.engine)


def test_vacuum_of_what_is_locked_or_not_ours(tmp_path, make_cell):
    with pytest.raises(StorageError, match="no tables of tiercache"):
        vacuum(open_engine(str(tmp_path / "empty.db")))
    Writer.open(str(tmp_path / "r.db")).close()
    other, engine = open_engine(str(tmp_path / "r.db")), open_engine(str(tmp_path / "r.db"), busy_timeout_s=0.1)
    with other.begin(), pytest.raises(StorageError, match=r"locked.*left alone"):
        vacuum(engine)
    for each in (other, engine):
        each.dispose()


QUERIES = {
    "list_samples": lambda engine: queries.list_samples(engine, "f3"),
    "list_samples of an outcome": lambda engine: queries.list_samples(engine, "f3", outcome="wrong"),
    "count_samples": lambda engine: queries.count_samples(engine, "f3"),
    "get_sample": lambda engine: queries.get_sample(engine, "f3", "1", 0),
    "finished_keys": lambda engine: queries.finished_keys(engine, ["f3", "f4"]),
    "cell_summaries": lambda engine: queries.cell_summaries(engine, "s3"),
    "same_problem": lambda engine: queries.same_problem(engine, "f3", "1", 0),
    "paired_deltas": lambda engine: queries.paired_deltas(engine, "f3", ["f4", "f5"]),
    "failed_samples": lambda engine: queries.failed_samples(engine, "s3"),
    "sweep_progress": lambda engine: queries.sweep_progress(engine, "s3"),
}


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """SQLite's plan of each query over 50,000 samples of 200 cells, before and after ANALYZE: (name, when) -> lines."""
    asked, found = [], {}
    with Writer.open(str(tmp_path_factory.mktemp("plans") / "r.db")) as writer:
        for sweep in range(20):
            writer.register_sweep(f"s{sweep}", "s", {}, {}, [plain_cell(10 * sweep + i) for i in range(10)])
            writer.set_state(f"s{sweep}", "finished")
        writer.record([plain_sample(i) for i in range(250)])
        others = ", ".join(column.name for column in Sample.__table__.columns if column.name != "fingerprint")
        with writer.engine.begin() as connection:
            connection.exec_driver_sql(
                f"INSERT INTO samples (fingerprint, {others}) SELECT cells.fingerprint, {others} "
                "FROM samples CROSS JOIN cells WHERE cells.fingerprint <> 'f0'"
            )
            assert connection.exec_driver_sql("SELECT count(*) FROM samples").scalar_one() == 50_000
        sa.event.listen(writer.engine, "before_cursor_execute", lambda *those: asked.append(those[2:4]))
        for statistics in ("unknown", "known"):
            for name, query in QUERIES.items():
                asked.clear()
                query(writer.engine)
                statements = [pair for pair in asked if pair[0].startswith(("SELECT", "WITH"))]
                with writer.engine.connect() as connection:
                    found[name, statistics] = [
                        row[3]
                        for sql, values in statements
                        for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values)
                    ]
            vacuum(writer.engine)
    return found


def plain_cell(number):
    same = {"benchmark": "b", "policy_name": "h2o", "config": {}, "protocol": "x", "kv_bytes_per_token": 1}
    name = f"f{number}"
    return CellRow(fingerprint=name, model=f"m{number % 4}", policy=f"p{number}", expected_samples=250, **same)


def plain_sample(number):
    same = {"repeat": 0, "seed": 1, "outcome": "wrong", "finish_reason": "eos", "prompt": "", "output": ""}
    return SampleRow(fingerprint="f0", problem_id=str(number), reference="", **same)


@pytest.mark.parametrize("statistics", ["unknown", "known"])
@pytest.mark.parametrize("name", QUERIES)
def test_no_query_of_some_cells_reads_all_samples(request, plans, name, statistics):
    lines = plans[name, statistics]
    assert any("samples" in line for line in lines)
    assert [line for line in lines if re.match(r"SCAN samples(_\d+)?\b", line)] == []
