"""The reference, position, accumulated attention and chance."""

from typing import ClassVar

from tiercache.catalog.base import Preset, Signal


class Recency(Signal):
    """Ranks by position: the newest are the most important."""

    implementation: ClassVar[str] = "tiercache.scorers.recency:Recency"


class Attention(Signal):
    """Ranks by attention mass accumulated since the token was written, prefill included."""

    implementation: ClassVar[str] = "tiercache.scorers.attention:AttentionMass"
    needs: ClassVar[tuple[str, ...]] = ("attention",)


class Random(Signal):
    """Ranks by a number drawn once for each token."""

    implementation: ClassVar[str] = "tiercache.scorers.chance:Random"


SIGNALS: dict[str, type[Signal]] = {"recency": Recency, "attention": Attention, "random": Random}

PRESETS: dict[str, Preset] = {
    "full": Preset("every token, in device memory", "the reference", protects="everything", open=False),
    "streaming": Preset(
        "first tokens and the newest ones",
        "2309.17453",
        {"scorer": "recency", "scope": "token", "sinks": 4, "positions": "cache"},
        ("budget",),
        "4 sinks",
    ),
    "h2o": Preset(
        "heavy hitters by accumulated attention, per layer and KV head, and the newest half of the budget",
        "2306.14048",
        {"scorer": "attention", "scope": "head", "recent_share": 0.5},
        ("budget",),
        "the newest half of the budget",
    ),
    "random": Preset(
        "a uniform random subset; any signal must beat it",
        "2609.03430",
        {"scorer": "random", "scope": "head", "pin_prompt": True},
        ("budget",),
        "the prompt",
    ),
    "hierarchy": Preset(
        "four tiers by accumulated attention shared by all layers and heads, re-tiered every 64 steps",
        "2605.09490",
        {
            "scorer": "attention",
            "scope": "token",
            "generated_sinks": 4,
            "recent": 128,
            "pin_prompt": True,
            "every": 64,
        },
        ("hbm", "evict"),
        "the prompt, the first 4 generated tokens, the newest 128",
    ),
}
