"""What a sweep will cost before anything runs: samples, KV bytes per sequence, rows that fit, GPUs, GPU hours.

Token counts come from the same code that the cache obeys, so for a given length they are exact; lengths are the mean
prompt and the longest generation. No torch, no network: what isn't known here is assumed, and said to be.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from jobs.benchmarks.base import Benchmark
from jobs.grid import resolve_sampling
from jobs.prices import CardPrice, Lengths, NewTokens, card_prices
from jobs.prompts import CHARS_PER_TOKEN, chat_refusal, count_tokens, estimate_tokens, lacks_chat_template
from jobs.spec import Sweep
from tiercache.blocks import gpus_needed, weights_of
from tiercache.errors import ModelError, ResourceError
from tiercache.footprint import footprint
from tiercache.gpus import GPU_USABLE
from tiercache.model_spec import ModelSpec
from tiercache.policy import Policy
from tiercache.price import Work
from tiercache.requests import check_number
from tiercache.shapes import ModelShape, locate, shape_of

GPU_BYTES = 80 * 2**30  # assumed where the cluster isn't asked
CPU_SIZED_BYTES = 2**30  # weights below this run well on a CPU: no GPU is planned for them unless one is asked for


@dataclass(frozen=True)
class PlanRow:
    """One cell before it runs. Bytes are of one sequence; None where the model's shape isn't known here.

    prices   on each kind of card; none where no GPU is planned.
    lengths  new tokens that the prices reckon with.
    """

    model: str
    benchmark: str
    policy: str
    samples: int
    prompt_tokens: int
    new_tokens: int
    device_peak_bytes: int | None
    host_peak_bytes: int | None
    full_bytes: int | None
    rows: int | None
    gpus: float | None
    lengths: NewTokens
    prices: tuple[CardPrice, ...] = ()


@dataclass(frozen=True)
class Plan:
    """All rows, and in `notes` whatever was assumed or deserves a warning. Prices are divided by `efficiency`."""

    rows: tuple[PlanRow, ...]
    notes: tuple[str, ...]
    efficiency: float = 1.0

    @property
    def samples(self) -> int:
        return sum(row.samples for row in self.rows)

    @property
    def new_tokens(self) -> int:
        """Most tokens that all samples together can generate."""
        return sum(row.samples * row.new_tokens for row in self.rows)


@dataclass(frozen=True)
class _Size:
    problems: int
    prompt_tokens: int
    note: str | None


def plan_sweep(
    sweep: Sweep,
    benchmarks: Sequence[Benchmark],
    gpu_bytes: int = GPU_BYTES,
    lengths: Lengths | None = None,
    efficiency: float = 1.0,
) -> Plan:
    """Plans every cell of a sweep.

    Args:
        lengths: what is known of generations; nothing means that all run into their token limit.
        efficiency: share of the roofline that prices reckon with.

    Raises:
        ModelError, BenchmarkError, PolicyError: a local model is malformed; data are missing or malformed.
        RequestError: `efficiency` isn't above 0 and at most 1.
    """
    check_number("--efficiency", efficiency, "above 0, at most 1", lambda x: 0 < x <= 1)
    lengths = lengths or Lengths()
    rows: dict[tuple[str, str, str, int], PlanRow] = {}
    notes: dict[str, None] = {}
    policies = sweep.resolved_policies()
    for spec in sweep.model_specs():
        shape, place, missing = _find(spec)
        notes |= dict.fromkeys([missing] if missing else _model_notes(spec, shape))
        for index, general in enumerate(benchmarks):
            benchmark = general.for_model(spec)
            size = _size(benchmark, spec, place)
            if size.note:
                notes[size.note] = None
            if benchmark.prompt_mode == "chat" and lacks_chat_template(spec, place):
                notes[chat_refusal(spec.name, benchmark.name)] = None
            new_tokens = resolve_sampling(benchmark, sweep.sampling).max_new_tokens
            total, longest = size.prompt_tokens + new_tokens, longest_context(shape)
            if longest is not None and total > longest:
                remedy = "such samples fail; lower sampling.max_new_tokens"
                notes[f"{spec.name} on {benchmark.label}: {total:,} tokens exceed its {longest:,}: {remedy}."] = None
            for policy in policies:
                row = _row(sweep, spec, shape, benchmark, policy, size, new_tokens, gpu_bytes)
                row = _priced(sweep, spec, shape, policy, row, lengths, efficiency)
                rows[spec.id, benchmark.label, policy.label, index] = row
                if row.rows == 0:
                    short = f"one sequence needs more than the {sweep.engine.hbm_kv_budget:,} bytes of hbm_kv_budget"
                    notes[f"{spec.name}, {policy.label}: {short}."] = None
    if any(row.gpus for row in rows.values()) and sweep.cluster.gpus_per_actor is None:
        for model in dict.fromkeys(row.model for row in rows.values()):
            most = max((row.gpus or 0 for row in rows.values() if row.model == model), default=0)
            if most > 1:
                notes[f"{model}: is split over {most:g} GPUs of one node, layer by layer."] = None
        usable = f"{gpu_bytes / 2**30:g} GiB GPUs, {GPU_USABLE:.0%} usable"
        room = "hbm_kv_budget" if sweep.engine.hbm_kv_budget else "one full-length row"
        notes[f"GPUs: weights and {room}, on {usable}; both are assumed."] = None
    notes |= dict.fromkeys(_price_notes(list(rows.values())))
    notes |= dict.fromkeys(
        f"{policy.label}: bytes are an upper bound, and GPU hours no lower one: a thought's kind decides what it keeps."
        for policy in policies
        if policy.placement.segment is not None
    )
    return Plan(tuple(rows.values()), tuple(notes), efficiency)


def _priced(
    sweep: Sweep,
    spec: ModelSpec,
    shape: ModelShape | None,
    policy: Policy,
    row: PlanRow,
    lengths: Lengths,
    efficiency: float,
) -> PlanRow:
    """With GPU hours, where a GPU is planned for."""
    found = lengths.of(row.model, row.benchmark, row.policy, row.new_tokens)
    if not row.gpus and shape is not None:
        return replace(row, lengths=found)
    problems = row.samples // sweep.repeats
    work = Work(problems, row.samples, row.prompt_tokens, found.mean, row.new_tokens)
    # An engine sees a shard at a time.
    most = min(sweep.engine.max_batch if row.rows is None else row.rows, sweep.cluster.shard_size)
    prices = card_prices(spec.name, shape, policy, spec.dtype, work, most, efficiency)
    return replace(row, lengths=found, prices=prices)


def _price_notes(rows: Sequence[PlanRow]) -> list[str]:
    notes = []
    for row in rows:
        for each in row.prices:
            if each.why and row.rows != 0:  # which has a note of its own
                split = f"; split over GPUs it takes {each.gpus} of them" if each.gpus else ""
                notes.append(f"no price: {each.why}{split}.")
    return notes


def _row(
    sweep: Sweep,
    spec: ModelSpec,
    shape: ModelShape | None,
    benchmark: Benchmark,
    policy: Policy,
    size: _Size,
    new_tokens: int,
    gpu_bytes: int,
) -> PlanRow:
    device = host = full = rows = None
    gpus = sweep.cluster.gpus_per_actor
    if shape is not None:
        device, running, host, full = sequence_bytes(policy, shape, spec.dtype, size.prompt_tokens, new_tokens)
        budget = sweep.engine.hbm_kv_budget
        rows = sweep.engine.max_batch
        if budget is not None:  # one more prompt must fit beside the running rows before the policy acts on it
            rows = min(rows, 1 + (budget - device) // running if device <= budget else 0)
        if sweep.engine.device == "cpu":
            gpus = 0.0
        elif gpus is None:
            gpus = _gpus(shape, spec.dtype, budget or device, gpu_bytes, sweep.engine.device == "cuda")
    return PlanRow(
        model=spec.name,
        benchmark=benchmark.label,
        policy=policy.label,
        samples=size.problems * sweep.repeats,
        prompt_tokens=size.prompt_tokens,
        new_tokens=new_tokens,
        device_peak_bytes=device,
        host_peak_bytes=host,
        full_bytes=full,
        rows=rows,
        gpus=gpus,
        lengths=NewTokens(float(new_tokens), "limit"),
    )


def _gpus(shape: ModelShape, dtype: str, cache: int, gpu_bytes: int, asked: bool) -> float | None:
    """GPUs for the weights and so many bytes of keys and values; None where nothing is known, where a laptop's CPU will
    do, or where no number of GPUs would."""
    weights = weights_of(shape, dtype)
    if weights is None or ((shape.weights_as(dtype) or 0) < CPU_SIZED_BYTES and not asked):
        return None
    try:
        return float(gpus_needed(weights, cache, gpu_bytes))
    except ResourceError:
        return None


class SequenceBytes(NamedTuple):
    """Most bytes of one sequence: on the device, there once the policy has acted on the prompt, on the host; and what
    the full cache takes at the end."""

    device: int
    running: int
    host: int
    full: int


def sequence_bytes(policy: Policy, shape: ModelShape, dtype: str, prompt_tokens: int, new_tokens: int) -> SequenceBytes:
    """Of one sequence of that length. The device holds T0 and the codes of T2, the host T1.

    The last generated token ends the sequence: its keys and values are never written.
    """
    size = shape.sizes(policy, dtype)
    tokens = footprint(policy, prompt_tokens, new_tokens - 1, size)
    full = tokens.full_end * shape.kv_bytes_per_token(dtype)
    return SequenceBytes(tokens.device_bytes(size), tokens.running_bytes(size), shape.host_bytes(tokens, dtype), full)


def longest_context(shape: ModelShape | None) -> int | None:
    """Most tokens that the engine accepts: the context, or a sliding window, beyond which a model would forget."""
    known = (shape.max_context, shape.sliding_window) if shape else ()
    return min((tokens for tokens in known if tokens), default=None)


def _find(spec: ModelSpec) -> tuple[ModelShape | None, Path | None, str | None]:
    """Shape and place of a model. One that isn't on this machine yet is planned too: a note says what is missing."""
    try:
        place = locate(spec)
    except ModelError as problem:
        return None, None, f"bytes of {spec.name} are left out: {problem}"
    return shape_of(spec), place, None


