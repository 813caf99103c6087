"""A coordinator in a process of its own, over fake workers on a real Ray: python driver.py SPEC URL ADDRESS PIDS."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.fake import FakeWorker, Script
from cluster.pool import Pool, WorkerOptions
from cluster.ray_pool import RayPool
from jobs import coordinator
from jobs.grid import Cell, expand
from jobs.spec import Sweep, load_sweep

SAMPLE_S = 0.3


class FakePool(RayPool):
    """RayPool with actors that run the fake worker."""

    script = Script()

    def _actor(self) -> Any:
        import ray

        options = self.options
        made = ray.remote(FakeWorker).options(num_cpus=options.cpus, num_gpus=options.gpus, max_restarts=0)
        return made.remote(self.script)


def pools(sweep: Sweep, cells: Sequence[Cell], samples: int) -> Pool:
    gpus = coordinator._gpus(sweep, cells)
    options = WorkerOptions(model=cells[0].model, cpus=sweep.cluster.cpus_per_actor, gpus=gpus)
    return FakePool(options, 0, sweep.cluster.stall_s)


def main() -> None:
    spec, url, address, pids = sys.argv[1:]
    FakePool.script = Script(pids=Path(pids), sample_s=SAMPLE_S)
    coordinator._ray_pool = pools  # type: ignore[assignment]
    sweep = load_sweep(spec)
    result = coordinator.run_sweep(sweep, expand(sweep), url, progress=False, address=address)
    print(f"{result.state} {result.reused} reused {result.computed} computed {result.failed} failed", flush=True)


if __name__ == "__main__":
    main()
