"""The driver of a sweep: finds what is missing, sees to it that nobody else computes it, and has it computed.

All state that matters is in the database. Killing this process, an actor or a node loses only what had not finished;
issuing the same command again computes exactly that.
"""

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Literal

from cluster.allot import Demand, allot
from cluster.logs import log_context
from cluster.pool import Pool, WorkerOptions
from cluster.preflight import ask_autoscaler, await_fitting, fitting, nodes, this_machine
from cluster.session import session, starts_here
from db.connection import open_engine
from db.diagnosed import diagnosed_keys
from db.errors import DatabaseMissing
from db.migrate import status
from db.progress import finished_keys
from db.tier_maps import tier_map_keys
from db.writer import Writer
from jobs.crew import Allot, Crew, Group, longest_first
from jobs.foresight import foresee
from jobs.grid import Cell, fingerprint
from jobs.progress import make_progress
from jobs.sizing import largest, worker_gpus
from jobs.spec import Sweep
from jobs.sweep_run import POLL_S, Cancelled, SweepRun
from jobs.work_queue import CellSamples, WorkQueue, mapped_keys
from tiercache.shapes import shape_of

log = logging.getLogger(__name__)

JOIN_S = 2.0  # between two looks at cells that another coordinator computes
CELLS_AT_ONCE = 50  # whose finished samples are asked for in one go: that bounds memory

PoolFactory = Callable[[Sweep, Sequence[Cell], int], Pool]


@dataclass(frozen=True)
class SweepResult:
    """How a run of a sweep ended. `reused` samples were there already; `failed` ones were given up in this run."""

    sweep_id: str
    reused: int
    computed: int
    failed: int
    state: Literal["finished", "cancelled"] = "finished"


def run_sweep(
    sweep: Sweep,
    cells: Sequence[Cell],
    database_url: str,
    *,
    progress: bool = True,
    address: str | None = None,
    wait_s: float = 0.0,
    pools: PoolFactory | None = None,
) -> SweepResult:
    """Computes every sample of `cells` that the database lacks. Cells that another run computes are waited for.

    Args:
        progress: show a live display; otherwise a line now and then.
        address: of the Ray cluster; see `cluster.session.session`.
        wait_s: how long to wait for a cluster that is too small as yet.
        pools: makes the workers for the cells of one model. Default: Ray actors.

    Raises:
        SpecError: not one sample of some cell could run. Nothing has been started or written then.
        ResourceError: the cluster can't run what is asked. Nothing has been written then.
        ModelError: a model can't be loaded.
        StorageError: the database can't be used.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the sweep is marked as interrupted, finished samples are stored.
    """
    missing, reused = _missing(cells, database_url, sweep)
    for note in foresee([samples.cell for samples in missing]):
        print(f"note: {note}", file=sys.stderr, flush=True)
    sweep_id = f"{_slug(sweep.name)}-{fingerprint([sweep.name, [(c.fingerprint, c.n, c.repeats) for c in cells]])[:8]}"
    log.info("%d samples reused, %d to run", reused, sum(map(len, missing)))
    job = _Job(sweep, cells, sweep_id, database_url, progress)
    if not missing or pools is not None:
        return job.execute(missing, reused, pools or _ray_pool, _one_each)
    settings = sweep.cluster
    here = this_machine() if starts_here(address) else []
    if here:  # at once, since starting Ray takes seconds
        fitting(here, settings.cpus_per_actor, settings.gpus_per_actor or 0.0)
    # Inside the session: Ray sets a handler of its own, which would end the sweep as failed.
    with session(address), _sigterm_interrupts():
        _preflight(sweep, cells, wait_s)

        def share(demands: Sequence[Demand]) -> list[int]:
            return allot(nodes(), demands, settings.max_actors, settings.alone)

        with _grown(settings.cpus_per_actor, largest(sweep, cells, nodes()), settings.max_actors):
            return replace(job, gpus=_gpus).execute(missing, reused, _ray_pool, share)


