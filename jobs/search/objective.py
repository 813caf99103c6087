"""What a policy has scored and held on one part's problems: read from the database, and computed where it lacks.

Trials are ordinary cells. They run through the same coordinator and workers as a sweep's, so a search that was killed
goes on where it stopped, and its samples are in every table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from db.connection import open_engine
from db.errors import DatabaseMissing
from db.migrate import status
from db.queries import list_samples, stored_generations
from db.samples import SampleInfo
from jobs.benchmarks.base import Benchmark
from jobs.coordinator import PoolFactory, run_sweep
from jobs.grid import Cell, expand
from jobs.search.fitting import Bytes, mean_bytes, metadata_token_bytes
from jobs.search.spec import PartName, Search
from jobs.spec import Sweep, parse_sweep
from tiercache.errors import TierCacheError
from tiercache.shapes import shape_of
from tiercache.sizes import Sizes

ALL = 10**9


class Unfinished(TierCacheError):
    """Results that are needed aren't in the database."""


class Stopped(Exception):
    """Somebody cancelled a sweep of the search."""


@dataclass(frozen=True)
class Measured:
    """A policy on one part's problems.

    samples   those that were judged, in the problems' order.
    expected  how many there are; fewer were judged where some failed.
    outputs   by problem, the text that was written.
    size      bytes of a token in each form, and `metadata` beside each: with them means of the ledger become tokens.
    """

    fingerprint: str
    label: str
    samples: tuple[SampleInfo, ...]
    outputs: Mapping[str, str] = field(repr=False)
    expected: int
    size: Sizes
    metadata: int

    @property
    def complete(self) -> bool:
        return len(self.samples) == self.expected

    @cached_property
    def scores(self) -> dict[str, list[float]]:
        """By problem, one repeat."""
        return {sample.problem_id: [_score(sample)] for sample in self.samples}

    @property
    def accuracy(self) -> float:
        return sum(map(_score, self.samples)) / len(self.samples)

    @property
    def cut(self) -> float:
        """Share of answers that ran into the token limit."""
        return sum(sample.outcome == "truncated" for sample in self.samples) / len(self.samples)

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Prompt tokens and decode steps of each: the last token's keys and values are never written."""
        return [(sample.prompt_tokens or 0, max(0, (sample.output_tokens or 0) - 1)) for sample in self.samples]

    @cached_property
    def bytes(self) -> Bytes:
        """Shares of the full cache's keys and values at the same steps: ratios of means over the samples."""
        full = self._sum("full_bytes_mean")
        hbm, ddr, packed = (self._sum(f"{tier}_bytes_mean") for tier in ("hbm", "ddr", "packed"))
        found = mean_bytes(hbm, ddr, packed, self.size, self.metadata)
        return Bytes(found.device / full, found.host / full, found.beside / full)

    def _sum(self, column: str) -> float:
        return sum(float(getattr(sample, column) or 0.0) for sample in self.samples)

    def agreement(self, full: "Measured") -> float:
        """How much of the full cache's answers these repeat before they depart from them: mean share of the length."""
        shares = [_repeated(self.outputs[name], full.outputs[name]) for name in self.scores if name in full.outputs]
        return sum(shares) / max(1, len(shares))

    def held(self, host_counts: bool) -> float:
        """Share of the full cache's bytes that counts against the budget."""
        return self.bytes.counted(host_counts)


def _score(sample: SampleInfo) -> float:
    return sample.score if sample.score is not None else float(sample.outcome == "correct")


def _repeated(output: str, full: str) -> float:
    same = next((i for i, (ours, its) in enumerate(zip(output, full, strict=False)) if ours != its), None)
    return (min(len(output), len(full)) if same is None else same) / max(1, len(full))


Measure = Callable[[str, PartName, Sequence[Mapping[str, Any]]], list[Measured]]


