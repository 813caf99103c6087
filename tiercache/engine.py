"""The engine: one device, one model, one policy at a time. Continuous batching over the tiered cache."""

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from tiercache import hf
from tiercache.cache import TieredCache
from tiercache.errors import ModelError, RequestError, ResourceError
from tiercache.footprint import footprint
from tiercache.lanes import Lane, Lanes, LanesStep
from tiercache.meter import Meter
from tiercache.model import LoadedModel
from tiercache.policy import Policy, parse_policy
from tiercache.prefill import by_length, stage
from tiercache.requests import Completion, Request, RunStats, Sampling, check_whole
from tiercache.sampling import sample
from tiercache.sizes import sizes

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What one engine may use.

    max_batch       rows decoded together at most.
    hbm_kv_budget   bytes of device memory for keys and values; None: rows are limited by `max_batch` alone.
    prefill_chunk   prompt tokens of one row per forward pass.
    compiled        what lies between the attentions of a decode step is run by torch's compiler, as CUDA graphs on a
                    GPU; its first steps are slow, and on the CPUs measured so were the others.

    Raises:
        RequestError: one of them is no whole number from 1 on, or `compiled` neither true nor false.
    """

    max_batch: int = 64
    hbm_kv_budget: int | None = None
    prefill_chunk: int = 512
    compiled: bool = False

    def __post_init__(self) -> None:
        check_whole("max_batch", self.max_batch, 1)
        check_whole("prefill_chunk", self.prefill_chunk, 1)
        if self.hbm_kv_budget is not None:
            check_whole("hbm_kv_budget", self.hbm_kv_budget, 1)
        if not isinstance(self.compiled, bool):
            raise RequestError(f"compiled: is true or false (got {self.compiled!r}).")


class Probe(Protocol):
    """Watches a run and must not change it."""

    def __call__(self, cache: TieredCache, first: int, keys: Sequence[str], hidden: Tensor) -> None:
        """After a prefill or a decode step and its events, for each cache: its rows first, first + 1, … are these.

        hidden [len(keys), hidden] are the last hidden states, from which each one's next token comes.
        """


@runtime_checkable
class LastLook(Protocol):
    """A probe that is also shown each sequence when it has ended, before its row is freed."""

    def ended(self, cache: TieredCache, row: int, key: str) -> None: ...


@dataclass(eq=False)
class _Row:
    """A running sequence; its tiers and bytes are the cache's."""

    request: Request
    started: float
    reserved: int = 0  # device bytes that it holds at most, where they are limited
    tokens: list[int] = field(default_factory=list)
    first_token: float = 0.0


