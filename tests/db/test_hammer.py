"""32 processes at once, and one that reads at length as a dashboard does: every row is there, nothing was locked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import db
from db import queries
from db.writer import Writer

CONTENDER = Path(__file__).with_name("contender.py")
PROCESSES, ROWS = 32, 200


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_32_processes_and_a_long_reader(url, tmp_path, make_cell, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    with Writer.open(url) as writer:
        writer.register_sweep("s", "s", {}, {}, [make_cell("a", PROCESSES * ROWS)])
    done = subprocess.run(
        [sys.executable, str(CONTENDER), url, str(ROWS), str(PROCESSES), "reader"],
        env=os.environ | {"PYTHONPATH": str(Path(db.__file__).parents[1])},
        stderr=subprocess.PIPE,
        text=True,
        timeout=280,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with Writer.open(url) as writer:
        assert len(queries.finished_keys(writer.engine, ["a"])) == PROCESSES * ROWS
        assert queries.count_samples(writer.engine, "a") == PROCESSES * ROWS
        assert queries.change_token(writer.engine) == PROCESSES * ROWS + 1  # one for the sweep
    assert [*tmp_path.rglob("*.spool*")] == []
