"""How many tokens go where, as whole numbers on the host.

Which tokens move depends on scores and is decided on the device; *how many* depends only on the policy and on the
lengths. So the engine never waits for the device to learn a length, admission and `tiercache plan` know a
sequence's bytes before it starts, and both use the code that the cache itself obeys. No torch here.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tiercache.parts import Budget, Placement
from tiercache.policy import Policy
from tiercache.sizes import Sizes
from tiercache.thoughts import REASONING, TRANSITION, Thoughts


@dataclass
class RowTiers:
    """Token counts of one sequence, the same for each of its (layer, KV head) pairs.

    Invariant: `hbm + ddr + packed + evicted == seen`, and `evicted` never falls.

    coarse    those of the packed that are stored as transitions are.
    chunks    compressed so far, where the placement works by chunks.
    thoughts  closed so far, where it works by segments.
    thought   the kind of the one that ends now, which only the engine knows (a plan takes the kind kept longest).
    """

    prompt: int
    seen: int = 0
    hbm: int = 0
    ddr: int = 0
    packed: int = 0
    coarse: int = 0
    evicted: int = 0
    chunks: int = 0
    thoughts: Thoughts = field(default_factory=Thoughts)
    thought: int = REASONING

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
        self.coarse = move.coarse
        self.evicted += move.evict
        self.chunks += move.chunk
        assert self.live + self.evicted == self.seen, "tiers partition the seen tokens"


class Move(NamedTuple):
    """The outcome of one event: the candidates, ranked best first, are cut into hbm | ddr | packed | evicted.

    `coarse`: those of the packed that are stored as transitions are.
    """

    candidates: int
    hbm: int
    ddr: int
    packed: int
    evict: int
    coarse: int = 0
    chunk: bool = False


def protected_intervals(placement: Placement, row: RowTiers) -> list[tuple[int, int]]:
    """Disjoint, sorted [start, stop) position ranges whose tokens never leave device memory, as whole windows."""
    if placement.chunk is not None:  # everything but the chunk that is due
        start = placement.sinks + row.chunks * placement.chunk
        due = row.seen >= start + 2 * placement.chunk
        spans = [(0, start), (start + placement.chunk if due else start, row.seen)]
    elif placement.segment is not None:  # everything but the segment that shrinks
        segment = row.thoughts.shrinking
        spans = [(0, row.seen)] if segment is None else [(0, segment.start), (segment.stop, row.seen)]
    else:
        first, seen = max(placement.sinks, row.prompt) if placement.pin_prompt else placement.sinks, row.seen
        newest = seen - recent_tokens(placement, row)
        if placement.window == 1 and not placement.generated_sinks and 0 < first < newest < seen:
            return [(0, first), (newest, seen)]  # the usual case, and this is asked for each row at each step
        spans = [(0, first), (max(0, newest), seen)]
        if placement.generated_sinks:
            spans.append((row.prompt, row.prompt + placement.generated_sinks))
    size, seen = placement.window, row.seen
    merged: list[tuple[int, int]] = []
    spans.sort()
    for start, stop in spans:
        stop = stop if stop < seen else seen
        if stop <= start:
            continue
        if size > 1:
            start, stop = start // size * size, min(seen, -(-stop // size) * size)
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def recent_tokens(placement: Placement, row: RowTiers) -> int:
    """Newest tokens that are protected now."""
    recent, budget = placement.recent, placement.budget
    if placement.recent_share is None or budget is None:
        return recent
    if budget.tokens is not None:
        whole = float(budget.tokens)
    elif budget.bytes is not None:
        whole = budget.bytes * row.seen
    else:
        whole = limit(budget, placement.pin_prompt, row) - (row.prompt if placement.pin_prompt else 0)
    recent = max(recent, int(placement.recent_share * whole))
    return min(recent, placement.recent_cap or recent)


def limit(budget: Budget, pin_prompt: bool, row: RowTiers) -> int:
    """Full-precision tokens that the budget allows this sequence to keep now."""
    if budget.tokens is not None:
        return budget.tokens
    if budget.bytes is not None:
        return math.floor(budget.bytes * row.seen + 1e-9)
    assert budget.ratio is not None, "a budget has tokens, a ratio or bytes"
    if pin_prompt:
        return row.prompt + math.ceil(budget.ratio * row.generated)
    return math.ceil(budget.ratio * row.seen)


def next_move(policy: Policy, row: RowTiers, size: Sizes | None = None) -> Move | None:
    """The move due for `row` now, or None. Call it after the prefill and after each appended token.

    `size` is needed where bytes decide. A placement by chunks may have several due: apply each and ask again.
    """
    placement, every = policy.placement, policy.schedule.every
    if not policy.acts or row.seen < row.prompt:
        return None
    if placement.chunk is not None:
        return _chunk_move(placement, placement.chunk, row)
    if row.generated % every if every else row.generated:
        return None
    budget, excess = placement.budget, 0
    if budget is not None and not placement.tiered:
        excess = row.live - limit(budget, placement.pin_prompt, row)
        if excess <= 0:
            return None  # the usual case, and this is asked for each row at each step
    candidates = row.live - sum([stop - start for start, stop in protected_intervals(placement, row)])
    assert candidates >= 0, "a protected token is never evicted"
    if excess > 0:
        evict = min(candidates, -(-excess // placement.window) * placement.window)
        return Move(candidates, candidates - evict, 0, 0, evict) if evict else None
    if budget is not None and (budget.bytes is not None or placement.packed_bytes):
        assert size is not None, "bytes decide"
        share = budget.bytes or limit(budget, placement.pin_prompt, row) / row.seen
        return _byte_move(placement, share, row, candidates, size)
    evict = _evictions(placement, row, candidates)
    survivors = candidates - evict
    hbm = _whole(placement.hbm * survivors, placement.window)
    packed = min(survivors - hbm, _whole(placement.packed * survivors, placement.window))
    move = Move(candidates, hbm, survivors - hbm - packed, packed, evict)
    if evict == 0 and not placement.tiered:
        return None
    return move


def quiet_steps(policy: Policy, row: RowTiers) -> int | None:
    """Tokens that can surely be appended before one after which a move may be due; None: no end of them."""
    placement, every = policy.placement, policy.schedule.every
    if not policy.acts:
        return None
    if placement.chunk is not None or placement.segment is not None:
        return 0
    return every - 1 - row.generated % every if every else None


def _whole(tokens: float, window: int) -> int:
    """Whole windows of tokens, rounded down."""
    return math.floor(tokens / window + 1e-9) * window


def _evictions(placement: Placement, row: RowTiers, candidates: int) -> int:
    window = placement.window
    if placement.budget is not None:
        excess = max(0, row.live - limit(placement.budget, placement.pin_prompt, row))
        return min(candidates, -(-excess // window) * window)
    if placement.compound:
        return _whole(placement.evict * candidates, window)
    target = _whole(placement.evict * (candidates + row.evicted), window)
    return max(0, target - row.evicted)


def _byte_move(placement: Placement, share: float, row: RowTiers, candidates: int, size: Sizes) -> Move:
    """The candidates cut so that device bytes, scales included, stay within a share of the full cache's.

    With `packed_bytes` that share of what the protected tokens leave goes to quantised tokens. Otherwise survivors are
    divided by `hbm` and `packed`, and as many survive as fit; host memory is not counted.
    """
    window = placement.window
    room = max(0.0, share * row.seen * size.token - (row.live - candidates) * size.token)
    if placement.packed_bytes:
        if candidates * size.token <= room + 1e-6:  # nothing has to be quantised
            return Move(candidates, candidates, 0, 0, 0)
        each = size.packed / size.window
        hbm = min(candidates, _whole((1 - placement.packed_bytes) * room / size.token, window))
        if candidates * each <= room and each < size.token:  # all survive: as many in full precision as fit then
            hbm = max(hbm, _whole((room - candidates * each) / (size.token - each), window))
        packed = min(candidates - hbm, _whole((room - hbm * size.token) / each, window))
        return Move(candidates, hbm, 0, packed, candidates - hbm - packed)
    each = placement.hbm * size.token + placement.packed * size.packed / size.window
    survivors = candidates if not each else min(candidates, _whole(room / each, window))
    hbm = _whole(placement.hbm * survivors, window)
    packed = min(survivors - hbm, _whole(placement.packed * survivors, window))
    return Move(candidates, hbm, survivors - hbm - packed, packed, candidates - survivors)


def _chunk_move(placement: Placement, chunk: int, row: RowTiers) -> Move | None:
    """Chunk and reference must both be complete; what was compressed before stays as it is."""
    start = placement.sinks + row.chunks * chunk
    if row.seen < start + 2 * chunk:
        return None
    kept = math.floor(placement.chunk_keep * chunk + 1e-9)
    return Move(chunk, kept, 0, 0, chunk - kept, chunk=True)


def _thought_moves(policy: Policy, segment: int, row: RowTiers, size: Sizes | None) -> Iterator[Move]:
    """The prompt counts as reasoning; the thought that goes on isn't touched."""
    placement, thoughts = policy.placement, row.thoughts
    first = row.prompt if placement.pin_prompt else placement.sinks
    if row.generated == 0:
        ended = thoughts.close(first, row.prompt, REASONING, segment)
    elif row.generated % segment == 0:
        ended = thoughts.close(row.seen - segment, row.seen, row.thought, segment)
    else:
        ended = iter(())
    for stretch in ended:
        if placement.pack_thoughts:
            yield _thought_move(policy, row, stretch.kind, joins=stretch.size)
    if row.generated and row.generated % segment == 0 and row.thought == TRANSITION:
        for shrinking, leaves in thoughts.anneal(placement.ladder, first):
            yield _thought_move(policy, row, shrinking.kind, leaves=leaves)
    while _too_much(placement, row, size):
        before = row.live
        for shrinking, leaves in thoughts.squeeze(placement.ladder, first):
            yield _thought_move(policy, row, shrinking.kind, leaves=leaves)
        if row.live == before:  # everything is at the bottom: the overshoot is counted
            return


