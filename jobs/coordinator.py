"""The driver of a sweep: finds what is missing, feeds the workers, and stores each sample as it finishes.

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
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

from cluster.pool import Pool, RayPool, WorkerOptions
from cluster.preflight import default_gpus, fitting, nodes
from cluster.session import session
from cluster.work import Arrived, Diagnosed, Done, Ended, Event, ModelFacts, Refused
from db.connection import open_engine
from db.diagnosed import diagnosed_keys
from db.errors import DatabaseMissing
from db.migrate import status
from db.progress import finished_keys
from db.writer import Writer
from jobs.failures import GIVEN_UP
from jobs.foresight import foresee
from jobs.grid import Cell, fingerprint
from jobs.progress import Progress, make_progress
from jobs.results import cell_row, diagnostic_row, environment, failed_row, sample_row, shard_row
from jobs.spec import Sweep
from jobs.work_queue import Sample, WorkQueue, samples_of

log = logging.getLogger(__name__)

POLL_S = 0.5
HEARTBEAT_S = 5.0

PoolFactory = Callable[[Sweep, Sequence[Cell], int], Pool]


@dataclass(frozen=True)
class SweepResult:
    """How a run of a sweep ended. `reused` samples were there already; `failed` ones were given up in this run."""

    sweep_id: str
    reused: int
    computed: int
    failed: int


def run_sweep(
    sweep: Sweep,
    cells: Sequence[Cell],
    database_url: str,
    *,
    progress: bool = True,
    address: str | None = None,
    pools: PoolFactory | None = None,
) -> SweepResult:
    """Computes every sample of `cells` that the database lacks.

    Args:
        progress: show a live display; otherwise a line now and then.
        address: of the Ray cluster; see `cluster.session.session`.
        pools: makes the workers for the cells of one model. Default: Ray actors.

    Raises:
        SpecError: not one sample of some cell could run. Nothing has been started or written then.
        ResourceError: the cluster can't run what is asked. Nothing has been written then.
        ModelError: a model can't be loaded.
        StorageError: the database can't be used.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the sweep is marked as interrupted, finished samples are stored.
    """
    missing, reused = _missing(cells, database_url, sweep.diagnostics)
    for note in foresee(list({sample.cell.fingerprint: sample.cell for sample in missing}.values())):
        print(f"note: {note}", file=sys.stderr, flush=True)
    sweep_id = f"{_slug(sweep.name)}-{fingerprint([sweep.name, [(c.fingerprint, c.n, c.repeats) for c in cells]])[:8]}"
    run = _Run(sweep, cells, sweep_id, make_progress(progress, cells, missing))
    log.info("%d samples reused, %d to run", reused, len(missing))
    if not missing:
        run.open(database_url)
        run.close("finished")
    elif pools is not None:
        run.execute(database_url, missing, pools)
    else:
        # Inside the session: Ray sets a handler of its own, which would end the sweep as failed.
        with session(address), _sigterm_interrupts():
            _preflight(sweep)
            run.execute(database_url, missing, _ray_pool)
    return SweepResult(sweep_id, reused, run.computed, run.failed)


class _Run:
    """One execution of a sweep; owner of the writer while it lasts."""

    def __init__(self, sweep: Sweep, cells: Sequence[Cell], sweep_id: str, progress: Progress) -> None:
        self.sweep, self.cells, self.sweep_id, self.progress = sweep, cells, sweep_id, progress
        self.computed = self.failed = 0
        self.writer: Writer | None = None
        self._beat = 0.0

    def open(self, database_url: str) -> Writer:
        self.writer = Writer.open(database_url)
        rows = [cell_row(cell) for cell in self.cells]
        spec = self.sweep.model_dump(mode="json")
        self.writer.register_sweep(self.sweep_id, self.sweep.name, spec, environment(), rows)
        return self.writer

    def close(self, state: Any) -> None:
        assert self.writer is not None, "open it first"
        self.writer.set_state(self.sweep_id, state)
        self.writer.close()

    def execute(self, database_url: str, missing: Sequence[Sample], pools: PoolFactory) -> None:
        self.open(database_url)
        state = "failed"
        try:
            with self.progress:
                for group in _by_model(missing):
                    self._run_model(group, pools)
            state = "finished"
        except KeyboardInterrupt:
            state = "interrupted"
            raise
        finally:
            self.close(state)

    def _run_model(self, samples: list[Sample], pools: PoolFactory) -> None:
        settings = self.sweep.cluster
        queue = WorkQueue(samples, settings.shard_size, settings.max_attempts, self.sweep.diagnostics)
        cells = {sample.cell.fingerprint: sample.cell for sample in samples}
        self.progress.note(f"starting workers for {samples[0].cell.model.name}")
        pool = pools(self.sweep, list(cells.values()), len(samples))
        self.progress.note(f"{pool.size} worker{'s' if pool.size != 1 else ''} for {samples[0].cell.model.name}")
        fingerprints: dict[str, str] = {}
        self._loaded(pool.facts(), list(cells.values()))
        try:
            while not queue.finished():
                while queue.has_waiting() and pool.wants_work():
                    cell = queue.peek()
                    shard = queue.next_shard()
                    fingerprints[shard.id] = cell.fingerprint
                    pool.submit(shard)
                for event in pool.poll(POLL_S):
                    self._take(event, queue, fingerprints[event.shard.id], pool)
                self._heartbeat()
                self.progress.refresh()
        finally:
            pool.close()

    def _loaded(self, facts: ModelFacts, cells: Sequence[Cell]) -> None:
        """Keeps what only loading has told: end tokens, template, types, and the bytes of models not known before."""
        assert self.writer is not None, "the writer is open while samples arrive"
        name = cells[0].model.name
        self.writer.event(self.sweep_id, "model_loaded", f"{name} in {facts.dtype}", data=asdict(facts))
        self.writer.set_kv_bytes([cell.fingerprint for cell in cells], facts.token_bytes)

    def _take(self, event: Event, queue: WorkQueue, cell: str, pool: Pool) -> None:
        assert self.writer is not None, "the writer is open while samples arrive"
        shard = event.shard
        if isinstance(event, Arrived):
            item = event.item
            if isinstance(item, Done | Refused):
                sample = queue.arrived(shard, item.key)
                if sample is not None:
                    self._store(sample, item, shard.id, queue.attempt(sample))
            elif isinstance(item, Diagnosed):
                self.writer.record_diagnostics([diagnostic_row(cell, item)])
            else:
                self.writer.record_shard(shard_row(shard, cell, self.sweep_id, item, exclusive=pool.size == 1))
                self.progress.measured(item.stats)
        elif isinstance(event, Ended):
            queue.ended(shard)
        else:
            log.warning("shard %s of cell %s: %s", shard.id, cell, event.reason)
            self.writer.event(
                self.sweep_id,
                "actor_died" if event.died else "shard_failed",
                event.reason,
                fingerprint=cell,
                data={"shard": shard.id, "samples": [task.key for task in shard.tasks], "blamed": event.blamed},
            )
            for sample in queue.lost(shard, event.blamed):
                self._give_up(sample, event.reason)

    def _store(self, sample: Sample, item: Done | Refused, shard_id: str, attempt: int) -> None:
        assert self.writer is not None, "the writer is open while samples arrive"
        if isinstance(item, Refused):
            row = failed_row(sample, item.reason, attempt)
            self.failed += 1
        else:
            row = sample_row(sample, item, shard_id, attempt)
            self.computed += 1
        self.writer.record([row])
        self.progress.finished(sample.cell, row)

    def _give_up(self, sample: Sample, reason: str) -> None:
        assert self.writer is not None, "the writer is open while samples arrive"
        attempts = self.sweep.cluster.max_attempts
        row = failed_row(sample, f"{GIVEN_UP} {attempts} attempts; the last: {reason}", attempts)
        self.writer.record([row])
        self.failed += 1
        self.progress.finished(sample.cell, row)

    def _heartbeat(self) -> None:
        assert self.writer is not None, "the writer is open while samples arrive"
        if time.monotonic() - self._beat > HEARTBEAT_S:
            self._beat = time.monotonic()
            self.writer.heartbeat(self.sweep_id)


def _missing(cells: Sequence[Cell], database_url: str, diagnostics: bool) -> tuple[list[Sample], int]:
    """The samples that the database lacks, and how many it has. Creates nothing.

    Where diagnostics are asked for, a sample without them is generated again: from the same seed, and the one that is
    stored stays.
    """
    wanted = [sample for cell in cells for sample in samples_of(cell)]
    try:
        engine = open_engine(database_url, read_only=True)
    except DatabaseMissing:
        return wanted, 0
    try:
        state, fingerprints = status(engine), {cell.fingerprint for cell in cells}
        # An older version's samples are where this one's are; diagnostics came later.
        have = finished_keys(engine, fingerprints) if state in ("ready", "old") else set()
        if diagnostics:
            have &= diagnosed_keys(engine, fingerprints) if state == "ready" else set()
    finally:
        engine.dispose()
    missing = [s for s in wanted if (s.cell.fingerprint, s.problem.id, s.repeat) not in have]
    return missing, len(wanted) - len(missing)


def _by_model(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    """Groups by model, so that weights are loaded once and stay; order is kept otherwise."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(repr(sample.cell.model), []).append(sample)
    yield from groups.values()


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


def _preflight(sweep: Sweep) -> int:
    """Workers that fit the cluster; raises before anything is written if none does."""
    available, settings = nodes(), sweep.cluster
    gpus = settings.gpus_per_actor
    gpus = default_gpus(available, sweep.engine.device) if gpus is None else gpus
    return fitting(available, settings.cpus_per_actor, gpus)


def _ray_pool(sweep: Sweep, cells: Sequence[Cell], samples: int) -> Pool:
    settings = sweep.cluster
    gpus = settings.gpus_per_actor
    gpus = default_gpus(nodes(), sweep.engine.device) if gpus is None else gpus
    shards = max(1, -(-samples // settings.shard_size))
    size = min(_preflight(sweep), settings.max_actors or shards, shards)
    return RayPool(_worker_options(sweep, gpus, cells), size)


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
