"""Which samples are still to be computed, which are out, how often each was tried. Bookkeeping: no Ray, no SQL.

Invariant: every sample is waiting, out, or has been taken back once; `remaining` counts the first two. A sample waits
as a number of eight bytes; it becomes an object when its shard is handed out.
"""

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

from cluster.work import Shard, Task
from jobs.benchmarks.base import Problem
from jobs.grid import Cell, fingerprint, sample_seed
from tiercache.requests import Sampling


@dataclass(frozen=True, slots=True)
class Sample:
    """One generation to be made: a cell, one of its problems, and which repeat."""

    cell: Cell
    problem: Problem
    repeat: int

    @property
    def key(self) -> str:
        return f"{self.problem.id}#{self.repeat}"

    @property
    def seed(self) -> int:
        return sample_seed(self.cell, self.problem.id, self.repeat)


def split_key(key: str) -> tuple[str, int]:
    """The problem's id and the repeat that a sample's key names."""
    problem, _, repeat = key.rpartition("#")
    return problem, int(repeat)


class CellSamples(Sequence[Sample]):
    """Samples of one cell, each as a number: repeat times problems plus the problem's place."""

    def __init__(self, cell: Cell, numbers: Iterable[int]) -> None:
        self.cell = cell
        self._numbers = array("q", numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Sample: ...

    @overload
    def __getitem__(self, index: slice) -> "CellSamples": ...

    def __getitem__(self, index: int | slice) -> "Sample | CellSamples":
        if isinstance(index, slice):
            return CellSamples(self.cell, self._numbers[index])
        repeat, place = divmod(self._numbers[index], self.cell.n)
        return Sample(self.cell, self.cell.benchmark.load()[place], repeat)


def samples_of(cell: Cell) -> CellSamples:
    """All samples of a cell: the first repeat of every problem, then the second, ..."""
    return CellSamples(cell, range(cell.n * cell.repeats))


def mapped_keys(cell: Cell, tier_maps: int) -> set[tuple[str, int]]:
    """(problem, repeat) of the samples of which a tier map is kept: the first problems, once each."""
    return {(problem.id, 0) for problem in cell.benchmark.load()[:tier_maps]} if tier_maps else set()


class WorkQueue:
    """Hands out shards and takes back results and losses.

    A sample that was lost goes back with one attempt used; on its last attempt it runs alone, so that a sample that
    kills its engine takes no innocent one with it. After that it is given up.
    """

    def __init__(
        self,
        cells: Iterable[Sequence[Sample]],
        shard_size: int,
        max_attempts: int,
        diagnostics: bool = False,
        tier_maps: int = 0,
    ) -> None:
        """cells: each cell's samples, in the order in which they are to be computed."""
        self.max_attempts = max_attempts
        self.diagnostics = diagnostics
        self.tier_maps = tier_maps
        self._waiting: deque[Sequence[Sample]] = deque()
        self._out: dict[str, dict[str, Sample]] = {}
        self._cells: dict[str, str] = {}
        self._attempts: dict[tuple[str, str], int] = {}
        self._issued = 0
        self.left: Counter[str] = Counter()
        for group in cells:
            self._waiting.extend(_even(group, shard_size))
            if group:
                self.left[group[0].cell.fingerprint] += len(group)
        self.remaining = self.left.total()

    def attempt(self, sample: Sample) -> int:
        """The number of the attempt that this sample is in, from 1."""
        return self._attempts.get((sample.cell.fingerprint, sample.key), 0) + 1

    @property
    def waiting(self) -> int:
        """Shards not handed out yet."""
        return len(self._waiting)

    @property
    def shards(self) -> int:
        """Shards waiting or out."""
        return len(self._waiting) + len(self._out)

    @property
    def waiting_samples(self) -> int:
        """Samples of the shards not handed out yet."""
        return sum(map(len, self._waiting))

    def running(self) -> set[str]:
        """Cells of which a shard is out."""
        return set(self._cells.values())

    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def finished(self) -> bool:
        """Nothing is owed and no shard is out: what a shard cost comes after its last sample."""
        return not self.remaining and not self._out

    def peek(self) -> Cell:
        """The cell of the next shard. Call it only if `has_waiting`."""
        return self._waiting[0][0].cell

    def next_shard(self) -> Shard:
        """Takes the next shard out. Call it only if `has_waiting`."""
        group = list(self._waiting.popleft())
        self._issued += 1
        cell = group[0].cell
        shard_id = fingerprint([cell.fingerprint, self._issued, [(s.key, self.attempt(s)) for s in group]])
        self._out[shard_id] = {sample.key: sample for sample in group}
        self._cells[shard_id] = cell.fingerprint
        mapped = mapped_keys(cell, self.tier_maps)
        return Shard(
            id=shard_id,
            policy=cell.policy,
            sampling=Sampling(**cell.sampling.model_dump()),
            rendering=cell.benchmark.rendering,
            tasks=tuple(Task(s.key, s.problem.prompt, s.seed, s.problem.prefix) for s in group),
            diagnostics=self.diagnostics,
            tier_maps=tuple(s.key for s in group if (s.problem.id, s.repeat) in mapped),
            cell=cell.fingerprint,
        )

    def arrived(self, shard: Shard, key: str) -> Sample | None:
        """Takes one sample's result; None if it isn't owed (it has arrived before)."""
        sample = self._out[shard.id].pop(key, None)
        if sample is not None:
            self._settle(sample)
        return sample

    def ended(self, shard: Shard) -> None:
        """A shard has sent everything."""
        missing = self._out.pop(shard.id)
        del self._cells[shard.id]
        assert not missing, f"a shard ended without {len(missing)} of its samples"

    def lost(self, shard: Shard, blamed: bool) -> list[Sample]:
        """Puts a lost shard's unfinished samples back; returns those that have used up their attempts."""
        group = list(self._out.pop(shard.id).values())
        del self._cells[shard.id]
        if blamed:
            for sample in group:
                place = (sample.cell.fingerprint, sample.key)
                self._attempts[place] = self._attempts.get(place, 0) + 1
        given_up = [sample for sample in group if self.attempt(sample) > self.max_attempts]
        again = [sample for sample in group if self.attempt(sample) <= self.max_attempts]
        alone = [[sample] for sample in again if self.attempt(sample) == self.max_attempts and blamed]
        together = [sample for sample in again if [sample] not in alone]
        self._waiting.extendleft([*alone, *([together] if together else [])])
        for sample in given_up:
            self._settle(sample)
        return given_up

    def recall(self) -> None:
        """Puts back what is out, without blame: its workers were ended on purpose."""
        for group in self._out.values():
            if group:
                self._waiting.appendleft(list(group.values()))
        self._out, self._cells = {}, {}

    def drop(self, fingerprints: set[str]) -> int:
        """Forgets waiting shards of these cells, which another coordinator computes now; returns how many samples."""
        gone = [group for group in self._waiting if group[0].cell.fingerprint in fingerprints]
        self._waiting = deque(group for group in self._waiting if group[0].cell.fingerprint not in fingerprints)
        for group in gone:
            self._forget(group[0].cell.fingerprint, len(group))
        return sum(map(len, gone))

    def _settle(self, sample: Sample) -> None:
        """A sample is owed no more."""
        self._forget(sample.cell.fingerprint, 1)

    def _forget(self, cell: str, samples: int) -> None:
        self.remaining -= samples
        self.left[cell] -= samples
        if not self.left[cell]:
            del self.left[cell]


def _even(group: Sequence[Sample], size: int) -> list[Sequence[Sample]]:
    """Cuts into the fewest parts of at most `size`, as even as possible: no small rest that runs alone at the end."""
    parts = -(-len(group) // size)
    bounds = [len(group) * i // parts for i in range(parts + 1)]
    return [group[a:b] for a, b in pairwise(bounds)]
