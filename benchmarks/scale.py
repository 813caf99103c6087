"""The coordinator at the scale of a large cluster, with workers that are simulated and a clock that jumps.

    python benchmarks/scale.py [--gpus 1000] [--cells 100000] [--repeats 100] [--db URL] [--json out.json]

First table: the queue, the sharing-out and the feeding of the real coordinator, over simulated workers: what it does
for each sample, its memory, and how long workers idle. Speeds are a 7B model's on a GPU: `--shard-s` for a shard of 64
samples (a batch of 64 at 30 ms a step, 4,096 tokens), `--load-s` to load. Second table: all that is done for a sample,
grading and writing included, into a real database, in batches as they arrive; without `--db` into a SQLite file.
Ray's own part is in neither: that takes a thousand actors.
"""

import heapq
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from measure import arguments, report

from cluster.allot import Demand, allot
from cluster.fake import FakeWorker
from cluster.pool import InlinePool, WorkerOptions
from cluster.preflight import Node
from cluster.work import Arrived, Done, Ended, Event, ModelFacts, Shard
from db.rows import SampleRow
from db.writer import Writer
from jobs.crew import Crew, Group, longest_first
from jobs.grid import Cell, expand
from jobs.progress import LineProgress
from jobs.spec import Sweep, parse_sweep
from jobs.sweep_run import SweepRun
from jobs.work_queue import CellSamples, WorkQueue, samples_of

PROBLEMS = 100


