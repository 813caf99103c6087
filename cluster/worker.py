"""The engine's host: a plain class. Ray turns it into an actor; tests call it directly."""

import hashlib
import logging
import os
import platform
import socket
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cluster.logs import configure, log_context
from cluster.work import Diagnosed, Done, Item, Mapped, ModelFacts, Refused, Shard, ShardStats, Task
from tiercache.errors import PolicyError, ResourceError, TierCacheError
from tiercache.model_spec import ModelSpec
from tiercache.requests import Completion, Request

if TYPE_CHECKING:
    from tiercache.diagnostics.map_recorder import MapRecorder
    from tiercache.diagnostics.trace import Recorder

log = logging.getLogger(__name__)


class EngineWorker:
    """Loads one model once and runs shards on it, each under its own policy.

    Heavy imports are in the methods, so that the driver, which only needs the class's name, imports no torch.
    """

    def __init__(
        self,
        model: ModelSpec,
        device: str,
        max_batch: int,
        hbm_kv_budget: int | None,
        prefill_chunk: int,
        threads: int | None,
        gpus: float = 0,
    ) -> None:
        import torch

        from tiercache.engine import Engine, Limits
        from tiercache.model import load

        if threads is not None:
            torch.set_num_threads(threads)
        self.device = _device(device, gpus)
        limits = Limits(max_batch=max_batch, hbm_kv_budget=hbm_kv_budget, prefill_chunk=prefill_chunk)
        # All GPUs that Ray has given this actor, which are of one node; its own numbers for them begin at 0.
        others = [f"cuda:{i}" for i in range(1, int(gpus))] if self.device == "cuda" else []
        self.engine = Engine(load(model, "cuda:0" if others else self.device, others), limits)

    def ready(self) -> str:
        """Answers once the model is loaded: host and device."""
        return f"{socket.gethostname()} {_device_name(self.device)}"

    def facts(self) -> ModelFacts:
        """What loading the model has told."""
        loaded = self.engine.loaded
        geometry, tokenizer = loaded.geometry, loaded.tokenizer
        template = getattr(tokenizer, "chat_template", None)
        return ModelFacts(
            token_bytes=geometry.token_bytes,
            dtype=str(geometry.dtype).removeprefix("torch."),
            eos=tuple(sorted(loaded.eos)),
            bos=getattr(tokenizer, "bos_token_id", None),
            chat_template=hashlib.sha256(str(template).encode()).hexdigest()[:16] if template else None,
            context=loaded.max_context,
            layers=geometry.layers,
            kv_heads=geometry.kv_heads,
            head_dim=geometry.head_dim,
        )

    def run(self, shard: Shard) -> Iterator[Item]:
        """Yields each sample as it ends, then what the shard cost, then tier maps and diagnostics if asked for."""
        with log_context(cell=shard.cell, shard=shard.id, actor=f"{socket.gethostname()}:{os.getpid()}"):
            log.info("%s: %d samples", shard.policy.name, len(shard.tasks))
            yield from self._run(shard)

    def _run(self, shard: Shard) -> Iterator[Item]:
        from tiercache.bandwidth import copy_bandwidth
        from tiercache.diagnostics.map_recorder import MapRecorder
        from tiercache.diagnostics.trace import Recorder

        started = time.time()
        recorder = Recorder() if shard.diagnostics else None
        mapper = MapRecorder(shard.policy, shard.tier_maps, recorder) if shard.tier_maps else None
        finished: list[Completion] = []
        prompts: dict[str, str] = {}
        requests: list[Request] = []
        for task in shard.tasks:
            try:
                requests.append(self._request(shard, task, prompts))
            except TierCacheError as refusal:
                yield Refused(task.key, str(refusal))
        try:
            for completion in self.engine.run(requests, shard.policy, mapper or recorder):
                finished.append(completion)
                text = self.engine.loaded.decode(list(completion.tokens))
                yield Done(completion.key, prompts[completion.key], text, completion)
        except PolicyError as refusal:  # it would fail again
            done = {completion.key for completion in finished}
            yield from (Refused(r.key, str(refusal)) for r in requests if r.key not in done)
            return
        if self.engine.stats is not None and requests:
            ended, host = time.time(), socket.gethostname()
            place = f"{host}:{os.getpid()}", host, _device_name(self.device)
            yield ShardStats(self.engine.stats, *place, started, ended, copy_bandwidth(self.engine.loaded.device))
        if mapper is not None:
            yield from self._map(requests, finished, mapper)
        if recorder is not None:
            yield from self._diagnose(shard, requests, finished, recorder)

    def _map(self, requests: list[Request], finished: list[Completion], mapper: "MapRecorder") -> Iterator[Item]:
        """Tokens are decoded one by one: a word of several pieces may have them in several tiers."""
        prompts = {request.key: request.prompt for request in requests}
        tokenizer = self.engine.loaded.tokenizer
        assert tokenizer is not None, "prompts came as text"
        for done in finished:
            if done.key in mapper.keys:
                tokens = (*prompts[done.key], *done.tokens)
                texts = tokenizer.batch_decode([[token] for token in tokens], skip_special_tokens=False)
                yield Mapped(done.key, mapper.pop(done.key, len(tokens)), tokens, tuple(map(str, texts)))

    def _diagnose(
        self, shard: Shard, requests: list[Request], finished: list[Completion], recorder: "Recorder"
    ) -> Iterator[Item]:
        """After the run: in between it would cost the running rows time and memory."""
        from tiercache.diagnostics.diagnose import diagnose

        loaded, chunk = self.engine.loaded, self.engine.limits.prefill_chunk
        by_key = {request.key: request for request in requests}
        for done in finished:
            trace = recorder.traces.pop(done.key)
            found = diagnose(loaded, shard.policy, by_key[done.key], done.tokens, trace, chunk=chunk)
            yield Diagnosed(done.key, found)

    def _request(self, shard: Shard, task: Task, prompts: dict[str, str]) -> Request:
        text, ids = self.engine.loaded.render(task.prompt, shard.rendering, task.prefix)
        request = Request(task.key, tuple(ids), shard.sampling, task.seed)
        self.engine.check(request, shard.policy)
        prompts[task.key] = text
        return request


class LoggedEngineWorker(EngineWorker):
    """In a process of its own. `variables` of the environment say how it logs, and what torch reads as it loads.

    Not as Ray's runtime environment: an actor with one can't take a process that Ray has started ahead.
    """

    def __init__(self, variables: Mapping[str, str], *args: Any) -> None:
        os.environ.update(variables)
        configure()
        super().__init__(*args)


def _device(wanted: str, gpus: float) -> str:
    """`auto` takes a GPU only if the scheduler gave one: `num_gpus=0` no longer hides a machine's GPUs."""
    import torch

    if wanted == "cpu" or (wanted == "auto" and gpus == 0):
        return "cpu"
    if not torch.cuda.is_available():
        raise ResourceError("engine.device: cuda was asked for and this worker sees no CUDA device; use device: cpu.")
    return "cuda"


def _device_name(device: str) -> str:
    if device == "cpu":
        from tiercache.kernels import native

        # Slower and, at near-ties, other tokens: who compares cells should see it.
        return f"cpu ({platform.machine()}{'' if native.kernel() else ', without the C kernel'})"
    import torch

    return str(torch.cuda.get_device_name(0))
