"""What a run held and moved, counted where it happens.

Bytes are logical: tokens held times the size of one token's keys and values. Tests hold them equal to the storage's own
tensors. Slot fields and positions are metadata and counted apart.
"""

from dataclasses import dataclass

from tiercache.placement import RowTiers
from tiercache.sizes import Sizes


@dataclass
class Traffic:
    """Bytes that crossed between device and host memory. On a CPU nothing crosses; the same moves are counted.

    seconds   in which tiers were brought up for attention; only a device with a bus measures them.
    """

    to_host: int = 0
    to_device: int = 0
    seconds: float = 0.0

    def add(self, other: "Traffic") -> None:
        self.to_host += other.to_host
        self.to_device += other.to_device
        self.seconds += other.seconds


@dataclass
class Usage:
    """One sequence's tokens per tier over its decode steps.

    Means are over decode steps, after each step's event. Peaks include the moment before the event, when the newest
    token is in and nothing has left yet.
    """

    steps: int = 0
    hbm_sum: int = 0
    ddr_sum: int = 0
    packed_sum: int = 0
    coarse_sum: int = 0
    seen_sum: int = 0
    hbm_peak: int = 0
    live_peak: int = 0

    def before_event(self, row: RowTiers) -> None:
        if row.hbm > self.hbm_peak:
            self.hbm_peak = row.hbm
        if row.live > self.live_peak:
            self.live_peak = row.live

    def after_event(self, row: RowTiers) -> None:
        self.steps += 1
        self.hbm_sum += row.hbm
        self.ddr_sum += row.ddr
        self.packed_sum += row.packed
        self.coarse_sum += row.coarse
        self.seen_sum += row.seen


@dataclass(frozen=True)
class SequenceBytes:
    """The ledger of one finished sequence; token counts are positions, bytes are over all layers and KV heads."""

    hbm_tokens: int
    ddr_tokens: int
    packed_tokens: int
    evicted_tokens: int
    hbm_bytes_mean: float
    hbm_bytes_peak: int
    ddr_bytes_mean: float
    packed_bytes_mean: float
    evicted_bytes_end: int
    full_bytes_mean: float
    full_bytes_end: int
    metadata_bytes_peak: int


def close_account(usage: Usage, row: RowTiers, size: Sizes, metadata_token_bytes: int) -> SequenceBytes:
    """The sequence's ledger. A sequence that ended with its first token had no decode step: its mean is its end."""
    if usage.steps == 0:
        usage.after_event(row)
    steps, token_bytes = usage.steps, size.token
    return SequenceBytes(
        hbm_tokens=row.hbm,
        ddr_tokens=row.ddr,
        packed_tokens=row.packed,
        evicted_tokens=row.evicted,
        hbm_bytes_mean=usage.hbm_sum * token_bytes / steps,
        hbm_bytes_peak=usage.hbm_peak * token_bytes,
        ddr_bytes_mean=usage.ddr_sum * token_bytes / steps,
        packed_bytes_mean=size.packed_bytes(usage.packed_sum, usage.coarse_sum) / steps,
        evicted_bytes_end=row.evicted * token_bytes,
        full_bytes_mean=usage.seen_sum * token_bytes / steps,
        full_bytes_end=row.seen * token_bytes,
        metadata_bytes_peak=usage.live_peak * metadata_token_bytes,
    )
