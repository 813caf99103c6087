"""A failed run says why: the distinct reasons under its table and in its export, and what is to be done."""

import csv
import json
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest

from db import CellRow, SampleRow, Writer, open_engine
from db.queries import FailedSample, failed_samples
from jobs import cli
from jobs.failures import LONGEST, advice, reason_lines, reasons

LONG = "prompt {} + max_new_tokens 900 exceed the model's max_position_embeddings of 1024; lower max_new_tokens."
SMALL = "needs {} bytes under '{}', above hbm_kv_budget 1,000; raise it."
LOST = "given up after 3 attempts; the last: ValueError: raised at {}"
Run = Callable[..., tuple[int, str, str]]


def failed(error: str, problem: str = "p1", policy: str = "full") -> FailedSample:
    return FailedSample(
        fingerprint=policy, model="m", benchmark="b", policy=policy, problem_id=problem, repeat=0, error=error
    )


def test_the_same_refusal_of_other_samples_and_policies_is_one_reason() -> None:
    found = reasons(
        [
            failed(LOST.format("p9#0"), "p9"),
            *(failed(f"p{i}#0: {LONG.format(200 + i)}", f"p{i}") for i in range(3)),
            failed(f"p1#0: {SMALL.format('4,096', 'full')}"),
            failed(f"p1#0: {SMALL.format('2,048', 'h2o budget=0.5')}", policy="h2o budget=0.5"),
        ]
    )
    assert [(reason.samples, reason.cells) for reason in found] == [(3, 1), (2, 2), (1, 1)]
    assert [reason.refused for reason in found] == [True, True, False]
    assert found[0].text == LONG.format(200)
    lines = reason_lines(found)
    assert lines[0] == "failed: 6"
    assert lines[1] == f"    3 × {LONG.format(200)}"
    assert lines[2].endswith("in m · b · full: p0")
    assert lines[4].endswith("in 2 cells, for example m · b · full: p1")


def test_only_the_most_frequent_reasons_are_shown_and_none_fills_the_screen() -> None:
    kinds = [failed(f"reason {chr(97 + i)}" + "!" * 999) for i in range(8)]
    lines = reason_lines(reasons([*kinds, kinds[7]]))
    assert "reason h" in lines[1]
    assert sum(" × " in line for line in lines) == 5
    assert "and 3 other reasons" in lines[-1]
    assert max(map(len, lines)) < LONGEST + 20
    assert reason_lines([]) == []


def test_only_what_may_succeed_is_said_to_be_worth_another_try() -> None:
    refused, lost = reasons([failed(LONG)] * 4), reasons([failed(LOST)] * 2)
    assert advice(2, lost) == "2 samples failed; re-issue the command to try again."
    assert "re-issue" not in advice(4, refused)
    assert "4 samples failed because the engine refused" in advice(4, refused)
    assert "Once the cause is removed" in advice(4, refused)
    both = advice(6, [*refused, *lost])
    assert both.startswith("2 samples failed; re-issue")
    assert "4 samples failed because the engine refused" in both
    assert advice(3, []) == "3 samples failed; re-issue the command to try again."


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tiercache", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return (ended.value.code if isinstance(ended.value.code, int) else 0), out, err

    return call


@pytest.fixture
def database(tmp_path: Path) -> str:
    """Two cells of three problems: one refuses two of them, the other has lost one; a fourth isn't of the sweep."""
    writer = Writer.open(str(tmp_path / "r.db"))
    cells = [
        CellRow(
            fingerprint=label,
            model="reasoner",
            benchmark="chain",
            policy=label,
            policy_name=label,
            config={},
            protocol="p",
            kv_bytes_per_token=1,
            expected_samples=3,
        )
        for label in ("full", "h2o")
    ]
    writer.register_sweep("s-1", "s", {"name": "s"}, {}, cells)
    errors = {
        ("full", "p0"): f"p0#0: {LONG.format(200)}",
        ("full", "p1"): f"p1#0: {LONG.format(201)}",
        ("h2o", "p2"): LOST.format("p2\x1b[31m#0"),
        ("h2o", "p3"): "not one of the sweep's",
    }
    for label in ("full", "h2o"):
        for problem in ("p0", "p1", "p2", "p3"):
            error = errors.get((label, problem))
            row = SampleRow(
                fingerprint=label,
                problem_id=problem,
                repeat=0,
                seed=1,
                outcome="failed" if error else "correct",
                finish_reason="error" if error else "eos",
                prompt="p",
                output="",
                reference="r",
                error=error,
            )
            writer.record([row])
    writer.set_state("s-1", "finished")
    writer.close()
    return "r.db"


def test_the_database_tells_the_failed_samples_of_a_sweep(database: str, tmp_path: Path) -> None:
    found = failed_samples(open_engine(str(tmp_path / database), read_only=True), "s-1")
    assert [(each.policy, each.problem_id) for each in found] == [("full", "p0"), ("full", "p1"), ("h2o", "p2")]


def test_status_says_why_samples_failed(run: Run, database: str) -> None:
    code, out, _ = run("status", "s", "--db", database)
    assert code == 0
    assert "failed: 3" in out
    assert f"2 × {LONG.format(200)}" in out
    assert "in reasoner · chain · full: p0" in out
    assert "1 × given up after 3 attempts" in out
    assert "\x1b[31m" not in out


def test_a_run_says_why_and_what_to_do(
    run: Run, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jobs.coordinator

    def fake(*_: object, **__: object) -> jobs.coordinator.SweepResult:
        return jobs.coordinator.SweepResult("s-1", 0, 3, failed=3)

    monkeypatch.setattr(jobs.coordinator, "run_sweep", fake)
    (tmp_path / "s.yaml").write_text("name: s\nmodels: [reasoner]\nbenchmarks: [chain]\npolicies: [full]\n")
    code, out, err = run("run", "s.yaml", "--db", database)
    assert code == 1
    assert f"2 × {LONG.format(200)}" in out
    assert "1 sample failed; re-issue the command to try again." in err
    assert "2 samples failed because the engine refused" in err


def test_exports_have_each_cells_reasons(run: Run, database: str) -> None:
    cells = json.loads(run("export", "s", "--format", "json", "--db", database)[1])["cells"]
    assert cells[0]["failures"] == [{"reason": LONG.format(200), "samples": 2}]
    assert [each["samples"] for each in cells[1]["failures"]] == [1]
    rows = list(csv.DictReader(StringIO(run("export", "s", "--db", database)[1])))
    assert rows[0]["failures"] == f"2 x {LONG.format(200)}"
    assert (
        f"* 2 failed in 1 of the cells: {LONG.format(200)}" in run("export", "s", "--format", "md", "--db", database)[1]
    )


def test_footers_are_true_of_every_policy(run: Run, database: str) -> None:
    """Codes have 2 to 8 bits, and not every knob goes with every other."""
    table, policies = (" ".join(run(*words)[1].split()) for words in (["status", "s", "--db", database], ["policies"]))
    assert "in full precision or quantised" in table
    assert "8-bit" not in table
    assert "What contradicts itself or would have no effect is refused" in policies
    assert "goes with every policy" not in policies
