"""Tier maps as an option of a sweep: of the first problems, added later, no part of a cell, and nothing changes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from cluster.fake import FakeWorker, Script
from cluster.pool import InlinePool, Pool, WorkerOptions
from cluster.work import Done, Mapped, Shard, Task
from cluster.worker import EngineWorker
from db.connection import open_engine
from db.migrate import downgrade
from db.queries import get_tier_map, list_tier_maps
from db.tier_maps import ABSENT, EVICTED
from jobs.coordinator import SweepResult, run_sweep
from jobs.grid import Cell, expand
from jobs.results import tier_map_row
from jobs.spec import Sweep, parse_sweep
from jobs.work_queue import WorkQueue, samples_of
from tiercache.errors import SpecError
from tiercache.model_spec import ModelSpec
from tiercache.policy import parse_policy
from tiercache.rendering import Rendering
from tiercache.requests import Sampling


def sweep(tier_maps: int = 2, n: int = 4, repeats: int = 1, diagnostics: bool = False) -> Sweep:
    return parse_sweep(
        {
            "name": "t",
            "models": ["reasoner"],
            "benchmarks": [{"name": "chain", "n": n}],
            "policies": ["full", {"name": "h2o", "budget": 0.5}],
            "repeats": repeats,
            "diagnostics": diagnostics,
            "tier_maps": tier_maps,
        }
    )


class Counting(InlinePool):
    def __init__(self, script: Script | None = None) -> None:
        super().__init__(WorkerOptions(model=None), worker=FakeWorker(script))  # type: ignore[arg-type]
        self.asked = 0

    def submit(self, shard: Shard) -> None:
        self.asked += len(shard.tasks)
        super().submit(shard)


def run(spec: Sweep, url: str, pool: Counting | None = None) -> SweepResult:
    def pools(_: Sweep, __: Sequence[Cell], ___: int) -> Pool:
        return pool or Counting()

    return run_sweep(spec, expand(spec), url, progress=False, pools=pools)


def rows(url: str, table: str) -> list[Any]:
    with open_engine(url, read_only=True).connect() as connection:
        return connection.execute(text(f"select * from {table} order by fingerprint, problem_id, repeat")).fetchall()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'results.db'}"


def test_they_are_no_part_of_an_identity() -> None:
    on, off = (expand(sweep(each)) for each in (2, 0))
    assert [(cell.fingerprint, cell.protocol) for cell in on] == [(cell.fingerprint, cell.protocol) for cell in off]
    for wrong in (-1, 1001, True, "2", 1.5):
        with pytest.raises(SpecError, match="tier_maps"):
            parse_sweep({**sweep().model_dump(exclude_none=True), "tier_maps": wrong})


def test_a_shard_names_the_first_problems_once_each() -> None:
    (cell, _) = expand(sweep(n=5, repeats=3))
    queue = WorkQueue([samples_of(cell)], 4, 3, tier_maps=2)
    first = [problem.id for problem in cell.benchmark.load()[:2]]
    asked = []
    while queue.has_waiting():
        asked += queue.next_shard().tier_maps
    assert asked == [f"{problem}#0" for problem in first]
    queue = WorkQueue([samples_of(cell)], 4, 3)
    assert queue.next_shard().tier_maps == ()


def test_the_first_problems_have_one(url: str) -> None:
    result = run(sweep(repeats=2), url)
    engine = open_engine(url, read_only=True)
    listed = list_tier_maps(engine, result.sweep_id)
    first = [problem.id for problem in expand(sweep())[0].benchmark.load()[:2]]
    assert sorted((each.policy, each.problem_id, each.repeat) for each in listed) == sorted(
        (policy, problem, 0) for policy in ("full", "h2o budget=0.5") for problem in first
    )
    found = get_tier_map(engine, listed[0].fingerprint, listed[0].problem_id, 0)
    assert found is not None
    assert found.texts == ("a", "b", "<i>c</i>", "d")
    assert found.overall.tolist() == [[0, 0, ABSENT, ABSENT], [EVICTED, 0, 0, ABSENT]]
    assert (found.prompt_tokens, found.no_importance) == (2, "made up")
    again = Counting()
    assert run(sweep(repeats=2), url, again).reused == 16
    assert again.asked == 0


def test_turned_on_later_they_are_added_and_samples_stay(url: str) -> None:
    run(sweep(0), url)
    assert rows(url, "tier_maps") == []
    before, later = rows(url, "samples"), Counting()
    result = run(sweep(2), url, later)
    assert (result.reused, result.computed, later.asked) == (4, 4, 4), "those of the two problems are generated again"
    assert rows(url, "samples") == before
    assert len(rows(url, "tier_maps")) == 4
    more = Counting()
    assert run(sweep(3), url, more).reused == 6
    assert more.asked == 2
    assert run(sweep(1), url).reused == 8


def test_with_diagnostics_both_are_there(url: str) -> None:
    run(sweep(2, diagnostics=True), url)
    assert (len(rows(url, "diagnostics")), len(rows(url, "tier_maps"))) == (8, 4)
    assert run(sweep(2, diagnostics=True), url).reused == 8


def test_an_older_database_keeps_its_samples(url: str) -> None:
    run(sweep(0), url)
    downgrade(open_engine(url), "0005")
    assert run(sweep(0), url).reused == 8
    downgrade(open_engine(url), "0005")
    assert run(sweep(1), url).reused == 6


def test_a_refused_sample_has_none(url: str) -> None:
    spec = sweep()
    key = f"{expand(spec)[0].benchmark.load()[1].id}#0"
    assert run(spec, url, Counting(Script(refuses=frozenset({key})))).failed == 2
    assert len(rows(url, "tier_maps")) == 2


@pytest.mark.parametrize("diagnostics", [True, False])
def test_a_real_worker_writes_down_and_changes_nothing(diagnostics: bool) -> None:
    worker = EngineWorker(ModelSpec(id="reasoner"), "cpu", 4, None, 512, 1)
    problems = expand(sweep(n=3))[0].benchmark.load()
    tasks = tuple(Task(f"{p.id}#0", p.prompt, seed=i) for i, p in enumerate(problems))
    policy = parse_policy({"name": "hierarchy", "hbm": 0.3, "evict": 0.1, "every": 16, "recent": 16})
    shard = Shard("x", policy, Sampling(max_new_tokens=40), Rendering(), tasks)
    mapped = (tasks[0].key, tasks[2].key)
    plain, watched = (
        list(worker.run(Shard(**{**vars(shard), "tier_maps": keys, "diagnostics": measured})))
        for keys, measured in (((), False), (mapped, diagnostics))
    )
    done = [
        {
            each.key: (each.text, each.completion.tokens, each.completion.ledger)
            for each in items
            if isinstance(each, Done)
        }
        for items in (plain, watched)
    ]
    assert done[0] == done[1]
    found = {each.key: each for each in watched if isinstance(each, Mapped)}
    assert set(found) == set(mapped)
    for key, each in found.items():
        tokens, ledger = done[0][key][1], done[0][key][2]
        assert each.tokens[-len(tokens) :] == tokens
        assert len(each.texts) == len(each.tokens)
        assert each.record.steps.tolist() == [0, 16, 32, 39]
        assert (each.record.overall[-1] == EVICTED).sum() == ledger.evicted_tokens
        row = tier_map_row("f", each)
        assert (row.problem_id, row.repeat, row.steps, row.looks) == (key.rpartition("#")[0], 0, 39, 4)
        assert len(row.blob) < 10_000
