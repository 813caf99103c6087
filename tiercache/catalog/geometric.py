"""Keys and values alone, no attention: LagKV, KeyDiff, Expected Attention, TriAttention."""

from tiercache.catalog.base import Preset, Signal

SIGNALS: dict[str, type[Signal]] = {}

PRESETS: dict[str, Preset] = {}
