"""Attention of the newest queries: SnapKV, TOVA, R-KV, G-KV."""

from tiercache.catalog.base import Preset, Signal

SIGNALS: dict[str, type[Signal]] = {}

PRESETS: dict[str, Preset] = {}
