"""Fewer bits: KIVI, plain quantised caches, QEvict."""

from tiercache.catalog.base import Preset, Signal

SIGNALS: dict[str, type[Signal]] = {}

PRESETS: dict[str, Preset] = {}
