"""Changes of hidden states: EpiKV."""

from tiercache.catalog.base import Preset, Signal

SIGNALS: dict[str, type[Signal]] = {}

PRESETS: dict[str, Preset] = {}
