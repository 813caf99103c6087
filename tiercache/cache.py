"""The tiered cache of a running batch: owner of all stores, of every sequence's tier counts, and of their agreement."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tiercache.errors import PolicyError
from tiercache.ledger import SequenceBytes, Traffic, Usage, close_account
from tiercache.pages import PageBounds
from tiercache.placement import Move, RowTiers, due_moves, protected_intervals
from tiercache.policy import Policy
from tiercache.quantize import formats
from tiercache.ragged import compact, keep_mask
from tiercache.ranking import NOWHERE, Ranker, RowFacts
from tiercache.retier import retier
from tiercache.rowstate import QueryWindow, RowState
from tiercache.scorers import Facts, View, make_scorer
from tiercache.sizes import sizes
from tiercache.store import Geometry, PackedStore, TierStore, empty_value


@dataclass
class CachedSequence:
    """One running sequence's bookkeeping.

    hole        it has a freed slot, which its next token takes.
    unwritten   its newest tokens whose positions aren't in the plane yet: they are consecutive, and nobody reads a
                position before the next event, so they are written in one go.
    """

    tiers: RowTiers
    seed: int
    usage: Usage = field(default_factory=Usage)
    hole: bool = False
    unwritten: int = 0


class TieredCache:
    """Keys and values of the running sequences, each token in exactly one tier for each (layer, KV head).

    Life of a sequence: `join`, `fill` after its prefill, then for each decode step `open_slots` (room for the new
    token), the forward pass, `settle` (the policy's event, if one is due); at its end `leave`.
    """

    def __init__(self, geometry: Geometry, policy: Policy, device: torch.device, facts: Facts | None = None) -> None:
        """Raises PolicyError where the policy's scorer can't work with this model."""
        self.geometry = geometry
        self.policy = policy
        self.facts = facts = facts or Facts(geometry)
        self.scorer = scorer = make_scorer(policy, facts)
        g = geometry
        self.sizes = sizes(policy.storage, policy.placement.window, g.layers, g.kv_heads, g.head_dim, g.dtype.itemsize)
        self.positions = policy.storage.positions
        if self.positions in ("cache", "rerotated") and facts.rope is None:
            raise PolicyError(f"positions: '{self.positions}' needs rotary angles that depend on the position alone.")
        self.ragged = policy.placement.ragged
        self.watches = policy.acts  # a policy that never moves anything needs no scores
        fields = scorer.fields() if self.watches else {}
        packing = formats(policy.storage, policy.placement.window, g.head_dim)
        ledger = packing if policy.storage.ledger and policy.placement.tiered else None
        self.hbm = TierStore(geometry, fields, device, ledger)
        self.ddr = TierStore(geometry, fields, torch.device("cpu"), ledger)
        self.packed = PackedStore(geometry, fields, device, packing, ledger is not None)
        self.stores: list[TierStore] = [self.hbm, self.ddr, self.packed] if policy.placement.tiered else [self.hbm]
        self.state = RowState(scorer.state() if self.watches else {}, device)
        self.queries = QueryWindow(g, scorer.query_window, device) if scorer.query_window and self.watches else None
        reading = policy.reading
        self.pages = PageBounds(g, reading.pages, device) if reading.pages is not None else None
        self.ranker = Ranker(policy, scorer, facts, self.state, self.queries)
        self.sequences: list[CachedSequence] = []
        self.traffic = Traffic()
        self._victims = torch.zeros(g.layers, 0, g.kv_heads, dtype=torch.long, device=device)
        # One in, one out: a policy that evicts at every step reuses the victim's slot and copies nothing.
        placement = policy.placement
        self._reuses_slots = (
            policy.schedule.every == 1
            and not (placement.tiered or placement.chunk or placement.window > 1 or placement.ragged)
            and not (placement.segment or scorer.ordered or scorer.remembers)
            and self.positions in ("true", "drifted")
        )

    @property
    def needs_attention(self) -> bool:
        """Whether the scorer must be handed attention weights."""
        return self.watches and self.scorer.needs_attention

    @property
    def rows(self) -> int:
        return len(self.sequences)

    @property
    def tiers(self) -> list[RowTiers]:
        """Token counts of each row."""
        return [sequence.tiers for sequence in self.sequences]

    @property
    def metadata_token_bytes(self) -> int:
        """Bytes of positions, slot fields and kept codes for one token over all layers and KV heads."""
        return self.hbm.metadata_slot_bytes() * self.geometry.layers * self.geometry.kv_heads

    def allocated_bytes(self) -> int:
        """Bytes of all stores' planes, unused slots and metadata included."""
        pages = self.pages.bytes() if self.pages is not None else 0
        return sum(store.allocated_bytes() for store in self.stores) + pages

    def join(self, prompts: Sequence[int], seeds: Sequence[int]) -> slice:
        """Adds sequences with these prompt lengths; returns their rows, with slots reserved for prompt and one more."""
        first = self.rows
        for store in self.stores:
            store.join(len(prompts))
        self.hbm.reserve(0, max(prompts) + 1)
        self.sequences.extend(CachedSequence(RowTiers(p), seed) for p, seed in zip(prompts, seeds, strict=True))
        self.state.join(first, len(prompts))
        if self.queries:
            self.queries.state.join(first, len(prompts))
        missing = self.rows - self._victims.shape[1]
        if missing > 0:
            more = self._victims.new_zeros(self._victims.shape[0], missing, self._victims.shape[2])
            self._victims = torch.cat([self._victims, more], dim=1)
        return slice(first, self.rows)

    def fill(self, rows: slice) -> None:
        """Records the prompts' tokens, whose keys and values the prefill has written to slots [0, prompt)."""
        pos = self.hbm.planes["pos"]
        for row in range(rows.start, rows.stop):
            sequence = self.sequences[row]
            length = sequence.tiers.prompt
            pos[:, row, :, :length] = torch.arange(length, dtype=torch.int32, device=pos.device)
            self.hbm.extents[row] = length
            sequence.tiers.append(length)
            if self.positions == "cache":
                self._unrotate(row, length)
            if self.pages is not None:
                self.pages.reserve(row + 1, length)
                self.pages.fill(row, self.hbm.planes["k"][:, row, :, :length])
            sequence.usage.before_event(sequence.tiers)
        self._events(range(rows.start, rows.stop), reuse=False)

    def _unrotate(self, row: int, length: int) -> None:
        """Turns a prompt's keys back to position 0: from here on they are numbered at each step."""
        assert self.facts.rope is not None, "checked when the cache was made"
        keys = self.hbm.planes["k"][:, row, :, :length]
        keys.copy_(self.facts.rope.turn(keys, -torch.arange(length, device=keys.device)))

    def open_slots(self) -> tuple[Tensor, Tensor, Tensor]:
        """Makes room for one token in each row.

        Returns:
            its slot, int64 [layers, rows, kv_heads] (the same in all layers and heads, unless a victim's slot is used
            again); its true position, the number of tokens truly seen before it, int64 [rows]; and the position at
            which the model is to rotate it, the same unless the policy renumbers (`positions`).
        """
        extents = self.hbm.extents
        self.hbm.reserve(0, max(extents) + 1)
        if self.pages is not None:
            self.pages.reserve(self.rows, max(extents) + 1)
        rows, (layers, heads) = self.rows, (self.geometry.layers, self.geometry.kv_heads)
        state = [extents, [each.tiers.seen for each in self.sequences]]
        if self.positions != "true":
            state.append([each.tiers.live for each in self.sequences])
        ends, seen, *live = torch.tensor(state, device=self.hbm.device).unbind(0)
        slots = ends.view(1, rows, 1).expand(layers, rows, heads)
        holes = [sequence.hole for sequence in self.sequences]
        if any(holes):
            hole = torch.tensor(holes, device=self.hbm.device).view(1, rows, 1)
            slots = torch.where(hole, self._victims[:, :rows], slots)
            index = slots.unsqueeze(-1)
            self.hbm.planes["pos"].scatter_(3, index, seen.int().view(1, rows, 1, 1).expand_as(index))
        for row, sequence in enumerate(self.sequences):
            sequence.tiers.append()
            if not sequence.hole:
                extents[row] += 1
                sequence.unwritten += 1
            sequence.hole = False
        if self.ragged or (self.watches and self.scorer.needs_positions):
            for row in range(rows):
                self._write_positions(row)
        return slots, seen, live[0] if live else seen

    def _write_positions(self, row: int) -> None:
        """Brings the position plane up to date. A row's unwritten tokens are its newest and fill its last slots."""
        sequence, end = self.sequences[row], self.hbm.extents[row]
        count, seen = sequence.unwritten, sequence.tiers.seen
        if count:
            newest = torch.arange(seen - count, seen, dtype=torch.int32, device=self.hbm.device)
            self.hbm.planes["pos"][:, row, :, end - count : end] = newest
            sequence.unwritten = 0

    def settle(self) -> None:
        """Runs each row's event if one is due after a decode step, and books the step."""
        for sequence in self.sequences:
            sequence.usage.before_event(sequence.tiers)
        self._events(range(self.rows), reuse=self._reuses_slots)
        for sequence in self.sequences:
            sequence.usage.after_event(sequence.tiers)

    @torch.inference_mode()
    def leave(self, row: int) -> SequenceBytes:
        """Frees a row; the last row takes its index. Returns the sequence's ledger."""
        sequence = self.sequences[row]
        account = close_account(
            sequence.usage,
            sequence.tiers,
            self.sizes,
            self.metadata_token_bytes,
        )
        last = self.rows - 1
        self._write_positions(last)
        for store in self.stores:
            store.leave(row)
        self.state.leave(row, last)
        if self.queries:
            self.queries.state.leave(row, last)
        if self.pages is not None:
            self.pages.leave(row, last)
        self._victims[:, row] = self._victims[:, last]
        self.sequences[row] = self.sequences[last]
        self.sequences.pop()
        return account

    def _events(self, rows: range, reuse: bool) -> None:
        single: list[int] = []
        for row in rows:
            tier = self.sequences[row].tiers
            segment = self.policy.placement.segment
            if segment is not None and tier.generated and tier.generated % segment == 0:
                tier.thought = self.scorer.thought(self.state.rows(slice(row, row + 1)))
            for move in due_moves(self.policy, tier, self.sizes):
                self._write_positions(row)
                if reuse and move.evict == 1:
                    single.append(row)
                else:
                    self._move(row, move)
                tier.apply(move)
        if single:
            self._free_one(single)

    def _move(self, row: int, move: Move) -> None:
        sequence = self.sequences[row]
        tiers, spans = sequence.tiers, protected_intervals(self.policy.placement, sequence.tiers)
        facts = RowFacts(row, sequence.seed, tiers.seen, tiers.prompt, spans, move.candidates - move.evict)
        if self.ragged:
            score, pos, protected = self.ranker.row_scores(self.stores, facts)
            keep = keep_mask(score, pos, protected, tiers.live - move.evict, self.policy.placement)
            compact(self.hbm, row, keep)
            return
        best = self.ranker.best_first(self.stores, facts)
        renumber = self.facts.rope if self.positions == "rerotated" else None
        self._count(retier(self.stores, row, move, best, renumber))

    def _free_one(self, rows: list[int]) -> None:
        """Evicts the lowest-ranked candidate of each of these rows; its slot stays free for the next token."""
        total, used = self.rows, self.hbm.used()
        device = self.hbm.device
        planes = {name: self.hbm.planes[name][:, :total, :, :used] for name in ("pos", *self.hbm.fields)}
        pos = planes["pos"]
        candidate = (pos >= 0) & ~self._protected(pos)
        score = self.ranker.score(self._view(planes, candidate))
        score = score.masked_fill(~candidate, float("inf"))
        lowest = candidate & (score == score.amin(-1, keepdim=True))
        victim = torch.where(lowest, pos, NOWHERE).argmin(-1)  # among equals the oldest goes
        self._victims[:, :total] = victim
        for row in rows:
            self.sequences[row].hole = True
        chosen = torch.tensor([sequence.hole for sequence in self.sequences], device=device).view(1, total, 1, 1)
        index = victim.unsqueeze(-1)
        for name, plane in planes.items():
            plane.scatter_(3, index, torch.where(chosen, empty_value(name), plane.gather(3, index)))

    def _view(self, planes: dict[str, Tensor], candidate: Tensor) -> View:
        """All rows at once, slots as they lie."""
        device, total, used = candidate.device, self.rows, candidate.shape[3]
        facts = [[each.seed, each.tiers.seen, each.tiers.prompt] for each in self.sequences]
        seeds, seen, prompt = torch.tensor(facts, device=device).unbind(1)
        keys, values = (
            (self.hbm.planes[side][:, :total, :, :used] for side in ("k", "v"))
            if self.scorer.needs_keys
            else (None, None)
        )
        queries, places = self.queries.read(slice(0, total)) if self.queries else (None, None)
        return View(
            pos=planes["pos"],
            fields={name: planes[name] for name in self.hbm.fields},
            candidate=candidate,
            seeds=seeds,
            seen=seen,
            prompt=prompt,
            state=self.state.rows(slice(0, total)),
            keys=keys,
            values=values,
            queries=queries,
            query_pos=places,
            scaling=self.geometry.head_dim**-0.5,
        )

    def _protected(self, pos: Tensor) -> Tensor:
        """Which slots hold protected tokens; pos [layers, rows, kv_heads, slots]."""
        spans = [protected_intervals(self.policy.placement, tier) for tier in self.tiers]
        width = max(len(row) for row in spans)
        padded = [row + [(0, 0)] * (width - len(row)) for row in spans]
        edges = torch.tensor(padded, dtype=torch.int32, device=pos.device)  # [rows, width, 2]
        result = torch.zeros_like(pos, dtype=torch.bool)
        for i in range(width):
            start, stop = edges[:, i, 0].view(1, -1, 1, 1), edges[:, i, 1].view(1, -1, 1, 1)
            result |= (pos >= start) & (pos < stop)
        return result

    def _count(self, crossed: list[list[int]]) -> None:
        """Books an event's moves between device (hbm, packed) and host (ddr) memory, metadata included."""
        if len(self.stores) == 1:
            return
        pairs = self.geometry.layers * self.geometry.kv_heads
        full = (self.sizes.token + self.metadata_token_bytes) // pairs
        packed = (self.sizes.packed // self.sizes.window + self.metadata_token_bytes) // pairs
        self.traffic.to_host += (crossed[0][1] + crossed[2][1]) * full
        self.traffic.to_device += crossed[1][0] * full + crossed[1][2] * packed

    def check(self) -> None:
        """Asserts that storage and counts agree. Reads everything: for tests, not for the loop."""
        for row, tier in enumerate(self.tiers):
            self._write_positions(row)
            held = [store.planes["pos"][:, row].cpu() for store in self.stores]
            counts = [tier.hbm, tier.ddr, tier.packed]
            for pos, count in zip(held, counts, strict=False):
                found = (pos >= 0).sum(-1)
                agrees = found.sum() == count * found.numel() if self.ragged else (found == count).all()
                assert agrees, f"row {row}: counted {count}, stored otherwise"
            assert tier.live + tier.evicted == tier.seen, "tiers partition the seen tokens"
            if self.ragged:
                continue
            merged = torch.cat(held, dim=-1).sort(dim=-1).values
            live = merged[..., merged.shape[-1] - tier.live :]
            assert (live.diff(dim=-1) > 0).all(), "a token is in two tiers"
            assert ((live >= 0) & (live < tier.seen)).all(), "a tier holds a token never seen"
