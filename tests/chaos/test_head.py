"""The head goes away under a sweep: the driver ends, what was stored stays, and the same command finishes it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from cluster.fake import FakeWorker
from cluster.pool import InlinePool, WorkerOptions
from db.connection import open_engine
from jobs.coordinator import run_sweep
from jobs.grid import expand
from jobs.spec import load_sweep

ROOT = Path(__file__).parents[2]
SPEC = """\
name: headless
models: [{id: reasoner}]
benchmarks: [{name: chain, n: 40}]
policies: [full, {name: h2o, budget: [0.3, 0.5]}]
cluster: {shard_size: 4, gpus_per_actor: 0}
"""
SAMPLES = 120
RECONNECT_S = "3"  # how long Ray's processes look for a head that has gone; a minute unless told


@contextmanager
def head() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        yield cluster
    finally:
        cluster.shutdown()


def start(folder: Path, url: str, address: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(Path(__file__).parent / "driver.py"), str(folder / "head.yaml"), url, address]
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment |= {"PYTHONPATH": str(ROOT), "RAY_gcs_rpc_server_reconnect_timeout_s": RECONNECT_S}
    with (folder / "driver.log").open("ab") as log:
        return subprocess.Popen([*command, str(folder / "pids")], env=environment, stdout=log, stderr=log)


def rows(url: str) -> list[tuple[Any, ...]]:
    columns = "fingerprint, problem_id, repeat, outcome, extracted, seed, prompt, output"
    engine = open_engine(url)
    with engine.connect() as connection:
        found = connection.execute(text(f"select {columns} from samples order by 1, 2, 3")).fetchall()
    engine.dispose()
    return [tuple(row) for row in found]


def stored(url: str) -> int:
    try:
        return len(rows(url))
    except Exception:  # no tables yet
        return 0


@pytest.mark.slow
def test_the_head_goes_away(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    (tmp_path / "head.yaml").write_text(SPEC, encoding="utf-8")
    url, log = f"sqlite:///{tmp_path / 'results.db'}", tmp_path / "driver.log"
    with head() as cluster:
        driver = start(tmp_path, url, cluster.address)
        until = time.monotonic() + 90
        while stored(url) < 10:
            assert time.monotonic() < until, log.read_text()
            assert driver.poll() is None, log.read_text()
            time.sleep(0.2)
    assert driver.wait(90) != 0, "a driver without a head doesn't say that all is well"
    before = rows(url)
    assert 10 <= len(before) < SAMPLES
    with head() as cluster:
        assert start(tmp_path, url, cluster.address).wait(150) == 0, log.read_text()[-3000:]

    sweep, quiet = load_sweep(tmp_path / "head.yaml"), f"sqlite:///{tmp_path / 'quiet.db'}"

    def inline(*_: Any) -> InlinePool:
        return InlinePool(WorkerOptions(model=None), worker=FakeWorker())  # type: ignore[arg-type]

    run_sweep(sweep, expand(sweep), quiet, progress=False, pools=inline)
    after = rows(url)
    assert len(after) == SAMPLES
    assert after == rows(quiet)
    assert set(before) <= set(after)
    assert f"{len(before)} reused" in log.read_text(), "what was stored is not computed again"
