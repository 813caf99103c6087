"""A policy is data: scorer × placement × storage × schedule.

A named preset is nothing but a set of values for those four parts, so every rival in the literature and every
combination nobody has published is written the same way. In a sweep file the knobs are flat:

    {name: h2o, budget: 0.5, pin_prompt: true}
    {name: hierarchy, hbm: 0.3, evict: 0.03, every: 64}

Importing this module doesn't import torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tiercache.errors import PolicyError
from tiercache.strict import Strict, nearest

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Tokens = Annotated[int, Field(ge=0, strict=True)]


class Budget(Strict):
    """How many tokens a KV head may keep: a constant, or a share of those that compete.

    `tokens` counts everything, the prompt included. `ratio` is of all tokens seen so far; with a pinned prompt it is
    of the generated ones, on top of the prompt. It is re-applied as the sequence grows, so it needs no guess of the
    final length and the kept share is the ratio at every step.
    """

    tokens: Annotated[int, Field(ge=1, strict=True)] | None = None
    ratio: Annotated[float, Field(gt=0.0, le=1.0)] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> "Budget":
        if (self.tokens is None) == (self.ratio is None):
            raise ValueError("give either tokens (a whole number from 1) or ratio (above 0, at most 1)")
        return self

    def __str__(self) -> str:
        return str(self.tokens) if self.tokens is not None else f"{self.ratio:g}"


def _budget(value: object) -> object:
    """`512` means tokens and `0.5` a ratio; the long form is `{tokens: 512}` or `{ratio: 0.5}`."""
    if isinstance(value, bool):
        raise ValueError("a budget is a number of tokens (512) or a ratio (0.5)")
    if isinstance(value, int):
        return {"tokens": value}
    if isinstance(value, float):
        return {"ratio": value}
    return value


class Scorer(Strict):
    """The importance signal by which tokens are ranked.

    `recency` ranks by position, `attention` by accumulated attention mass (H2O, 2306.14048), `random` by a number
    drawn once for each token. With scope `head` every (layer, KV head) ranks for itself; with scope `token` one mean
    over all layers and heads ranks for all of them (2605.09490).
    """

    scorer: Literal["recency", "attention", "random"] = "recency"
    scope: Literal["head", "token"] = "token"


class Placement(Strict):
    """What is protected, and how ranked candidates are divided over the tiers.

    budget      evict the lowest ranked beyond this many tokens.
    evict       instead of a budget: this share of the candidates leaves for good at each event (`compound`), or
                this share of all that ever were candidates has left by then (not `compound`; 2605.09490 §14.5 reading).
    hbm         share of the surviving candidates that stays in device memory, best first.
    packed      share of the surviving candidates that is quantised, worst first; what is left goes to host memory.
    sinks       first tokens of the sequence, never moved. `generated_sinks`: the same for the generated part.
    recent      newest tokens, never moved. `recent_share`: the same as a share of the budget (H2O uses one half).
    pin_prompt  the whole prompt is never moved.
    """

    budget: Annotated[Budget | None, BeforeValidator(_budget)] = None
    evict: Share = 0.0
    compound: bool = True
    hbm: Share = 1.0
    packed: Share = 0.0
    sinks: Tokens = 0
    generated_sinks: Tokens = 0
    recent: Annotated[int, Field(ge=1, strict=True)] = 1
    recent_share: Share | None = None
    pin_prompt: bool = False

    @model_validator(mode="after")
    def _possible(self) -> "Placement":
        if self.budget is not None and self.evict > 0:
            raise ValueError("budget and evict both evict; give one of them")
        if self.hbm + self.packed > 1 + 1e-9:
            raise ValueError(f"hbm {self.hbm:g} + packed {self.packed:g} exceed 1; they share the survivors")
        tokens = self.budget.tokens if self.budget else None
        if tokens is not None:
            recent = max(self.recent, int((self.recent_share or 0) * tokens))
            floor = self.sinks + self.generated_sinks + recent
            if tokens < floor:
                raise ValueError(
                    f"a budget of {tokens} tokens is below the protected {floor} (sinks {self.sinks} + generated "
                    f"sinks {self.generated_sinks} + recent {recent}); allowed: {floor} or more, or protect less"
                )
        return self

    @property
    def tiered(self) -> bool:
        """Whether anything ever lives outside device memory."""
        return self.hbm < 1.0

    @property
    def evicts(self) -> bool:
        return self.budget is not None or self.evict > 0


class Storage(Strict):
    """How the tiers outside device memory are stored and read.

    t1_read      `merge`: attention over host memory is computed there and combined by log-sum-exp; only queries and
                 partial outputs cross the bus. `stream`: each layer's T1 is copied to a staging buffer for its step.
    packed_bits  code width of T2; 8 for now.
    """

    t1_read: Literal["merge", "stream"] = "merge"
    packed_bits: Literal[8] = 8


class Schedule(Strict):
    """When the placement acts: at the end of the prefill, and every `every` decode steps."""

    every: Annotated[int, Field(ge=1, strict=True)] = 1


PARTS: dict[str, type[Strict]] = {
    "scorer": Scorer,
    "placement": Placement,
    "storage": Storage,
    "schedule": Schedule,
}
KNOBS: dict[str, str] = {knob: part for part, model in PARTS.items() for knob in model.model_fields}


@dataclass(frozen=True)
class Policy:
    """One resolved policy. Build it with `parse_policy`; `label` says what differs from the preset's defaults."""

    name: str
    label: str
    scorer: Scorer
    placement: Placement
    storage: Storage
    schedule: Schedule

    def config(self) -> dict[str, Any]:
        """The whole resolved configuration as plain data, for fingerprints and for the database."""
        parts = {part: getattr(self, part).model_dump(mode="json") for part in PARTS}
        return {"name": self.name, **parts}

    @property
    def needs_attention(self) -> bool:
        """Whether the engine must hand attention weights to the scorer."""
        return self.scorer.scorer == "attention" and (self.placement.evicts or self.placement.tiered)


