"""Joining a cluster: an address where nobody answers is an error at once; a Ray of one's own is nobody else's."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from cluster.session import session
from tiercache.errors import ResourceError


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "somewhere", "127.0.0.1:99999"])
def test_a_dead_or_malformed_address_is_refused_quickly(address: str) -> None:
    start = time.monotonic()
    with pytest.raises(ResourceError, match="address:"), session(address):
        pass
    assert time.monotonic() - start < 10


# Two sessions, one inside the other, each in a process of its own; every socket that a process of theirs listens on.
TWO = """
import os, subprocess, sys
import psutil
from cluster.session import session

with session() as where:
    print(where)
    if len(sys.argv) > 1:
        print(subprocess.run([sys.executable, "-c", open(sys.argv[1]).read()], capture_output=True, text=True).stdout)
        import ray
        ray.get(ray.remote(lambda: 1).remote())
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            print("listens", *{c.laddr.ip for c in process.net_connections("tcp") if c.status == "LISTEN"})
"""


def test_a_ray_of_ones_own_listens_on_loopback_and_is_not_joined_by_another_sweep(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO)
    environment = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "RAY_TMPDIR")}
    with tempfile.TemporaryDirectory(prefix="ray") as short:  # a socket's path has at most 107 characters
        done = subprocess.run(
            [sys.executable, str(script), str(script)],
            env={**environment, "PYTHONPATH": str(Path(__file__).parents[2]), "RAY_TMPDIR": short},
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
        ).stdout
    lines = done.split("\n")
    addresses = [line for line in lines if line.startswith("127.0.0.1:")]
    assert len(set(addresses)) == 2, done
    heard = {ip for line in lines if line.startswith("listens") for ip in line.split()[1:]}
    assert heard
    assert heard <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, done
