"""The coordinator over a fake worker: resume, extension, failures, interruption. No Ray, no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from cluster.fake import FakeWorker, Script
from cluster.pool import InlinePool, Pool, WorkerOptions
from cluster.work import Event, Shard
from db.connection import open_engine
from db.queries import cell_summaries, list_events, list_sweeps
from jobs.coordinator import SweepResult, run_sweep
from jobs.grid import Cell, expand
from jobs.spec import Sweep, parse_sweep


def sweep(n: int = 12, **more: Any) -> Sweep:
    return parse_sweep(
        {
            "name": "t",
            "models": ["reasoner"],
            "benchmarks": [{"name": "chain", "n": n}],
            "policies": ["full", {"name": "h2o", "budget": [0.3, 0.5]}],
            "cluster": {"shard_size": 5},
            **more,
        }
    )


class Counting(InlinePool):
    """Counts what it is asked for; may stop the run after a number of items."""

    def __init__(self, script: Script | None = None, stop_after: int | None = None) -> None:
        super().__init__(WorkerOptions(model=None), worker=FakeWorker(script))  # type: ignore[arg-type]
        self.asked = 0
        self.stop_after = stop_after
        self.closed = False

    def submit(self, shard: Shard) -> None:
        self.asked += len(shard.tasks)
        super().submit(shard)

    def poll(self, timeout_s: float) -> list[Event]:
        if self.stop_after is not None and self.asked > self.stop_after:
            raise KeyboardInterrupt
        return super().poll(timeout_s)

    def close(self) -> None:
        self.closed = True


def run(spec: Sweep, url: str, pool: Counting) -> SweepResult:
    def pools(_: Sweep, __: Sequence[Cell], ___: int) -> Pool:
        return pool

    return run_sweep(spec, expand(spec), url, progress=False, pools=pools)


def rows(url: str, columns: str = "fingerprint, problem_id, repeat, outcome, output") -> list[Any]:
    with open_engine(url, read_only=True).connect() as connection:
        return connection.execute(text(f"select {columns} from samples order by 1, 2, 3")).fetchall()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'results.db'}"


def test_every_sample_is_stored_and_a_second_run_computes_nothing(url: str) -> None:
    first = run(sweep(), url, Counting())
    assert (first.reused, first.computed, first.failed) == (0, 36, 0)
    before = rows(url)
    idle = Counting()
    second = run(sweep(), url, idle)
    assert (second.reused, second.computed, idle.asked) == (36, 0, 0)
    assert second.sweep_id == first.sweep_id
    assert rows(url) == before
    assert [s.state for s in list_sweeps(open_engine(url, read_only=True))] == ["finished"]


def test_extending_a_sweep_runs_only_what_is_new(url: str) -> None:
    run(sweep(), url, Counting())
    longer = Counting()
    result = run(sweep(n=20, repeats=2), url, longer)
    assert (result.reused, result.computed, longer.asked) == (36, 84, 84)
    more = Counting()
    result = run(sweep(n=20, policies=["full", "full", {"name": "random", "budget": 0.5}]), url, more)
    assert (result.reused, more.asked) == (20, 20)


def test_an_interrupted_sweep_goes_on_where_it_stopped(url: str, tmp_path: Path) -> None:
    stopped = Counting(stop_after=14)
    with pytest.raises(KeyboardInterrupt):
        run(sweep(), url, stopped)
    assert stopped.closed
    stored = rows(url)
    assert 0 < len(stored) < 36
    assert [s.state for s in list_sweeps(open_engine(url, read_only=True))] == ["interrupted"]
    rest = Counting()
    result = run(sweep(), url, rest)
    assert result.reused == len(stored)
    assert rest.asked == 36 - len(stored)
    other = f"sqlite:///{tmp_path / 'undisturbed.db'}"
    run(sweep(), other, Counting())
    assert rows(url) == rows(other)


def test_refused_samples_fail_with_their_reason_and_are_tried_again_next_time(url: str) -> None:
    spec = sweep()
    key = f"{expand(spec)[0].benchmark.load()[2].id}#0"
    result = run(spec, url, Counting(Script(refuses=frozenset({key}))))
    assert (result.computed, result.failed) == (33, 3)
    failed = [row for row in rows(url, "fingerprint, problem_id, error, outcome") if row.outcome == "failed"]
    assert len(failed) == 3
    assert {row.error for row in failed} == {"refused by the script"}
    again = run(spec, url, Counting())
    assert (again.reused, again.computed, again.failed) == (33, 3, 0)
    assert all(row.outcome != "failed" for row in rows(url))


def test_a_sample_that_raises_is_given_up_alone(url: str) -> None:
    spec = sweep()
    key = f"{expand(spec)[0].benchmark.load()[2].id}#0"
    result = run(spec, url, Counting(Script(raises=frozenset({key}))))
    assert (result.computed, result.failed) == (33, 3)
    failed = [row for row in rows(url, "problem_id, error, attempt, outcome") if row.outcome == "failed"]
    assert {row.attempt for row in failed} == {3}
    assert all("given up after 3 attempts" in row.error and "raised at" in row.error for row in failed)
    events = list_events(open_engine(url, read_only=True), result.sweep_id)
    assert sum(event.kind == "shard_failed" for event in events) == 9


def test_the_summary_counts_what_the_sweep_expects(url: str) -> None:
    run(sweep(n=20), url, Counting())
    result = run(sweep(n=12), url, Counting())
    summaries = cell_summaries(open_engine(url, read_only=True), result.sweep_id)
    assert [(summary.n, summary.expected) for summary in summaries] == [(12, 12)] * 3
    assert [summary.policy for summary in summaries] == ["full", "h2o budget=0.3", "h2o budget=0.5"]
    assert all(summary.decode_tokens_per_s for summary in summaries)


def test_fewer_problems_and_more_repeats_count_the_right_samples(url: str) -> None:
    run(sweep(n=20), url, Counting())
    result = run(sweep(n=5, repeats=3), url, Counting())
    summaries = cell_summaries(open_engine(url, read_only=True), result.sweep_id)
    assert [(summary.n, summary.problems, summary.expected) for summary in summaries] == [(15, 5, 15)] * 3


def test_an_unusable_database_is_an_error_before_any_work(tmp_path: Path) -> None:
    from db.errors import StorageError

    pool = Counting()
    with pytest.raises(StorageError):
        run(sweep(), f"sqlite:///{tmp_path}/no/such/folder/x.db", pool)
    assert pool.asked == 0
