"""Budgets that layers or heads share, around a scorer of another family: AdaKV, PyramidKV, Layer-DefensiveKV."""

from tiercache.catalog.base import Preset, Signal

SIGNALS: dict[str, type[Signal]] = {}

PRESETS: dict[str, Preset] = {
    "adakv": Preset(
        "snapkv's choice, the heads of a layer competing for one budget",
        "2407.11550",
        {"scorer": "snapkv", "scope": "head", "queries": 32, "recent": 32, "share": "layer", "floor": 0.2, "every": 0},
        ("budget",),
        "the newest 32 of the prompt and all generated tokens",
    ),
    "pyramidkv": Preset(
        "snapkv's choice, first layers keeping more than last ones",
        "2406.02069",
        {"scorer": "snapkv", "scope": "head", "queries": 32, "recent": 32, "pyramid": 20.0, "every": 0},
        ("budget",),
        "the newest 32 of the prompt and all generated tokens",
    ),
    "layer_defensivekv": Preset(
        "defensivekv's choice, all layers and heads competing for one budget",
        "2510.13334",
        {"scorer": "defensive", "scope": "head", "recent": 32, "share": "all", "every": 0},
        ("budget",),
        "the newest 32 of the prompt and all generated tokens",
    ),
    "layer_defensivekv_d": Preset(
        "the same every 128 steps",
        "2510.13334",
        {"scorer": "defensive", "scope": "head", "recent": 32, "share": "all", "every": 128},
        ("budget",),
        "the newest 32 tokens",
    ),
}
