"""The two kinds of entry in the catalogue: a scorer's declaration and a preset. No torch here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from tiercache.strict import Strict


class Signal(Strict):
    """What a sweep file says about a scorer: its name, its scope and its own parameters.

    scope   `head`: every (layer, KV head) ranks for itself; `layer`: the heads of a layer share the mean of their
            scores; `token`: all layers and heads do.
    """

    implementation: ClassVar[str]  # "module:Class", imported when an engine needs it
    needs: ClassVar[tuple[str, ...]] = ()  # of: attention, queries, keys, values, hidden
    thoughts: ClassVar[bool] = False  # it tells thoughts apart, which a placement by segments needs
    true_positions: ClassVar[bool] = False  # it turns keys or queries by their true positions

    scorer: str
    scope: Literal["head", "layer", "token"] = "head"


@dataclass(frozen=True)
class Preset:
    """A named combination of knobs.

    summary   what it keeps, in a few words.
    source    arXiv id.
    protects  what never leaves.
    required  knobs that a user must give.
    """

    summary: str
    source: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    protects: str = "the newest token"
    open: bool = True  # whether knobs may be given at all
