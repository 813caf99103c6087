"""A policy's events: which sequences are due, who leaves, and how it is done with the least copying.

Four ways, by what a policy needs. One in, one out: the victim's slot waits for the next token and nothing is copied.
Evictions of many rows without other tiers: all at once. Moves between tiers: some rows at once, so that what is ranked
meanwhile stays small beside the cache. Everything else: a row at a time.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from tiercache.compaction import best, compact
from tiercache.kernels import evict, free_one
from tiercache.ledger import Traffic
from tiercache.placement import Move, due_moves, protected_intervals
from tiercache.policy import Policy
from tiercache.ragged import keep_mask
from tiercache.ragged_store import RaggedStore
from tiercache.ranking import NOWHERE, Ranker, RowFacts, candidate_edges, inside, unprotected
from tiercache.retier import kept_by, move_thought, retier
from tiercache.scorers import View
from tiercache.sequence import CachedSequence
from tiercache.sizes import Sizes
from tiercache.store import Geometry, TierStore, empty_value

AT_ONCE = 8  # this part of the running rows moves between tiers together


class Events:
    """Works on the cache's stores and sequences; its own are the freed slots and the traffic."""

    def __init__(
        self,
        policy: Policy,
        geometry: Geometry,
        size: Sizes,
        stores: list[TierStore],
        sequences: list[CachedSequence],
        ranker: Ranker,
    ) -> None:
        self.policy, self.geometry, self.sizes = policy, geometry, size
        self.stores, self.hbm, self.sequences = stores, stores[0], sequences
        self.ranker, self.scorer, self.facts = ranker, ranker.scorer, ranker.facts
        self.traffic = Traffic()
        # The slot that each row's next token takes, int64 [layers, rows, kv_heads], where a sequence has a hole.
        self.victims = torch.zeros(geometry.layers, 0, geometry.kv_heads, dtype=torch.long, device=self.hbm.device)
        self.positions = policy.storage.positions
        placement, scorer = policy.placement, self.scorer
        by_row = placement.chunk or placement.segment or placement.ragged or scorer.remembers
        self._moves_together = not (by_row or placement.tiered)
        self._retiers_together = placement.tiered and not by_row
        self._reuses_slots = (
            self._moves_together
            and not scorer.ordered  # a hole that is filled again would break the order
            and policy.schedule.every == 1
            and placement.window == 1
            and self.positions in ("true", "drifted")
        )
        self._renumber = self.facts.rope if self.positions == "rerotated" else None

    def join(self) -> None:
        """Sequences were added."""
        missing = len(self.sequences) - self.victims.shape[1]
        if missing > 0:
            more = self.victims.new_zeros(self.victims.shape[0], missing, self.victims.shape[2])
            self.victims = torch.cat([self.victims, more], dim=1)

    def adopt(self, other: "Events", order: Sequence[int]) -> None:
        """Sequences were added that others' rows have been, in this order."""
        self.join()
        if other.victims.shape[1]:
            first = len(self.sequences) - len(order)
            self.victims[:, first : len(self.sequences)] = other.victims[:, order]

    def leave(self, row: int, last: int) -> None:
        """The last row takes the place of one that ended."""
        self.victims[:, row] = self.victims[:, last]

    def run(self, rows: range, reuse: bool) -> bool:
        """The events due for these rows; whether storage has become free. `reuse`: a freed slot waits for a token."""
        freed = False
        single: list[int] = []
        together: list[int] = []
        between: list[tuple[int, Move]] = []
        for row in rows:
            tier = self.sequences[row].tiers
            segment = self.policy.placement.segment
            if segment is not None and tier.generated and tier.generated % segment == 0:
                tier.thought = self.scorer.thought(self.ranker.state.rows(slice(row, row + 1)))
            for move in due_moves(self.policy, tier, self.sizes):
                if reuse and self._reuses_slots and move.evict == 1:
                    single.append(row)
                    tier.apply(move)
                    continue
                self.sequences[row].write_positions(self.hbm, row)
                if self._moves_together:
                    together.append(row)
                elif self._retiers_together:
                    between.append((row, move))
                else:
                    self._move(row, move)
                    freed = True
                tier.apply(move)
        if together:
            self._evict_together(together)
        if single:
            self._free_one(single)
        step = max(1, len(self.sequences) // AT_ONCE)
        for start in range(0, len(between), step):
            self._retier(between[start : start + step])
        return freed or bool(together or between)

    def _move(self, row: int, move: Move) -> None:
        """One row's event, before it is applied to the row's counts."""
        if self.policy.placement.segment is not None:
            order = self.ranker.best_first(self.stores, [self._facts(row, move)]) if move.evict else None
            self._count(row, move_thought(self.stores, row, move, self.sequences[row].tiers.thoughts, order))
        elif self.policy.placement.ragged:
            found = self.ranker.row_scores(self.stores, [self._facts(row, move)])
            score, pos, protected = (part.squeeze(1) for part in found)
            keep = keep_mask(score, pos, protected, self.sequences[row].tiers.live - move.evict, self.policy.placement)
            if isinstance(self.hbm, RaggedStore):
                self.hbm.keep([row], keep.unsqueeze(1))
            else:
                compact(self.hbm, [row], keep.unsqueeze(1))
        else:
            self._retier([(row, move)])

    def _retier(self, moves: Sequence[tuple[int, Move]]) -> None:
        rows = [row for row, _ in moves]
        kept = [kept_by(self.stores, row, move) for row, move in moves]
        destination = self.ranker.stores_of(self.stores, [self._facts(row, move) for row, move in moves], kept)
        crossed = retier(self.stores, rows, kept, destination, self._renumber)
        for row, counts in zip(rows, crossed, strict=True):
            self._count(row, counts)

    def _facts(self, row: int, move: Move) -> RowFacts:
        sequence = self.sequences[row]
        tiers, thoughts = sequence.tiers, sequence.tiers.thoughts
        left = thoughts.left if thoughts.shrinking else move.candidates - move.evict
        spans = protected_intervals(self.policy.placement, tiers)
        return RowFacts(row, sequence.seed, tiers.seen, tiers.prompt, spans, left)

    def _evict_together(self, rows: list[int]) -> None:
        """The events of many rows that only evict, in one go; their counts are already what they will keep."""
        used = max(self.hbm.extents[row] for row in rows)
        everyone = rows == list(range(len(self.sequences)))
        index = slice(0, len(self.sequences)) if everyone else rows
        planes = {name: self.hbm.planes[name][:, index, :, :used] for name in ("pos", *self.hbm.fields)}
        pos = planes["pos"]
        spans = [protected_intervals(self.policy.placement, self.sequences[row].tiers) for row in rows]
        protected = inside(pos, spans)
        score = self.ranker.score(self._view(planes, (pos >= 0) & ~protected, rows))
        live = [self.sequences[row].tiers.live for row in rows]
        kernel = evict.evict() if self._renumber is None and evict.fits(self.hbm, score) else None
        if kernel is not None:
            kernel(self.hbm, rows, score, protected, live)
            return
        kept = torch.tensor(live, device=pos.device).view(1, -1, 1)
        keep = best(score.double().masked_fill(protected, float("inf")), pos, kept)
        settled = min(span[0][1] if span and span[0][0] == 0 else 0 for span in spans)  # sinks, or the whole prompt
        compact(self.hbm, rows, keep, self._renumber, settled)

    def _free_one(self, rows: list[int]) -> None:
        """Evicts the lowest-ranked candidate of each of these rows; its slot stays free for the next token."""
        self._write_newest(rows)
        total, used = len(self.sequences), self.hbm.used()
        names = ("pos", *self.hbm.fields)
        planes = {name: self.hbm.planes[name][:, :total, :, :used] for name in names}
        spans = [protected_intervals(self.policy.placement, sequence.tiers) for sequence in self.sequences]
        may_move = cache(partial(unprotected, planes["pos"], spans))  # few scorers look at it, and the kernel doesn't
        score = self.ranker.score(self._view(planes, may_move, list(range(total))))
        for row in rows:
            self.sequences[row].hole = True
        edges = candidate_edges(spans)
        kernel = free_one.free_one() if free_one.fits(list(planes.values()), score) else None
        if kernel is not None and edges is not None:
            kernel(list(planes.values()), score, rows, edges, self.victims)
            return
        candidate = may_move()
        score = score.masked_fill(~candidate, float("inf"))
        lowest = candidate & (score == score.amin(-1, keepdim=True))
        victim = torch.where(lowest, planes["pos"], NOWHERE).argmin(-1)  # among equals the oldest goes
        self.victims[:, :total] = victim
        chosen = torch.tensor([sequence.hole for sequence in self.sequences], device=self.hbm.device)
        chosen, index = chosen.view(1, total, 1, 1), victim.unsqueeze(-1)
        for name, plane in planes.items():
            plane.scatter_(3, index, torch.where(chosen, empty_value(name), plane.gather(3, index)))

    def _write_newest(self, rows: list[int]) -> None:
        """Positions of tokens that came since they were last written: usually one in each row, all of these at once."""
        ones = [row for row in rows if self.sequences[row].unwritten == 1]
        if len(ones) > 1:
            ends = [[row, self.hbm.extents[row] - 1, self.sequences[row].tiers.seen - 1] for row in ones]
            row, slot, seen = torch.tensor(ends, device=self.hbm.device).unbind(1)
            self.hbm.planes["pos"].transpose(1, 2)[:, :, row, slot] = seen.int()
            for each in ones:
                self.sequences[each].unwritten = 0
        for each in rows:
            self.sequences[each].write_positions(self.hbm, each)

    def _view(self, planes: dict[str, Tensor], may_move: Tensor | Callable[[], Tensor], rows: list[int]) -> View:
        """Some rows at once, slots as they lie."""
        device, used = planes["pos"].device, planes["pos"].shape[3]
        index = slice(0, len(self.sequences)) if len(rows) == len(self.sequences) else rows
        facts = [[self.sequences[r].seed, self.sequences[r].tiers.seen, self.sequences[r].tiers.prompt] for r in rows]
        seeds, seen, prompt = torch.tensor(facts, device=device).unbind(1)
        keys = values = None
        if self.scorer.needs_keys:
            keys, values = (self.hbm.planes[side][:, index, :, :used] for side in ("k", "v"))
            if self.positions == "cache":
                assert self.facts.rope is not None, "checked when the cache was made"
                keys = self.facts.rope.turn(keys, torch.arange(used, device=device))
        queries, places = self.ranker.queries.read(index) if self.ranker.queries else (None, None)
        return View(
            pos=planes["pos"],
            fields={name: planes[name] for name in self.hbm.fields},
            may_move=may_move,
            seeds=seeds,
            seen=seen,
            prompt=prompt,
            state=self.ranker.state.rows(index),
            keys=keys,
            values=values,
            queries=queries,
            query_pos=places,
            scaling=self.geometry.head_dim**-0.5,
        )

    def _count(self, row: int, crossed: list[list[int]]) -> None:
        """Books an event's moves between device (hbm, packed) and host (ddr) memory, metadata included."""
        if len(self.stores) == 1:
            return
        pairs = self.geometry.layers * self.geometry.kv_heads
        metadata = self.hbm.metadata_slot_bytes() * pairs
        full = (self.sizes.token + metadata) // pairs
        packed = (self.sizes.packed // self.sizes.window + metadata) // pairs
        up, down = crossed[1][0] * full + crossed[1][2] * packed, (crossed[0][1] + crossed[2][1]) * full
        for account in (self.traffic, self.sequences[row].traffic):
            account.to_host += down
            account.to_device += up
