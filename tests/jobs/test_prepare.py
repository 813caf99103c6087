"""Data are fetched once, with revision and hash; then a sweep needs no hub."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jobs.benchmarks import prepared
from jobs.benchmarks.catalog import parse_benchmarks
from jobs.benchmarks.gsm8k import Gsm8k
from jobs.benchmarks.source import Source
from jobs.cli import app
from tiercache.errors import BenchmarkError

ROWS = [{"question": f"{i}+1?", "answer": f"so\n#### {i + 1}"} for i in range(5)]
SWEEP = """\
name: offline
models: [reasoner]
benchmarks: [{name: gsm8k, prompt_mode: raw, n: 2, sampling: {max_new_tokens: 4}}]
policies: [full]
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIERCACHE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local folder in the layout of a data set on the hub."""
    folder = tmp_path / "gsm8k-on-the-hub"
    (folder / "main").mkdir(parents=True)
    (folder / "main" / "test.jsonl").write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: test\n    path: main/test.jsonl\n---\n"
    )
    source = Source(str(folder), "main", "test", Gsm8k.source.files)
    monkeypatch.setattr(Gsm8k, "source", source)
    return folder


def test_hub_to_manifest_to_problems(home: Path, hub: Path) -> None:
    done = CliRunner().invoke(app, ["prepare", "gsm8k"])
    assert done.exit_code == 0, done.output
    assert "gsm8k: 5 problems" in done.output
    (place,) = [path for path in home.iterdir() if not path.name.startswith(".")]
    known = prepared.manifest(place)
    assert (known["rows"], known["config"], known["split"]) == (5, "main", "test")
    (hub / "main" / "test.jsonl").unlink()
    benchmark = parse_benchmarks([{"name": "gsm8k"}])[0]
    assert benchmark.local
    assert [problem.reference for problem in benchmark.load()] == ["1", "2", "3", "4", "5"]


def test_a_local_copy_is_prepared_as_well(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "gsm8k_test.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    done = CliRunner().invoke(app, ["prepare", "gsm8k", "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "a local copy" in done.output
    assert "TIERCACHE_DATA=" in done.output
    assert not home.exists()


def test_what_was_prepared_is_what_is_read(home: Path, hub: Path) -> None:
    place = prepared.fetch(Gsm8k.source, "gsm8k")
    with (place / prepared.ROWS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(ROWS[0]) + "\n")
    with pytest.raises(BenchmarkError, match=r"isn't what was prepared.*tiercache prepare"):
        parse_benchmarks([{"name": "gsm8k"}])[0].load()
    (place / prepared.MANIFEST).write_text("{}")
    with pytest.raises(BenchmarkError, match="can't be read"):
        parse_benchmarks([{"name": "gsm8k"}])[0].load()


def test_malformed_data_are_said_so_at_once(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"question": "q", "answer": "none"}', encoding="utf-8")
    done = CliRunner().invoke(app, ["prepare", "gsm8k", "--data", str(file)])
    assert isinstance(done.exception, BenchmarkError)
    assert "doesn't end in" in str(done.exception)


def test_an_unknown_name(home: Path) -> None:
    done = CliRunner().invoke(app, ["prepare", "gsm8j"])
    assert "Did you mean 'gsm8k'" in str(done.exception)


@pytest.mark.slow
def test_with_the_hub_unreachable(home: Path, tmp_path: Path) -> None:
    """The whole command, as on a machine without network: an unprepared sweep names what to do, a prepared one runs."""
    (tmp_path / "s.yaml").write_text(SWEEP)
    (tmp_path / "copy.jsonl").write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    import os

    quiet = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    offline = {**quiet, "HF_HUB_OFFLINE": "1", "TIERCACHE_DATA": str(home)}
    command = [sys.executable, "-m", "jobs.cli"]

    def tiercache(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            env={**offline, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    refused = tiercache("run", "s.yaml", "--no-progress")
    assert refused.returncode == 2
    assert "tiercache prepare gsm8k" in refused.stderr
    assert not (tmp_path / "tiercache.db").exists()
    assert tiercache("prepare", "s.yaml", "--data", "copy.jsonl").returncode == 0
    ran = tiercache("run", "s.yaml", "--no-progress", "--address", "local")
    assert ran.returncode == 0, ran.stderr
    assert "2 computed" in ran.stdout