def _thought_move(policy: Policy, row: RowTiers, kind: int, joins: int = 0, leaves: int = 0) -> Move:
    """Tokens of one kind join the quantised ones, or leave for good; all others stay where they are."""
    packed, coarse = row.packed, row.coarse
    if policy.placement.pack_thoughts:
        packed += joins - leaves
        coarse += joins - leaves if kind == TRANSITION and policy.storage.coarse else 0
    return Move(packed + leaves, 0, 0, packed, leaves, coarse)


def _too_much(placement: Placement, row: RowTiers, size: Sizes | None) -> bool:
    budget = placement.budget
    assert budget is not None, "checked when the placement was read"
    if budget.bytes is None or not placement.pack_thoughts:
        return row.live > limit(budget, placement.pin_prompt, row)
    assert size is not None, "bytes decide"
    held = row.hbm * size.token + size.packed_bytes(row.packed, row.coarse)
    return held > budget.bytes * row.seen * size.token * (1 + 1e-9)


def trajectory(policy: Policy, prompt: int, generated: int, size: Sizes | None = None) -> Iterator[RowTiers]:
    """The tier counts after the prefill and after each of `generated` decode steps."""
    row = RowTiers(prompt)
    for tokens in [prompt, *[1] * generated]:
        row.append(tokens)
        for move in due_moves(policy, row, size):
            row.apply(move)
        yield replace(row)


def due_moves(policy: Policy, row: RowTiers, size: Sizes | None = None) -> Iterable[Move]:
    """The moves due now, one after the other: the caller applies each before it asks for the next."""
    if policy.placement.segment is not None:
        return _thought_moves(policy, policy.placement.segment, row, size)
    if policy.placement.chunk is not None:
        return _chunk_moves(policy, row)
    move = next_move(policy, row, size)
    return () if move is None else (move,)


def _chunk_moves(policy: Policy, row: RowTiers) -> Iterator[Move]:
    while (move := next_move(policy, row)) is not None:
        yield move
