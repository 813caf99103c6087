"""The disk runs full under a sweep, for the database and for the spool: the run says so, and the next one finishes it.

No file of the process may grow beyond a limit: the system refuses the write, as it does on a full disk.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from db.connection import open_engine
from db.queries import count_samples, list_sweeps, sweep_progress

ROOT = Path(__file__).parents[2]
RUN = """
import resource
import sys
from cluster.fake import FakeWorker
from cluster.pool import InlinePool, WorkerOptions
from jobs.coordinator import run_sweep
from jobs.grid import expand
from jobs.spec import parse_sweep

url, limit = sys.argv[1], int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
sweep = parse_sweep(
    {
        "name": "full disk",
        "models": ["reasoner"],
        "benchmarks": [{"name": "chain", "n": 300}],
        "policies": ["full", {"name": "streaming", "budget": 0.5}],
        "cluster": {"shard_size": 10},
    }
)
pools = lambda *_: InlinePool(WorkerOptions(model=None), worker=FakeWorker())
result = run_sweep(sweep, expand(sweep), url, progress=False, pools=pools)
print(result.state, result.reused, result.computed)
"""


def run(folder: Path, limit: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN, f"sqlite:///{folder / 'results.db'}", str(limit)]
    environment = {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state"), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on file sizes")
def test_a_full_disk_ends_the_run_and_loses_nothing_that_was_stored(tmp_path: Path) -> None:
    refused = run(tmp_path, 400_000)
    assert refused.returncode != 0
    assert "free disk space" in refused.stderr, refused.stderr[-2000:]

    url = f"sqlite:///{tmp_path / 'results.db'}"
    engine = open_engine(url, read_only=True)
    (sweep,) = list_sweeps(engine)
    before = sum(count_samples(engine, cell.fingerprint) for cell in sweep_progress(engine, sweep.id))
    engine.dispose()
    assert 0 < before < 600, "the disk was full in the middle"

    finished = run(tmp_path)
    assert finished.returncode == 0, finished.stderr[-2000:]
    state, reused, computed = finished.stdout.split()
    assert (state, int(reused) + int(computed)) == ("finished", 600)
    assert int(reused) >= before, "what was stored or spooled is not computed again"
    engine = open_engine(url, read_only=True)
    assert sum(count_samples(engine, cell.fingerprint) for cell in sweep_progress(engine, sweep.id)) == 600
    engine.dispose()
