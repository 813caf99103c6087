"""The space that is searched: scorer × placement × storage, in the words of a sweep file.

Three kinds of policy. `budget` evicts to a share of bytes, with or without a quantised waiting room. `tiers` keeps the
best tokens in full precision, quantises the others, and evicts no more than it must. `shared` evicts in full precision,
the heads of a layer or of all layers competing. In each the knob that decides the size isn't drawn but fitted to the
budget (`fitting`), so that no trial is spent on a policy that is too small or too large.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiercache.catalog import SIGNALS
from tiercache.errors import PolicyError, SpecError
from tiercache.policy import parse_policy
from tiercache.strict import nearest

Choices = Mapping[str, tuple[Any, ...]]
Draw = Callable[[str, Sequence[Any]], Any]

CHOICES: Choices = {
    "kind": ("budget", "tiers", "shared"),
    # A scorer that tells thoughts apart needs a placement by thoughts.
    "scorer": tuple(name for name, signal in SIGNALS.items() if not signal.thoughts),
    "scope": ("head", "layer", "token"),
    "share": ("layer", "all"),
    "floor": (0.0, 0.2, 0.5),
    "sinks": (0, 4),
    "pin_prompt": (False, True),
    "recent": (1, 4, 8, 16, 32),
    "recent_share": (0.0, 0.1, 0.25, 0.5),
    "every": (1, 4, 8, 16, 32),
    "hbm": (0.0, 0.05, 0.15),
    "packed": (0.0, 0.25, 0.5, 0.75, 1.0),
    "packed_bytes": (0.0, 0.1, 0.25, 0.5, 0.75, 1.0),
    "packed_bits": (8, 4, 2, "fp8"),
    "group": (None, 16, 8),
    "window": (1, 8, 16, 32),
    "key_axis": ("token", "channel"),
    "rope_pairs": (False, True),
}

# A policy in which the knob means something: so each value of a file's own is checked.
_PACKED = {"name": "quantised", "packed_bits": 4}
_BUDGETED = ("scorer", "scope", "sinks", "pin_prompt", "recent", "recent_share", "every", "share", "packed_bytes")
_PROBES: dict[str, dict[str, Any]] = {
    **{knob: {"budget": 0.9} for knob in _BUDGETED},
    "floor": {"budget": 0.9, "share": "layer"},
    "hbm": {"name": "hierarchy", "evict": 0.0},
    "packed": {"name": "hierarchy", "hbm": 0.0, "evict": 0.0},
    "packed_bits": {"name": "quantised"},
    "group": _PACKED,
    "window": _PACKED,
    "key_axis": {**_PACKED, "window": 8},
    "rope_pairs": {**_PACKED, "window": 8, "key_axis": "channel"},
}


@dataclass(frozen=True)
class Proposal:
    """A policy's entry without the knob that decides its size, and what that knob is: see `Planner.fit`."""

    entry: Mapping[str, Any]
    fit: str


def narrowed(own: Mapping[str, Sequence[Any]]) -> Choices:
    """The choices, with a file's own values put in.

    Raises:
        SpecError: an unknown knob, no values, or a value that no policy takes.
    """
    for knob, values in own.items():
        if knob not in CHOICES:
            raise SpecError(f"space.{knob}: unknown key.{nearest(knob, CHOICES)} Allowed keys: {', '.join(CHOICES)}.")
        if not values:
            raise SpecError(f"space.{knob}: the list is empty; give at least one value or leave the key out.")
        for value in values:
            _check(knob, value)
    return {knob: tuple(dict.fromkeys(own.get(knob, values))) for knob, values in CHOICES.items()}


def _check(knob: str, value: object) -> None:
    if value is not None and not isinstance(value, str | int | float):
        raise SpecError(f"space.{knob}: a value is a word or a number (got {value!r}).")
    if knob == "kind":
        if value not in CHOICES["kind"]:
            raise SpecError(f"space.kind: is one of {', '.join(CHOICES['kind'])} (got {value!r}).")
        return
    if knob == "scorer" and value not in CHOICES["scorer"]:
        raise SpecError(f"space.scorer: is one of {', '.join(CHOICES['scorer'])} (got {value!r}).")
    try:
        parse_policy({"name": "h2o", **_PROBES[knob], knob: value}, "space")
    except PolicyError as problem:
        raise SpecError(str(problem)) from None


def propose(draw: Draw, choices: Choices, host_counts: bool) -> Proposal:
    """One point of the space.

    Args:
        draw: chooses one of the values of a knob; Optuna's `suggest_categorical`, say.
        host_counts: tokens in host memory are no cheaper than others, so that none are put there.
    """

    def pick(knob: str) -> Any:
        return draw(knob, choices[knob])

    kind = pick("kind")
    common = {"scorer": pick("scorer"), "sinks": pick("sinks"), "pin_prompt": pick("pin_prompt")}
    common["every"] = pick("every")
    if kind == "shared":
        rest = {"share": pick("share"), "floor": pick("floor"), "recent": pick("recent"), "scope": "head"}
        return Proposal({"name": "layer_defensivekv_d", **common, **rest}, "budget")
    common["scope"] = pick("scope")
    if kind == "budget":
        shares = {"recent_share": pick("recent_share"), "packed_bytes": pick("packed_bytes")}
        if not shares["packed_bytes"]:
            return Proposal({"name": "h2o", **common, "recent_share": shares["recent_share"]}, "budget")
        return Proposal({"name": "qevict", **common, **shares, **_storage(pick), "ledger": False}, "budget")
    packed, least = "rest" if host_counts else pick("packed"), pick("hbm")
    if not isinstance(packed, str):
        least = min(least, round(1 - packed, 3))
    tiers = {"recent": pick("recent"), "generated_sinks": 0, "hbm": least, "packed": packed}
    return Proposal({"name": "hierarchy", **common, **tiers, **(_storage(pick) if packed else {})}, "tiers")


def _storage(pick: Callable[[str], Any]) -> dict[str, Any]:
    """Grids are always 16 bits: nothing has been seen to gain from wider ones."""
    window = pick("window")
    axis = pick("key_axis") if window > 1 else "token"
    pairs = pick("rope_pairs") if axis == "channel" else False
    return {
        "packed_bits": pick("packed_bits"),
        "group": pick("group"),
        "window": window,
        "key_axis": axis,
        "rope_pairs": pairs,
        "grids": "float16",
    }
