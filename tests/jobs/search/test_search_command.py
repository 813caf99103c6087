"""`tiercache search`: bad input costs one message and writes nothing; a page, exit codes, resume. No Ray."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import cluster.session
import jobs.search.objective
from jobs import cli
from jobs.coordinator import run_sweep
from jobs.search.spec import parse_search

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs the command in this process, in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIERCACHE_DB", raising=False)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tiercache", "search", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out, err

    return call


@pytest.fixture
def pool(computed: Any, data: dict[str, Any], url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The made-up model in the place of Ray."""
    _, made = computed(parse_search(data), url)

    def without_ray(*arguments: Any, **how: Any) -> Any:
        return run_sweep(*arguments, **{**how, "progress": False, "pools": lambda *_: made})

    @contextmanager
    def nothing(address: str | None = None) -> Iterator[str]:
        yield "nothing"

    monkeypatch.setattr(jobs.search.objective, "run_sweep", without_ray)
    monkeypatch.setattr(cluster.session, "session", nothing)
    return made


def write(path: Path, data: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "arguments", "word"),
    [
        ({"budget": {"bytes": 2.0}}, [], "budget.bytes"),
        ({"space": {"scorer": ["best"]}}, [], "space.scorer"),
        ({"report": {"n": 5, "skip": 3}}, [], "report.skip"),
        ({"benchmark": {"name": "jsonl", "data": "nowhere.jsonl"}}, [], "nowhere.jsonl"),
        ({}, ["--db", "mysql://x/y"], "mysql"),
        ({}, ["--out", "no/such/folder/page.md"], "--out"),
        ({}, ["--only-report"], "doesn't exist yet"),
    ],
    ids=str,
)
def test_bad_input_writes_nothing(
    run: Run, tmp_path: Path, data: dict[str, Any], change: dict[str, Any], arguments: list[str], word: str
) -> None:
    write(tmp_path / "s.yaml", {**data, **change})
    code, out, err = run("s.yaml", *arguments)
    assert (code, out) == (2, "")
    assert word in err
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]


def test_without_optuna_it_says_what_to_install(
    run: Run, tmp_path: Path, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> Any:
        return None if name == "optuna" else there(name, package)

    monkeypatch.setattr("importlib.util.find_spec", without)
    write(tmp_path / "s.yaml", data)
    code, _, err = run("s.yaml")
    assert code == 2
    assert "tiercache-eval[search]" in err
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]


def test_a_search_from_the_command_line(run: Run, tmp_path: Path, data: dict[str, Any], url: str, pool: Any) -> None:
    write(tmp_path / "s.yaml", data)
    pool.stop_after = 60
    code, out, err = run("s.yaml", "--db", url)
    assert (code, out) == (130, "")
    assert "Re-issue" in err
    pool.stop_after = None
    code, out, err = run("s.yaml", "--db", url)
    assert code == 0
    assert "computed" in err
    assert out.startswith("# Search: t\n")
    asked = pool.asked
    code, again, err = run("s.yaml", "--db", url, "--out", "page.md")
    assert (code, again) == (0, "page.md\n")
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == out
    assert run("s.yaml", "--db", url, "--only-report")[:2] == (0, out)
    assert pool.asked == asked
