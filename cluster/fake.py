"""A worker that needs no model: for tests of everything around the engine.

It answers each task at once with a text that depends only on the task's seed and prompt, as a real engine's does, and
can be told to die, to raise or to be slow at chosen samples.
"""

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.work import Diagnosed, Done, Item, Mapped, ModelFacts, Refused, Shard, ShardStats
from tiercache.diagnostics.tier_record import SERIES, TierRecord
from tiercache.diagnostics.values import Diagnostics
from tiercache.ledger import SequenceBytes
from tiercache.requests import Completion, RunStats


@dataclass(frozen=True)
class Script:
    """What goes wrong. Keys are task keys.

    dies    the process is killed while it works on the sample, in the first `dies[key]` attempts. Attempts are counted
            in files under `memory`, which outlives the process.
    pids    a folder where each worker leaves a file named by its process, for whoever wants to kill it.
    raises  the sample raises an exception each time. `refuses`: it is refused. `hangs`: it never ends.
    """

    memory: Path | None = None
    pids: Path | None = None
    dies: Mapping[str, int] = field(default_factory=dict)
    raises: frozenset[str] = frozenset()
    refuses: frozenset[str] = frozenset()
    hangs: frozenset[str] = frozenset()
    sample_s: float = 0.0


class FakeWorker:
    """Same methods as `EngineWorker`."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        if self.script.pids is not None:
            (self.script.pids / str(os.getpid())).touch()

    def ready(self) -> str:
        return "fake"

    def facts(self) -> ModelFacts:
        return ModelFacts(1024, "float32", (2,), 1, None, 4096, 2, 2, 32)

    def run(self, shard: Shard) -> Iterator[Item]:
        start = time.time()
        for task in shard.tasks:
            time.sleep(self.script.sample_s)
            if task.key in self.script.refuses:
                yield Refused(task.key, "refused by the script")
                continue
            while task.key in self.script.hangs:
                time.sleep(0.1)
            if task.key in self.script.raises:
                raise ValueError(f"raised at {task.key}")
            if self._attempts(task.key) < self.script.dies.get(task.key, 0):
                os._exit(9)
            digits = int.from_bytes(hashlib.sha256(f"{task.seed} {task.prompt}".encode()).digest()[:4], "big")
            text = f"a chain #### {digits % 10_000:04d}"
            yield Done(task.key, task.prompt, text, completion(task.key, len(text)))
        yield ShardStats(stats(len(shard.tasks)), "fake-worker", "fake-host", "fake", start, time.time())
        for key in shard.tier_maps:
            if key not in self.script.refuses:
                yield Mapped(key, tier_record(), (1, 2, 3, 4), ("a", "b", "<i>c</i>", "d"))
        for task in shard.tasks if shard.diagnostics else ():
            if task.key not in self.script.refuses:
                yield Diagnosed(task.key, Diagnostics(steps=40, fmm_acc=0.25, kl=0.5, first_divergent=7))

    def _attempts(self, key: str) -> int:
        """How often this sample was begun before; remembered on disk."""
        if self.script.memory is None:
            return 0
        marks = self.script.memory / key.replace("/", "_")
        before = len(marks.read_text()) if marks.exists() else 0
        marks.write_text("x" * (before + 1))
        return before


def completion(key: str, tokens: int) -> Completion:
    """A finished sequence of that many tokens under the full cache."""
    ledger = SequenceBytes(
        tokens + 9, 0, 0, 0, 512.0 * tokens, 1024 * tokens, 0.0, 0.0, 0, 512.0 * tokens, 1024 * tokens, 0
    )
    return Completion(key, tuple(range(tokens)), "eos", 10, 0.01, 0.02, ledger)


def tier_record() -> TierRecord:
    """Of a sequence of two prompt tokens and two of output, of which the first was evicted."""
    import numpy as np

    tiers = np.array([[0, 0, 0, 0], [3, 0, 0, 0]], dtype=np.uint8)
    series = {name: np.array([2048, 3072 if name == "full" else 2048]) for name in SERIES}
    return TierRecord(
        prompt=2,
        layers=2,
        kv_heads=2,
        steps=np.array([0, 1]),
        seen=np.array([2, 3]),
        tiers=np.repeat(tiers[:, None], 2, axis=1),
        overall=tiers,
        held=(tiers < 3).astype(np.float32),
        importance=None,
        no_importance="made up",
        series=series,
    )


def stats(sequences: int) -> RunStats:
    """Plausible measurements."""
    return RunStats(sequences, 10, 0.1, 100, 0.5, 50, 0.01, 0.02, 0.01, sequences, 4096, None, 0, 0, 1000, None)