class Clock:
    """Seconds that pass only when something happens."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SimulatedPool:
    """The contract of `cluster.pool.Pool`: workers that load, then take a while for each shard."""

    def __init__(self, clock: Clock, agenda: list[Any], load_s: float, shard_s: float) -> None:
        self.clock, self.agenda, self.load_s, self.shard_s = clock, agenda, load_s, shard_s
        self.ready: list[deque[Shard]] = []
        self.starting = self.started = 0
        self.busy_s = self.alive_s = 0.0
        self.since: dict[int, float] = {}

    @property
    def size(self) -> int:
        return len(self.ready) + self.starting

    @property
    def idle(self) -> int:
        return sum(not queue for queue in self.ready)

    @property
    def hosts(self) -> list[str | None]:
        return ["sim"] * len(self.ready) + [None] * self.starting

    def facts(self) -> ModelFacts | None:
        return FakeWorker().facts() if self.ready else None

    def resize(self, size: int) -> None:
        while self.size < size:
            self.starting += 1
            self.started += 1
            heapq.heappush(self.agenda, (self.clock.now + self.load_s, self.started, id(self), self, None))
        for queue in [queue for queue in self.ready if not queue][: max(0, self.size - size)]:
            self.alive_s += self.clock.now - self.since.pop(id(queue))
            self.ready = [each for each in self.ready if each is not queue]

    def wants_work(self, waiting: int) -> bool:
        if any(not queue for queue in self.ready):
            return True
        return waiting > self.size and any(len(queue) < 2 for queue in self.ready)

    def submit(self, shard: Shard) -> None:
        queue = min(self.ready, key=len)
        queue.append(shard)
        if len(queue) == 1:
            self._begin(queue)

    def _begin(self, queue: "deque[Shard]") -> None:
        took = self.shard_s * len(queue[0].tasks) / 64
        self.busy_s += took
        heapq.heappush(self.agenda, (self.clock.now + took, id(queue), id(self), self, queue))

    def happened(self, queue: "deque[Shard] | None") -> list[Event]:
        """A worker is ready, or a shard is done: its samples arrive together, as the last of a batch do."""
        if queue is None:
            self.starting -= 1
            self.ready.append(fresh := deque())
            self.since[id(fresh)] = self.clock.now
            return []
        shard = queue.popleft()
        if queue:
            self._begin(queue)
        return [*(Arrived(shard, Done(task.key, "", "", None)) for task in shard.tasks), Ended(shard)]  # type: ignore[arg-type]

    def poll(self, timeout_s: float) -> list[Event]:
        raise NotImplementedError("the simulation takes events off the agenda itself")

    def close(self) -> None:
        self.alive_s += sum(self.clock.now - self.since[id(queue)] for queue in self.ready)
        self.ready = []


def many_cells(number: int) -> list[Cell]:
    """Cells that share problems and policy; only their names differ."""
    spec = {
        "name": "scale",
        "models": ["reasoner"],
        "benchmarks": [{"name": "chain", "n": PROBLEMS}],
        "policies": ["full"],
    }
    (one,) = expand(parse_sweep(spec))
    return [replace(one, fingerprint=f"cell{index:07d}", protocol=f"cell{index % 1000}") for index in range(number)]


def simulate(gpus: int, cells: int, repeats: int, load_s: float, shard_s: float) -> dict[str, object]:
    before = psutil.Process().memory_info().rss
    clock, agenda = Clock(), list[Any]()
    made = [CellSamples(replace(cell, repeats=repeats), range(PROBLEMS * repeats)) for cell in many_cells(cells)]
    queue = WorkQueue(longest_first(made), 64, 3)
    samples = queue.remaining
    pool = SimulatedPool(clock, agenda, load_s, shard_s)
    nodes = [Node(64, 8)] * (gpus // 8)
    crew = Crew([Group({"m": made[0].cell}, queue, lambda: pool, 1, 1, 1.0)], partial(allot, nodes), clock)
    memory = psutil.Process().memory_info().rss - before
    started = time.process_time()
    while not crew.finished():
        crew.balance()
        crew.feed()
        clock.now, _, _, who, what = heapq.heappop(agenda)
        for event in who.happened(what):
            if isinstance(event, Arrived) and isinstance(event.item, Done):
                queue.arrived(event.shard, event.item.key)
            elif isinstance(event, Ended):
                queue.ended(event.shard)
    spent = time.process_time() - started
    pool.close()
    gpu_s = shard_s / 64  # of a sample: a shard's samples share its GPU
    return {
        "gpus": gpus,
        "cells": cells,
        "samples": samples,
        "us_per_sample": spent / samples * 1e6,
        "of_gpu_time": spent / samples / gpu_s,
        "coordinator_busy": spent / clock.now,
        "memory_mib": memory / 2**20,
        "idle_share": 1 - pool.busy_s / pool.alive_s,
        "makespan_h": clock.now / 3600,
    }


class Instant(InlinePool):
    """Workers that answer at once, some shards at a time, as many actors do."""

    def poll(self, timeout_s: float) -> list[Event]:
        return [event for _ in range(4) for event in super(Instant, self).poll(timeout_s)]

    def wants_work(self, waiting: int) -> bool:
        return len(self._queue) < 8


def whole_path(url: str, samples: int) -> dict[str, object]:
    """Through the real run: taken, graded, written."""
    cells = max(1, samples // PROBLEMS)
    names = {"name": "chain", "n": PROBLEMS}
    budgets = [round(0.1 + 0.8 * index / cells, 6) for index in range(cells)]
    spec = {
        "name": "scale",
        "models": ["reasoner"],
        "benchmarks": [names],
        "policies": [{"name": "random", "budget": budgets}],
    }
    sweep: Sweep = parse_sweep(spec)
    grid = expand(sweep)
    todo = [samples_of(cell) for cell in grid]
    queue = WorkQueue(todo, 64, 3)

    def share(demands: Sequence[Demand]) -> list[int]:
        return [1 for _ in demands]

    written_s = 0.0
    with Writer.open(url) as writer:
        record = writer.record

        def timed(rows: Sequence[SampleRow]) -> int:
            nonlocal written_s
            began = time.perf_counter()
            stored = record(rows)
            written_s += time.perf_counter() - began
            return stored

        writer.record = timed  # type: ignore[method-assign]
        run = SweepRun(sweep, grid, "scale", LineProgress(grid, todo), writer)
        pool = Instant(WorkerOptions(model=grid[0].model), worker=FakeWorker())
        crew = Crew([Group({c.fingerprint: c for c in grid}, queue, lambda: pool, 1, 0, 1.0)], share)
        started, cpu = time.perf_counter(), time.process_time()
        run.compute(crew)
        wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    return {
        "database": url.split(":", 1)[0],
        "samples": run.computed,
        "rows_written_per_s": run.computed / written_s,
        "samples_per_s": run.computed / wall,
        "ms_per_sample": wall / run.computed * 1e3,
        "cpu_ms_per_sample": cpu / run.computed * 1e3,
        "gpus_served": run.computed / wall * 120 / 64,
    }


def main() -> None:
    parser = arguments(
        __doc__ or "", gpus=1000, cells=100_000, repeats=1, shard_s=120.0, load_s=60.0, rows=20_000, db=""
    )
    given = parser.parse_args()
    report([simulate(given.gpus, given.cells, given.repeats, given.load_s, given.shard_s)], given)
    with tempfile.TemporaryDirectory() as folder:
        url = given.db or f"sqlite:///{Path(folder) / 'scale.db'}"
        report([whole_path(url, given.rows)], given)


if __name__ == "__main__":
    main()
