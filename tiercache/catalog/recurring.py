"""When a token was last used, and the worst case of its use: RaaS, LazyEviction, DefensiveKV."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from tiercache.catalog.base import Preset, Signal

Positive = Annotated[int, Field(ge=1, strict=True)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


def _odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("a kernel is an odd number, so that it has a middle")
    return value


class Raas(Signal):
    """Ranks by the step at which a token's page was last used: the latest are the most important.

    page       positions in a page. Give the core's `window` the same value, so that whole pages leave.
    threshold  a page whose share of the page softmax is above this is used (alpha).
    top        instead of the threshold: this share of the live pages, the highest, is used at each step (r).
    """

    implementation: ClassVar[str] = "tiercache.scorers.raas:LastUse"
    needs: ClassVar[tuple[str, ...]] = ("queries", "keys")

    page: Positive = 16
    threshold: Probability = 1e-4
    top: Annotated[float, Field(gt=0.0, le=1.0)] | None = None


class Lazy(Signal):
    """Ranks by how likely a token is to come back: used not long ago, by its own measure, and seen to come back before.

    threshold  attention above this is a use (alpha).
    formula    `paper`: 2s(-(t - TS)/MRI) + 2s(-1/MRI); `code`: what the authors' code computes. s: logistic function.
    """

    implementation: ClassVar[str] = "tiercache.scorers.lazy:Recurrence"
    needs: ClassVar[tuple[str, ...]] = ("attention",)

    threshold: Probability = 1e-4
    formula: Literal["paper", "code"] = "paper"


class Defensive(Signal):
    """Ranks by the most that any of the newest queries gave to a token, at least the average, times its value's size.

    queries    newest queries that are asked. Give the core's `recent` the same value.
    kernel     width of the average along the sequence; odd.
    guarantee  tokens that together hold this share of the mean attention come first (0: none).
    released   reproduce two departures of the authors' code: value sizes divided by their sum over the KV heads, and
               the attention that the guarantee leaves to the window measured one window too early.
    """

    implementation: ClassVar[str] = "tiercache.scorers.defensive:Defensive"
    needs: ClassVar[tuple[str, ...]] = ("queries", "keys", "values")

    queries: Positive = 32
    kernel: Annotated[int, Field(ge=1, strict=True), AfterValidator(_odd)] = 5
    guarantee: Annotated[float, Field(ge=0.0, le=1.0)] = 0.9
    released: bool = False


SIGNALS: dict[str, type[Signal]] = {"raas": Raas, "lazy": Lazy, "defensive": Defensive}

PRESETS: dict[str, Preset] = {
    "raas": Preset(
        summary="the prompt and the pages that were used last",
        source="2502.11147",
        defaults={"scorer": "raas", "scope": "layer", "window": 16, "pin_prompt": True, "every": 1},
        required=("budget",),
        protects="the prompt and the newest page",
    ),
    "lazyeviction": Preset(
        summary="the newest window and the tokens most likely to be used again",
        source="2506.15969",
        defaults={"scorer": "lazy", "scope": "head", "recent": 175, "every": 175},
        required=("budget",),
        protects="the newest 175 tokens",
    ),
    "defensivekv": Preset(
        summary="what the prompt's last queries might need in the worst case, and every generated token",
        source="2510.13334",
        defaults={"scorer": "defensive", "scope": "head", "recent": 32, "share": "layer", "every": 0},
        required=("budget",),
        protects="the newest 32 tokens of the prompt, and all generated ones",
    ),
    "defensivekv_d": Preset(
        summary="what the newest queries might need in the worst case",
        source="2510.13334",
        defaults={"scorer": "defensive", "scope": "head", "recent": 32, "share": "layer", "every": 128},
        required=("budget",),
        protects="the newest 32 tokens",
    ),
}
