"""Which cell of a sweep is meant by a line of a paper's table, whatever its lengths were scaled to."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tiercache.policy import PRESETS, parse_policy

SCALED = ("budget", "recent", "segment", "ladder", "every")  # lengths: shorter chains take shorter ones
_STAND_IN: dict[str, Any] = {"budget": 0.5, "hbm": 0.5, "evict": 0.0, "packed_bits": 8, "chunk_keep": 0.5}
T = TypeVar("T")


@dataclass(frozen=True)
class Pick:
    """A policy by preset and knobs; a knob that isn't given has the preset's default, and `SCALED` ones are free.

    A budget among the knobs is taken as it stands.

    level  of those that differ in budget alone: -1 the largest, -2 the next.
    kind   take only budgets of that kind: `tokens`, `ratio` or `bytes`.
    """

    name: str
    knobs: Mapping[str, Any] = field(default_factory=dict)
    level: int = -1
    kind: str | None = None

    def __str__(self) -> str:
        words = [self.name, *(f"{knob}={value}" for knob, value in self.knobs.items())]
        budget = {-1: "largest", -2: "second largest"}.get(self.level, f"{-self.level}. largest")
        free = "budget" in PRESETS[self.name].required and "budget" not in self.knobs
        return " ".join(words) + (f" ({budget} budget)" if free else "")

    def config(self) -> dict[str, Any]:
        """The whole policy, with stand-ins for the lengths that are free."""
        needed = {knob: _STAND_IN[knob] for knob in PRESETS[self.name].required if knob not in self.knobs}
        found: dict[str, Any] = json.loads(
            json.dumps(parse_policy({"name": self.name, **needed, **self.knobs}).config())
        )
        return found


def identity(policy: Mapping[str, Any]) -> str:
    """What a policy is beside its lengths, as text; equal for a sweep's cell and its scaled form."""
    parts = {name: dict(part) if isinstance(part, Mapping) else part for name, part in policy.items()}
    for part in parts.values():
        if isinstance(part, dict):
            for knob in SCALED:
                part.pop(knob, None)
            if "band_a" in part and "band_b" in part:  # layers are scaled to the depth: only their order is kept
                part["bands"] = _bands(part.pop("band_a"), part.pop("band_b"))
    return json.dumps(parts, sort_keys=True)


def _bands(count_for: Sequence[int] | None, count_against: Sequence[int] | None) -> str:
    if not count_for or not count_against:
        return "default"
    return "exchanged" if max(count_for) > max(count_against) else "given"


def budget(policy: Mapping[str, Any]) -> tuple[str, float] | None:
    """(kind, value), or None for a policy without one."""
    given = (policy.get("placement") or {}).get("budget") or {}
    return next(((kind, float(value)) for kind, value in given.items() if value is not None), None)


def choose(pick: Pick, cells: Sequence[tuple[T, Mapping[str, Any]]]) -> T | None:
    """The cell that is meant, of (cell, its policy's configuration); None where there is none."""
    meant = pick.config()
    wanted, exact = identity(meant), budget(meant) if "budget" in pick.knobs else None
    found = [
        (size[1] if size else 0.0, cell)
        for cell, policy, size in ((cell, policy, budget(policy)) for cell, policy in cells)
        if identity(policy) == wanted
        and exact in (None, size)
        and (pick.kind is None or (size and size[0] == pick.kind))
    ]
    found.sort(key=lambda each: each[0])
    return found[pick.level][1] if -len(found) <= pick.level < 0 else None
