"""One execution of a sweep: what workers send is graded, stored and shown; what is lost is tried again or given up."""

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cluster.logs import log_context
from cluster.metrics import Metrics
from cluster.work import Arrived, Diagnosed, Done, Ended, Event, Lost, Mapped, ModelFacts, Refused
from db.rows import SampleRow
from db.writer import Writer
from jobs.crew import Crew, Group
from jobs.failures import GIVEN_UP
from jobs.grid import Cell
from jobs.progress import Progress
from jobs.results import cell_row, diagnostic_row, environment, failed_row, sample_row, shard_row, tier_map_row
from jobs.spec import Sweep
from jobs.tenancy import Tenancy
from jobs.work_queue import Sample

log = logging.getLogger(__name__)

POLL_S = 0.5
HEARTBEAT_S = 5.0


class Cancelled(Exception):
    """Somebody told the sweep to end."""


class SweepRun:
    """Owner of the writer while a sweep runs."""

    def __init__(self, sweep: Sweep, cells: Sequence[Cell], sweep_id: str, progress: Progress, writer: Writer) -> None:
        self.sweep, self.cells, self.sweep_id, self.progress = sweep, cells, sweep_id, progress
        self.writer = writer
        self.tenancy = Tenancy(writer.engine, sweep_id)
        self.computed = self.failed = 0
        self.metrics = Metrics()
        self.lost_cells: set[str] = set()  # taken over by another coordinator
        self._lost_workers = 0
        self._finished: list[SampleRow] = []  # of this turn; one transaction for all
        self._beat = 0.0
        spec = sweep.model_dump(mode="json")
        writer.register_sweep(sweep_id, sweep.name, spec, environment(), [cell_row(cell) for cell in cells])

    def compute(self, crew: Crew) -> None:
        """Until nothing is left of the crew's queues.

        Raises:
            Cancelled: somebody said so.
        """
        self.progress.note(f"starting workers for {', '.join(group.name for group in crew.groups)}")
        try:
            while not crew.finished():
                if self.tenancy.told == "pause":
                    self._pause(crew)
                crew.balance()
                crew.feed()
                self._turn(crew)
                self._facts(crew)
        finally:
            crew.dismiss()

    def _turn(self, crew: Crew) -> None:
        """Takes what has come, and writes it before anything else happens: it waits for nothing but this."""
        try:
            for group, event in crew.poll(POLL_S):
                self._take(event, group, crew)
        finally:
            self._flush()
        self.beat(crew)
        self.progress.refresh()

    def _flush(self) -> None:
        finished, self._finished = self._finished, []
        self.writer.record(finished)

    def beat(self, crew: Crew | None = None) -> None:
        """Says that this coordinator lives, keeps its cells, and hears what it is told.

        Raises:
            Cancelled: to end.
        """
        lost = self.tenancy.beat()
        self.lost_cells |= lost
        if lost and crew is not None:
            dropped = sum(group.queue.drop(lost) for group in crew.groups)
            log.warning("%d cells are computed by another coordinator now: %d samples left to it", len(lost), dropped)
        if self.tenancy.told == "cancel":
            raise Cancelled
        if time.monotonic() - self._beat > HEARTBEAT_S:
            self._beat = time.monotonic()
            self.writer.heartbeat(self.sweep_id)
            if crew is not None:
                self._measure(crew)

    def _measure(self, crew: Crew) -> None:
        left = {name for group in crew.groups for name in group.queue.left}
        running = {name for group in crew.groups for name in group.queue.running()}
        self.metrics.cells(len(left - running), len(running), len(self.cells) - len(left | running))
        self.metrics.left(sum(group.queue.remaining for group in crew.groups))
        starting, busy, idle = crew.workers()
        self.metrics.actors(starting, busy, idle, self._lost_workers)
        self.metrics.beat()

    def _pause(self, crew: Crew) -> None:
        """Hands out nothing more, takes what comes back, then gives workers and GPUs up until told to go on."""
        self.progress.note("pausing: what runs is finished")
        while not crew.idle():
            self._turn(crew)
            if self.tenancy.told != "pause":
                return
        crew.dismiss()
        self._state("paused", "paused; `tiercache resume` goes on")
        while self.tenancy.told == "pause":
            time.sleep(POLL_S)
            self.beat(crew)
            self.progress.refresh()
        self._state("running", "going on")

    def _state(self, state: Any, note: str) -> None:
        self.writer.set_state(self.sweep_id, state)
        self.writer.event(self.sweep_id, state, note)
        self.progress.note(note)

    def _facts(self, crew: Crew) -> None:
        for group in crew.groups:
            facts = group.facts()
            if facts is not None:
                self._loaded(facts, group)

    def _loaded(self, facts: ModelFacts, group: Group) -> None:
        """Keeps what only loading has told: end tokens, template, types, and the bytes of models not known before."""
        self.writer.event(self.sweep_id, "model_loaded", f"{group.name} in {facts.dtype}", data=asdict(facts))
        self.writer.set_kv_bytes(list(group.cells), facts.token_bytes)
        size = group.pool.size if group.pool is not None else 0
        self.progress.note(f"{size} worker{'s' if size != 1 else ''} for {group.name}")

    def _take(self, event: Event, group: Group, crew: Crew) -> None:
        shard, queue = event.shard, group.queue
        cell = shard.cell
        if isinstance(event, Arrived):
            item = event.item
            if isinstance(item, Done | Refused):
                sample = queue.arrived(shard, item.key)
                if sample is not None:
                    self._store(sample, item, shard.id, queue.attempt(sample))
            elif isinstance(item, Diagnosed):
                self._flush()  # a measurement refers to its sample
                self.writer.record_diagnostics([diagnostic_row(cell, item)])
            elif isinstance(item, Mapped):
                self._flush()
                self.writer.record_tier_maps([tier_map_row(cell, item)])
            else:
                row = shard_row(shard, cell, self.sweep_id, item, exclusive=crew.alone(item.host))
                self.writer.record_shard(row)
                self.metrics.shard(row, group.name, group.cells[cell].policy.name)
                self.progress.measured(item.stats)
        elif isinstance(event, Ended):
            queue.ended(shard)
        else:
            self._lost(event, group, cell)

    def _lost(self, event: Lost, group: Group, cell: str) -> None:
        """Every attempt is an event of the sweep's log."""
        with log_context(cell=cell, shard=event.shard.id):
            log.warning("%s: %s", event.kind, event.reason)
        self.writer.event(
            self.sweep_id,
            event.kind,
            event.reason,
            fingerprint=cell,
            data={
                "shard": event.shard.id,
                "samples": [task.key for task in event.shard.tasks],
                "blamed": event.blamed,
            },
        )
        self._lost_workers += event.died
        waiting = group.queue.waiting_samples
        for sample in group.queue.lost(event.shard, event.blamed):
            self._give_up(sample, event.reason)
        self.metrics.lost(event.kind, again=group.queue.waiting_samples - waiting)

    def _store(self, sample: Sample, item: Done | Refused, shard_id: str, attempt: int) -> None:
        if isinstance(item, Refused):
            row = failed_row(sample, item.reason, attempt)
            self.failed += 1
            self.metrics.lost("refused")
        else:
            row = sample_row(sample, item, shard_id, attempt)
            self.computed += 1
        self._keep(sample, row)

    def _give_up(self, sample: Sample, reason: str) -> None:
        attempts = self.sweep.cluster.max_attempts
        row = failed_row(sample, f"{GIVEN_UP} {attempts} attempts; the last: {reason}", attempts)
        self.failed += 1
        self.metrics.lost("given_up")
        self._keep(sample, row)

    def _keep(self, sample: Sample, row: SampleRow) -> None:
        self._finished.append(row)
        self.metrics.sample(row, sample.cell.model.name, sample.cell.benchmark.label, sample.cell.policy.name)
        self.progress.finished(sample.cell, row)