@dataclass(frozen=True)
class _Job:
    """What is run, and where its results go."""

    sweep: Sweep
    cells: Sequence[Cell]
    sweep_id: str
    database_url: str
    show: bool
    gpus: Callable[[Sweep, Sequence[Cell]], float] = lambda sweep, cells: 0.0  # of each worker of one model

    def execute(self, missing: list[CellSamples], reused: int, pools: PoolFactory, share: Allot) -> SweepResult:
        progress = make_progress(self.show, self.cells, missing)
        with log_context(sweep=self.sweep_id), Writer.open(self.database_url) as writer:
            run = SweepRun(self.sweep, self.cells, self.sweep_id, progress, writer)
            state: Literal["finished", "interrupted", "cancelled", "failed"] = "failed"
            try:
                if missing:
                    with progress:
                        reused += self._until_done(run, missing, pools, share)
                state = "finished"
            except Cancelled:
                state = "cancelled"
                return SweepResult(self.sweep_id, reused, run.computed, run.failed, "cancelled")
            except KeyboardInterrupt:
                state = "interrupted"
                raise
            finally:
                run.tenancy.leave()
                writer.set_state(self.sweep_id, state)
        return SweepResult(self.sweep_id, reused, run.computed, run.failed)

    def _until_done(self, run: SweepRun, missing: list[CellSamples], pools: PoolFactory, share: Allot) -> int:
        """Computes the cells that are free, again and again, until none is left; returns what others have computed."""
        open_cells = {samples.cell.fingerprint: samples for samples in missing}
        by_others = 0
        while open_cells:
            mine = run.tenancy.take(open_cells)
            if not mine:
                who = ", ".join(run.tenancy.others(open_cells))
                run.progress.note(f"{len(open_cells)} cells are computed by {who or 'another run'}: waiting for it")
                self._wait(run)
                continue
            # Between the first look and the lease somebody may have finished them.
            left, _ = _missing([open_cells[name].cell for name in mine], self.database_url, self.sweep)
            by_others += sum(len(open_cells.pop(name)) for name in mine) - sum(map(len, left))
            if left:
                run.compute(self._crew(left, pools, share))
            # What another took over meanwhile is waited for like what it had from the start.
            taken = [cell for cell in self.cells if cell.fingerprint in run.lost_cells]
            run.lost_cells.clear()
            again, _ = _missing(taken, self.database_url, self.sweep)
            open_cells |= {samples.cell.fingerprint: samples for samples in again}
        return by_others

    @staticmethod
    def _wait(run: SweepRun) -> None:
        until = time.monotonic() + JOIN_S
        while time.monotonic() < until:
            time.sleep(POLL_S)
            run.beat()
            run.progress.refresh()

    def _crew(self, missing: list[CellSamples], pools: PoolFactory, share: Allot) -> Crew:
        settings = self.sweep.cluster
        by_model: dict[str, list[CellSamples]] = {}
        for samples in longest_first(missing):
            by_model.setdefault(repr(samples.cell.model), []).append(samples)
        groups = []
        for group in by_model.values():
            cells = [samples.cell for samples in group]
            queue = WorkQueue(
                group, settings.shard_size, settings.max_attempts, self.sweep.diagnostics, self.sweep.tier_maps
            )
            shape = shape_of(cells[0].model)
            weights = shape.weights_as(cells[0].model.dtype) if shape is not None else None
            groups.append(
                Group(
                    cells={cell.fingerprint: cell for cell in cells},
                    queue=queue,
                    make=_maker(pools, self.sweep, cells, sum(map(len, group))),
                    cpus=settings.cpus_per_actor,
                    gpus=self.gpus(self.sweep, cells),
                    scale=float(weights or 1),
                )
            )
        return Crew(groups, share)


def _maker(pools: PoolFactory, sweep: Sweep, cells: Sequence[Cell], samples: int) -> Callable[[], Pool]:
    return lambda: pools(sweep, cells, samples)


