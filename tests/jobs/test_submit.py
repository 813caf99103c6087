"""Submitting: everything is checked before anything is sent, no password leaves in clear, and no sweep runs twice."""

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs import cli, job_client
from jobs.commands import submitting as submit_commands
from jobs.submit import Submission, commands, next_id, prepare, send, submission_id, without_password
from tiercache.errors import ResourceError

ROOT = Path(__file__).parents[2]
SPEC = """
name: tiny
models: [reasoner]
benchmarks: [{name: chain, n: 2}]
policies: [full]
sampling: {max_new_tokens: 8}
cluster: {max_actors: 1}
"""
SECRET = "postgresql://me:s3cr%40t@host/results"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a sweep file in it."""
    for name in [name for name in os.environ if name.startswith(("RAY_", "TIERCACHE_"))]:
        monkeypatch.delenv(name)
    path = tmp_path / "project"
    path.mkdir()
    (path / "s.yaml").write_text(SPEC)
    monkeypatch.chdir(path)
    return path


def prepared(spec: str = "s.yaml", **options: Any) -> Submission:
    given: dict[str, Any] = {"data": None, "n": None, "db": "/results/r.db", "working_dir": Path(".")}
    return prepare(Path(spec), max_upload="100MB", **{**given, **options})


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process, where any connection fails the test: (exit code, stdout, stderr)."""
    if not any(command.callback is submit_commands.submit for command in cli.app.registered_commands):
        cli.app.command()(submit_commands.submit)

    def contact(*_: object, **__: object) -> None:
        raise AssertionError("nobody may be contacted")

    monkeypatch.setattr(job_client, "connect", contact)
    monkeypatch.setattr(socket, "create_connection", contact)
    monkeypatch.setattr(socket.socket, "connect", contact)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tiercache", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code
        return (code if isinstance(code, int) else 0, *capsys.readouterr())

    return call


