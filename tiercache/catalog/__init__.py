"""All scorers that a sweep can name, and all presets. One module for each family; no torch in any."""

from tiercache.catalog import basic, geometric, hidden, quantised, recurring, shared, sparse, thoughts, windowed
from tiercache.catalog.base import Preset, Signal

FAMILIES = (basic, windowed, recurring, shared, geometric, hidden, thoughts, quantised, sparse)

SIGNALS: dict[str, type[Signal]] = {name: signal for family in FAMILIES for name, signal in family.SIGNALS.items()}
PRESETS: dict[str, Preset] = {name: preset for family in FAMILIES for name, preset in family.PRESETS.items()}
