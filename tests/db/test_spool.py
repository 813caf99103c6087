"""An outage loses nothing and doubles nothing."""

import json

import pytest
import sqlalchemy as sa

from db import queries
from db.connection import open_engine, parse_url
from db.errors import StorageError
from db.spool import Spool
from db.store import Entry
from db.writer import Writer


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def spooled_lines(folder):
    return [line for path in folder.glob("*.spool.jsonl") for line in path.read_text().splitlines()]


def test_outage_then_next_write_replays(writer, tmp_path, outage, make_sample, make_shard):
    cure = outage(writer.engine)
    assert writer.record([make_sample(), make_sample(problem="2", output="\ud800")]) == 0
    writer.record_shard(make_shard())
    writer.event("s", "note", "during")
    writer.set_state("s", "finished")
    assert writer.heartbeat("s") is False
    assert len(spooled_lines(tmp_path / "spool")) == 5
    cure()
    assert writer.record([make_sample(problem="3")]) == 1
    assert not writer.spool.waiting()
    assert spooled_lines(tmp_path / "spool") == []
    assert queries.count_samples(writer.engine, "a") == 3
    assert [event.message for event in queries.list_events(writer.engine, "s")] == ["during"]
    (sweep,) = queries.list_sweeps(writer.engine)
    assert sweep.state == "finished"
    (summary, _) = queries.cell_summaries(writer.engine, "s")
    assert summary.shards == 1


def test_outage_then_next_open_replays(url, tmp_path, outage, make_cell, make_sample):
    first = Writer.open(url, tmp_path / "spool")
    first.register_sweep("s", "s", {}, {}, [make_cell("a")])
    outage(first.engine)
    first.record([make_sample(problem=str(i)) for i in range(3)])
    first.close()
    with Writer.open(url, tmp_path / "spool") as second:
        assert queries.count_samples(second.engine, "a") == 3


def test_replay_that_stops_midway_doubles_nothing(writer, tmp_path, outage, make_sample):
    """A crash after the commit and before the file is removed leaves a spool that was already stored."""
    cure = outage(writer.engine)
    writer.record([make_sample()])
    writer.event("s", "note", "once")
    cure()
    (path,) = (tmp_path / "spool").glob("*.spool.jsonl")
    kept = path.read_bytes()
    writer.heartbeat("s")
    writer.record([make_sample(problem="2")])
    path.write_bytes(kept)
    writer.record([make_sample(problem="3")])
    assert queries.count_samples(writer.engine, "a") == 3
    assert len(queries.list_events(writer.engine, "s")) == 1


def test_torn_and_refused_lines_are_set_aside(writer, tmp_path, outage, make_sample):
    cure = outage(writer.engine)
    writer.record([make_sample()])
    (path,) = (tmp_path / "spool").glob("*.spool.jsonl")
    with path.open("a") as file:
        file.write('{"kind": "sample", "val')  # the power went here
    writer.record([make_sample("no such cell"), make_sample(problem="2")])
    cure()
    writer.event("s", "note", "back")
    assert queries.count_samples(writer.engine, "a") == 2
    (aside,) = (tmp_path / "spool").glob("*.rejected")
    assert "no such cell" in aside.read_text()
    assert '"val' in aside.read_text()


def test_a_real_postgres_outage(postgres_url, postgres_server, tmp_path, make_cell, make_sample):
    name = parse_url(postgres_url).database
    admin = sa.create_engine(parse_url(postgres_server), isolation_level="AUTOCOMMIT")

    def allow(yes):
        with admin.connect() as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {yes}")
            connection.exec_driver_sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname='{name}'")

    with Writer.open(postgres_url, tmp_path) as writer:
        writer.register_sweep("s", "s", {}, {}, [make_cell("a")])
        allow("false")
        assert writer.record([make_sample()]) == 0
        with pytest.raises(StorageError, match="doesn't answer"):
            open_engine(postgres_url)
        allow("true")
        assert writer.record([make_sample(problem="2")]) == 1
        assert queries.count_samples(writer.engine, "a") == 2
    admin.dispose()


def test_a_locked_sqlite_file(tmp_path, make_cell, make_sample):
    with Writer.open(str(tmp_path / "r.db"), busy_timeout_s=0.1) as writer:
        writer.register_sweep("s", "s", {}, {}, [make_cell("a")])
        other = open_engine(str(tmp_path / "r.db"))
        with other.begin():
            assert writer.record([make_sample()]) == 0
            with pytest.raises(StorageError, match="locked"):
                writer.register_sweep("s", "s", {}, {}, [])
        other.dispose()
        assert [path.name.endswith(".spool.jsonl") for path in tmp_path.glob("r.db-*.spool*")] == [True]
        writer.event("s", "note", "free again")
        assert queries.count_samples(writer.engine, "a") == 1
    assert list(tmp_path.glob("*.spool.jsonl")) == []


def test_the_spare_folder_takes_over_and_a_full_disk_is_said(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    entry = Entry("event", {"uid": "1"})
    spool = Spool([tmp_path / "file", tmp_path / "spare"], "x")
    assert spool.append([entry]).parent == tmp_path / "spare"
    seen = []
    assert spool.drain(seen.extend) == 1
    assert seen == [entry]
    with pytest.raises(StorageError, match="free disk space"):
        Spool([tmp_path / "file"], "x").append([entry])


def test_a_failing_replay_keeps_the_file(tmp_path):
    spool = Spool([tmp_path], "x")
    spool.append([Entry("event", {"uid": "1"})])

    def fail(entries):
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        spool.drain(fail)
    assert json.loads(spool.paths[0].read_text())["values"] == {"uid": "1"}
