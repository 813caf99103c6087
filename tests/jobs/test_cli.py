"""The command line: bad input costs one message and exit code 2, and nothing is written or imported for it."""

import csv
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs import cli
from jobs.export import export, pick_sweep
from jobs.report import WIDTH, bytes_text, result_tables
from tiercache.errors import SpecError

ROOT = Path(__file__).parents[2]
HEAD = "name: t\nmodels: [reasoner]\nbenchmarks: [chain]\n"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs the command in this process, in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIERCACHE_DB", raising=False)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tiercache", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out, err

    return call


WRONG = [
    ("policies: [{name: h2o, buget: 512}]", "buget"),
    ("policies: [{name: h20, budget: 512}]", "h20"),
    ("policies: [{name: h2o, budget: 1.5}]", "1.5"),
    ("policies: [{name: streaming, budget: 100, recent: 128}]", "132"),
    ("policies: [full", "not valid YAML"),
]


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize(("text", "word"), WRONG, ids=[word for _, word in WRONG])
def test_wrong_specs(run: Run, tmp_path: Path, command: str, text: str, word: str) -> None:
    (tmp_path / "s.yaml").write_text(HEAD + text)
    code, out, err = run(command, "s.yaml")
    assert (code, out) == (2, "")
    assert word in err
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nope.yaml"], ["nope.yaml: no such file"]),
        (["run", "ok.yaml", "--db", "mysql://x/y"], ["mysql"]),
        (["run", "ok.yaml", "--db", ""], ["empty"]),
        (["run", "gsm.yaml", "--data", "nowhere"], ["nowhere: no such file", "tiercache prepare gsm8k"]),
        (["run", "gguf.yaml"], ["gone.gguf", "no such GGUF file"]),
        (["run", "ok.yaml", "--n", "0"], ["--n"]),
        (["plan", "ok.yaml", "--n", "2000000"], ["benchmarks[0].n"]),
        (["status"], ["doesn't exist yet", "tiercache run"]),
        (["status", "--db", "text.db"], ["database can't be used", "--db"]),
        (["export", "latest"], ["doesn't exist yet"]),
        (["export", "latest", "--format", "xml"], ["xml"]),
        (["dashboard", "--port", "0"], ["--port"]),
        (["frobnicate"], ["frobnicate"]),
        (["run", "esc\x1b[31m.yaml"], ["\\x1b[31m"]),
    ],
    ids=lambda value: " ".join(value).replace("\x1b", "ESC"),
)
def test_other_bad_input(run: Run, tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    (tmp_path / "ok.yaml").write_text(HEAD + "policies: [full]")
    (tmp_path / "gsm.yaml").write_text("name: t\nmodels: [reasoner]\nbenchmarks: [gsm8k]\npolicies: [full]")
    (tmp_path / "gguf.yaml").write_text("name: t\nmodels: [gone.gguf]\nbenchmarks: [chain]\npolicies: [full]")
    (tmp_path / "text.db").write_text("this is no database")
    before = sorted(path.name for path in tmp_path.iterdir())
    code, _, err = run(*arguments)
    assert code == 2
    assert all(word in err for word in words), err
    assert "Traceback" not in err
    assert "\x1b" not in err
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("path", sorted((ROOT / "sweeps").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_sweeps_can_be_planned(run: Run, path: Path) -> None:
    code, out, err = run("plan", path)
    assert code == 0, err
    assert "cells" in out
    assert max(len(line) for line in out.splitlines() if not line.startswith("note:")) <= WIDTH


def test_lists_name_everything(run: Run) -> None:
    from jobs.benchmarks.catalog import registry
    from tiercache.policy import PRESETS
    from tiercache.shapes import KNOWN

    for command, names in (("policies", PRESETS), ("benchmarks", registry()), ("models", KNOWN)):
        code, out, _ = run(command)
        assert code == 0
        assert all(name in out for name in names)
        assert max(map(len, out.splitlines())) <= WIDTH


def test_policies_are_listed_with_what_a_user_must_know(run: Run) -> None:
    """Signal, scope, when it acts, what it protects, parameters with defaults, source."""
    out = " ".join(run("policies")[1].split())
    for words in (
        "2306.14048",
        "(from attention)",
        "per head",
        "every 64 steps",
        "the newest half",
        "budget*",
        "recent_share: 0.5",
    ):
        assert words.split()[0] in out, words


def test_version(run: Run) -> None:
    assert run("--version")[1].startswith("tiercache ")


def filled(path: Path) -> None:
    """A database with one sweep of three cells, five judged samples each."""
    from db import CellRow, SampleRow, Writer

    writer = Writer.open(str(path))
    cells = [
        CellRow(
            fingerprint=f"cell{i}",
            model="reasoner",
            benchmark="chain",
            policy=label,
            policy_name=label.split()[0],
            config={},
            protocol="protocol-1",
            kv_bytes_per_token=1536,
            expected_samples=6,
        )
        for i, label in enumerate(["full", "hierarchy evict=0.03 hbm=0.5 recent=32 every=16 packed=0.4", "a|b [bold]"])
    ]
    writer.register_sweep("demo-1", "demo", {"name": "demo"}, {}, cells)
    for i, cell in enumerate(cells):
        writer.record(
            [
                SampleRow(
                    fingerprint=cell.fingerprint,
                    problem_id=f"p{k}",
                    repeat=0,
                    seed=k,
                    outcome="correct" if k > i else "truncated",
                    finish_reason="length" if k <= i else "eos",
                    prompt="p",
                    output="o",
                    reference="r",
                    hbm_bytes_mean=100_000.0,
                    ddr_bytes_mean=50_000.0,
                    packed_bytes_mean=20_000.0,
                    evicted_bytes_end=0,
                    full_bytes_mean=400_000.0,
                )
                for k in range(5)
            ]
        )
    writer.set_state("demo-1", "finished")
    writer.close()


def test_status_and_export(run: Run, tmp_path: Path) -> None:
    filled(tmp_path / "r.db")
    code, out, _ = run("status", "--db", "r.db")
    assert code == 0
    assert "demo-1" in out
    assert "15 of 18" in out
    code, out, _ = run("status", "latest", "--db", "r.db")
    assert "80.0 [" in out
    assert " 117 " in out  # KiB, full precision and codes: both are on the device
    assert "30%" in out
    assert "a|b [bold]" in out
    rows = list(csv.DictReader(StringIO(run("export", "demo", "--db", "r.db")[1])))
    assert [float(row["accuracy"]) for row in rows] == [0.8, 0.6, 0.4]
    assert rows[0]["decode_tokens_per_s"] == ""
    data = json.loads(run("export", "demo-1", "--format", "json", "--db", "r.db")[1])
    assert data["name"] == "demo"
    assert [cell["truncated"] for cell in data["cells"]] == [1, 2, 3]
    table = run("export", "latest", "--format", "md", "--db", "r.db")[1].splitlines()
    assert len(table) == 5
    assert {line.replace("\\|", "").count("|") for line in table} == {15}
    code, _, err = run("export", "dmo", "--db", "r.db")
    assert code == 2
    assert "Did you mean 'demo" in err


def test_tables_fit_and_keep_protocols_apart(tmp_path: Path) -> None:
    from dataclasses import replace

    from rich.console import Console

    from db import open_engine
    from db.queries import cell_summaries

    filled(tmp_path / "r.db")
    rows = cell_summaries(open_engine(str(tmp_path / "r.db"), read_only=True), "demo-1")
    wide = [replace(row, decode_tokens_per_s=123_456.7, n=1319, expected=1319, exclusive=False) for row in rows]
    other = [replace(row, protocol="protocol-2") for row in wide]
    assert len(result_tables([*wide, *other])) == 2
    for width, headings in ((WIDTH, ["right", "cut", "host", "evicted", "1319"]), (80, ["fail", "device", "1319"])):
        screen = Console(width=width, file=StringIO(), highlight=False)
        for table in result_tables([*wide, *other], width):
            screen.print(table)
        text = screen.file.getvalue()  # type: ignore[attr-defined]
        assert all(word in text for word in ["policy", "accuracy", "123,457*", *headings])
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
        assert ("hierarchy evict=0.03 hbm=0.5 recent=32 every=16" in text) == (width == WIDTH)


def test_picking_a_sweep_of_none() -> None:
    with pytest.raises(SpecError, match="no sweeps"):
        pick_sweep([], "latest")


def test_export_of_nothing_is_empty() -> None:
    from db.queries import SweepInfo

    now = datetime.now(UTC)
    info = SweepInfo("i", "n", "running", now, now, 0, 0, 0, 0, {}, {})
    assert export(info, [], "csv") == ""
    assert json.loads(export(info, [], "json"))["cells"] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0 B"), (512, "512 B"), (1536, "1.50 KiB"), (57_344, "56.0 KiB"), (4 * 2**30, "4.00 GiB")],
)
def test_bytes_in_words(value: float | None, text: str) -> None:
    assert bytes_text(value) == text


def test_options_reach_the_coordinator(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--n` and `--data` change the sweep and its cells; a failed sample makes exit code 1; results are printed."""
    import jobs.coordinator

    filled(tmp_path / "r.db")
    asked: dict[str, Any] = {}

    def fake(sweep: Any, cells: Any, url: str, *, progress: bool, address: str | None, wait_s: float) -> Any:
        asked.update(sweep=sweep, cells=cells, url=url, progress=progress, address=address)
        return jobs.coordinator.SweepResult("demo-1", 0, 15, failed=asked.pop("fail", 0))

    monkeypatch.setattr(jobs.coordinator, "run_sweep", fake)
    (tmp_path / "g.jsonl").write_text('{"question": "1+1", "answer": "#### 2"}\n' * 3)
    sweep = {"name": "t", "models": ["reasoner"], "benchmarks": ["gsm8k"], "policies": ["full"], "database": "x.db"}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(sweep))
    code, out, _ = run("run", "s.yaml", "--n", 2, "--data", "g.jsonl", "--db", "r.db", "--no-progress")
    assert (code, asked["progress"], asked["url"], asked["address"]) == (0, False, "r.db", None)
    assert asked["sweep"].benchmarks == [{"name": "gsm8k", "n": 2}]
    assert [cell.n for cell in asked["cells"]] == [2]
    assert "accuracy" in out
    assert "0 samples reused, 15 computed, 0 failed." in out
    assert "tiercache dashboard --db r.db " in out
    assert "http://127.0.0.1:8501" in out
    asked["fail"] = 3
    code, _, err = run("run", "s.yaml", "--data", "g.jsonl", "--db", "r.db", "--address", "ray-head:6379")
    assert (code, asked["address"]) == (1, "ray-head:6379")
    assert "3 samples failed" in err


def test_an_interrupted_run_says_how_to_go_on(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import jobs.coordinator

    def fake(*arguments: object, **keywords: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs.coordinator, "run_sweep", fake)
    (tmp_path / "s.yaml").write_text(HEAD + "policies: [full]")
    code, _, err = run("run", "s.yaml")
    assert code == 130
    assert "interrupted; finished samples are stored. Re-issue the command to continue." in err


def test_data_that_nothing_reads_are_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(HEAD + "policies: [full]")
    code, _, err = run("run", "s.yaml", "--data", "x.jsonl")
    assert code == 2
    assert "--data x.jsonl: no benchmark of this sweep (chain) reads a file" in err


def test_the_dashboard_is_started_with_the_database_in_its_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: dict[str, Any] = {}

    def execute(program: str, arguments: list[str], environment: dict[str, str]) -> None:
        started.update(program=program, arguments=arguments, environment=environment)
        raise SystemExit(0)

    monkeypatch.setattr(cli.os, "execvpe", execute)
    code, out, _ = run("dashboard", "--db", "r.db", "--port", 8765)
    assert (code, started["program"]) == (0, started["arguments"][0])
    assert "http://127.0.0.1:8765" in out
    assert any("8765" in argument for argument in started["arguments"])
    assert not any("r.db" in argument for argument in started["arguments"])
    assert started["environment"]["TIERCACHE_DB"] == "r.db"
