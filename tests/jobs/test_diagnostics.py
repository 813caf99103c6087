"""Diagnostics as an option of a sweep: stored beside samples, printed with their meaning, no part of any identity."""

import csv
import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from cluster.fake import FakeWorker, Script
from cluster.pool import InlinePool, Pool, WorkerOptions
from cluster.work import Diagnosed, Done, Shard, Task
from cluster.worker import EngineWorker
from db.connection import open_engine
from db.migrate import downgrade
from db.queries import DiagnosticSummary, cell_summaries, diagnostic_summaries, list_sweeps
from jobs.coordinator import SweepResult, run_sweep
from jobs.export import export
from jobs.grid import Cell, expand
from jobs.report import console, diagnostic_tables, diagnostic_texts
from jobs.results import diagnostic_row
from jobs.spec import Sweep, parse_sweep
from jobs.work_queue import split_key
from tiercache.diagnostics.values import MEANING, Diagnostics
from tiercache.errors import SpecError
from tiercache.model_spec import ModelSpec
from tiercache.policy import parse_policy
from tiercache.rendering import Rendering
from tiercache.requests import Sampling


def sweep(diagnostics: bool = True, n: int = 4) -> Sweep:
    return parse_sweep(
        {
            "name": "t",
            "models": ["reasoner"],
            "benchmarks": [{"name": "chain", "n": n}],
            "policies": ["full", {"name": "h2o", "budget": 0.5}],
            "diagnostics": diagnostics,
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
    on, off = (expand(sweep(each)) for each in (True, False))
    assert [(cell.fingerprint, cell.protocol) for cell in on] == [(cell.fingerprint, cell.protocol) for cell in off]
    with pytest.raises(SpecError, match="diagnostics"):
        parse_sweep({**sweep().model_dump(exclude_none=True), "diagnostics": "yes"})


def test_each_sample_has_its_own(url: str) -> None:
    run(sweep(), url)
    samples, found = rows(url, "samples"), rows(url, "diagnostics")
    assert [row[:3] for row in found] == [row[:3] for row in samples]
    assert {(row.steps, row.fmm_acc, row.kl, row.first_divergent) for row in found} == {(40, 0.25, 0.5, 7)}
    again = Counting()
    assert run(sweep(), url, again).reused == 8
    assert again.asked == 0


def test_without_the_option_there_are_none(url: str) -> None:
    result = run(sweep(diagnostics=False), url)
    assert rows(url, "diagnostics") == []
    summaries = cell_summaries(open_engine(url, read_only=True), result.sweep_id)
    assert diagnostic_tables(summaries, {}) == []


def test_turned_on_later_they_are_added_and_samples_stay(url: str) -> None:
    run(sweep(diagnostics=False), url)
    before = rows(url, "samples")
    later = Counting()
    result = run(sweep(n=5), url, later)
    assert (result.reused, later.asked) == (0, 10)
    assert [row for row in rows(url, "samples") if row in before] == before
    assert len(rows(url, "diagnostics")) == 10
    assert run(sweep(diagnostics=False, n=5), url).reused == 10


def test_an_older_database_keeps_its_samples(url: str) -> None:
    run(sweep(diagnostics=False), url)
    downgrade(open_engine(url), "0001")
    pool = Counting()
    assert run(sweep(diagnostics=False), url, pool).reused == 8
    assert pool.asked == 0
    downgrade(open_engine(url), "0001")
    assert run(sweep(), url).computed == 8


def test_a_refused_sample_has_none(url: str) -> None:
    spec = sweep()
    key = f"{expand(spec)[0].benchmark.load()[1].id}#0"
    assert run(spec, url, Counting(Script(refuses=frozenset({key})))).failed == 2
    assert len(rows(url, "diagnostics")) == 6


@pytest.mark.parametrize(("value", "shown"), [(0.0, "0.000"), (0.0004, "4e-04"), (0.0006, "0.001"), (2.5, "2.500")])
def test_what_is_small_is_not_shown_as_nothing(value: float, shown: str) -> None:
    nothing = dict.fromkeys(DiagnosticSummary.__dataclass_fields__)
    assert (
        diagnostic_texts(DiagnosticSummary(**{**nothing, "kl": value, "diverged_share": 0, "diagnosed": 1}))[6] == shown
    )


def test_a_divergence_below_nothing_is_nothing(url: str) -> None:
    """Rounding makes KL(full, full) -3e-10; neither new rows nor those of earlier versions show that."""
    assert diagnostic_row("f", Diagnosed("p#0", Diagnostics(steps=3, kl=-3e-10))).kl == 0.0
    assert diagnostic_row("f", Diagnosed("p#0", Diagnostics(steps=3, kl=3e-4))).kl == 3e-4
    assert diagnostic_row("f", Diagnosed("p#0", Diagnostics(steps=3))).kl is None
    result = run(sweep(), url)
    with open_engine(url).begin() as connection:
        connection.execute(text("update diagnostics set kl = -3e-10"))
    found = diagnostic_summaries(open_engine(url, read_only=True), result.sweep_id)
    assert {each.kl for each in found.values()} == {0.0}


def test_keys() -> None:
    assert split_key("chain#7-1#0") == ("chain#7-1", 0)
    sample_key = f"{'p'}#{12}"
    assert split_key(sample_key) == ("p", 12)


def test_reports_and_exports_say_what_the_numbers_mean(url: str) -> None:
    result = run(sweep(), url)
    engine = open_engine(url, read_only=True)
    info, summaries = list_sweeps(engine)[0], cell_summaries(engine, result.sweep_id)
    found = diagnostic_summaries(engine, result.sweep_id)
    screen = console()
    with screen.capture() as capture:
        for table in diagnostic_tables(summaries, found):
            screen.print(table)
    printed = " ".join(capture.get().split())
    assert "h2o budget=0.5 0.250 – – – – – 0.500 7 100% 4" in printed
    for name in ("fmm_acc", "fmm_fp", "recall", "churn", "lir", "kl"):
        assert MEANING[name] in printed

    table = export(info, summaries, "md", found).splitlines()
    assert table[-10].startswith("| reasoner | chain |")
    assert table[-10].endswith("| h2o budget=0.5 | 0.250 | – | – | – | – | – | 0.500 | 7 | 100% | 4 |")
    assert table[-8] == f"* FMM: {MEANING['fmm_acc']}"
    data = json.loads(export(info, summaries, "json", found))
    assert data["diagnostics"] == MEANING
    assert [cell["fmm_acc"] for cell in data["cells"]] == [0.25, 0.25]
    lines = list(
        csv.DictReader(
            StringIO(export(info, summaries, "csv", {summaries[1].fingerprint: found[summaries[1].fingerprint]}))
        )
    )
    assert [line["kl"] for line in lines] == ["", "0.5"]
    assert "kl" not in next(csv.reader(StringIO(export(info, summaries, "csv"))))


def test_a_real_worker_measures_and_changes_nothing() -> None:
    worker = EngineWorker(ModelSpec(id="reasoner", dtype="float64"), "cpu", 4, None, 512, 1)
    problems = expand(sweep(n=3))[0].benchmark.load()
    tasks = tuple(Task(f"{p.id}#0", p.prompt, seed=i) for i, p in enumerate(problems))
    policy = parse_policy({"name": "h2o", "budget": 0.5, "pin_prompt": True})
    plain, measured = (
        list(worker.run(Shard("x", policy, Sampling(max_new_tokens=60), Rendering(), tasks, diagnostics=each)))
        for each in (False, True)
    )
    texts = [
        {
            item.key: (item.text, item.completion.tokens, item.completion.ledger)
            for item in items
            if isinstance(item, Done)
        }
        for items in (plain, measured)
    ]
    assert texts[0] == texts[1]
    assert not any(isinstance(item, Diagnosed) for item in plain)
    found = {item.key: item.diagnostics for item in measured if isinstance(item, Diagnosed)}
    assert set(found) == {task.key for task in tasks}
    for key, each in found.items():
        assert each.steps == len(texts[0][key][1]) - 1 == 59
        assert each.fmm_acc is not None
        assert 0 < each.fmm_acc < 1
        assert each.kl is not None
        assert each.kl > 0
