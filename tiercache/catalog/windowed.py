"""Attention of the newest queries: SnapKV, TOVA, R-KV, G-KV."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from tiercache.catalog.base import Preset, Signal


def _odd(kernel: int) -> int:
    if kernel % 2 == 0:
        raise ValueError("a kernel is centred on its token, so it must be odd")
    return kernel


Count = Annotated[int, Field(ge=1, strict=True)]
Kernel = Annotated[int, Field(ge=1, strict=True), AfterValidator(_odd)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class SnapKV(Signal):
    """Ranks by the attention of the newest queries, pooled along the sequence; their own tokens come first.

    queries   newest queries that vote (the observation window).
    kernel    tokens that are pooled.
    pool      `avg` or `max`.
    """

    implementation: ClassVar[str] = "tiercache.scorers.snapkv:ObservationWindow"
    needs: ClassVar[tuple[str, ...]] = ("queries", "keys")

    queries: Count = 32
    kernel: Kernel = 5
    pool: Literal["avg", "max"] = "avg"


class TOVA(Signal):
    """Ranks by the newest query's attention."""

    implementation: ClassVar[str] = "tiercache.scorers.tova:LastAttention"
    needs: ClassVar[tuple[str, ...]] = ("attention",)


class RKV(Signal):
    """Ranks by attention of the newest queries less similarity to other keys; the queries' own tokens come first.

    queries        newest queries that vote.
    kernel         tokens whose attention is max-pooled.
    mix            weight of importance; the rest is the weight of redundancy.
    threshold      cosine from which two keys count as similar.
    spared         newest similar keys that a key doesn't count against.
    spared_share   the same as a share of all keys; the larger of the two applies.
    recipe         `paper`, or `repository`: the queries' own tokens are outside the softmax, attention is averaged
                   before it is pooled, and a key without a similar one doesn't count against the first key.
    """

    implementation: ClassVar[str] = "tiercache.scorers.rkv:ImportanceAndRedundancy"
    needs: ClassVar[tuple[str, ...]] = ("queries", "keys")

    queries: Count = 8
    kernel: Kernel = 7
    mix: Share = 0.1
    threshold: Annotated[float, Field(ge=-1.0, le=1.0)] = 0.5
    spared: Annotated[int, Field(ge=0, strict=True)] = 1
    spared_share: Share = 0.0
    recipe: Literal["paper", "repository"] = "paper"


class GKV(Signal):
    """Ranks by the highest attention so far, faded by age, less similarity to other keys.

    queries     newest queries that vote.
    kernel      tokens whose remembered score is max-pooled.
    decay       what is left of a remembered score at the next event.
    mix         weight of importance; the rest is the weight of redundancy.
    threshold   cosine from which two keys count as similar.
    spared      newest similar keys that a key doesn't count against.
    """

    implementation: ClassVar[str] = "tiercache.scorers.gkv:GlobalScore"
    needs: ClassVar[tuple[str, ...]] = ("queries", "keys")

    queries: Count = 16
    kernel: Kernel = 5
    decay: Share = 0.8
    mix: Share = 0.5
    threshold: Annotated[float, Field(ge=-1.0, le=1.0)] = 0.5
    spared: Annotated[int, Field(ge=0, strict=True)] = 1


SIGNALS: dict[str, type[Signal]] = {"snapkv": SnapKV, "tova": TOVA, "rkv": RKV, "gkv": GKV}

PRESETS: dict[str, Preset] = {
    "snapkv": Preset(
        "what the prompt's last 32 queries attend to, and their tokens; everything generated",
        "2404.14469",
        {"scorer": "snapkv", "scope": "head", "queries": 32, "recent": 32, "every": 0},
        ("budget",),
        "the newest 32 of the prompt and all generated tokens",
    ),
    "snapkv_d": Preset(
        "what the last 16 queries attend to, chosen again every 128 steps",
        "2404.14469",
        {"scorer": "snapkv", "scope": "head", "queries": 16, "recent": 16, "every": 128},
        ("budget",),
        "the newest 16",
    ),
    "tova": Preset(
        "what the newest query attends to, the same tokens in all heads of a layer",
        "2401.06104",
        {"scorer": "tova", "scope": "layer", "every": 1},
        ("budget",),
        "the newest token",
    ),
    "rkv": Preset(
        "what the last 8 queries attend to and no other key resembles, chosen again every 128 steps",
        "2505.24133",
        {"scorer": "rkv", "scope": "head", "queries": 8, "recent": 8, "every": 128},
        ("budget",),
        "the newest 8",
    ),
    "gkv": Preset(
        "what was attended to at any event, fading, and no other key resembles; every 128 steps",
        "2512.00504",
        {"scorer": "gkv", "scope": "head", "queries": 16, "recent": 16, "every": 128},
        ("budget",),
        "the newest 16",
    ),
}
