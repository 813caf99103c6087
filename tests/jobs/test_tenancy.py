"""Two runs of one sweep, and what a run is told meanwhile."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from cluster.fake import FakeWorker, Script
from cluster.pool import InlinePool, Pool, WorkerOptions
from cluster.work import Shard
from db.connection import open_engine
from db.leases import acquire, leases
from db.queries import list_events, list_sweeps
from jobs import tenancy
from jobs.cli import app
from jobs.coordinator import SweepResult, run_sweep
from jobs.grid import Cell, expand
from jobs.spec import Sweep, parse_sweep

SWEEP = {
    "name": "t",
    "models": ["reasoner"],
    "benchmarks": [{"name": "chain", "n": 10}],
    "policies": ["full", {"name": "h2o", "budget": [0.3, 0.5]}],
    "cluster": {"shard_size": 2},
}


class Slow(InlinePool):
    def __init__(self, asked: list[str], sample_s: float = 0.02) -> None:
        super().__init__(WorkerOptions(model=None), worker=FakeWorker(Script(sample_s=sample_s)))  # type: ignore[arg-type]
        self.asked = asked

    def submit(self, shard: Shard) -> None:
        self.asked += [f"{shard.policy.label} {task.key}" for task in shard.tasks]
        super().submit(shard)


def start(url: str, asked: list[str], sample_s: float = 0.02) -> tuple[threading.Thread, list[SweepResult]]:
    spec, results = parse_sweep(SWEEP), list[SweepResult]()

    def pools(_: Sweep, __: Sequence[Cell], ___: int) -> Pool:
        return Slow(asked, sample_s)

    def target() -> None:
        results.append(run_sweep(spec, expand(spec), url, progress=False, pools=pools))

    thread = threading.Thread(target=target)
    thread.start()
    return thread, results


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(tenancy, "BEAT_S", 0.1)
    return f"sqlite:///{tmp_path / 'results.db'}"


def until(condition: Callable[[], Any], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "never came true"
        time.sleep(0.05)


def state(url: str) -> str:
    return list_sweeps(open_engine(url, read_only=True))[0].state


def test_two_submissions_compute_no_sample_twice(url: str) -> None:
    first_asked, second_asked = list[str](), list[str]()
    first, results = start(url, first_asked)
    until(lambda: len(first_asked) > 4)
    second, more = start(url, second_asked)
    first.join()
    second.join()
    assert len(first_asked) == len(set(first_asked)) == 30
    assert second_asked == []
    assert (results[0].computed, more[0].computed, more[0].reused) == (30, 0, 30)
    assert state(url) == "finished"
    assert leases(open_engine(url, read_only=True), [cell.fingerprint for cell in expand(parse_sweep(SWEEP))]) == {}


def test_a_dead_coordinators_cells_are_taken_over(url: str) -> None:
    spec = parse_sweep(SWEEP)
    names = [cell.fingerprint for cell in expand(spec)]
    start(url, [])[0].join()
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.execute(text("delete from samples"))
    acquire(engine, names[:1], "gone", "t", timedelta(seconds=1.5))
    asked: list[str] = []
    thread, results = start(url, asked)
    thread.join()
    assert len(set(asked)) == 30
    assert results[0].computed == 30
    events = [event.message for event in list_events(engine, results[0].sweep_id)]
    assert not any("lost" in message for message in events)


def test_a_killed_process_of_this_machine_holds_nothing(url: str) -> None:
    start(url, [])[0].join()
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.execute(text("delete from samples"))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    mine = tenancy.Tenancy(engine, "t").holder.split(":")
    names = [cell.fingerprint for cell in expand(parse_sweep(SWEEP))]
    acquire(engine, names, ":".join((*mine[:2], str(ended.pid), "abc")), "t", timedelta(hours=1))
    started = time.monotonic()
    thread, results = start(url, [], sample_s=0)
    thread.join()
    assert results[0].computed == 30
    assert time.monotonic() - started < 30


def test_cells_that_another_took_are_left_to_it(url: str) -> None:
    asked: list[str] = []
    thread, results = start(url, asked, sample_s=0.05)
    until(lambda: len(asked) >= 2)
    engine = open_engine(url)
    name = [cell.fingerprint for cell in expand(parse_sweep(SWEEP))][2]
    theirs = text("update leases set holder = 'other' where fingerprint = :name")
    with engine.begin() as connection:  # as after a silence that was longer than the lease
        connection.execute(theirs, {"name": name})
    until(lambda: len(asked) >= 20)
    time.sleep(3)
    so_far = sum("0.5" in each for each in asked)
    assert so_far < 10, "what was out by then is finished; the rest is the other's"
    assert thread.is_alive(), "and waited for"
    with engine.begin() as connection:  # the other gives up
        connection.execute(text("delete from leases where holder = 'other'"))
    thread.join()
    assert len(asked) == len(set(asked)) == 30
    assert results[0].computed == 30


def test_pause_resume_cancel(url: str) -> None:
    asked: list[str] = []
    thread, results = start(url, asked, sample_s=0.1)
    until(lambda: len(asked) >= 2)
    paused = CliRunner().invoke(app, ["pause", "latest", "--db", url])
    assert paused.stdout.endswith(": paused.\n"), paused.output
    so_far = len(asked)
    time.sleep(0.5)
    assert len(asked) == so_far < 30
    resumed = CliRunner().invoke(app, ["resume", "latest", "--db", url])
    assert resumed.stdout.endswith(": running.\n"), resumed.output
    until(lambda: len(asked) > so_far)
    cancelled = CliRunner().invoke(app, ["cancel", "latest", "--db", url])
    assert cancelled.stdout.endswith(": cancelled.\n"), cancelled.output
    thread.join()
    assert results[0].state == "cancelled"
    assert 0 < results[0].computed < 30
    again, more = start(url, [])
    again.join()
    assert more[0].reused == results[0].computed
    assert state(url) == "finished"


def test_commands_for_a_sweep_that_does_not_run(url: str) -> None:
    start(url, [])[0].join()
    for command in ("pause", "resume", "cancel"):
        refused = CliRunner().invoke(app, [command, "latest", "--db", url])
        assert "is finished; allowed for this command" in str(refused.exception)


def test_a_sweep_whose_coordinator_is_gone_can_be_cancelled(url: str) -> None:
    start(url, [])[0].join()
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.execute(text("update sweeps set state = 'running', heartbeat_at = '2020-01-01 00:00:00'"))
    assert "coordinator is gone" in str(CliRunner().invoke(app, ["pause", "latest", "--db", url]).exception)
    done = CliRunner().invoke(app, ["cancel", "latest", "--db", url])
    assert "cancelled" in done.stdout
    assert state(url) == "cancelled"
