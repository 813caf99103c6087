"""Changes of hidden states: EpiKV, and the variants of its paper that look at keys and values."""

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from tiercache.catalog.base import Preset, Signal

Count = Annotated[int, Field(ge=1, strict=True)]


def layers(value: object) -> object:
    """`10`, `7-13` or `7,9-13`: a list in a sweep file would be a grid."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return value
    try:
        ends = [[int(end) for end in part.split("-")] for part in str(value).split(",")]
    except ValueError:
        raise ValueError("write layers as 10, 7-13 or 7,9-13, counted from 1") from None
    return tuple(layer for part in ends for layer in range(part[0], part[-1] + 1))


Layers = Annotated[tuple[Count, ...], BeforeValidator(layers), Field(min_length=1)]


class EpiKV(Signal):
    """Ranks by how much more than usual the hidden state moved at one depth, less the same further up.

    signal    `zscore`: the movement in standard deviations from its rolling mean; `variance`: the rolling mean itself;
              `band`: z-scores averaged over bands of layers.
    rolling   newest movements, this token's included, that make mean and deviation.
    band_a    layers that count for a token, from 1, as 10 or 7-13; none: the paper's, scaled to the model's depth.
              `band_b`: layers that count against it.
    """

    implementation: ClassVar[str] = "tiercache.scorers.epikv:EpiKV"
    needs: ClassVar[tuple[str, ...]] = ("hidden",)

    signal: Literal["zscore", "variance", "band"] = "zscore"
    rolling: Annotated[int, Field(ge=2, strict=True)] = 64
    band_a: Layers | None = None
    band_b: Layers | None = None

    @model_validator(mode="after")
    def _apart(self) -> "EpiKV":
        if self.band_a and self.band_b and self.signal != "variance" and {*self.band_a} == {*self.band_b}:
            raise ValueError("band_a and band_b are the same layers, so that their difference is always 0")
        return self


class EpiKVCache(Signal):
    """Ranks by the spread of a token's key and value over their channels; no hidden states, and causal.

    signal    `lag-kv`: keys and values within the range of the previous chunk; `lag-kv-key`: keys alone; `kv-key`:
              rolling mean of the keys' variance; `kv-val`: of the values'.
    lag       tokens of a chunk. `rolling`: tokens of the rolling mean.
    """

    implementation: ClassVar[str] = "tiercache.scorers.epikv_kv:EpiKVCache"
    needs: ClassVar[tuple[str, ...]] = ("keys", "values")

    signal: Literal["lag-kv", "lag-kv-key", "kv-key", "kv-val"] = "lag-kv"
    lag: Count = 64
    rolling: Count = 64


SIGNALS: dict[str, type[Signal]] = {"epikv": EpiKV, "epikv_kv": EpiKVCache}

_PLACEMENT = {"scope": "token", "pin_prompt": True, "recent_share": 0.25, "recent_cap": 128}
_PROTECTS = "the prompt, the newest quarter of the budget but at most 128"

PRESETS: dict[str, Preset] = {
    "epikv": Preset(
        "tokens at which the hidden state moved unusually",
        "2606.26472",
        {"scorer": "epikv", **_PLACEMENT},
        ("budget",),
        _PROTECTS,
    ),
    "epikv_kv": Preset(
        "tokens whose key and value spread widely over their channels",
        "2606.26472",
        {"scorer": "epikv_kv", **_PLACEMENT},
        ("budget",),
        _PROTECTS,
    ),
}
