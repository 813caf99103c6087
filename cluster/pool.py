"""What runs shards of one model, and how: the contract of a pool, and one that runs them in this process."""

from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from cluster.work import Arrived, Ended, Event, Lost, ModelFacts, Shard
from cluster.worker import EngineWorker
from tiercache.model_spec import ModelSpec


@dataclass(frozen=True)
class WorkerOptions:
    """How each worker of a pool is made."""

    model: ModelSpec
    device: str = "auto"
    max_batch: int = 64
    hbm_kv_budget: int | None = None
    prefill_chunk: int = 512
    threads: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0


class Pool(Protocol):
    """Runs shards of one model somewhere. One implementation is Ray's; `InlinePool` runs them here."""

    @property
    def size(self) -> int:
        """Workers that there are now, those that start included."""

    @property
    def idle(self) -> int:
        """Workers that have nothing to do."""

    @property
    def hosts(self) -> list[str | None]:
        """Where each worker is; None while it starts."""

    def facts(self) -> ModelFacts | None:
        """What loading the model has told; None before the first worker has."""

    def resize(self, size: int) -> None:
        """Starts workers up to that many, or ends idle ones down to it."""

    def wants_work(self, waiting: int) -> bool:
        """Whether to hand out one of so many waiting shards now."""

    def submit(self, shard: Shard) -> None:
        """Hands out a shard."""

    def poll(self, timeout_s: float) -> list[Event]:
        """News since the last call; waits for some at most `timeout_s`.

        Raises:
            ModelError, ResourceError: no worker can start.
        """

    def close(self) -> None:
        """Ends the workers and frees what they hold."""


class InlinePool:
    """The same contract in this process, one shard at a time: for tests and for debugging without Ray."""

    def __init__(self, options: WorkerOptions, size: int = 1, worker: Any = None) -> None:
        o = options
        self.worker = worker or EngineWorker(
            o.model, o.device, o.max_batch, o.hbm_kv_budget, o.prefill_chunk, o.threads, o.gpus
        )
        self._queue: deque[Shard] = deque()

    @property
    def size(self) -> int:
        return 1

    @property
    def idle(self) -> int:
        return int(not self._queue)

    @property
    def hosts(self) -> list[str | None]:
        return ["here"]

    def facts(self) -> ModelFacts | None:
        found: ModelFacts = self.worker.facts()
        return found

    def resize(self, size: int) -> None:
        pass

    def wants_work(self, waiting: int) -> bool:
        return not self._queue

    def submit(self, shard: Shard) -> None:
        self._queue.append(shard)

    def poll(self, timeout_s: float) -> list[Event]:
        if not self._queue:
            return []
        shard = self._queue.popleft()
        events: list[Event] = []
        try:
            events.extend(Arrived(shard, item) for item in self.worker.run(shard))
        except Exception as error:  # whatever a worker raises, the pool reports it as a loss, as Ray's does
            return [*events, Lost(shard, first_line(error), True, "shard_failed")]
        return [*events, Ended(shard)]

    def close(self) -> None:
        self._queue.clear()


def first_line(error: BaseException) -> str:
    """An error's kind and first line, not too long."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]
