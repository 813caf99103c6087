"""When a token was last used, and the worst case of its use: RaaS, LazyEviction, DefensiveKV."""

from tiercache.catalog.base import Preset, Signal

SIGNALS: dict[str, type[Signal]] = {}

PRESETS: dict[str, Preset] = {}
