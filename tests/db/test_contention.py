"""Eight processes at once, the way coordinators and dashboards really meet: nothing is locked, nothing is lost."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import db
from db import queries
from db.connection import open_engine
from db.migrate import head, status
from db.writer import Writer

CONTENDER = Path(__file__).with_name("contender.py")


@pytest.fixture
def race(url, tmp_path):
    """Return a function that lets 8 contenders go at once and returns the process that awaits them all."""
    environment = os.environ | {"PYTHONPATH": str(Path(db.__file__).parents[1])}
    started = []

    def begin(inserts):
        command = [sys.executable, str(CONTENDER), url, str(inserts)]
        started.append(subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def complaints(process):
    _, text = process.communicate(timeout=100)
    return text if process.returncode else ""


def test_table_creation_raced_by_8(race, url):
    assert complaints(race(0)) == ""
    engine = open_engine(url, read_only=True)
    assert status(engine) == "ready", head()
    engine.dispose()


def test_8_writers_and_a_reader(race, url, make_cell):
    with Writer.open(url) as writer:
        writer.register_sweep("s", "s", {}, {}, [make_cell("a", 400)])
    contenders = race(50)
    engine = open_engine(url, read_only=True)
    seen = []
    while contenders.poll() is None:
        with engine.connect() as connection:  # a long read: begun before and finished after others' commits
            connection.exec_driver_sql("SELECT count(*) FROM samples").scalar_one()
            time.sleep(0.05)
        seen.append(queries.list_sweeps(engine)[0].done)
    assert complaints(contenders) == ""
    assert seen == sorted(seen)
    assert queries.list_sweeps(engine)[0].done == 400
    assert len(queries.finished_keys(engine, ["a", "b"])) == 400
    engine.dispose()
