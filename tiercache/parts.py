"""The parts of a policy beside its scorer: placement, storage, schedule. Plain data; no torch here."""

from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from tiercache.strict import Strict

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Tokens = Annotated[int, Field(ge=0, strict=True)]
Positive = Annotated[int, Field(ge=1, strict=True)]
Ratio = Annotated[float, Field(gt=0.0, le=1.0)]


class Budget(Strict):
    """How much a KV head may keep: tokens, a share of the tokens that compete, or a share of the full cache's bytes.

    `tokens` counts everything, the prompt included. `ratio` is of all tokens seen so far; with a pinned prompt it is
    of the generated ones, on top of the prompt. `bytes` is of the device bytes that the full cache would hold by now,
    prompt included; scales and zero points of quantised tokens count. Shares are re-applied as the sequence grows, so
    they need no guess of the final length.
    """

    tokens: Positive | None = None
    ratio: Ratio | None = None
    bytes: Ratio | None = None

    @model_validator(mode="after")
    def _one_of(self) -> "Budget":
        if sum(value is not None for value in (self.tokens, self.ratio, self.bytes)) != 1:
            raise ValueError("give one of tokens (a whole number from 1), ratio or bytes (a share above 0, at most 1)")
        return self

    def __str__(self) -> str:
        if self.bytes is not None:
            return f"bytes:{self.bytes:g}"
        return str(self.tokens) if self.tokens is not None else f"{self.ratio:g}"


def _ladder(value: object) -> object:
    if isinstance(value, int):
        raise ValueError("is a list of falling sizes; in a sweep file, where a list is a grid, write [[16, 8, 4]]")
    return value


def _budget(value: object) -> object:
    """`512` means tokens and `0.5` a ratio; the long form is `{tokens: 512}`, `{ratio: 0.5}` or `{bytes: 0.2}`."""
    if isinstance(value, bool | str | list | tuple):
        raise ValueError("is a number of tokens (512), a ratio (0.5) or a mapping such as {bytes: 0.2}")
    if isinstance(value, int):
        return {"tokens": value}
    if isinstance(value, float):
        return {"ratio": value}
    return value


class Placement(Strict):
    """What is protected, and how ranked candidates are divided over the tiers.

    budget        evict the lowest ranked beyond this.
    evict         instead of a budget: this share of the candidates leaves for good at each event (`compound`), or
                  this share of all that ever were candidates has left by then (not `compound`; 2605.09490).
    hbm           share of the surviving candidates that stays in device memory, best first.
    packed        share of the surviving candidates that is quantised, worst first; what is left goes to the host.
    packed_bytes  with a budget, instead of `packed`: share of the bytes left beside the protected tokens that goes to
                  quantised tokens, which are correspondingly more (2608.05326).
    window        tokens move in windows of this many positions, ranked by their sum.
    chunk         instead of a budget: when a chunk of this many tokens and the next one are complete, `chunk_keep` of
                  it stay, for good (2504.04704).
    segment       decode steps of one thought: segments shrink along `ladder` as thoughts end and while the budget is
                  exceeded (2510.01290).
    pack_thoughts a thought is quantised when it ends; what stays of it stays quantised.
    share         who shares a budget: `head`: every (layer, KV head) keeps alike; `layer`: the best of all heads of a
                  layer stay (AdaKV, 2407.11550); `all`: the best of all layers and heads (2510.13334).
    floor         with a shared budget: what a head keeps at least, as a share of what it would keep alone.
    pyramid       layers keep linearly less with depth, the last this many times less than the mean (2406.02069).
    sinks         first tokens of the sequence, never moved. `generated_sinks`: the same for the generated part.
    recent        newest tokens, never moved. `recent_share`: the same as a share of the budget (H2O uses one half),
                  at most `recent_cap`.
    pin_prompt    the whole prompt is never moved.
    """

    budget: Annotated[Budget | None, BeforeValidator(_budget)] = None
    evict: Share = 0.0
    compound: bool = True
    hbm: Share = 1.0
    packed: Share = 0.0
    packed_bytes: Share = 0.0
    window: Positive = 1
    chunk: Positive | None = None
    chunk_keep: Share = 0.5
    segment: Positive | None = None
    ladder: Annotated[tuple[Positive, ...], BeforeValidator(_ladder), Field(min_length=1)] = (64, 32, 16, 8, 4)
    pack_thoughts: bool = False
    share: Literal["head", "layer", "all"] = "head"
    floor: Share = 0.0
    pyramid: Annotated[float, Field(ge=1.0)] | None = None
    sinks: Tokens = 0
    generated_sinks: Tokens = 0
    recent: Positive = 1
    recent_share: Share | None = None
    recent_cap: Positive | None = None
    pin_prompt: bool = False

    @model_validator(mode="after")
    def _possible(self) -> "Placement":
        if (self.budget is not None) + (self.evict > 0) + (self.chunk is not None) > 1:
            raise ValueError("budget, evict and chunk each say what leaves; give one of them")
        if self.hbm + self.packed > 1 + 1e-9:
            raise ValueError(f"hbm {self.hbm:g} + packed {self.packed:g} exceed 1; they share the survivors")
        if self.packed_bytes and (self.budget is None or self.packed or self.hbm < 1):
            raise ValueError("packed_bytes divides a budget; give one, and neither hbm nor packed")
        if self.chunk is not None and (self.tiered or self.pin_prompt or self.window > 1):
            raise ValueError("chunk evicts only; it can't be combined with tiers, windows or pin_prompt")
        tiers = self.hbm < 1 or self.packed_bytes > 0
        if self.segment is not None and (self.budget is None or tiers or self.window > 1 or self.ragged):
            raise ValueError("segment shrinks thoughts to a budget; give one, without tiers, windows or shared budgets")
        if any(a <= b for a, b in pairwise(self.ladder)):
            raise ValueError(f"ladder: sizes fall from step to step; {list(self.ladder)} do not")
        if self.pack_thoughts and self.segment is None:
            raise ValueError("pack_thoughts quantises thoughts as they end; give segment, their length")
        if self.ragged and (self.budget is None or self.tiered or self.window > 1):
            raise ValueError("share and pyramid divide a budget; give one, without tiers or windows")
        if self.pyramid is not None and self.share == "all":
            raise ValueError("a pyramid divides over the layers, which share: all does by score; give one of them")
        if self.floor and self.share == "head":
            raise ValueError("floor is what a head keeps of a shared budget; give share: layer or share: all")
        tokens = self.budget.tokens if self.budget else None
        if tokens is not None:
            recent = max(self.recent, int((self.recent_share or 0) * tokens))
            recent = min(recent, self.recent_cap or recent)
            floor = self.sinks + self.generated_sinks + recent
            if tokens < floor:
                raise ValueError(
                    f"a budget of {tokens} tokens is below the protected {floor} (sinks {self.sinks} + generated "
                    f"sinks {self.generated_sinks} + recent {recent}); allowed: {floor} or more, or protect less"
                )
        return self

    @cached_property
    def tiered(self) -> bool:
        """Whether anything ever lives outside full-precision device memory."""
        return self.hbm < 1.0 or self.packed_bytes > 0 or self.pack_thoughts

    @cached_property
    def ragged(self) -> bool:
        """Whether (layer, KV head) pairs may keep different numbers of tokens."""
        return self.share != "head" or self.pyramid is not None

    @cached_property
    def evicts(self) -> bool:
        return self.budget is not None or self.evict > 0 or self.chunk is not None