class Engine:
    """Generates sequences under one policy. A row's result doesn't depend on its neighbours.

    >>> engine = Engine(load(ModelSpec(id="reasoner")))
    >>> for completion in engine.run(requests, parse_policy({"name": "h2o", "budget": 0.5})): ...
    """

    def __init__(self, loaded: LoadedModel, limits: Limits | None = None) -> None:
        self.loaded = loaded
        self.limits = limits or Limits()
        self.stats: RunStats | None = None

    def generate(
        self,
        prompts: Sequence[str] | Sequence[Sequence[int]],
        policy: Policy | str | Mapping[str, Any] = "full",
        *,
        max_new_tokens: int = 512,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        chat: bool = False,
    ) -> list[Completion]:
        """All completions, in the prompts' order. A prompt is text or token ids; prompt i gets `seed + i`.

        Raises:
            RequestError, ModelError, ResourceError, PolicyError: a prompt or the policy can't be run as asked.
        """
        policy = policy if isinstance(policy, Policy) else parse_policy(policy)
        if isinstance(seed, bool) or not isinstance(seed, int) or abs(seed) >= 2**62:
            raise RequestError(f"seed: is a whole number below 2**62 (got {seed!r}).")
        sampling = Sampling(temperature, top_p, max_new_tokens)
        given: list[str | Sequence[int]] = [prompts] if isinstance(prompts, str) else list(prompts)
        ids = [self.loaded.encode(each, chat)[1] if isinstance(each, str) else each for each in given]
        requests = [Request(str(i), tuple(tokens), sampling, seed + i) for i, tokens in enumerate(ids)]
        return sorted(self.run(requests, policy), key=lambda completion: int(completion.key))

    def check(self, request: Request, policy: Policy) -> None:
        """Refuses what can't be run as asked, before anything is.

        Raises:
            RequestError: the prompt is empty or holds what is no token.
            ModelError: prompt and output exceed the model's context.
            ResourceError: the sequence alone needs more than `hbm_kv_budget`.
        """
        prompt, new = len(request.prompt), request.sampling.max_new_tokens
        if prompt == 0:
            raise RequestError(f"{request.key}: the prompt has no token.")
        vocab = self.loaded.vocab
        strange = next((t for t in request.prompt if not isinstance(t, int) or not 0 <= t < vocab), None)
        if strange is not None:
            raise RequestError(
                f"{request.key}: {strange!r} is no token of the model; allowed: whole numbers from 0 to {vocab - 1}."
            )
        if prompt + new > self.loaded.max_context:
            raise ModelError(
                f"{request.key}: prompt {prompt} + max_new_tokens {new} exceed the model's "
                f"{self.loaded.context_reason} of {self.loaded.max_context}; lower max_new_tokens."
            )
        budget = self.limits.hbm_kv_budget
        need = max(self._bytes(request, policy))
        if budget is not None and need > budget:
            raise ResourceError(
                f"{request.key}: needs {need:,} bytes of device memory for keys and values under '{policy.label}', "
                f"above hbm_kv_budget {budget:,}; raise it, shorten max_new_tokens or use a policy that keeps less."
            )

    def run(self, requests: Iterable[Request], policy: Policy, probe: Probe | None = None) -> Iterator[Completion]:
        """Yields completions as sequences end, in no fixed order; afterwards `stats` holds what was measured.

        On a device out of memory the batch is halved and its unfinished rows start again; with one row it is an error.
        `probe` is shown the cache after each step; a row that starts again is shown from its prefill on again.
        """
        hf.check_prepared(self.loaded.model)
        if self.limits.compiled and not hf.taken_over(self.loaded.model):
            raise ModelError("compiled: this model's layers are called as they are (a hook, an adapter); leave it out.")
        if self.limits.compiled and hf.split_of(self.loaded.model) is not None:
            raise ModelError("compiled: a graph is of one GPU, and this model is split over several; leave it out.")
        waiting = deque(requests)
        for request in waiting:
            self.check(request, policy)
        meter = Meter(self.loaded.device, self.loaded.step_weight_bytes)
        max_batch = self.limits.max_batch
        while True:
            rows: list[_Row] = []
            try:
                yield from self._serve(waiting, policy, max_batch, rows, meter, probe)
                break
            except torch.OutOfMemoryError:
                if max_batch == 1:
                    raise
                max_batch = max(1, min(len(rows), max_batch) // 2)
                log.warning("out of device memory; retrying with at most %d rows", max_batch)
                waiting.extendleft(row.request for row in reversed(rows))
                meter.watch(None)
                torch.cuda.empty_cache()
            finally:
                self.stats = meter.stats()

    def _serve(
        self,
        waiting: deque[Request],
        policy: Policy,
        max_batch: int,
        rows: list[_Row],
        meter: Meter,
        probe: Probe | None,
    ) -> Iterator[Completion]:
        lanes = Lanes[_Row](TieredCache(self.loaded.geometry, policy, self.loaded.device, self.loaded.facts))
        meter.watch(lanes)
        while waiting or rows:
            admitted = self._admit(waiting, policy, max_batch, rows)
            together = by_length([request.prompt for request in admitted], self.limits.prefill_chunk)
            groups = deque([admitted[i] for i in group] for group in together)
            try:
                while groups:
                    yield from self._prefill(groups.popleft(), policy, lanes, rows, meter, probe)
            finally:  # where memory ran out, the others have not begun
                waiting.extendleft(request for group in reversed(groups) for request in reversed(group))
            if rows:
                yield from self._decode(lanes, rows, meter, probe)

    def _admit(self, waiting: deque[Request], policy: Policy, max_batch: int, rows: list[_Row]) -> list[Request]:
        """Takes waiting requests, in order, as long as rows and bytes allow. One alone always fits: it was checked."""
        budget = self.limits.hbm_kv_budget
        running = sum(row.reserved for row in rows)
        kept, staged, admitted = running, running, list[Request]()
        while waiting and len(rows) + len(admitted) < max_batch:
            if budget is not None:
                prompt, most = self._bytes(waiting[0], policy)
                kept, staged = kept + most, staged + prompt  # with the policy, and before it acts on these prompts
                if max(kept, staged) > budget:
                    break
            admitted.append(waiting.popleft())
        return admitted

    def _bytes(self, request: Request, policy: Policy) -> tuple[int, int]:
        """Device bytes of a sequence: its whole prompt, and the most that it holds from then on."""
        # The last token's keys and values are never written.
        g, window = self.loaded.geometry, policy.placement.window
        size = sizes(policy.storage, window, g.layers, g.kv_heads, g.head_dim, g.dtype.itemsize)
        found = footprint(policy, len(request.prompt), request.sampling.max_new_tokens - 1, size)
        return found.prompt * size.token, found.running_bytes(size)

    def _prefill(
        self,
        admitted: list[Request],
        policy: Policy,
        lanes: Lanes[_Row],
        rows: list[_Row],
        meter: Meter,
        probe: Probe | None,
    ) -> Iterator[Completion]:
        prompts = [request.prompt for request in admitted]
        with meter.prefill(sum(map(len, dict.fromkeys(prompts)))), torch.inference_mode():
            started, limited = time.perf_counter(), self.limits.hbm_kv_budget is not None
            new = [_Row(r, started, self._bytes(r, policy)[1] if limited else 0) for r in admitted]
            rows.extend(new)
            staged, seeds = lanes.staging(), [request.seed for request in admitted]
            places, last = stage(self.loaded, staged, prompts, seeds, self.limits.prefill_chunk)
            self._next_tokens(last, new)
            index = {place: i for i, place in enumerate(places)}
            arrivals = lanes.adopt(staged, [new[index[place]] for place in range(len(new))])
        for row in new:
            row.first_token = time.perf_counter()
            meter.first_token(row.first_token - row.started)
        for lane, first, which in arrivals:
            _show(probe, lane, first, last[[index[place] for place in which]])
        yield from self._retire(lanes, rows, meter, probe)

    def _decode(self, lanes: Lanes[_Row], rows: list[_Row], meter: Meter, probe: Probe | None) -> Iterator[Completion]:
        with meter.decode(len(rows)), torch.inference_mode():
            step = lanes.open()
            running = lanes.owners()
            hidden = _forward(self.loaded, step, [row.tokens[-1] for row in running], self.limits.compiled)
            lanes.settle()
            self._next_tokens(hidden, running)
        parts = hidden.split([len(lane.owners) for lane in lanes])  # type: ignore[no-untyped-call]
        for lane, part in zip(lanes, parts, strict=True):
            _show(probe, lane, 0, part)
        yield from self._retire(lanes, rows, meter, probe)

    def _next_tokens(self, hidden: Tensor, rows: list[_Row]) -> None:
        logits = hf.logits(self.loaded.model, hidden)
        chosen = sample(logits, [(row.request.sampling, row.request.seed, len(row.tokens)) for row in rows])
        for row, token in zip(rows, chosen.tolist(), strict=True):
            row.tokens.append(token)

    def _retire(self, lanes: Lanes[_Row], rows: list[_Row], meter: Meter, probe: Probe | None) -> Iterator[Completion]:
        """Takes ended rows out, last first, so that the row that fills a hole has been looked at already."""
        for lane in lanes:
            for index in range(len(lane.owners) - 1, -1, -1):
                row = lane.owners[index]
                ended = row.tokens[-1] in self.loaded.eos
                if not ended and len(row.tokens) < row.request.sampling.max_new_tokens:
                    continue
                if isinstance(probe, LastLook):
                    with torch.inference_mode():
                        probe.ended(lane.cache, index, row.request.key)
                ledger = lane.leave(index)
                rows.remove(row)
                meter.finished(ledger, len(row.tokens))
                yield Completion(
                    key=row.request.key,
                    tokens=tuple(row.tokens),
                    finish="eos" if ended else "length",
                    prompt_tokens=len(row.request.prompt),
                    ttft_s=row.first_token - row.started,
                    wall_s=time.perf_counter() - row.started,
                    ledger=ledger,
                )


def _show(probe: Probe | None, lane: Lane[_Row], first: int, hidden: Tensor) -> None:
    """Outside the meter: what a probe takes is no part of the run's speed."""
    if probe is not None:
        with torch.inference_mode():
            shown = lane.owners[first : first + len(hidden)]
            probe(lane.cache, first, [row.request.key for row in shown], hidden)


def decode(loaded: LoadedModel, cache: TieredCache, tokens: Sequence[int]) -> Tensor:
    """One decode step of all rows of one cache: their newest tokens -> hidden states [rows, hidden]."""
    hidden = _forward(loaded, LanesStep([cache]), tokens)
    cache.settle()
    return hidden


def _forward(loaded: LoadedModel, step: LanesStep, tokens: Sequence[int], compiled: bool = False) -> Tensor:
    if compiled and loaded.device.type == "cuda":
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
    newest = torch.tensor(tokens, device=loaded.device).unsqueeze(1)
    hidden = hf.hidden_states(loaded.model, newest, step.positions.unsqueeze(1), step, compiled)
    step.finish()
    return hidden[:, -1]
