"""A pool of equal workers on Ray, fed by our own loop over `ray.wait`.

Not `ray.util.ActorPool`: that one strands queued work when its last actor dies. Here every shard that is handed out is
in `running` until it has ended or was lost, a dead actor is replaced, and nothing is ever waited for without a limit.
"""

import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from cluster.logs import environment
from cluster.pool import WorkerOptions, first_line
from cluster.work import Arrived, Ended, Event, LossKind, Lost, ModelFacts, Shard
from cluster.worker import LoggedEngineWorker
from tiercache.errors import ModelError, ResourceError, TierCacheError
from tiercache.model_spec import ModelSpec

log = logging.getLogger(__name__)

START_TIMEOUT_S = 1800.0  # loading 65 GB of weights from a slow disk takes long; hanging for ever is worse
START_ATTEMPTS = 3  # deaths of starting workers in a row, with nobody to blame
STALL_S = 3600.0
GATHER_S = 0.05  # news that come within this are handled, and stored, together: each time costs milliseconds
MOST_EVENTS = 64  # from then on nothing more is asked for before they are stored
QUEUED = 2  # shards handed to one actor at a time: one runs, one waits, so that it never idles


@dataclass
class _Worker:
    actor: Any
    starting: Any  # resolves to the worker's place once its model is loaded; None from then on
    since: float  # when it was started, was given its first shard, or had its last news
    host: str | None = None
    running: deque[tuple[Any, Shard]] = field(default_factory=deque)  # (result stream, shard), in order