def _missing(cells: Sequence[Cell], database_url: str, sweep: Sweep) -> tuple[list[CellSamples], int]:
    """The samples of each cell that the database lacks, and how many it has. Creates nothing.

    Where diagnostics or tier maps are asked for, a sample without them is generated again: from the same seed, and the
    one that is stored stays.
    """
    total = sum(cell.samples for cell in cells)
    try:
        engine = open_engine(database_url, read_only=True)
    except DatabaseMissing:
        return [CellSamples(cell, range(cell.samples)) for cell in cells], 0
    missing: list[CellSamples] = []
    try:
        state = status(engine)
        for start in range(0, len(cells), CELLS_AT_ONCE):
            some = cells[start : start + CELLS_AT_ONCE]
            names = {cell.fingerprint for cell in some}
            # An older version's samples are where this one's are; diagnostics and tier maps came later.
            have = finished_keys(engine, names) if state in ("ready", "old") else set()
            if sweep.diagnostics:
                have &= diagnosed_keys(engine, names) if state == "ready" else set()
            if sweep.tier_maps:
                wanted = {(c.fingerprint, *key) for c in some for key in mapped_keys(c, sweep.tier_maps)}
                have -= wanted - (tier_map_keys(engine, names) if state == "ready" else set())
            for cell in some:
                samples = CellSamples(cell, _lacking(cell, have) if have else range(cell.samples))
                missing += [samples] if samples else []
    finally:
        engine.dispose()
    return missing, total - sum(map(len, missing))


def _lacking(cell: Cell, have: set[tuple[str, str, int]]) -> Iterator[int]:
    problems = cell.benchmark.load()
    for repeat in range(cell.repeats):
        for place, problem in enumerate(problems):
            if (cell.fingerprint, problem.id, repeat) not in have:
                yield repeat * cell.n + place


def _one_each(demands: Sequence[Demand]) -> list[int]:
    """Where no cluster is asked: one worker for each model."""
    return [min(1, demand.shards) for demand in demands]


def _worker_options(sweep: Sweep, gpus: float, cells: Sequence[Cell]) -> WorkerOptions:
    engine, settings = sweep.engine, sweep.cluster
    return WorkerOptions(
        model=cells[0].model,
        device=engine.device,
        max_batch=engine.max_batch,
        hbm_kv_budget=engine.hbm_kv_budget,
        prefill_chunk=engine.prefill_chunk,
        threads=engine.threads or max(1, int(settings.cpus_per_actor)),
        cpus=settings.cpus_per_actor,
        gpus=gpus,
    )


def _gpus(sweep: Sweep, cells: Sequence[Cell]) -> float:
    return worker_gpus(sweep, cells, nodes())


def _preflight(sweep: Sweep, cells: Sequence[Cell], wait_s: float) -> None:
    """Raises, before anything is written, if the cluster has no room for a worker, nor gets it in time."""
    await_fitting(sweep.cluster.cpus_per_actor, lambda: largest(sweep, cells, nodes()), wait_s)


def _ray_pool(sweep: Sweep, cells: Sequence[Cell], samples: int) -> Pool:
    from cluster.ray_pool import RayPool

    return RayPool(_worker_options(sweep, _gpus(sweep, cells), cells), 0, sweep.cluster.stall_s)


@contextmanager
def _grown(cpus: float, gpus: float, workers: int | None) -> Iterator[None]:
    """An autoscaling cluster grows to `max_actors`, which is what a user is ready to pay for, and shrinks again."""
    if workers is not None:
        ask_autoscaler(cpus, gpus, workers)
    try:
        yield
    finally:
        if workers is not None:
            ask_autoscaler(cpus, gpus, 0)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """`ray job stop` and schedulers send SIGTERM: end as cleanly as on Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _slug(name: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in name.lower()).strip("-")[:40] or "sweep"
