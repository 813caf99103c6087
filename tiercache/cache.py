"""The tiered cache of a running batch: owner of all stores, of every sequence's tier counts, and of their agreement."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tiercache.ledger import SequenceBytes, Traffic, Usage, close_account
from tiercache.placement import RowTiers, next_move, protected_intervals
from tiercache.policy import Policy
from tiercache.retier import NOWHERE, retier
from tiercache.scorers import make_scorer
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

    def __init__(self, geometry: Geometry, policy: Policy, device: torch.device) -> None:
        self.geometry = geometry
        self.policy = policy
        self.scorer = make_scorer(policy)
        fields = self.scorer.fields(geometry.dtype) if policy.needs_attention or not self.scorer.needs_attention else {}
        self.hbm = TierStore(geometry, fields, device)
        self.ddr = TierStore(geometry, fields, torch.device("cpu"))
        self.packed = PackedStore(geometry, fields, device)
        self.stores: list[TierStore] = [self.hbm, self.ddr, self.packed] if policy.placement.tiered else [self.hbm]
        self.sequences: list[CachedSequence] = []
        self.traffic = Traffic()
        self._victims = torch.zeros(geometry.layers, 0, geometry.kv_heads, dtype=torch.long, device=device)
        # One in, one out: a policy that evicts at every step reuses the victim's slot and copies nothing.
        self._reuses_slots = policy.schedule.every == 1 and not policy.placement.tiered

    @property
    def rows(self) -> int:
        return len(self.sequences)

    @property
    def tiers(self) -> list[RowTiers]:
        """Token counts of each row."""
        return [sequence.tiers for sequence in self.sequences]

    @property
    def metadata_token_bytes(self) -> int:
        """Bytes of positions and slot fields for one token over all layers and KV heads."""
        per_slot = torch.int32.itemsize + sum(dtype.itemsize for dtype in self.hbm.fields.values())
        return per_slot * self.geometry.layers * self.geometry.kv_heads

    def allocated_bytes(self) -> int:
        """Bytes of all stores' planes, unused slots and metadata included."""
        return sum(store.allocated_bytes() for store in self.stores)

    def join(self, prompts: Sequence[int], seeds: Sequence[int]) -> slice:
        """Adds sequences with these prompt lengths; returns their rows, with slots reserved for prompt and one more."""
        first = self.rows
        for store in self.stores:
            store.join(len(prompts))
        self.hbm.reserve(0, max(prompts) + 1)
        self.sequences.extend(CachedSequence(RowTiers(p), seed) for p, seed in zip(prompts, seeds, strict=True))
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
            sequence.usage.before_event(sequence.tiers)
        self._events(range(rows.start, rows.stop), reuse=False)

    def open_slots(self) -> tuple[Tensor, Tensor]:
        """Makes room for one token in each row.

        Returns:
            its slot, int64 [layers, rows, kv_heads] (the same in all layers and heads, unless a victim's slot is used
            again), and its true position, the number of tokens truly seen before it, int64 [rows].
        """
        extents = self.hbm.extents
        self.hbm.reserve(0, max(extents) + 1)
        rows, (layers, heads) = self.rows, (self.geometry.layers, self.geometry.kv_heads)
        state = [extents, [each.tiers.seen for each in self.sequences]]
        ends, seen = torch.tensor(state, device=self.hbm.device).unbind(0)
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
        return slots, seen

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
            self.geometry.token_bytes,
            self.geometry.packed_token_bytes,
            self.metadata_token_bytes,
        )
        last = self.rows - 1
        self._write_positions(last)
        for store in self.stores:
            store.leave(row)
        self._victims[:, row] = self._victims[:, last]
        self.sequences[row] = self.sequences[last]
        self.sequences.pop()
        return account

    def _events(self, rows: range, reuse: bool) -> None:
        single: list[int] = []
        for row in rows:
            tier = self.sequences[row].tiers
            move = next_move(self.policy, tier)
            if move is None:
                continue
            self._write_positions(row)
            if reuse and move.evict == 1:
                single.append(row)
            else:
                seed = torch.tensor(self.sequences[row].seed, device=self.hbm.device)
                spans = protected_intervals(self.policy.placement, tier)
                self._count(retier(self.stores, row, move, spans, self.scorer, seed))
            tier.apply(move)
        if single:
            self._free_one(single)

    def _free_one(self, rows: list[int]) -> None:
        """Evicts the lowest-ranked candidate of each of these rows; its slot stays free for the next token."""
        total, used = self.rows, self.hbm.used()
        device = self.hbm.device
        planes = {name: self.hbm.planes[name][:, :total, :, :used] for name in ("pos", *self.hbm.fields)}
        pos = planes["pos"]
        candidate = (pos >= 0) & ~self._protected(pos)
        seeds = torch.tensor([sequence.seed for sequence in self.sequences], device=device)
        score = self.scorer.score(planes, seeds)
        score = score if score.is_floating_point() else score.float()  # positions and draws are exact in 24 bits
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
        full = (self.geometry.token_bytes + self.metadata_token_bytes) // pairs
        packed = (self.geometry.packed_token_bytes + self.metadata_token_bytes) // pairs
        self.traffic.to_host += (crossed[0][1] + crossed[2][1]) * full
        self.traffic.to_device += crossed[1][0] * full + crossed[1][2] * packed

    def check(self) -> None:
        """Asserts that storage and counts agree. Reads everything: for tests, not for the loop."""
        for row, tier in enumerate(self.tiers):
            self._write_positions(row)
            held = [store.planes["pos"][:, row].cpu() for store in self.stores]
            counts = [tier.hbm, tier.ddr, tier.packed]
            for pos, count in zip(held, counts, strict=False):
                assert ((pos >= 0).sum(-1) == count).all(), f"row {row}: counted {count}, stored otherwise"
            merged = torch.cat(held, dim=-1).sort(dim=-1).values
            live = merged[..., merged.shape[-1] - tier.live :]
            assert (live.diff(dim=-1) > 0).all(), "a token is in two tiers"
            assert ((live >= 0) & (live < tier.seen)).all(), "a tier holds a token never seen"
            assert tier.live + tier.evicted == tier.seen, "tiers partition the seen tokens"
