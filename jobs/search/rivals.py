"""The presets that a found policy has to beat, each with one knob left to be fitted to the budget.

`fit` stands for the largest value at which the policy still fits; `packed: rest` for what `hbm` leaves.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.spec import MAX_POLICIES
from tiercache.errors import SpecError
from tiercache.policy import parse_policy

FIT, REST = "fit", "rest"
EXAMPLES: dict[str, Any] = {"budget": {"bytes": 0.9}, "hbm": 0.5, "recent": 16, "chunk_keep": 0.5}

_BUDGETED = (
    *("streaming", "h2o", "random", "tova", "snapkv_d", "rkv", "gkv", "raas", "lazyeviction", "defensivekv_d"),
    *("layer_defensivekv_d", "keydiff", "expected_attention", "triattention", "epikv", "epikv_kv", "qevict"),
)
# `full` is no rival, and nor is `quest`, which evicts nothing. What cuts the prompt alone can't follow a budget.
RIVALS: list[dict[str, Any]] = [
    *({"name": name, "budget": FIT} for name in _BUDGETED),
    {"name": "thinkv", "budget": FIT},
    {"name": "lagkv", "chunk_keep": FIT},
    {"name": "hierarchy", "hbm": FIT, "evict": [0.0, 0.03, 0.1]},
    {"name": "quantised", "packed_bits": [8, 4, 2, "fp8"], "recent": FIT},
    {"name": "kivi", "packed_bits": [4, 2], "recent": FIT},
]


def open_entries(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Lists expanded into the grid, each entry checked with an example in the place of `fit`.

    Raises:
        SpecError, PolicyError: an entry is impossible.
    """
    found: list[dict[str, Any]] = []
    for index, entry in enumerate(entries):
        where = f"rivals[{index}]"
        lists = {knob: value for knob, value in entry.items() if isinstance(value, list)}
        if not all(lists.values()) or math.prod(map(len, lists.values())) > MAX_POLICIES:
            raise SpecError(f"{where}: a list has from 1 to {MAX_POLICIES:,} values.")
        for point in itertools.product(*lists.values()):
            one = {**entry, **dict(zip(lists, point, strict=True))}
            parse_policy(_example(one, where), where)
            if one not in found:
                found.append(one)
    return found


def fitted_knob(entry: Mapping[str, Any]) -> str | None:
    """The knob that is to be fitted; None if the entry is complete."""
    return next((knob for knob, value in entry.items() if value == FIT), None)


def _example(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    knobs = [knob for knob, value in entry.items() if value == FIT]
    for knob in knobs:
        if knob not in EXAMPLES or len(knobs) > 1:
            raise SpecError(f"{where}.{knob}: one of {', '.join(EXAMPLES)} can be `{FIT}`, and no more than one.")
    if entry.get("packed") == REST and knobs != ["hbm"]:
        raise SpecError(f"{where}.packed: `{REST}` is what a fitted hbm leaves; give hbm: {FIT} too.")
    filled = {knob: EXAMPLES[knob] if value == FIT else value for knob, value in entry.items()}
    return {**filled, **({"packed": 0.5} if entry.get("packed") == REST else {})}
