"""Fewer bits: KIVI, plain quantised caches, QEvict."""

from typing import Any

from tiercache.catalog.base import Preset, Signal

SIGNALS: dict[str, type[Signal]] = {}

# Everything but the newest tokens lies in T2, in the order in which it was written.
ALL_PACKED: dict[str, Any] = {"scorer": "recency", "scope": "token", "hbm": 0.0, "packed": 1.0, "grids": "float16"}

PRESETS: dict[str, Preset] = {
    "quantised": Preset(
        "every token, in 8, 4 or 2 bits or fp8, each on its own range",
        "the usual baseline",
        {**ALL_PACKED, "recent": 16, "every": 16},
        ("packed_bits",),
        "the newest 16",
    ),
    "kivi": Preset(
        "every token, in 2 bits: keys by channel over 32 tokens, values by token over 32 channels",
        "2402.02750",
        {
            **ALL_PACKED,
            "packed_bits": 2,
            "key_axis": "channel",
            "window": 32,
            "group": 32,
            "recent": 128,
            "every": 32,
        },
        protects="the newest 128",
    ),
    "qevict": Preset(
        "windows of 8 by accumulated attention: the best in full, the next in 2 bits, from where they can return",
        "2608.05326",
        {
            "scorer": "attention",
            "scope": "head",
            "window": 8,
            "sinks": 4,
            "recent_share": 0.5,
            "packed_bytes": 0.1,
            "packed_bits": 2,
            "key_axis": "channel",
            "rope_pairs": True,
            "grids": "float16",
            "ledger": True,
            "every": 8,
        },
        ("budget",),
        "the window of the 4 sinks, the newest half of the budget",
    ),
}