@dataclass(frozen=True)
class Preset:
    """A named combination: default knobs, the knobs that a user must give, and where it comes from."""

    summary: str
    source: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    open: bool = True  # whether knobs may be given at all


PRESETS: dict[str, Preset] = {
    "full": Preset("keeps every token in device memory", "the reference", open=False),
    "streaming": Preset(
        "first tokens and the newest ones, at their true positions",
        "2309.17453",
        {"scorer": "recency", "scope": "token", "sinks": 4},
        ("budget",),
    ),
    "h2o": Preset(
        "heavy hitters by accumulated attention, per layer and KV head, and the newest half of the budget",
        "2306.14048",
        {"scorer": "attention", "scope": "head", "recent_share": 0.5},
        ("budget",),
    ),
    "random": Preset(
        "a uniform random subset; any signal must beat it",
        "2609.03430",
        {"scorer": "random", "scope": "head", "pin_prompt": True},
        ("budget",),
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
    ),
}


def parse_policy(entry: str | Mapping[str, Any], where: str = "policy") -> Policy:
    """Resolves a preset name, or a mapping with `name` and knobs, into a `Policy`.

    Raises:
        PolicyError: unknown preset or knob, a value out of range, a missing or contradictory knob.
    """
    return _resolve(entry, where)


def _resolve(entry: str | Mapping[str, Any], where: str) -> Policy:
    given = {"name": entry} if isinstance(entry, str) else dict(entry)
    if not isinstance(given.get("name"), str):
        raise PolicyError(f"{where}.name: is required; allowed: {', '.join(PRESETS)}.")
    name = given.pop("name")
    preset = PRESETS.get(name)
    if preset is None:
        hint = nearest(name, PRESETS)
        raise PolicyError(f"{where}.name: unknown policy '{name}'.{hint} Allowed: {', '.join(PRESETS)}.")
    if given and not preset.open:
        raise PolicyError(f"{where}.{next(iter(given))}: '{name}' {preset.summary} and takes no parameters.")
    for knob in given:
        if knob not in KNOBS:
            raise PolicyError(f"{where}.{knob}: unknown key.{nearest(knob, KNOBS)} Allowed keys: {', '.join(KNOBS)}.")
    for knob in preset.required:
        if knob not in given:
            raise PolicyError(f"{where}.{knob}: '{name}' needs it, for example {{name: {name}, {_example(preset)}}}.")
    return _assemble(name, {**preset.defaults, **given}, where)


def _assemble(name: str, knobs: Mapping[str, Any], where: str) -> Policy:
    groups: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    for knob, value in knobs.items():
        groups[KNOBS[knob]][knob] = value
    return Policy(
        name=name,
        label=_label(name, knobs),
        scorer=Scorer.parse(groups["scorer"], where, PolicyError),
        placement=Placement.parse(groups["placement"], where, PolicyError),
        storage=Storage.parse(groups["storage"], where, PolicyError),
        schedule=Schedule.parse(groups["schedule"], where, PolicyError),
    )


def _example(preset: Preset) -> str:
    values = {"budget": "0.5", "hbm": "0.5", "evict": "0.03"}
    return ", ".join(f"{knob}: {values[knob]}" for knob in preset.required)


def _label(name: str, knobs: Mapping[str, Any]) -> str:
    """`h2o budget=0.5 pin_prompt`: the required knobs and whatever differs from the preset."""
    defaults = {**_part_defaults(), **PRESETS[name].defaults}
    words = [name]
    for knob in KNOBS:
        if knob not in knobs or (
            knob in defaults and knobs[knob] == defaults[knob] and knob not in PRESETS[name].required
        ):
            continue
        value = knobs[knob]
        if value is True:
            words.append(knob)
        elif isinstance(value, Mapping):
            words.append(f"{knob}={','.join(str(v) for v in value.values())}")
        else:
            words.append(f"{knob}={value:g}" if isinstance(value, float) else f"{knob}={value}")
    return " ".join(words)


@cache
def _part_defaults() -> dict[str, Any]:
    return {knob: model.model_fields[knob].default for model in PARTS.values() for knob in model.model_fields}
