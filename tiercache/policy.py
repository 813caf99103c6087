"""A policy is data: scorer × placement × storage × schedule.

A named preset is nothing but a set of values for those four parts, so every rival in the literature and every
combination nobody has published is written the same way. In a sweep file the knobs are flat, a scorer's own among them:

    {name: h2o, budget: 0.5, pin_prompt: true}
    {name: hierarchy, hbm: 0.3, evict: 0.03, every: 64}
    {name: hierarchy, hbm: 0.3, evict: 0.03, scorer: path/to/mine.py:MyScorer}

Importing this module doesn't import torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from tiercache.catalog import PRESETS, SIGNALS
from tiercache.catalog.base import Preset, Signal
from tiercache.custom import is_custom, read_custom
from tiercache.errors import PolicyError
from tiercache.parts import Budget, Placement, Reading, Schedule, Storage
from tiercache.policy_checks import check_effects, check_together
from tiercache.strict import Strict, nearest

__all__ = [
    "KNOBS",
    "PARTS",
    "PRESETS",
    "Budget",
    "Placement",
    "Policy",
    "Reading",
    "Schedule",
    "Storage",
    "parse_policy",
]

PARTS: dict[str, type[Strict]] = {
    "scorer": Signal,
    "placement": Placement,
    "storage": Storage,
    "schedule": Schedule,
    "reading": Reading,
}
# Knobs of every policy; each scorer adds its own.
KNOBS: dict[str, str] = {knob: part for part, model in PARTS.items() for knob in model.model_fields}
DEFAULT_SCORER = "recency"


@dataclass(frozen=True)
class Policy:
    """One resolved policy. Build it with `parse_policy`; `label` says what differs from the preset's defaults."""

    name: str
    label: str
    scorer: Signal
    placement: Placement
    storage: Storage
    schedule: Schedule
    reading: Reading

    def config(self) -> dict[str, Any]:
        """The whole resolved configuration as plain data, for fingerprints and for the database."""
        parts = {part: getattr(self, part).model_dump(mode="json") for part in PARTS}
        return {"name": self.name, **parts}

    @cached_property
    def acts(self) -> bool:
        """Whether any token ever moves."""
        return self.placement.evicts or self.placement.tiered


def parse_policy(entry: str | Mapping[str, Any], where: str = "policy") -> Policy:
    """Resolves a preset name, or a mapping with `name` and knobs, into a `Policy`.

    Raises:
        PolicyError: unknown preset, scorer or knob, a value out of range, a missing or contradictory knob.
    """
    if not isinstance(entry, str | Mapping):
        raise PolicyError(f"{where}: is a preset's name or a mapping with name and knobs (got {entry!r}).")
    given = {"name": entry} if isinstance(entry, str) else dict(entry)
    if given.get("positions") is True:  # YAML's reading of the word
        given["positions"] = "true"
    if not isinstance(given.get("name"), str):
        raise PolicyError(f"{where}.name: is required; allowed: {', '.join(PRESETS)}.")
    name = given.pop("name")
    preset = PRESETS.get(name)
    if preset is None:
        hint = nearest(name, PRESETS)
        raise PolicyError(f"{where}.name: unknown policy '{name}'.{hint} Allowed: {', '.join(PRESETS)}.")
    if given and not preset.open:
        raise PolicyError(f"{where}.{next(iter(given))}: '{name}' keeps {preset.summary} and takes no parameters.")
    signal, extra = _signal({**preset.defaults, **given}.get("scorer", DEFAULT_SCORER), where)
    parts = {**KNOBS, **{knob: "scorer" for knob in signal.model_fields if knob not in extra}}
    for knob in given:
        if knob not in parts:
            raise PolicyError(f"{where}.{knob}: unknown key.{nearest(knob, parts)} Allowed keys: {', '.join(parts)}.")
    for knob in preset.required:
        if knob not in given:
            raise PolicyError(f"{where}.{knob}: '{name}' needs it, for example {{name: {name}, {_example(preset)}}}.")
    # Where another scorer is asked for, the preset's parameters for its own don't apply.
    knobs = {**{knob: value for knob, value in preset.defaults.items() if knob in parts}, **given}
    knobs.update({knob: value for knob, value in extra.items() if knob in parts})
    check_effects(given, knobs, where)
    return _assemble(name, knobs, parts, signal, extra, where)


def _signal(scorer: object, where: str) -> tuple[type[Signal], dict[str, Any]]:
    """The scorer's parameters, and what is known of a user's own."""
    if isinstance(scorer, str) and scorer in SIGNALS:
        return SIGNALS[scorer], {}
    if isinstance(scorer, str) and is_custom(scorer):
        return read_custom(scorer, f"{where}.scorer")
    raise PolicyError(
        f"{where}.scorer: unknown scorer '{scorer}'.{nearest(str(scorer), SIGNALS)} Allowed: {', '.join(SIGNALS)}, "
        "path/to/file.py:Class, or the name of an installed entry point."
    )


def _assemble(
    name: str,
    knobs: Mapping[str, Any],
    parts: Mapping[str, str],
    signal: type[Signal],
    extra: dict[str, Any],
    where: str,
) -> Policy:
    groups: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    for knob, value in knobs.items():
        groups[parts[knob]][knob] = value
    groups["scorer"] = {"scorer": DEFAULT_SCORER, **groups["scorer"], **extra}
    policy = Policy(
        name=name,
        label=_label(name, knobs, parts, signal),
        scorer=signal.parse(groups["scorer"], where, PolicyError),
        placement=Placement.parse(groups["placement"], where, PolicyError),
        storage=Storage.parse(groups["storage"], where, PolicyError),
        schedule=Schedule.parse(groups["schedule"], where, PolicyError),
        reading=Reading.parse(groups["reading"], where, PolicyError),
    )
    check_together(policy, where)
    return policy


def _example(preset: Preset) -> str:
    values = {
        "budget": "0.5",
        "hbm": "0.5",
        "evict": "0.03",
        "packed_bits": "4",
        "read_budget": "256",
        "chunk_keep": "0.5",
    }
    return ", ".join(f"{knob}: {values.get(knob, '…')}" for knob in preset.required)


def _label(name: str, knobs: Mapping[str, Any], parts: Mapping[str, str], signal: type[Signal]) -> str:
    """`h2o budget=0.5 pin_prompt`: the required knobs and whatever differs from the preset."""
    own = {knob: info.default for knob, info in signal.model_fields.items()}
    defaults = {**_part_defaults(), **own, **PRESETS[name].defaults}
    words = [name]
    for knob in parts:
        if knob not in knobs or (
            knob in defaults and knobs[knob] == defaults[knob] and knob not in PRESETS[name].required
        ):
            continue
        value = knobs[knob]
        if value is True:
            words.append(knob)
        elif knob == "options" and isinstance(value, Mapping):  # a user's own scorer's
            words.extend(f"{option}={given}" for option, given in value.items())
        elif isinstance(value, Mapping):
            words.append(f"{knob}={_long_form(value)}")
        else:
            words.append(f"{knob}={value:g}" if isinstance(value, float) else f"{knob}={value}")
    return " ".join(words)


def _long_form(value: Mapping[str, Any]) -> str:
    """A budget as one writes it short: the kind only where the number alone would be read otherwise."""
    return ",".join(f"{key}:{v}" if key == "bytes" else str(v) for key, v in value.items())


@cache
def _part_defaults() -> dict[str, Any]:
    return {knob: model.model_fields[knob].default for model in PARTS.values() for knob in model.model_fields}
