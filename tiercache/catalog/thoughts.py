"""Segments of a chain of thought by kind: ThinKV."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from tiercache.catalog.base import Preset, Signal

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class ThinKV(Signal):
    """Ranks the representatives of a thought above its other tokens, and tells thoughts apart.

    faint              a key is faint below this share of the row's maximum.
    execution_below    sparsity below which a thought executes; transition_above: above which it is a transition.
    thought_layers     layers, evenly spaced, whose sparsity is averaged.
    """

    implementation: ClassVar[str] = "tiercache.scorers.thinkv:ThinKV"
    needs: ClassVar[tuple[str, ...]] = ("queries", "keys")
    thoughts: ClassVar[bool] = True

    faint: Share = 0.01
    execution_below: Share = 0.5
    transition_above: Share = 0.8
    thought_layers: Annotated[int, Field(ge=1)] = 4

    @model_validator(mode="after")
    def _in_order(self) -> "ThinKV":
        if self.execution_below > self.transition_above:
            raise ValueError(
                f"execution_below {self.execution_below:g} is above transition_above {self.transition_above:g}; "
                "reasoning lies between them"
            )
        return self


SIGNALS: dict[str, type[Signal]] = {"thinkv": ThinKV}

PRESETS: dict[str, Preset] = {
    "thinkv": Preset(
        "representatives of each thought, quantised, fewer the longer ago and the less important it was",
        "2510.01290",
        {
            "scorer": "thinkv",
            "scope": "head",
            "segment": 128,
            "ladder": (64, 32, 16, 8, 4),
            "pack_thoughts": True,
            "packed_bits": 4,
            "transition_bits": 2,
            "group": 16,
            "grids": "float16",
        },
        ("budget",),
        "the thought that goes on, 4 tokens of each thought",
    ),
}