def test_a_large_file_is_refused_before_anyone_is_contacted(run: Run, folder: Path) -> None:
    (folder / "runs").mkdir()
    with open(folder / "runs" / "weights.bin", "wb") as file:
        file.truncate(150_000_000)  # sparse: takes no space
    code, out, err = run("submit", "s.yaml", "--db", "/results/r.db")
    assert (code, out) == (2, "")
    for words in ("143 MiB in 2 files", "95.4 MiB", "runs/weights.bin", ".rayignore"):
        assert words in err
    (folder / ".rayignore").write_text("runs/")
    with pytest.raises(AssertionError, match="nobody may be contacted"):  # now it would
        run("submit", "s.yaml", "--db", "/results/r.db")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no.yaml"], ["no.yaml: no such file"]),
        (["wrong.yaml"], ["wrong.yaml", "buget"]),
        (["../outside.yaml"], ["SPEC: '../outside.yaml' lies outside"]),
        (["hidden/s.yaml"], ["SPEC: 'hidden/s.yaml': would not be uploaded"]),
        (["jsonl.yaml"], ["benchmarks[0].data: 'rows.jsonl': no such file"]),
        (["jsonl.yaml", "--data", "x"], ["--data: 'x': no such file"]),
        (["prose.yaml"], ["benchmarks[1].templates: 'hidden/t.json': would not", ".gitignore"]),
        (["scorer.yaml"], ["policies[1].scorer: 'hidden/mine.py': would not be uploaded"]),
        (["model.yaml"], ["models[1].id: 'hidden/': hidden/config.json in it would not be uploaded"]),
        (["s.yaml", "--data", "s.yaml"], ["--data s.yaml: no benchmark"]),
        (["s.yaml", "--db", "results.db"], ["--db: 'results.db' is relative", "Ray deletes"]),
        (["s.yaml", "--db", "sqlite:///results.db"], ["--db: 'results.db' is relative"]),
        (["s.yaml", "--db", "mysql://me:pass@host/x"], ["mysql"]),
        (["database.yaml"], ["database: 'r.db' is relative"]),
        (["s.yaml", "--working-dir", "nowhere"], ["--working-dir nowhere: no such folder"]),
        (["s.yaml", "--working-dir", "hidden"], ["SPEC: 's.yaml' lies outside of the working directory"]),
        (["s.yaml", "--max-upload", "much"], ["--max-upload: 'much'"]),
        (["s.yaml", "--max-upload", "1TB"], ["--max-upload: '1TB'", "100MiB"]),
        (["s.yaml", "--max-upload", "100"], ["would be uploaded", "100 B"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_refusals(run: Run, folder: Path, arguments: list[str], words: list[str]) -> None:
    hidden = folder / "hidden"
    hidden.mkdir()
    for name in ("t.json", "config.json", "s.yaml"):
        (hidden / name).write_text(SPEC)
    (hidden / "mine.py").write_text("class Mine: pass")
    (folder / ".gitignore").write_text("hidden")
    (folder.parent / "outside.yaml").write_text(SPEC)
    changes = {
        "wrong": ("[full]", "[{name: h2o, buget: 3}]"),
        "jsonl": (
            "{name: chain, n: 2}",
            "{name: jsonl}" if "--data" in arguments else "{name: jsonl, data: rows.jsonl}",
        ),
        "prose": ("2}]", "2}, {name: longbench, task: qasper, templates: hidden/t.json}]"),
        "scorer": ("[full]", "[full, {name: h2o, budget: 0.5, scorer: 'hidden/mine.py:Mine'}]"),
        "model": ("[reasoner]", "[reasoner, hidden/]"),
        "database": ("name: tiny", "name: tiny\ndatabase: r.db"),
    }
    for name, (old, new) in changes.items():
        (folder / f"{name}.yaml").write_text(SPEC.replace(old, new))
    code, out, err = run("submit", *arguments)
    assert (code, out) == (2, "")
    assert all(word in err for word in words), err
    assert "pass@" not in err


def test_absolute_paths_are_noted(folder: Path) -> None:
    file = folder / "abs.yaml"
    file.write_text(SPEC.replace("{name: chain, n: 2}", "{name: jsonl, data: /data/rows.jsonl}"))
    found = prepared("abs.yaml", db=None)
    assert any("benchmarks[0].data: '/data/rows.jsonl' must exist on the cluster's nodes" in n for n in found.notes)
    assert any("~/tiercache.db on the node" in note for note in found.notes)


def test_an_absolute_path_into_the_folder_is_the_uploaded_one_unless_it_is_left_out(folder: Path) -> None:
    (folder / "jsonl.yaml").write_text(SPEC.replace("chain, n: 2", "jsonl"))
    (folder / "rows.jsonl").write_text("")
    here = folder / "jsonl.yaml"
    words = shlex.split(prepared(str(here), data=folder / "rows.jsonl").entrypoint)
    assert words[2:5] == ["jsonl.yaml", "--data", "rows.jsonl"]
    (folder / ".gitignore").write_text("rows.jsonl")
    found = prepared(str(here), data=folder / "rows.jsonl")
    assert shlex.split(found.entrypoint)[2:5] == ["jsonl.yaml", "--data", str(folder / "rows.jsonl")]
    assert any(note.startswith("--data") for note in found.notes)


def test_another_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    found = prepared("project/s.yaml", working_dir=Path("project"))
    assert found.folder == folder
    assert shlex.split(found.entrypoint)[:3] == ["tiercache", "run", "s.yaml"]
    assert Path.cwd() == folder.parent


@pytest.mark.parametrize(
    "name", ["-n.yaml", "a b.yaml", "it's $HOME; `id`.yaml", 'two"\\quotes.yaml', "*.yaml", "é\n.yaml"]
)
@pytest.mark.parametrize("own", [False, True], ids=["", "the file names another database"])
def test_the_jobs_shell_gives_the_command_what_was_meant(folder: Path, name: str, own: bool) -> None:
    (folder / name).write_text(SPEC + ("database: /other.db\n" if own else ""))
    found = prepared(name, n=1, db=SECRET)
    tool = folder / "bin" / "tiercache"
    tool.parent.mkdir()
    tool.write_text(f"#!{sys.executable}\nimport json, sys\njson.dump(sys.argv[1:], open('arguments.json', 'w'))\n")
    tool.chmod(0o755)
    environment = {**found.environment, "PATH": f"{tool.parent}:/bin:/usr/bin"}
    subprocess.run(found.entrypoint, shell=True, env=environment, check=True)
    given = json.loads((folder / "arguments.json").read_text())
    expected = ["run", f"./{name}" if name.startswith("-") else name, "--n", "1", "--no-progress", "--address", "auto"]
    assert given == expected + (["--db", SECRET] if own else [])


def test_no_password_in_what_is_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("TIERCACHE_DB", SECRET)
    for db in (SECRET, None):
        found = prepared(db=db)
        assert found.environment == {"TIERCACHE_DB": SECRET, "RAY_AUTH_MODE": "token"}
        shown = [found.id, found.entrypoint, *found.notes, *(line for _, line in commands(found, found.id, "http://h"))]
        assert not any("s3cr" in line for line in shown)
        assert any("me:***@host" in line for line in shown)
    hidden = without_password(f"failed: {SECRET} with s3cr@t", SECRET)
    assert hidden == "failed: postgresql+psycopg://me:***@host/results with ***"
    assert found.id == prepared(db=SECRET.replace("s3cr", "an0th3r")).id, "nobody can try passwords on the id"


def test_ids_follow_content_and_arguments() -> None:
    base = submission_id(b"name: a", ["--n", "1"])
    assert base == submission_id(b"name: a", ["--n", "1"])
    others = [(b"name: b", ["--n", "1"]), (b"name: a", ["--n", "2"]), (b"name: a", ["--n1"]), (b"name: a", [])]
    assert len({base, *(submission_id(*other) for other in others)}) == 5
    assert job_client.SWEEP_JOB.fullmatch(base)


def job(name: str, status: str = "RUNNING", **more: Any) -> Any:
    from ray.job_submission import JobStatus

    facts = {"start_time": 0, "driver_exit_code": None, "message": None, "runtime_env": {}, **more}
    return SimpleNamespace(submission_id=name, status=JobStatus(status), **facts)


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ({}, ("sweep-0", False)),
        ({"sweep-0": "RUNNING"}, ("sweep-0", True)),
        ({"sweep-0": "PENDING"}, ("sweep-0", True)),
        ({"sweep-0": "SUCCEEDED"}, ("sweep-0-2", False)),
        ({"sweep-0": "FAILED", "sweep-0-2": "STOPPED"}, ("sweep-0-3", False)),
        ({"sweep-0-10": "FAILED", "sweep-0": "FAILED", "sweep-0-9": "FAILED"}, ("sweep-0-11", False)),
        ({"sweep-0": "FAILED", "sweep-0-2": "RUNNING"}, ("sweep-0-2", True)),
        ({"sweep-01": "RUNNING", "sweep-0-x": "RUNNING", "other": "RUNNING"}, ("sweep-0", False)),
    ],
    ids=str,
)
def test_the_next_id(there: dict[str, str], expected: tuple[str, bool]) -> None:
    assert next_id("sweep-0", [job(name, status) for name, status in there.items()]) == expected


def test_of_two_that_submit_at_once_one_is_told_so(folder: Path) -> None:
    listed: list[Any] = []

    class Client:
        def get_address(self) -> str:
            return "http://h"

        def list_jobs(self) -> list[Any]:
            return listed

        def submit_job(self, **_: Any) -> None:
            listed.extend(more)
            raise RuntimeError(f"Request failed with status code 500: {SECRET} already exists\nlast line")

    found = prepared(db=SECRET)
    fake: Any = Client()
    more = [job(found.id)]
    assert send(fake, found) == (found.id, True)
    listed, more = [], []
    with pytest.raises(ResourceError, match=r"http://h: .*me:\*\*\*@host.*last line"):
        send(fake, found)
