"""The workers of all models of a sweep, and their queues: who gets how many, and who gets the next shard.

Weights are loaded once for each worker and stay; a model whose queue has drained gives its room to the others.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.allot import Demand
from cluster.pool import Pool
from cluster.work import Event, ModelFacts
from jobs.grid import Cell
from jobs.work_queue import CellSamples, WorkQueue

BALANCE_S = 5.0
SOON_S = 0.5
TIERED = 2.0  # seen on the embedded reasoner; larger models show less. Only the order of cells depends on it

Allot = Callable[[Sequence[Demand]], list[int]]


@dataclass
class Group:
    """One model: its cells, its queue, and its workers once it has any. `scale`: what a token of it costs."""

    cells: dict[str, Cell]
    queue: WorkQueue
    make: Callable[[], Pool]
    cpus: float
    gpus: float
    scale: float
    pool: Pool | None = None
    told: bool = False

    @property
    def name(self) -> str:
        return next(iter(self.cells.values())).model.name

    def demand(self) -> Demand:
        tokens = max(cell.sampling.max_new_tokens for cell in self.cells.values())
        work = self.queue.remaining * tokens * self.scale
        return Demand(self.cpus, self.gpus, self.queue.shards, work)

    def facts(self) -> ModelFacts | None:
        """What loading the model has told, once."""
        if self.told or self.pool is None:
            return None
        found = self.pool.facts()
        self.told = found is not None
        return found


def longest_first(cells: Sequence[CellSamples]) -> list[CellSamples]:
    """A long cell that begins last would run alone at the end. Cells that cost the same keep their order."""
    return sorted(cells, key=lambda samples: -len(samples) * _cost(samples.cell))


def _cost(cell: Cell) -> float:
    """What a sample takes at most, in tokens of the full cache: an estimate."""
    return cell.sampling.max_new_tokens * (TIERED if cell.policy.placement.tiered else 1.0)


class Crew:
    """Owner of all pools."""

    def __init__(self, groups: Sequence[Group], allot: Allot, clock: Callable[[], float] = time.monotonic) -> None:
        self.groups = list(groups)
        self._allot = allot
        self._clock = clock
        self._balanced = float("-inf")

    def finished(self) -> bool:
        return all(group.queue.finished() for group in self.groups)

    def idle(self) -> bool:
        """Nothing is out: what was handed out has come back."""
        return all(group.queue.shards == group.queue.waiting for group in self.groups)

    def workers(self) -> tuple[int, int, int]:
        """How many start, work and idle."""
        pools = [group.pool for group in self.groups if group.pool is not None]
        starting = sum(pool.hosts.count(None) for pool in pools)
        idle = sum(pool.idle for pool in pools)
        return starting, sum(pool.size for pool in pools) - starting - idle, idle

    def alone(self, host: str) -> bool:
        """Whether a host has one worker and none starts that may be put there."""
        hosts = [where for group in self.groups if group.pool is not None for where in group.pool.hosts]
        return hosts.count(host) == 1 and None not in hosts

    def balance(self) -> None:
        """Grows and shrinks the pools, now and then; soon if workers idle whose room another model could use."""
        idle = any(group.pool is not None and group.pool.idle and not group.queue.waiting for group in self.groups)
        wanted = idle and any(group.queue.waiting for group in self.groups)
        if self._clock() - self._balanced < (SOON_S if wanted else BALANCE_S):
            return
        self._balanced = self._clock()
        sizes = self._allot([group.demand() for group in self.groups])
        # What shrinks first leaves its room to what grows.
        for group, size in sorted(zip(self.groups, sizes, strict=True), key=lambda pair: pair[1] - self._size(pair[0])):
            if group.pool is None and size:
                group.pool = group.make()
            if group.pool is not None:
                group.pool.resize(size)

    @staticmethod
    def _size(group: Group) -> int:
        return group.pool.size if group.pool is not None else 0

    def feed(self) -> None:
        """Hands out shards to whoever wants one."""
        for group in self.groups:
            while group.pool is not None and group.queue.waiting and group.pool.wants_work(group.queue.waiting):
                group.pool.submit(group.queue.next_shard())

    def poll(self, timeout_s: float) -> list[tuple[Group, Event]]:
        """News of all pools; waits for some at most `timeout_s`."""
        busy = [(group, group.pool) for group in self.groups if group.pool is not None and group.pool.size]
        if not busy:
            time.sleep(timeout_s)
            return []
        found: list[tuple[Group, Event]] = []
        for group, pool in busy:
            found += ((group, event) for event in pool.poll(timeout_s / len(busy) if not found else 0.0))
        return found

    def dismiss(self) -> None:
        """Ends all workers; what they had is waiting again."""
        for group in self.groups:
            if group.pool is not None:
                group.pool.close()
                group.pool = None
            group.queue.recall()
        self._balanced = float("-inf")
