"""A sweep submitted to a real Ray head that asks for a token: run, followed, submitted again, and refused."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import text

from db.connection import open_engine
from jobs.job_client import SWEEP_JOB

SPEC = """
name: tiny
models: [reasoner]
benchmarks: [{name: chain, n: 2}]
policies: [full]
sampling: {max_new_tokens: 8}
cluster: {max_actors: 1}
"""


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """A Ray head with a token, on loopback, with free ports and a folder of its own; only its processes are ended."""
    ports = []
    for _ in range(4):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    binaries = Path(sys.executable).parent
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "TIERCACHE_"))}
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="tc", ignore_cleanup_errors=True) as short:  # names of sockets stay short
        env = {**kept, **own, "RAY_TMPDIR": short, "PATH": f"{binaries}{os.pathsep}{kept['PATH']}"}
        arguments = ["--head", "--block", "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--num-cpus=2"]
        arguments += [f"--port={ports[0]}", f"--dashboard-port={ports[1]}", f"--ray-client-server-port={ports[2]}"]
        arguments += [f"--dashboard-agent-listen-port={ports[3]}", "--min-worker-port=0", "--max-worker-port=0"]
        arguments += [f"--temp-dir={short}", "--disable-usage-stats"]
        loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # without it Ray takes the outer address after all
        log = tmp_path_factory.mktemp("head") / "log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [str(binaries / "ray"), "start", *arguments], env={**env, **loopback}, stdout=out, stderr=out
            )
        family = psutil.Process(process.pid)
        address = f"127.0.0.1:{ports[1]}"
        try:
            deadline = time.monotonic() + 60
            while True:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                try:
                    socket.create_connection(("127.0.0.1", ports[1]), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.2)
            yield address, env
        finally:
            members = [*family.children(recursive=True), family]
            for member in members:
                member.kill()
            psutil.wait_procs(members, timeout=20)


# The console command; registered here too, so that the test needs nothing but this module's own files.
CODE = """
from jobs import cli
from jobs.commands import submitting as ours
if not any(command.callback is ours.submit for command in cli.app.registered_commands):
    cli.app.command()(ours.submit)
    cli.app.command()(ours.logs)
cli.main()
"""


@pytest.mark.slow
def test_a_sweep_is_submitted_followed_and_submitted_again(head: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    address, env = head
    project, db = tmp_path / "project", tmp_path / "results.db"
    project.mkdir()
    (project / "s.yaml").write_text(SPEC)

    def start(*arguments: str, **more: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", CODE, *arguments, "--address", address]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=project, env={**env, **more}, stdout=pipe, stderr=pipe, text=True)

    def call(*arguments: str, **more: str) -> tuple[int, str, str]:
        process = start(*arguments, **more)
        out, err = process.communicate(timeout=80)
        return process.returncode, out, err

    submitting = ("submit", "s.yaml", "--db", str(db))
    code, _, err = call(*submitting, RAY_AUTH_TOKEN="wrong" * 8)
    assert code == 2
    assert "refuses the token" in err

    first = start(*submitting, "--wait")
    assert first.stdout is not None
    name = first.stdout.readline().removeprefix("submitted: ").strip()
    assert SWEEP_JOB.fullmatch(name)
    code, out, _ = call(*submitting)  # while the first runs
    assert code == 0
    assert out.startswith(f"{name} runs already; nothing was started.")
    assert f"tiercache logs {name} --follow --address {address}" in out
    out, err = first.communicate(timeout=80)
    assert first.returncode == 0, out + err
    assert "2 computed, 0 failed" in out
    assert f"{name}: succeeded" in err
    with open_engine(str(db), read_only=True).connect() as connection:
        assert connection.execute(text("select count(*) from samples")).scalar() == 2

    code, out, err = call(*submitting)  # after it
    assert code == 0, err
    assert out.startswith(f"submitted: {name}-2\n")
    code, out, err = call("logs", "--follow")
    assert code == 0, err
    assert f"Running entrypoint for job {name}-2: tiercache run s.yaml --no-progress --address auto" in out
    assert "2 samples reused, 0 computed" in out
    assert f"{name}-2: succeeded" in err
