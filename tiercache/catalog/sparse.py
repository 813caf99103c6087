"""Everything kept, not everything read: Quest."""

from tiercache.catalog.base import Preset, Signal

SIGNALS: dict[str, type[Signal]] = {}

PRESETS: dict[str, Preset] = {
    "quest": Preset(
        "every token; each step reads the pages whose bound on the product with the query is largest",
        "2406.10774",
        {"pages": 16, "dense_layers": 2},
        ("read_budget",),
        "everything",
    ),
}
