"""What a scorer is: a pure function of what lies beside each token, and hooks through which it is put there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from tiercache.catalog.base import Signal
from tiercache.rope import Rope
from tiercache.store import Geometry


@dataclass(frozen=True)
class Facts:
    """What a scorer may know of the model.

    rope            turns keys and queries back to position 0 and to any other; None where a model has none that is a
                    function of the position alone.
    output_weight   layer -> weight of the attention's output projection [hidden, query_heads * head_dim]; None without
                    a model.
    """

    geometry: Geometry
    rope: Rope | None = None
    output_weight: Callable[[int], Tensor] | None = None


@dataclass(frozen=True)
class View:
    """Some rows at an event: L layers, R rows, H KV heads, S slots, w queries, Hq query heads, d head size.

    pos         int32 [L, R, H, S], true position of each slot's token; -1: the slot is free.
    fields      the scorer's slot fields, each [L, R, H, S].
    candidate   bool [L, R, H, S]: tokens that may move. Scores of others are ignored. `may_move` is it, or makes it.
    seeds       int64 [R], one for each sequence.
    seen        int64 [R], tokens truly seen. `prompt`: of them the prompt's, int64 [R].
    state       the scorer's row state, each [R, ...].
    keys        [L, R, H, S, d], after RoPE; `values` too. Only for a scorer that `needs_keys`.
    queries     [L, R, Hq, w, d], after RoPE, the newest w (a ring: in no order); `query_pos` int64 [R, w] says where
                each was, -1 for none. Only for a scorer with a `query_window`.
    keep        how many candidates of each (layer, head) will survive, on average, for each row; empty where only
                evictions are decided.
    scaling     what logits are multiplied by.

    For an `ordered` scorer slots are sorted by position; free slots, where heads keep different numbers, come last.
    """

    pos: Tensor
    fields: Mapping[str, Tensor]
    may_move: Tensor | Callable[[], Tensor]
    seeds: Tensor
    seen: Tensor
    prompt: Tensor
    state: Mapping[str, Tensor] = field(default_factory=dict)
    keys: Tensor | None = None
    values: Tensor | None = None
    queries: Tensor | None = None
    query_pos: Tensor | None = None
    keep: Sequence[int] = ()
    scaling: float = 1.0

    @property
    def candidate(self) -> Tensor:
        return self.may_move if isinstance(self.may_move, Tensor) else self.may_move()


Source = Tensor | Callable[[], Tensor]  # keys, or what gets them


@dataclass(frozen=True)
class Part:
    """One tier's share of a decode step at one layer, [rows, KV heads, slots]: `weights` have the group before slots.

    The weights of all parts together sum to one for each query head. None if the scorer doesn't need attention, or
    wants no more than their sums over the heads that share a KV head, `mass`.
    """

    fields: Mapping[str, Tensor]
    pos: Tensor
    source: Source
    weights: Tensor | None
    summed: Tensor | None = None

    @cached_property
    def mass(self) -> Tensor:
        """[rows, KV heads, slots]: weights, summed over the group."""
        if self.summed is not None:
            return self.summed
        assert self.weights is not None, "this scorer needs attention"
        return self.weights.sum(2)

    @cached_property
    def keys(self) -> Tensor:
        """[rows, KV heads, slots, d], in full precision: a quantised tier's are unpacked when somebody looks."""
        return self.source if isinstance(self.source, Tensor) else self.source()


@dataclass(frozen=True)
class Observed:
    """One decode step at one layer. query [rows, KV heads, group, d]; now int64 [rows], the query's true position."""

    layer: int
    query: Tensor
    parts: Sequence[Part]
    now: Tensor
    state: Mapping[str, Tensor]
    scaling: float


@dataclass(frozen=True)
class ObservedPrefill:
    """A chunk of one sequence's prompt at one layer.

    fields    each [KV heads, keys so far].
    weights   [KV heads, group, chunk, keys so far].
    counted   bool [chunk], False for padding on the right.
    start     position of the chunk's first query.
    """

    layer: int
    fields: Mapping[str, Tensor]
    weights: Tensor
    counted: Tensor
    start: int


class Scorer:
    """Ranks tokens; higher is more important. Override what is needed; every hook does nothing by default.

    needs_attention   `observe` and `observe_prefill` are called, with the weights of each step.
    sums_heads        of a decode step it looks at `Part.mass` alone, not at `Part.weights`; kernels then write less.
    accumulates       a slot field of type `wide`: `observe` multiplies it by `retains`, adds `Part.mass`, and no more.
                      Kernels do it then themselves where they can, without calling `observe`.
    observes          `observe` is called without weights, so attention stays on fused kernels.
    remembers         `remember` is called at each event, before `score`.
    needs_keys        `View.keys` and `View.values` are there.
    needs_positions   `Part.pos` is up to date at every step, not only at events.
    query_window      newest queries that are kept for `View.queries`.
    hidden_layers     decoder layers whose output `observe_hidden` sees.
    ordered           `score` needs slots sorted by position (a pool along the sequence, say).
    shared            the score is the same in all layers and heads, whatever the scope.
    window            positions that the policy moves together; set for the scorer, before its first use.
    """

    needs_attention = False
    sums_heads = False
    accumulates: str | None = None
    retains: float = 1.0
    observes = False
    remembers = False
    needs_keys = False
    needs_positions = False
    query_window = 0
    hidden_layers: tuple[int, ...] = ()
    ordered = False
    shared = False
    window = 1

    def __init__(self, signal: Signal, facts: Facts) -> None:
        self.signal = signal
        self.facts = facts

    def fields(self) -> dict[str, torch.dtype]:
        """Slot fields that the cache keeps for each token and carries along; a new token's are 0."""
        return {}

    def state(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """State of a sequence: name -> (shape, type). It begins at 0."""
        return {}

    def observe_prefill(self, seen: ObservedPrefill) -> None:
        """A chunk of the prefill; update `seen.fields` in place."""

    def observe(self, seen: Observed) -> None:
        """A decode step at one layer; update the parts' fields and the state in place."""
        if self.accumulates is not None:
            for part in seen.parts:
                part.fields[self.accumulates].mul_(self.retains).add_(part.mass)

    def observe_hidden(self, hidden: Mapping[int, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """New tokens' hidden states by layer, each [rows, n, hidden] -> slot fields of these tokens, each [rows, n].

        Called for a chunk of one sequence's prompt, and for each decode step (n = 1); `state` is that of the rows.
        """
        return {}

    def remember(self, view: View) -> dict[str, Tensor]:
        """New values of slot fields, each [L, R, H, S], from what the event sees; `score` then finds them there."""
        return {}

    def thought(self, state: Mapping[str, Tensor]) -> int:
        """The kind of the thought that ends now (`tiercache.thoughts`), of one row; reads from the device."""
        raise NotImplementedError(f"{type(self).__name__} knows no thoughts, which segments need")

    def score(self, view: View) -> Tensor:
        """Scores [L, R, H, S], or a shape that broadcasts to it."""
        raise NotImplementedError

    @property
    def wide(self) -> torch.dtype:
        """Type of accumulators: float32, or float64 for a float64 model. bfloat16 stops growing after 256 additions."""
        return torch.float64 if self.facts.geometry.dtype == torch.float64 else torch.float32


def reduce_scope(score: Tensor, scope: str) -> Tensor:
    """Mean over the heads of a layer, or over all layers and heads; slots must hold the same token in all of them."""
    if scope == "layer":
        return score.mean(dim=2, keepdim=True)
    return score.mean(dim=(0, 2), keepdim=True) if scope == "token" else score
