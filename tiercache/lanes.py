"""The running batch as several caches, each of rows with about the same length.

A cache is a rectangle: every row has the slots of its longest one. So rows are held beside their like, and no memory is
kept for what a much longer neighbour needs. The model's layers still see all rows at once; attention goes lane by lane.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from tiercache.cache import TieredCache
from tiercache.kernels import native
from tiercache.kernels.table import RowTable
from tiercache.ledger import SequenceBytes, Traffic
from tiercache.step import DecodeStep

LIKE = 1.125  # a lane's longest row over its shortest: a sixteenth of its rectangle is unused on average
FEW = 16  # tokens that are no difference
MOST = 8  # lanes; each costs every step a little
LOOK = 16  # steps between looks at which lanes have become alike, and which one's rows no longer are

Owner = TypeVar("Owner")


@dataclass(eq=False)
class Lane(Generic[Owner]):
    """One cache, and whose its rows are."""

    cache: TieredCache
    owners: list[Owner]

    def lengths(self) -> tuple[int, int]:
        """Tokens held by the shortest and by the longest row."""
        live = [sequence.tiers.live for sequence in self.cache.sequences]
        return min(live), max(live)

    def leave(self, row: int) -> SequenceBytes:
        """Frees a row that has ended; the last one takes its place."""
        ledger = self.cache.leave(row)
        self._forget(row)
        return ledger

    def part(self, rows: list[int], into: TieredCache) -> "Lane[Owner]":
        """Some rows, in ascending order, as a lane of their own: in this empty cache."""
        into.adopt(self.cache, rows)
        parted = Lane(into, [self.owners[row] for row in rows])
        for row in reversed(rows):
            self.cache.release(row)
            self._forget(row)
        return parted

    def _forget(self, row: int) -> None:
        self.owners[row] = self.owners[-1]
        self.owners.pop()


class Arrival(NamedTuple, Generic[Owner]):
    """New rows of a lane: its rows `first`, `first + 1`, … are these of the adopted cache."""

    lane: Lane[Owner]
    first: int
    which: list[int]


class Lanes(Generic[Owner]):
    """Owner of all caches of a run. `empty` gives the policy and stays empty."""

    def __init__(self, empty: TieredCache) -> None:
        self._empty = empty
        self._lanes: list[Lane[Owner]] = []
        self._gone = Traffic()  # of caches that are no more
        self._steps = 0
        self.allocated_peak = 0

    def __iter__(self) -> Iterator[Lane[Owner]]:
        return iter(list(self._lanes))

    def owners(self) -> list[Owner]:
        """Of all rows, lane by lane."""
        return [owner for lane in self._lanes for owner in lane.owners]

    @property
    def traffic(self) -> Traffic:
        """Bytes that crossed between device and host memory so far."""
        total = Traffic()
        for part in (self._gone, *(lane.cache.traffic for lane in self._lanes)):
            total.add(part)
        return total

    def allocated_bytes(self) -> int:
        return sum(lane.cache.allocated_bytes() for lane in self._lanes)

    def staging(self) -> TieredCache:
        """An empty cache for prompts, see `tiercache.prefill`."""
        return self._empty.staging()

    def adopt(self, staged: TieredCache, owners: Sequence[Owner]) -> list[Arrival[Owner]]:
        """Takes over all rows of a staging cache, whose owners these are, into lanes of their like; it is used up."""
        self._drop_ended()
        before = self.allocated_bytes()
        lengths = [tiers.live for tiers in staged.tiers]
        groups: list[list[int]] = []
        for row in sorted(range(staged.rows), key=lambda row: -lengths[row]):
            if groups and self._alike(lengths[row], lengths[groups[-1][0]]):
                groups[-1].append(row)
            else:
                groups.append([row])
        arrivals, traffic = [], staged.traffic
        for group in map(sorted, groups):
            lane = self._lane_for([lengths[row] for row in group])
            arrivals.append(Arrival(lane, len(lane.owners), group))
            lane.cache.adopt(staged, group)
            lane.owners.extend(owners[row] for row in group)
        self._gone.add(traffic)
        copied = any(arrival.lane.cache.hbm.planes is not staged.hbm.planes for arrival in arrivals)
        after = self.allocated_bytes() + (staged.allocated_bytes() if copied else 0)
        self.allocated_peak = max(self.allocated_peak, before + staged.allocated_peak, after)
        return arrivals

    def _lane_for(self, lengths: Sequence[int]) -> Lane[Owner]:
        """The lane that these rows stretch least, or a new one where they would stretch it too far."""
        best, least = None, float("inf")
        for lane in self._lanes:
            shortest, longest = lane.lengths()
            shortest, longest = min(shortest, *lengths), max(longest, *lengths)
            if longest / shortest < least and (len(self._lanes) >= MOST or self._alike(shortest, longest)):
                best, least = lane, longest / shortest
        if best is None:
            best = Lane(self._empty.another(), [])
            self._lanes.append(best)
        return best

    def open(self) -> "LanesStep":
        """Makes room for one token in each row. Lanes that have become alike are joined, unlike rows of one parted."""
        self._drop_ended()
        self._steps += 1
        if self._steps % LOOK == 0:
            self._part_unlike()
            self._join_alike()
        return LanesStep([lane.cache for lane in self._lanes])

    def _drop_ended(self) -> None:
        for lane in self:
            if not lane.owners:
                self._drop(lane)

    def _drop(self, lane: Lane[Owner]) -> None:
        self._gone.add(lane.cache.traffic)
        self._lanes.remove(lane)

    def _join_alike(self) -> None:
        """Tokens that a budget allows are soon the same for all rows, and growing rows differ less and less."""
        ordered = sorted(self._lanes, key=lambda lane: lane.lengths()[1])
        for short, long in pairwise(ordered):
            least, most = short.lengths()[0], long.lengths()[1]
            if self._alike(least, most):
                before, beside = self.allocated_bytes(), short.cache.allocated_bytes()
                long.cache.adopt(short.cache, range(short.cache.rows))
                long.owners.extend(short.owners)
                self._drop(short)
                self.allocated_peak = max(self.allocated_peak, before, self.allocated_bytes() + beside)

    def _part_unlike(self) -> None:
        """Rows that were the same under a budget's floor, say, grow apart when it begins to allow more."""
        for lane in self:
            shortest, longest = lane.lengths()
            if self._alike(shortest, longest) or len(self._lanes) >= MOST:
                continue
            middle = math.sqrt(shortest * longest)
            rows = [row for row, tiers in enumerate(lane.cache.tiers) if tiers.live < middle]
            self._lanes.append(lane.part(rows, self._empty.another()))
            self.allocated_peak = max(self.allocated_peak, self.allocated_bytes())

    def settle(self) -> None:
        """The policy's events that are due after a step."""
        self.allocated_peak = max(self.allocated_peak, self.allocated_bytes())
        for lane in self._lanes:
            lane.cache.settle()

    def _alike(self, shortest: int, longest: int) -> bool:
        """Whether one lane is good for both; always, where each head has its own room."""
        return self._empty.ragged or longest <= max(shortest * LIKE, shortest + FEW)