class RayPool:
    """Workers as Ray actors that this process owns: they end when it does.

    They start in the background, so that those that are ready work while others load, or wait for a node.
    """

    def __init__(self, options: WorkerOptions, size: int, stall_s: float = STALL_S) -> None:
        """stall_s: a worker that has sent nothing of its shard for so long is taken for hung, and replaced."""
        self.options = options
        self.stall_s = stall_s
        self._workers: list[_Worker] = []
        self._facts: ModelFacts | None = None
        self._failed_starts = 0
        self._born = time.monotonic()
        self.resize(size)

    @property
    def size(self) -> int:
        return len(self._workers)

    @property
    def idle(self) -> int:
        return sum(not worker.running and worker.starting is None for worker in self._workers)

    @property
    def hosts(self) -> list[str | None]:
        return [worker.host for worker in self._workers]

    def facts(self) -> ModelFacts | None:
        return self._facts

    def resize(self, size: int) -> None:
        import ray

        while len(self._workers) < size:
            self._workers.append(self._spawn())
        # Those that still start go first: they have loaded the least.
        for worker in sorted(self._workers, key=lambda each: each.starting is None):
            if len(self._workers) <= size:
                break
            if not worker.running:
                self._workers.remove(worker)
                ray.kill(worker.actor)

    def wants_work(self, waiting: int) -> bool:
        """An idle worker always; one that works gets a second shard only while enough are left for all others."""
        ready = [worker for worker in self._workers if worker.starting is None]
        if any(not worker.running for worker in ready):
            return True
        return waiting > len(self._workers) and any(len(worker.running) < QUEUED for worker in ready)

    def submit(self, shard: Shard) -> None:
        ready = [worker for worker in self._workers if worker.starting is None]
        worker = min(ready, key=lambda each: len(each.running))
        if not worker.running:
            worker.since = time.monotonic()
        stream = worker.actor.run.options(num_returns="streaming").remote(shard)
        worker.running.append((stream, shard))

    def poll(self, timeout_s: float) -> list[Event]:
        import ray

        waits = self._waits()
        if not waits:
            return []
        ready, _ = ray.wait(list(waits), num_returns=1, timeout=timeout_s)
        if ready:
            time.sleep(GATHER_S)
        events: list[Event] = []
        while ready and len(events) < MOST_EVENTS:
            waits = self._waits()
            ready, _ = ray.wait(list(waits), num_returns=len(waits), timeout=0) if waits else ([], [])
            for each in ready:
                worker = waits[each]
                if worker.starting is not None:
                    self._started(worker)
                else:
                    events += self._next(worker)
        return events + self._late()

    def _waits(self) -> dict[Any, _Worker]:
        """What each worker is to send next."""
        waits: dict[Any, _Worker] = {}
        for worker in self._workers:
            if worker.starting is not None:
                waits[worker.starting] = worker
            elif worker.running:
                waits[worker.running[0][0]] = worker
        return waits

    def close(self) -> None:
        import ray

        for worker in self._workers:
            ray.kill(worker.actor)
        self._workers = []

    def _started(self, worker: _Worker) -> None:
        """A worker's model is loaded, or it has died over it."""
        import ray
        from ray.exceptions import RayActorError

        try:
            place = str(ray.get(worker.starting))
            if self._facts is None:
                self._facts = ray.get(worker.actor.facts.remote(), timeout=START_TIMEOUT_S)
        except RayActorError as error:
            failure = _constructor_error(error, self.options.model)
            self._failed_starts += 1
            if failure.certain or self._failed_starts > START_ATTEMPTS:
                raise failure.error from None
            log.warning("a worker died while it started, and is replaced: %s", first_line(error))
            self._replace(worker)
            return
        worker.starting, worker.host = None, place.split(" ", 1)[0]
        worker.since = time.monotonic()
        self._failed_starts = 0
        log.info("worker ready: %s", place)

    def _next(self, worker: _Worker) -> list[Event]:
        """One item of the worker's first stream, its end, or the loss of all that the worker had."""
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        stream, shard = worker.running[0]
        worker.since = time.monotonic()
        try:
            return [Arrived(shard, ray.get(next(stream)))]
        except StopIteration:
            worker.running.popleft()
            return [Ended(shard)]
        except RayActorError as death:
            log.warning("an actor died and is replaced: %s", first_line(death))
            # A node that was taken away with notice says nothing against the sample.
            return self._lose(worker, first_line(death), "preempted" if _preempted(death) else "actor_died")
        except RayTaskError as error:
            worker.running.popleft()
            return [Lost(shard, first_line(error.cause or error), True, "shard_failed")]

    def _late(self) -> list[Event]:
        """Workers that hang are replaced; raises where none has started for too long."""
        now = time.monotonic()
        events: list[Event] = []
        for worker in list(self._workers):
            if worker.running and now - worker.since > self.stall_s:
                reason = f"nothing came of this shard for {self.stall_s:g} s (cluster.stall_s): taken for hung"
                log.warning("a worker hangs and is replaced: %s", reason)
                events += self._lose(worker, reason, "stalled")
        if self._facts is None and self._workers and now - self._born > START_TIMEOUT_S:
            raise ResourceError(
                f"cluster: no worker for '{self.options.model.id}' has started in {START_TIMEOUT_S:.0f} s."
            )
        return events

    def _lose(self, worker: _Worker, reason: str, kind: LossKind) -> list[Event]:
        """All that a worker had is lost; only the first shard was running."""
        lost = [shard for _, shard in worker.running]
        self._replace(worker)
        return [Lost(each, reason, kind != "preempted" and index == 0, kind) for index, each in enumerate(lost)]

    def _replace(self, worker: _Worker) -> None:
        import ray

        ray.kill(worker.actor)  # it may only be out of reach; two engines on one GPU would be worse
        self._workers[self._workers.index(worker)] = self._spawn()

    def _spawn(self) -> _Worker:
        actor = self._actor()
        return _Worker(actor, actor.ready.remote(), time.monotonic())

    def _actor(self) -> Any:
        import ray

        o = self.options
        variables = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false", **environment()}
        # We replace actors ourselves, so that attempts are counted.
        actor = ray.remote(LoggedEngineWorker).options(num_cpus=o.cpus, num_gpus=o.gpus, max_restarts=0)
        return actor.remote(
            variables, o.model, o.device, o.max_batch, o.hbm_kv_budget, o.prefill_chunk, o.threads, o.gpus
        )


def _preempted(death: BaseException) -> bool:
    """Whether the actor's node was drained with notice; a property that not every version's error has."""
    return bool(getattr(death, "preempted", False))


@dataclass(frozen=True)
class _Failure:
    """Why a worker didn't start; `certain`: the user's own mistake, another try would end alike."""

    error: TierCacheError
    certain: bool


def _constructor_error(error: BaseException, model: ModelSpec) -> _Failure:
    """The user's own mistake (a missing model, a missing GPU) out of Ray's wrapping."""
    lines = [line.strip() for line in str(error).splitlines()]
    for kind in (ModelError, ResourceError):
        marker = f"{kind.__module__}.{kind.__name__}: "
        for line in lines:
            if marker in line:
                return _Failure(kind(line.split(marker, 1)[1]), certain=True)
    last = lines[-1] if lines else repr(error)
    return _Failure(ResourceError(f"a worker for '{model.id}' could not start: {last}"), certain=False)