class Stored:
    """Reads what a search has stored. Calling it measures policies: (title, part, entries) -> one result each.

    Raises:
        Unfinished: some of it isn't there.
    """

    def __init__(self, search: Search, benchmarks: Mapping[PartName, Benchmark], url: str) -> None:
        self.search, self.benchmarks, self.url = search, benchmarks, url

    def __call__(self, title: str, part: PartName, entries: Sequence[Mapping[str, Any]]) -> list[Measured]:
        _, cells = self.sweep(title, part, entries)
        found = self.look(cells)
        lacking = [each.label for each in found if not each.samples]
        if lacking:
            raise Unfinished(
                f"{title}: {len(lacking)} policies have no results yet ({lacking[0]}); run the search first."
            )
        return found

    def sweep(self, title: str, part: PartName, entries: Sequence[Mapping[str, Any]]) -> tuple[Sweep, list[Cell]]:
        """The sweep that runs these policies, and its cells in the policies' order."""
        search = self.search
        sweep = parse_sweep(
            {
                "name": f"{search.name}: {title}",
                "models": [search.model],
                "benchmarks": [search.benchmark_entry(part)],
                "policies": [dict(entry) for entry in entries],
                "seed": search.seed,
                "sampling": search.sampling.model_dump(exclude_none=True),
                "engine": search.engine.model_dump(),
                "cluster": search.cluster.model_dump(),
            }
        )
        return sweep, expand(sweep, [self.benchmarks[part]])

    def look(self, cells: Sequence[Cell]) -> list[Measured]:
        """What is stored of each cell; nothing where there is no database yet."""
        try:
            engine = open_engine(self.url, read_only=True)
        except DatabaseMissing:
            return [self._measured(cell, (), {}) for cell in cells]
        try:
            ready = status(engine) == "ready"
            found = []
            for cell in cells:
                wanted = {problem.id for problem in cell.benchmark.load()} if ready else set()
                rows = list_samples(engine, cell.fingerprint, limit=ALL) if ready else []
                kept = (row for row in rows if row.problem_id in wanted and row.repeat == 0 and row.outcome != "failed")
                texts = stored_generations(engine, cell.fingerprint) if ready else ()
                outputs = {each.problem_id: each.output for each in texts if each.repeat == 0}
                found.append(self._measured(cell, tuple(kept), outputs))
        finally:
            engine.dispose()
        return found

    @staticmethod
    def _measured(cell: Cell, samples: tuple[SampleInfo, ...], outputs: Mapping[str, str]) -> Measured:
        shape, dtype = shape_of(cell.model), cell.model.dtype
        assert shape is not None, "checked when the file was read"
        size, metadata = shape.sizes(cell.policy, dtype), metadata_token_bytes(cell.policy, shape, dtype)
        return Measured(cell.fingerprint, cell.policy.label, samples, outputs, cell.n, size, metadata)


class Computed(Stored):
    """The same; what isn't stored is computed first, as a sweep of its own.

    Raises:
        Stopped: the sweep was cancelled. What `run_sweep` raises.
    """

    def __init__(
        self,
        search: Search,
        benchmarks: Mapping[PartName, Benchmark],
        url: str,
        *,
        progress: bool = True,
        address: str | None = None,
        wait_s: float = 0.0,
        pools: PoolFactory | None = None,
        before: Callable[[str], None] = lambda title: None,
    ) -> None:
        """before: told a sweep's title before anything of it is computed."""
        super().__init__(search, benchmarks, url)
        self._how: dict[str, Any] = {"progress": progress, "address": address, "wait_s": wait_s, "pools": pools}
        self._before = before
        self.reused = self.computed = 0

    def __call__(self, title: str, part: PartName, entries: Sequence[Mapping[str, Any]]) -> list[Measured]:
        sweep, cells = self.sweep(title, part, entries)
        found = self.look(cells)
        if all(each.complete for each in found):
            self.reused += sum(each.expected for each in found)
            return found
        self._before(title)
        result = run_sweep(sweep, cells, self.url, **self._how)
        if result.state == "cancelled":
            raise Stopped
        self.reused += result.reused
        self.computed += result.computed
        return self.look(cells)
