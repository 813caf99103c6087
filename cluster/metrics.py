"""What a sweep does, as Ray metrics: Ray's agents export them to Prometheus, with `ray_` before and `_total` behind.

One process owns them, the driver, because it sees each sample, shard and loss once. Three things shape them:

* Tags have few values. A policy is its preset's name, not its label: labels are bounded by one sweep's grid, but every
  number tried in a cluster's life would leave series behind that Prometheus keeps for months. Results by label, and all
  that is known of a single sample, are in the database.
* Ray forgets a gauge that has not been set for two of its report intervals (20 s), so `beat` sets all again.
* Ray rebuilds a histogram's sum from its buckets' middles. Means are therefore quotients of counters.
"""

import logging
import math
import sys
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

log = logging.getLogger(__name__)

CELL = ("model", "benchmark", "policy")
KINDS = ("actor_died", "preempted", "stalled", "shard_failed", "start_failed", "refused", "given_up", "other")
TIERS = ("hbm", "ddr", "packed", "evicted")
SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 7200.0)


class Metric(NamedTuple):
    """What Ray is told of a metric before its first value."""

    kind: Literal["counter", "gauge", "histogram"]
    tags: tuple[str, ...]
    text: str

    def exported(self, name: str) -> set[str]:
        """The series that Prometheus sees of it."""
        ends = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
        return {f"ray_{name}{end}" for end in ends[self.kind]}


METRICS: Mapping[str, Metric] = {
    "tiercache_samples": Metric("counter", (*CELL, "outcome"), "samples finished"),
    "tiercache_prompt_tokens": Metric("counter", CELL, "prompt tokens of finished samples"),
    "tiercache_generated_tokens": Metric("counter", CELL, "tokens generated in finished samples"),
    "tiercache_sequence_bytes": Metric(
        "counter",
        (*CELL, "tier"),
        "bytes of finished sequences by tier, each the mean over its decode steps (evicted: at the end); divided by "
        "the samples that did not fail: mean bytes per sequence",
    ),
    "tiercache_ttft_seconds": Metric("histogram", CELL, "time to a sample's first token"),
    "tiercache_sample_seconds": Metric("histogram", CELL, "time from a sample's prefill to its end"),
    "tiercache_decode_tokens": Metric("counter", ("model", "policy"), "tokens decoded in finished shards"),
    "tiercache_decode_seconds": Metric("counter", ("model", "policy"), "time that engines spent decoding them"),
    "tiercache_decode_tokens_per_second": Metric("gauge", ("model", "policy"), "decode throughput of the last shard"),
    "tiercache_moved_bytes": Metric(
        "counter", ("model", "policy", "direction"), "bytes moved between device and host memory (to_host, to_device)"
    ),
    "tiercache_losses": Metric("counter", ("kind",), "what went wrong: " + ", ".join(KINDS)),
    "tiercache_retried_samples": Metric("counter", ("kind",), "samples put back to be tried again"),
    "tiercache_actors": Metric("gauge", ("state",), "actors that are starting, busy or idle, and those lost so far"),
    "tiercache_cells": Metric("gauge", ("state",), "cells that are waiting, running or done"),
    "tiercache_samples_left": Metric("gauge", (), "samples still to be computed"),
}


class FinishedSample(Protocol):
    """What is read of a sample's row."""

    @property
    def outcome(self) -> str: ...
    @property
    def prompt_tokens(self) -> int | None: ...
    @property
    def output_tokens(self) -> int | None: ...
    @property
    def ttft_s(self) -> float | None: ...
    @property
    def wall_s(self) -> float | None: ...
    @property
    def hbm_bytes_mean(self) -> float | None: ...
    @property
    def ddr_bytes_mean(self) -> float | None: ...
    @property
    def packed_bytes_mean(self) -> float | None: ...
    @property
    def evicted_bytes_end(self) -> int | None: ...


class FinishedShard(Protocol):
    """What is read of a shard's row."""

    @property
    def decode_tokens(self) -> int: ...
    @property
    def decode_s(self) -> float: ...
    @property
    def bytes_to_host(self) -> int: ...
    @property
    def bytes_to_device(self) -> int: ...


