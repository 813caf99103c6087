"""A pool of equal workers on Ray, fed by our own loop over `ray.wait`.

Not `ray.util.ActorPool`: that one strands queued work when its last actor dies. Here every shard that is handed out is
in `_running` until it has ended or was lost, a dead actor is replaced, and nothing is ever waited for without a limit.
"""

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from cluster.work import Arrived, Ended, Event, Lost, ModelFacts, Shard
from cluster.worker import EngineWorker
from tiercache.errors import ModelError, ResourceError, TierCacheError
from tiercache.model_spec import ModelSpec

log = logging.getLogger(__name__)

START_TIMEOUT_S = 1800.0  # loading 65 GB of weights from a slow disk takes long; hanging for ever is worse
QUEUED = 2  # shards handed to one actor at a time: one runs, one waits, so that it never idles


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
    """Runs shards somewhere. One implementation is Ray's; `InlinePool` runs them here."""

    @property
    def size(self) -> int:
        """Workers that there are now."""

    def wants_work(self) -> bool:
        """Whether a further shard would be begun or queued at once."""

    def submit(self, shard: Shard) -> None:
        """Hands out a shard."""

    def facts(self) -> ModelFacts:
        """What loading the model has told."""

    def poll(self, timeout_s: float) -> list[Event]:
        """News since the last call; waits for some at most `timeout_s`."""

    def close(self) -> None:
        """Ends the workers and frees what they hold."""


@dataclass
class _Worker:
    actor: Any
    running: deque[tuple[Any, Shard]] = field(default_factory=deque)  # (result stream, shard), in order


class RayPool:
    """Workers as Ray actors that this process owns: they end when it does."""

    def __init__(self, options: WorkerOptions, size: int) -> None:
        self.options = options
        self._workers: list[_Worker] = []
        try:
            self._workers = [_Worker(self._spawn()) for _ in range(size)]
            self._await_ready()
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        return len(self._workers)

    def facts(self) -> ModelFacts:
        import ray

        found: ModelFacts = ray.get(self._workers[0].actor.facts.remote(), timeout=START_TIMEOUT_S)
        return found

    def wants_work(self) -> bool:
        return any(len(worker.running) < QUEUED for worker in self._workers)

    def submit(self, shard: Shard) -> None:
        worker = min(self._workers, key=lambda each: len(each.running))
        stream = worker.actor.run.options(num_returns="streaming").remote(shard)
        worker.running.append((stream, shard))

    def poll(self, timeout_s: float) -> list[Event]:
        import ray

        heads = {worker.running[0][0]: worker for worker in self._workers if worker.running}
        if not heads:
            return []
        ready, _ = ray.wait(list(heads), num_returns=1, timeout=timeout_s)
        more, _ = ray.wait(list(heads), num_returns=len(heads), timeout=0)
        return [event for stream in dict.fromkeys([*ready, *more]) for event in self._next(heads[stream])]

    def close(self) -> None:
        import ray

        for worker in self._workers:
            ray.kill(worker.actor)
        self._workers = []

    def _next(self, worker: _Worker) -> list[Event]:
        """One item of the worker's first stream, its end, or the loss of all that the worker had."""
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        stream, shard = worker.running[0]
        try:
            return [Arrived(shard, ray.get(next(stream)))]
        except StopIteration:
            worker.running.popleft()
            return [Ended(shard)]
        except RayActorError as death:
            lost = [shard for _, shard in worker.running]
            worker.running.clear()
            log.warning("an actor died and is replaced: %s", _first_line(death))
            ray.kill(worker.actor)  # it may only be out of reach; two engines on one GPU would be worse
            worker.actor = self._spawn()
            return [Lost(each, _first_line(death), blamed=index == 0, died=True) for index, each in enumerate(lost)]
        except RayTaskError as error:
            worker.running.popleft()
            return [Lost(shard, _first_line(error.cause or error), blamed=True, died=False)]

    def _spawn(self) -> Any:
        import ray

        o = self.options
        actor = ray.remote(EngineWorker).options(
            num_cpus=o.cpus,
            num_gpus=o.gpus,
            max_restarts=0,  # we replace actors ourselves, so that attempts are counted
            runtime_env={"env_vars": {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}},
        )
        return actor.remote(o.model, o.device, o.max_batch, o.hbm_kv_budget, o.prefill_chunk, o.threads, o.gpus)

    def _await_ready(self) -> None:
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError

        try:
            places = ray.get([worker.actor.ready.remote() for worker in self._workers], timeout=START_TIMEOUT_S)
        except GetTimeoutError:
            raise ResourceError(
                f"cluster: {self.size} workers for '{self.options.model.id}' did not start in {START_TIMEOUT_S:.0f} s."
            ) from None
        except RayActorError as error:
            raise _constructor_error(error, self.options.model) from None
        log.info("workers ready: %s", ", ".join(places))


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

    def facts(self) -> ModelFacts:
        found: ModelFacts = self.worker.facts()
        return found

    def wants_work(self) -> bool:
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
            return [*events, Lost(shard, _first_line(error), blamed=True, died=False)]
        return [*events, Ended(shard)]

    def close(self) -> None:
        self._queue.clear()


def _constructor_error(error: BaseException, model: ModelSpec) -> TierCacheError:
    """The user's own mistake (a missing model, a missing GPU) out of Ray's wrapping."""
    lines = [line.strip() for line in str(error).splitlines()]
    for kind in (ModelError, ResourceError):
        marker = f"{kind.__module__}.{kind.__name__}: "
        for line in lines:
            if marker in line:
                return kind(line.split(marker, 1)[1])
    return ResourceError(f"a worker for '{model.id}' could not start: {lines[-1] if lines else error!r}")


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]