class LanesStep:
    """One decode step of all lanes. Where the C kernel can do it, one call per layer serves all rows."""

    def __init__(self, caches: Sequence[TieredCache]) -> None:
        self._steps = [DecodeStep(cache) for cache in caches]
        ends = list(accumulate((cache.rows for cache in caches), initial=0))
        self._rows = [slice(*edges) for edges in pairwise(ends)]
        self.hidden_layers = self._steps[0].hidden_layers
        self.positions = torch.cat([step.positions for step in self._steps])
        self._plain = all(step.plain for step in self._steps)
        self._table: RowTable | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        if self._table is None and self._plain and native.fits(query, key, value):  # layers are alike
            self._table = self._make_table(query, key, scaling)
        if self._table is not None:
            return self._at_once(self._table, layer, query, key, value, scaling)
        if len(self._steps) == 1:
            return self._steps[0].attend(layer, query, key, value, scaling)
        parts = zip(self._steps, self._rows, strict=True)
        return torch.cat([step.attend(layer, query[r], key[r], value[r], scaling) for step, r in parts])

    def _make_table(self, query: Tensor, key: Tensor, scaling: float) -> RowTable | None:
        kernel, first = native.kernel(), self._steps[0]
        if kernel is None:
            return None
        tiers = [step.tiers for step in self._steps]
        slots = torch.cat([step.slots for step in self._steps], dim=1)
        scorer, sums, group = first.cache.scorer, first.sums, query.shape[1] // key.shape[1]
        summed = scorer.sums_heads or sums is not None
        kept = [(step.cache.queries, step.now) for step in self._steps]
        rings = [window.ring(now) if window is not None else None for window, now in kept]
        return RowTable(kernel, tiers, slots, group, scaling, summed, sums, scorer.retains, rings)

    def _at_once(
        self, table: RowTable, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        first = self._steps[0]
        out, weights = table(layer, query, key, value, first.cache.needs_attention and first.sums is None)
        if first.observed and first.sums is None:
            for i, (step, rows) in enumerate(zip(self._steps, self._rows, strict=True)):
                step.observe(layer, query[rows], weights[i] if weights is not None else None, scaling)
        return out.unsqueeze(1)

    def layer_output(self, layer: int, hidden: Tensor) -> None:
        for step, rows in zip(self._steps, self._rows, strict=True):
            step.layer_output(layer, hidden[rows])

    def finish(self) -> None:
        for step in self._steps:
            step.finish()