class Storage(Strict):
    """How the tiers outside device memory are stored and read, and at which positions tokens are read.

    t1_read      `merge`: attention over host memory is computed there and combined by log-sum-exp; only queries and
                 partial outputs cross the bus. `stream`: each layer's T1 is copied to a staging buffer for its step.
    packed_bits  what an element of T2 takes: 8, 4 or 2 bits, or `fp8` (e4m3).
    transition_bits
                 the same for transitions, where thoughts are quantised; at most `packed_bits` (2510.01290).
    key_axis     `token`: a key shares a range with the other channels of its token. `channel`: with the same channel of
                 the other tokens of its window (`window` above 1). Values always lie along the token axis.
    group        channels of a token that share a range; by default, and at most, the whole head.
    rope_pairs   with `key_axis: channel`: the two channels that RoPE turns together share a range.
    grids        type of scales and zero points; their bytes are counted.
    ledger       a window's first codes are kept for good and used again whenever it returns to T2, so that nothing is
                 ever quantised twice (2608.05326). What is kept beside tokens in T0 and T1 counts as metadata.
    positions    `true`: a token keeps the position at which it was written, and a query has the number of tokens truly
                 seen. `cache`: keys are stored unrotated and numbered anew at each step, 0 to kept - 1 (2309.17453).
                 `rerotated`: the same numbers, by turning the kept keys at each event. `drifted`: keys keep their
                 rotation but a query's position is the number of tokens kept: a bug of the field, here as its control.
    """

    t1_read: Literal["merge", "stream"] = "merge"
    packed_bits: Literal[8, 4, 2, "fp8"] = 8
    transition_bits: Literal[8, 4, 2] | None = None
    key_axis: Literal["token", "channel"] = "token"
    group: Positive | None = None
    rope_pairs: bool = False
    grids: Literal["float32", "float16"] = "float32"
    ledger: bool = False
    positions: Literal["true", "cache", "rerotated", "drifted"] = "true"

    @model_validator(mode="after")
    def _paired(self) -> "Storage":
        if self.rope_pairs and self.key_axis == "token":
            raise ValueError("rope_pairs pairs the ranges of channels; it needs key_axis: channel")
        if self.transition_bits is not None and self.transition_bits > self.element_bits:
            raise ValueError(
                f"transition_bits {self.transition_bits} is above packed_bits {self.packed_bits}; "
                "allowed: as many or fewer"
            )
        return self

    @property
    def element_bits(self) -> int:
        """Bits of an element of T2."""
        return 8 if self.packed_bits == "fp8" else self.packed_bits

    @property
    def coarse(self) -> "Storage | None":
        """How transitions are stored, where they have a format of their own."""
        if self.transition_bits is None:
            return None
        return self.model_copy(update={"packed_bits": self.transition_bits, "transition_bits": None})

    def group_of(self, head_dim: int) -> int:
        """Channels of a token that share a range, in a head of this size."""
        return min(self.group or head_dim, head_dim)


class Schedule(Strict):
    """When the placement acts: at the end of the prefill, and every `every` decode steps; 0: after the prefill only."""

    every: Tokens = 1


class Reading(Strict):
    """What a decode step reads of what is kept. By default everything.

    pages         instead, whole pages of this many positions (2406.10774); nothing is evicted then.
    read_budget   tokens, or a share of all, that a step reads in pages; at least three pages.
    dense_layers  first layers that read everything.
    share_pages   the query heads of a KV head read the same pages.
    """

    pages: Positive | None = None
    read_budget: Annotated[Budget | None, BeforeValidator(_budget)] = None
    dense_layers: Tokens = 0
    share_pages: bool = False

    @model_validator(mode="after")
    def _together(self) -> "Reading":
        if (self.pages is None) != (self.read_budget is None):
            raise ValueError("pages and read_budget go together")
        if self.read_budget is not None and self.read_budget.bytes is not None:
            raise ValueError("read_budget is of tokens: give a number of them or a ratio")
        return self
