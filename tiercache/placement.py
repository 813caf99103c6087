"""How many tokens go where, as whole numbers on the host.

Which tokens move depends on scores and is decided on the device; *how many* depends only on the policy and on the
lengths. So the engine never waits for the device to learn a length, admission and `tiercache plan` know a
sequence's bytes before it starts, and both use the code that the cache itself obeys. No torch here.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from tiercache.policy import Budget, Placement, Policy


@dataclass
class RowTiers:
    """Token counts of one sequence, the same for each of its (layer, KV head) pairs.

    Invariant: `hbm + ddr + packed + evicted == seen`, and `evicted` never falls.
    """

    prompt: int
    seen: int = 0
    hbm: int = 0
    ddr: int = 0
    packed: int = 0
    evicted: int = 0

    @property
    def live(self) -> int:
        return self.hbm + self.ddr + self.packed

    @property
    def generated(self) -> int:
        """Tokens beyond the prompt whose keys and values have been written."""
        return max(0, self.seen - self.prompt)

    def append(self, tokens: int = 1) -> None:
        """New tokens always begin in device memory."""
        self.seen += tokens
        self.hbm += tokens

    def apply(self, move: "Move") -> None:
        assert move.evict + move.hbm + move.ddr + move.packed == move.candidates, "a move places each candidate once"
        protected = self.live - move.candidates
        self.hbm, self.ddr, self.packed = protected + move.hbm, move.ddr, move.packed
        self.evicted += move.evict
        assert self.live + self.evicted == self.seen, "tiers partition the seen tokens"


@dataclass(frozen=True)
class Move:
    """The outcome of one event: the candidates, ranked best first, are cut into hbm | ddr | packed | evicted."""

    candidates: int
    hbm: int
    ddr: int
    packed: int
    evict: int


def protected_intervals(placement: Placement, row: RowTiers) -> list[tuple[int, int]]:
    """Disjoint, sorted [start, stop) position ranges whose tokens never leave device memory."""
    recent = placement.recent
    if placement.recent_share is not None and placement.budget is not None:
        of_budget = row.prompt if placement.pin_prompt and placement.budget.ratio is not None else 0
        recent = max(
            recent, int(placement.recent_share * (limit(placement.budget, placement.pin_prompt, row) - of_budget))
        )
    spans = [(0, placement.sinks), (row.seen - recent, row.seen)]
    spans.append((row.prompt, row.prompt + placement.generated_sinks))
    if placement.pin_prompt:
        spans.append((0, row.prompt))
    merged: list[tuple[int, int]] = []
    for start, stop in sorted((max(0, a), min(b, row.seen)) for a, b in spans):
        if stop <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def limit(budget: Budget, pin_prompt: bool, row: RowTiers) -> int:
    """Tokens that the budget allows this sequence to keep now."""
    if budget.tokens is not None:
        return budget.tokens
    assert budget.ratio is not None, "a budget has tokens or a ratio"
    if pin_prompt:
        return row.prompt + math.ceil(budget.ratio * row.generated)
    return math.ceil(budget.ratio * row.seen)


def next_move(policy: Policy, row: RowTiers) -> Move | None:
    """The move due for `row` now, or None. Call it after the prefill and after each appended token."""
    placement = policy.placement
    if not (placement.evicts or placement.tiered) or row.seen < row.prompt:
        return None
    if row.generated % policy.schedule.every:
        return None
    protected = sum(stop - start for start, stop in protected_intervals(placement, row))
    candidates = row.live - protected
    assert candidates >= 0, "a protected token is never evicted"
    evict = _evictions(placement, row, candidates)
    survivors = candidates - evict
    hbm = math.floor(placement.hbm * survivors + 1e-9)
    packed = min(survivors - hbm, math.floor(placement.packed * survivors + 1e-9))
    move = Move(candidates, hbm, survivors - hbm - packed, packed, evict)
    if evict == 0 and not placement.tiered:
        return None
    return move


def _evictions(placement: Placement, row: RowTiers, candidates: int) -> int:
    if placement.budget is not None:
        return min(candidates, max(0, row.live - limit(placement.budget, placement.pin_prompt, row)))
    if placement.compound:
        return math.floor(placement.evict * candidates + 1e-9)
    target = math.floor(placement.evict * (candidates + row.evicted) + 1e-9)
    return max(0, target - row.evicted)


def trajectory(policy: Policy, prompt: int, generated: int) -> Iterator[RowTiers]:
    """The tier counts after the prefill and after each of `generated` decode steps."""
    row = RowTiers(prompt)
    for tokens in [prompt, *[1] * generated]:
        row.append(tokens)
        move = next_move(policy, row)
        if move is not None:
            row.apply(move)
        yield replace(row)


@dataclass(frozen=True)
class Footprint:
    """Tokens of one sequence at a given length: what admission reserves and what `plan` prints."""

    hbm_peak: int
    hbm_mean: float
    ddr_peak: int
    packed_peak: int
    evicted_end: int
    full_end: int


@lru_cache(maxsize=4096)
def footprint(policy: Policy, prompt: int, generated: int) -> Footprint:
    """Peaks include the moment before an event, when the newest token is in and nothing has left yet."""
    row = RowTiers(prompt)
    peak = ddr = packed = total = 0
    for step, tokens in enumerate([prompt, *[1] * generated]):
        row.append(tokens)
        peak = max(peak, row.hbm)
        move = next_move(policy, row)
        if move is not None:
            row.apply(move)
        ddr, packed = max(ddr, row.ddr), max(packed, row.packed)
        total += row.hbm if step else 0
    return Footprint(peak, total / generated if generated else row.hbm, ddr, packed, row.evicted, row.seen)
