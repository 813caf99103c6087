"""What was written down of one sequence for its tier map. Plain data: no torch, can cross process boundaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HBM, DDR, PACKED, EVICTED = range(4)
SERIES = ("hbm", "ddr", "packed", "evicted", "full", "to_host", "to_device")


@dataclass(frozen=True, eq=False)
class TierRecord:
    """One sequence: where its tokens lay at each *look*, and its bytes after each decode step.

    prompt, layers, kv_heads    counts.
    steps       int64 [looks]: decode steps done by then; 0 is after the prefill.
    seen        int64 [looks]: tokens whose keys and values are written by then; beyond them arrays hold 0.
    tiers       uint8 [looks, layers, tokens]: where the KV heads of a layer differ, the most common tier, of equally
                common ones the first of HBM, DDR, PACKED, EVICTED.
    overall     uint8 [looks, tokens]: the same over all (layer, KV head).
    held        float32 [looks, tokens]: share of (layer, KV head) that hold the token in any tier.
    importance  float32 [looks, tokens]: the score by which the policy would rank the token if an event were due, mean
                over the (layer, KV head) in which it may move; NaN where it may not. None: `no_importance` says why.
    series      int64 [decode steps + 1] for each of SERIES: bytes in each tier, evicted, of the full cache, and moved
                so far by the policy's events.
    """

    prompt: int
    layers: int
    kv_heads: int
    steps: NDArray[np.int64]
    seen: NDArray[np.int64]
    tiers: NDArray[np.uint8]
    overall: NDArray[np.uint8]
    held: NDArray[np.float32]
    importance: NDArray[np.float32] | None
    no_importance: str | None
    series: Mapping[str, NDArray[np.int64]]
