"""The product as a user runs it: real commands, real model, real Ray; killed in the middle, and submitted as a job.

The model runs in float64 here: batches differ between an undisturbed and a resumed run, and rounding must not matter.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import text

from db.connection import open_engine

ROOT = Path(__file__).parents[1]
SPEC = """
name: short
models: [{id: reasoner, dtype: float64}]
benchmarks: [{name: chain, n: 16, entries: [12, 16]}]
policies:
  - full
  - {name: h2o, budget: 0.5, pin_prompt: true}
  - {name: hierarchy, hbm: 0.3, evict: [0.0, 0.05], every: 16, recent: 32}
engine: {max_batch: 4}
cluster: {shard_size: 8, max_actors: 1}
"""
EXPECTED = 64


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "short.yaml"
    path.write_text(SPEC)
    return path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "jobs.cli", *arguments]


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "TIERCACHE_"))}
    kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"  # as in an activated environment
    return {**kept, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", **more}


def start(spec: Path, db: Path) -> "subprocess.Popen[str]":
    arguments = command("run", str(spec), "--db", str(db), "--address", "local")
    return subprocess.Popen(
        arguments,
        cwd=ROOT,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A shell without job control ignores SIGINT for what it starts in the background, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process: "subprocess.Popen[str]") -> str:
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    return output


def query(db: Path, statement: str) -> list[Any]:
    if not db.exists():
        return []
    engine = open_engine(str(db), read_only=True)
    try:
        with engine.connect() as connection:
            return list(connection.execute(text(statement)))
    except Exception:  # the tables aren't there yet
        return []
    finally:
        engine.dispose()


def results(db: Path) -> list[Any]:
    return query(
        db, "select fingerprint, problem_id, repeat, outcome, output, hbm_bytes_mean from samples order by 1, 2, 3"
    )


def runs(pid: int) -> bool:
    """A zombie that nobody has reaped doesn't."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(true: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "short.yaml").write_text(SPEC)
    output = finish(start(folder / "short.yaml", folder / "results.db"))
    assert "h2o budget=0.5" in output
    rows = results(folder / "results.db")
    assert len(rows) == EXPECTED
    return rows


@pytest.mark.slow
def test_killing_the_driver_loses_nothing_that_had_finished(spec: Path, tmp_path: Path, undisturbed: list[Any]) -> None:
    db = tmp_path / "results.db"
    process = start(spec, db)
    wait_until(lambda: len(results(db)) >= 5, 120, "five samples")
    # Ray's agents linger for a minute or two; what holds memory and devices must not.
    holding = ("raylet", "gcs_server", "EngineWorker")
    children = psutil.Process(process.pid).children(recursive=True)
    family = [child.pid for child in children if any(name in " ".join(child.cmdline()[:1]) for name in holding)]
    assert len(family) >= 3
    process.kill()  # SIGKILL: no handler runs
    process.wait(timeout=30)
    stored = results(db)
    assert 5 <= len(stored) < EXPECTED, "the kill came in the middle"
    wait_until(lambda: not any(map(runs, family)), 60, "Ray's processes to end with the driver")
    finish(start(spec, db))
    assert results(db) == undisturbed
    assert [row for row in results(db) if row in stored] == stored, "what was stored is not computed again"


@pytest.mark.slow
def test_killing_the_actor_costs_an_attempt_and_no_sample(spec: Path, tmp_path: Path, undisturbed: list[Any]) -> None:
    db = tmp_path / "results.db"
    process = start(spec, db)
    wait_until(lambda: len(results(db)) >= 5, 120, "five samples")
    actors = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if any("EngineWorker" in part for part in child.cmdline()[:1])
    ]
    assert actors, "an actor is running"
    os.kill(actors[0].pid, signal.SIGKILL)
    finish(process)
    assert [row.kind for row in query(db, "select kind from events where kind = 'actor_died'")], (
        "the kill really happened"
    )
    assert results(db) == undisturbed
    assert query(db, "select count(*) from samples where attempt > 1")[0][0] > 0


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_cleanly_and_mark_the_sweep(spec: Path, tmp_path: Path, sent: signal.Signals) -> None:
    db = tmp_path / "results.db"
    process = start(spec, db)
    wait_until(lambda: len(results(db)) >= 5, 120, "five samples")
    process.send_signal(sent)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert query(db, "select state from sweeps")[0][0] == "interrupted"
    assert len(results(db)) >= 5


@pytest.fixture
def head(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A one-node Ray cluster with token authentication, on loopback, with a folder of its own; no `ray stop`, which
    would end other people's clusters on this machine."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    folder = Path("/tmp") / f"tc{secrets.token_hex(3)}"  # Ray's socket names must stay short
    env = environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(16), RAY_TMPDIR=str(folder))
    ray = str(Path(sys.executable).with_name("ray"))
    arguments = ["--node-ip-address=127.0.0.1", f"--port={ports[0]}", "--dashboard-host=127.0.0.1"]
    arguments += [f"--dashboard-port={ports[1]}", f"--temp-dir={folder}", "--num-cpus=2", "--disable-usage-stats"]
    with open(tmp_path / "head.log", "w") as log:
        process = subprocess.Popen([ray, "start", "--head", "--block", *arguments], env=env, stdout=log, stderr=log)
    family = psutil.Process(process.pid)
    address = f"http://127.0.0.1:{ports[1]}"
    try:
        listing = [ray, "job", "list", "--address", address]
        wait_until(lambda: subprocess.run(listing, env=env, capture_output=True).returncode == 0, 120, "the head")
        yield address, {**env, "TC_RAY_FOLDER": str(folder)}
    finally:
        members = [*family.children(recursive=True), family]
        for member in members:
            member.terminate()
        for member in psutil.wait_procs(members, timeout=20)[1]:
            member.kill()


@pytest.mark.slow
def test_ray_job_submit(head: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    address, env = head
    spec, db = tmp_path / "job.yaml", tmp_path / "job.db"
    spec.write_text(SPEC.replace("n: 16", "n: 4"))
    done = subprocess.run(
        f"ray job submit --address {address} --working-dir . -- tiercache run {spec} --db {db}".split(),
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hierarchy" in done.stdout
    assert len(results(db)) == 16
    uploads = Path(env["TC_RAY_FOLDER"]) / "session_latest" / "runtime_resources" / "working_dir_files"
    files = [file for file in uploads.rglob("*") if file.is_file()]
    assert any(file.name == "pyproject.toml" for file in files), "this is the upload"
    assert sum(file.stat().st_size for file in files) < 20_000_000
    denied = subprocess.run(
        ["ray", "job", "list", "--address", address],
        env={**env, "RAY_AUTH_TOKEN": "wrong" * 8},
        capture_output=True,
        check=False,
    )
    assert denied.returncode != 0, "a wrong token is refused"
