"""A search over a made-up model: its ledger is the planner's, its verdicts follow from the policy and the problem."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster.fake import FakeWorker, Script, stats
from cluster.pool import InlinePool, Pool, WorkerOptions
from cluster.work import Done, Event, Item, Refused, Shard, ShardStats
from jobs.benchmarks.base import Benchmark
from jobs.grid import Cell
from jobs.search.fitting import metadata_token_bytes, planned
from jobs.search.objective import Computed
from jobs.search.spec import Search, load_benchmarks, parse_search
from jobs.spec import Sweep
from tiercache.model_spec import ModelSpec
from tiercache.policy import Policy
from tiercache.requests import Completion
from tiercache.shapes import shape_of

SHAPE = shape_of(ModelSpec(id="reasoner"))
assert SHAPE is not None
STEPS = 60


def quality(policy: Policy) -> float:
    """Chance of a right answer: quantised and ranked by keys is good, everything else is worse."""
    if policy.name == "full":
        return 0.98
    good = 0.1 + 0.5 * (policy.placement.tiered and policy.storage.element_bits == 2)
    return good + 0.3 * (policy.scorer.scorer == "keydiff")


class MadeUp(FakeWorker):
    """Answers rightly by chance, but the same sample always alike; `extra` steps that no plan knows."""

    def __init__(self, answers: dict[str, str], script: Script | None = None) -> None:
        super().__init__(script)
        self.answers = answers

    def run(self, shard: Shard) -> Iterator[Item]:
        assert SHAPE is not None
        size = SHAPE.sizes(shard.policy, "float32")
        ledger = planned(shard.policy, 40, STEPS, size, metadata_token_bytes(shard.policy, SHAPE, "float32"))
        for task in shard.tasks:
            if task.key in self.script.refuses:
                yield Refused(task.key, "refused by the script")
                continue
            drawn = hashlib.sha256(f"{task.key} {shard.policy.label}".encode()).digest()[0] / 256
            answer = self.answers[task.prompt] if drawn < quality(shard.policy) else "none"
            tokens = tuple(range(STEPS + 1))
            yield Done(
                task.key, task.prompt, f"#### {answer}", Completion(task.key, tokens, "eos", 40, 0.0, 0.1, ledger)
            )
        yield ShardStats(stats(len(shard.tasks)), "made-up", "here", "none", 0.0, 1.0)


class Counting(InlinePool):
    """Counts what it is asked for; may stop the run after a number of samples."""

    def __init__(self, worker: FakeWorker) -> None:
        super().__init__(WorkerOptions(model=None), worker=worker)  # type: ignore[arg-type]
        self.asked = 0
        self.stop_after: int | None = None

    def submit(self, shard: Shard) -> None:
        self.asked += len(shard.tasks)
        super().submit(shard)

    def poll(self, timeout_s: float) -> list[Event]:
        if self.stop_after is not None and self.asked > self.stop_after:
            raise KeyboardInterrupt
        return super().poll(timeout_s)


DATA: dict[str, Any] = {
    "name": "t",
    "model": {"id": "reasoner", "dtype": "float32"},
    "benchmark": {"name": "chain", "difficulty": "ledger"},
    "budget": {"bytes": 0.5},
    "trials": 9,
    "batch": 3,
    "search": {"n": 12},
    "report": {"n": 20, "top": 2},
    "rivals": [{"name": "h2o", "budget": "fit"}, {"name": "quantised", "packed_bits": [8, 2], "recent": "fit"}],
    "space": {"scorer": ["attention", "keydiff"], "every": [4, 8]},
    "cluster": {"shard_size": 5},
}


@pytest.fixture
def data() -> dict[str, Any]:
    """A small search."""
    return dict(DATA)


@pytest.fixture
def search() -> Search:
    return parse_search(DATA)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'results.db'}"


Make = Callable[..., tuple[Computed, Counting]]


@pytest.fixture
def computed() -> Make:
    """What measures policies of a search with the made-up model, and its pool."""

    def make(search: Search, url: str, script: Script | None = None) -> tuple[Computed, Counting]:
        parts = load_benchmarks(search)
        pool = Counting(MadeUp(answers(parts.values()), script))

        def pools(_: Sweep, __: Sequence[Cell], ___: int) -> Pool:
            return pool

        return Computed(search, parts, url, progress=False, pools=pools), pool

    return make


def answers(benchmarks: Iterable[Benchmark]) -> dict[str, str]:
    return {problem.prompt: problem.reference for each in benchmarks for problem in each.load()}
