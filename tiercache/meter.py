"""Times and bytes of one run, taken where they arise. Prefill and decode are never mixed in one number."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import quantiles
from typing import Protocol

import torch

from tiercache.ledger import SequenceBytes, Traffic
from tiercache.requests import RunStats


class Watched(Protocol):
    """What holds a run's caches."""

    allocated_peak: int

    @property
    def traffic(self) -> Traffic: ...


class Meter:
    """Accumulates one run's measurements; `stats` may be read at any time."""

    def __init__(self, device: torch.device, step_weight_bytes: int) -> None:
        self.device, self._step_weight_bytes, self._tier_bytes = device, step_weight_bytes, 0.0
        self._steps: list[float] = []
        self._first_tokens: list[float] = []
        self._prefill_tokens = self._decode_tokens = self._sequences = self._max_rows = 0
        self._prefill_s = 0.0
        self._cache: Watched | None = None
        self._allocated, self._gone = 0, Traffic()  # of caches before the present one
        self._baseline = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._baseline = torch.cuda.memory_allocated(device)

    def watch(self, cache: Watched | None) -> None:
        """Follows traffic and allocation. What it followed before is let go: after running out of memory, a reference
        kept here would keep its memory too."""
        self._allocated, self._gone = self._cache_totals()
        self._cache = cache

    def _cache_totals(self) -> tuple[int, Traffic]:
        """Peak allocated bytes, and the traffic, over all caches so far."""
        total, peak = Traffic(), self._allocated
        total.add(self._gone)
        if self._cache is not None:
            total.add(self._cache.traffic)
            peak = max(peak, self._cache.allocated_peak)
        return peak, total

    @contextmanager
    def prefill(self, tokens: int) -> Iterator[None]:
        start = self._now()
        yield
        self._prefill_s += self._now() - start
        self._prefill_tokens += tokens

    @contextmanager
    def decode(self, rows: int) -> Iterator[None]:
        """One step; each running row yields one token."""
        start = self._now()
        yield
        self._steps.append(self._now() - start)
        self._decode_tokens += rows
        self._max_rows = max(self._max_rows, rows)

    def first_token(self, seconds: float) -> None:
        self._first_tokens.append(seconds)

    def finished(self, ledger: SequenceBytes, tokens: int) -> None:
        """A sequence has ended with so many tokens, the first of which came from its prefill."""
        self._sequences += 1
        self._tier_bytes += (tokens - 1) * (ledger.hbm_bytes_mean + ledger.ddr_bytes_mean + ledger.packed_bytes_mean)

    def stats(self) -> RunStats:
        cuda = self.device.type == "cuda"
        allocated, traffic = self._cache_totals()
        return RunStats(
            sequences=self._sequences,
            prefill_tokens=self._prefill_tokens,
            prefill_s=self._prefill_s,
            decode_tokens=self._decode_tokens,
            decode_s=sum(self._steps),
            decode_steps=len(self._steps),
            step_p50_s=percentile(self._steps, 50),
            step_p99_s=percentile(self._steps, 99),
            ttft_p50_s=percentile(self._first_tokens, 50),
            max_rows=self._max_rows,
            allocated_bytes_peak=allocated,
            device_peak_bytes=torch.cuda.max_memory_allocated(self.device) - self._baseline if cuda else None,
            bytes_to_host=traffic.to_host,
            bytes_to_device=traffic.to_device,
            decode_read_bytes=len(self._steps) * self._step_weight_bytes + round(self._tier_bytes),
            transfer_s=traffic.seconds if cuda else None,
        )

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def percentile(values: list[float], percent: int) -> float:
    """Inclusive percentile; 0 for no values."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return quantiles(values, n=100, method="inclusive")[percent - 1]
