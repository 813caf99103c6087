"""The tiered cache of a running batch: owner of all stores, of every sequence's tier counts, and of their agreement."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tiercache.errors import PolicyError
from tiercache.events import Events
from tiercache.ledger import SequenceBytes, Traffic, close_account
from tiercache.packed_store import PackedStore
from tiercache.pages import PageBounds
from tiercache.placement import RowTiers
from tiercache.policy import Policy
from tiercache.quantize import formats
from tiercache.ragged_store import RaggedStore
from tiercache.ranking import Ranker
from tiercache.rowstate import QueryWindow, RowState
from tiercache.scorers import Facts, Scorer, make_scorer
from tiercache.sequence import CachedSequence
from tiercache.sizes import sizes
from tiercache.store import GROWTH, Geometry, TierStore
from tiercache.streaming import TransferClock


class TieredCache:
    """Keys and values of the running sequences, each token in exactly one tier for each (layer, KV head).

    Life of a sequence: it is prefilled in a cache of its own (`staging`, `join`, `fill`), so that a long prompt takes
    no room beside the running rows before the policy has acted on it; `adopt` takes it over; then for each decode step
    `open_slots` (room for the new token), the forward pass, `settle` (the policy's event, if one is due); at its end
    `leave`.
    """

    def __init__(
        self,
        geometry: Geometry,
        policy: Policy,
        device: torch.device,
        facts: Facts | None = None,
        scorer: Scorer | None = None,
        staged: bool = False,
    ) -> None:
        """staged: for prefills, whose rows another cache adopts.

        Raises PolicyError where the policy's scorer can't work with this model.
        """
        self.geometry = geometry
        self.policy = policy
        self.facts = facts = facts or Facts(geometry)
        self.scorer = scorer = scorer or make_scorer(policy, facts)
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
        kind = RaggedStore if self.ragged and not staged else TierStore
        self.hbm = kind(geometry, fields, device, ledger)
        self.ddr = TierStore(geometry, fields, torch.device("cpu"), ledger, pinned=device.type == "cuda")
        self.packed = PackedStore(geometry, fields, device, packing, ledger is not None)
        self.stores: list[TierStore] = [self.hbm, self.ddr, self.packed] if policy.placement.tiered else [self.hbm]
        coarse = policy.storage.coarse if policy.placement.pack_thoughts else None
        if coarse is not None:
            self.stores.append(PackedStore(geometry, fields, device, formats(coarse, 1, g.head_dim)))
        self.state = RowState(scorer.state() if self.watches else {}, device)
        self.queries = QueryWindow(g, scorer.query_window, device) if scorer.query_window and self.watches else None
        reading = policy.reading
        self.pages = PageBounds(g, reading.pages, device) if reading.pages is not None else None
        self.sequences: list[CachedSequence] = []
        self.allocated_peak = 0
        self.clock = TransferClock()
        self.ranker = Ranker(policy, scorer, facts, self.state, self.queries)
        self.events = Events(policy, geometry, self.sizes, self.stores, self.sequences, self.ranker)

    @property
    def traffic(self) -> Traffic:
        """What crossed between device and host memory."""
        self.events.traffic.seconds = self.clock.collect()
        return self.events.traffic

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
        """Bytes of positions, slot fields, kept codes and page bounds for one token over all layers and KV heads."""
        g, page = self.geometry, self.policy.reading.pages
        bounds = math.ceil(2 * g.head_dim * g.dtype.itemsize / page) if page else 0
        return (self.hbm.metadata_slot_bytes() + bounds) * g.layers * g.kv_heads

    def allocated_bytes(self) -> int:
        """Bytes of all stores' planes, unused slots and metadata included."""
        pages = self.pages.bytes() if self.pages is not None else 0
        return sum(store.allocated_bytes() for store in self.stores) + pages

    def another(self, staged: bool = False) -> "TieredCache":
        """An empty cache with the same policy and scorer."""
        return TieredCache(self.geometry, self.policy, self.hbm.device, self.facts, self.scorer, staged)

    def staging(self) -> "TieredCache":
        """One for prefills."""
        return self.another(staged=True)

    def adopt(self, staged: "TieredCache", order: Sequence[int]) -> slice:
        """Takes over rows of another cache, in this order; returns their rows here. There they can only be released."""
        first = self.rows
        for row in order:
            staged.sequences[row].write_positions(staged.hbm, row)
        for mine, theirs in zip(self.stores, staged.stores, strict=True):
            mine.adopt(theirs, order)
        self.state.adopt(staged.state, first, order)
        if self.queries and staged.queries:
            self.queries.state.adopt(staged.queries.state, first, order)
        if self.pages is not None and staged.pages is not None:
            self.pages.adopt(staged.pages, first, order)
        self.sequences.extend(staged.sequences[row] for row in order)
        self.events.adopt(staged.events, order)
        beside = 0 if self.hbm.planes is staged.hbm.planes else staged.allocated_bytes()
        peak = max(staged.allocated_peak + self.allocated_bytes() * bool(first), self.allocated_bytes() + beside)
        self.allocated_peak = max(self.allocated_peak, peak)
        return slice(first, self.rows)

    def join(self, prompts: Sequence[int], seeds: Sequence[int]) -> slice:
        """Adds sequences with these prompt lengths; returns their rows, with slots reserved.

        There is room for as many more as a full store would get: else the first tokens after a long prompt would copy
        all of it.
        """
        first = self.rows
        for store in self.stores:
            store.join(len(prompts))
        self.hbm.reserve(0, max(prompts) + max(1, max(prompts) // GROWTH))
        self.sequences.extend(CachedSequence(RowTiers(p), seed) for p, seed in zip(prompts, seeds, strict=True))
        self.state.join(first, len(prompts))
        if self.queries:
            self.queries.state.join(first, len(prompts))
        self.events.join()
        return slice(first, self.rows)

    def copy_prompt(self, source: int, row: int) -> None:
        """`row` has the prompt of `source`: it takes over what the prefill has left there; call `fill` afterwards."""
        self.hbm.copy_row(source, row, self.sequences[source].tiers.prompt)
        self.state.copy_row(source, row)
        if self.queries:
            self.queries.state.copy_row(source, row)

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
        self.allocated_peak = max(self.allocated_peak, self.allocated_bytes())
        self.events.run(range(rows.start, rows.stop), reuse=False)
        self._trim()

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
        if self.hbm.vacant:  # many may have left at once: one copy for all of them
            self._trim()
        if isinstance(self.hbm, RaggedStore):
            return self._open_stretches(self.hbm)
        assert not self.ragged, "a prefill's rows are adopted before they go on"
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
            slots = torch.where(hole, self.events.victims[:, :rows], slots)
            index = slots.unsqueeze(-1)
            self.hbm.planes["pos"].scatter_(3, index, seen.int().view(1, rows, 1, 1).expand_as(index))
        for row, sequence in enumerate(self.sequences):
            sequence.tiers.append()
            if not sequence.hole:
                extents[row] += 1
                sequence.unwritten += 1
            sequence.hole = False
        if self.watches and self.scorer.needs_positions:
            for row in range(rows):
                self.sequences[row].write_positions(self.hbm, row)
        return slots, seen, live[0] if live else seen

    def _open_stretches(self, store: RaggedStore) -> tuple[Tensor, Tensor, Tensor]:
        counts = [[each.tiers.seen, each.tiers.live] for each in self.sequences]
        seen, live = torch.tensor(counts, device=store.device).unbind(1)
        slots = store.append(seen)
        for sequence in self.sequences:
            sequence.tiers.append()
        return slots, seen, seen if self.positions == "true" else live

    def settle(self) -> None:
        """Runs each row's event if one is due after a decode step, and books the step."""
        for sequence in self.sequences:
            sequence.usage.before_event(sequence.tiers)
        self.allocated_peak = max(self.allocated_peak, self.allocated_bytes())
        if self.watches and self.events.run(range(self.rows), reuse=True):
            self._trim()
        for sequence in self.sequences:
            sequence.usage.after_event(sequence.tiers)

    def _trim(self) -> None:
        """After tokens or rows have left. New ones come to device memory."""
        for store in self.stores:
            store.trim(max(1, self.policy.schedule.every) if store is self.hbm else 0)

    def row_positions(self, row: int) -> list[Tensor]:
        """Where a row's tokens lie: for each store int32 [layers, kv_heads, slots], -1 for a free one."""
        self.sequences[row].write_positions(self.hbm, row)
        return [store.read([row], ["pos"])["pos"][:, 0] for store in self.stores]

    def leave(self, row: int) -> SequenceBytes:
        """Frees a row; the last row takes its index. Returns the sequence's ledger."""
        sequence = self.sequences[row]
        account = close_account(sequence.usage, sequence.tiers, self.sizes, self.metadata_token_bytes)
        self.release(row)
        return account

    @torch.inference_mode()
    def release(self, row: int) -> None:
        """Frees a row that has ended, or that another cache has adopted; the last row takes its index."""
        last = self.rows - 1
        self.sequences[last].write_positions(self.hbm, last)
        for store in self.stores:
            store.leave(row)
        self.state.leave(row, last)
        if self.queries:
            self.queries.state.leave(row, last)
        if self.pages is not None:
            self.pages.leave(row, last)
        self.events.leave(row, last)
        self.sequences[row] = self.sequences[last]
        self.sequences.pop()

    def check(self) -> None:
        """Asserts that storage and counts agree. Reads everything: for tests, not for the loop."""
        for store in self.stores:
            if not isinstance(store, RaggedStore):
                beyond = [store.planes["pos"][:, row, :, extent:] for row, extent in enumerate(store.extents)]
                assert all((free < 0).all() for free in beyond), "a slot beyond the last holds a token"
        for row, tier in enumerate(self.tiers):
            held = [positions.cpu() for positions in self.row_positions(row)]
            counts = [tier.hbm, tier.ddr, tier.packed - tier.coarse, tier.coarse]
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