class Metrics:
    """Counts and measures; does nothing while Ray isn't initialised, and never ends a sweep."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._gauges: dict[tuple[str, tuple[str, ...]], float] = {}
        self._off = False

    def sample(self, row: FinishedSample, model: str, benchmark: str, policy: str) -> None:
        """A sample is stored. `policy`: the preset's name."""
        cell = (model, benchmark, policy)
        self._record("tiercache_samples", 1, *cell, row.outcome)
        self._record("tiercache_prompt_tokens", row.prompt_tokens, *cell)
        self._record("tiercache_generated_tokens", row.output_tokens, *cell)
        self._record("tiercache_ttft_seconds", row.ttft_s, *cell)
        self._record("tiercache_sample_seconds", row.wall_s, *cell)
        held = (row.hbm_bytes_mean, row.ddr_bytes_mean, row.packed_bytes_mean, row.evicted_bytes_end)
        for tier, size in zip(TIERS, held, strict=True):
            self._record("tiercache_sequence_bytes", size, *cell, tier)

    def shard(self, row: FinishedShard, model: str, policy: str) -> None:
        """A shard has ended. `policy`: the preset's name."""
        if row.decode_tokens and row.decode_s > 0:
            self._record("tiercache_decode_tokens", row.decode_tokens, model, policy)
            self._record("tiercache_decode_seconds", row.decode_s, model, policy)
            self._record("tiercache_decode_tokens_per_second", row.decode_tokens / row.decode_s, model, policy)
        self._record("tiercache_moved_bytes", row.bytes_to_host, model, policy, "to_host")
        self._record("tiercache_moved_bytes", row.bytes_to_device, model, policy, "to_device")

    def lost(self, kind: str, again: int = 0) -> None:
        """Something went wrong, and `again` samples go back to be tried once more. Kinds not in KINDS are `other`."""
        kind = kind if kind in KINDS else "other"
        self._record("tiercache_losses", 1, kind)
        self._record("tiercache_retried_samples", again, kind)

    def actors(self, starting: int, busy: int, idle: int, lost: int) -> None:
        """Actors by what they do now; `lost` so far, replaced or not."""
        for state, count in (("starting", starting), ("busy", busy), ("idle", idle), ("lost", lost)):
            self._record("tiercache_actors", count, state)

    def cells(self, waiting: int, running: int, done: int) -> None:
        """Cells of the sweep by state."""
        for state, count in (("waiting", waiting), ("running", running), ("done", done)):
            self._record("tiercache_cells", count, state)

    def left(self, samples: int) -> None:
        """Samples still to be computed."""
        self._record("tiercache_samples_left", samples)

    def beat(self) -> None:
        """Sets every gauge again, so that Ray keeps it. Call it every few seconds."""
        for (name, tags), value in list(self._gauges.items()):
            self._record(name, value, *tags)

    def _record(self, name: str, value: float | None, *tags: str) -> None:
        """`tags` in the order of their declaration."""
        metric = METRICS[name]
        if value is None or not math.isfinite(value):
            return
        if metric.kind == "gauge":
            self._gauges[name, tags] = value
        if self._off or not _ray_runs():
            return
        named = dict(zip(metric.tags, tags, strict=True))
        try:
            made = self._made.get(name) or self._make(name, metric)
            if metric.kind == "gauge":
                made.set(value, tags=named)
            elif metric.kind == "histogram":
                made.observe(value, tags=named)
            elif value > 0:  # Ray refuses to count nothing
                made.inc(value, tags=named)
        except Exception as error:  # a sweep of hours doesn't end over a number on a board
            self._off = True
            log.warning("metrics are switched off for the rest of this run: %s", error)

    def _make(self, name: str, metric: Metric) -> Any:
        from ray.util import metrics as of_ray

        if metric.kind == "histogram":
            made: Any = of_ray.Histogram(name, metric.text, boundaries=list(SECONDS), tag_keys=metric.tags)
        else:
            made = (of_ray.Counter if metric.kind == "counter" else of_ray.Gauge)(name, metric.text, metric.tags)
        self._made[name] = made
        return made


def _ray_runs() -> bool:
    """Without importing Ray where nobody has."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())