def _model_notes(spec: ModelSpec, shape: ModelShape | None) -> list[str]:
    notes = []
    if shape is None:
        notes.append(f"{spec.id}: its dimensions aren't known here; bytes are left out. Give a local folder or GGUF.")
    elif shape.sliding_window:
        notes.append(f"{spec.name}: attends to a sliding window of {shape.sliding_window:,} tokens in some layers.")
    if not spec.local and spec.id != "reasoner" and not spec.revision:
        notes.append(f"{spec.id} is not pinned: give `revision:` (a commit) so that others get these weights.")
    return notes


def _size(benchmark: Benchmark, spec: ModelSpec, place: Path | None) -> _Size:
    if not benchmark.local:
        problems = benchmark.options.n or benchmark.typical_problems
        tokens = benchmark.typical_prompt_tokens
        note = f"{benchmark.label}: data not read; {problems:,} problems of {tokens} prompt tokens assumed."
        return _Size(problems, tokens, note)
    loaded = benchmark.load()
    texts = [problem.prompt for problem in loaded[:64]]
    counts = count_tokens(place, texts)
    if counts is not None:
        return _Size(len(loaded), math.ceil(sum(counts) / len(counts)), None)
    mean = estimate_tokens(sum(map(len, texts)) / len(texts))
    note = f"{benchmark.label} on {spec.name}: prompt tokens estimated from characters ({CHARS_PER_TOKEN} each)."
    return _Size(len(loaded), mean, note)
