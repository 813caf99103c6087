"""Storage for heads that keep different numbers of tokens: each (layer, row, KV head) has a stretch of its own.

A plane is one long line of slots, [slots, ...], in which the stretches lie one after the other; each has room for a few
tokens more than it holds, and when one is full all are laid out anew. Slot 0 is nobody's and always empty: whoever
reads heads of different lengths as a rectangle finds it where a shorter one has ended.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tiercache.store import GROWTH, TierStore, empty_value, neighbours

FEWEST = 2  # tokens for which a layout has room: with less, every step would be a copy of everything


class RaggedStore(TierStore):
    """Full-precision slots by (layer, row, KV head). Rows come from a rectangular store, by `adopt`.

    starts, lengths, rooms: int64 [layers, rows, kv_heads], each stretch's first slot, tokens held, and slots.
    `extents` are each row's longest stretch.
    """

    def _create(self) -> None:
        g = self.geometry
        self.planes = {
            name: torch.full((1, *tail), empty_value(name), dtype=dtype, device=self.device)
            for name, (tail, dtype) in self._layout().items()
        }
        self.starts = torch.zeros(g.layers, 0, g.kv_heads, dtype=torch.int64, device=self.device)
        self.lengths = self.rooms = self.starts
        self._spare = 0  # tokens that every stretch has room for
        self._stale = 0  # rows that have left since the last layout
        self._count()

    @property
    def vacant(self) -> bool:
        return self._stale > 0

    def append(self, seen: Tensor) -> Tensor:
        """Room for one token in each stretch, at true positions `seen` [rows].

        Returns:
            the token's slot within its stretch, int64 [layers, rows, kv_heads].
        """
        if self._spare == 0:
            self._lay_out(self._room())
        slots = self.lengths
        self.planes["pos"][self.starts + slots] = seen.int().view(1, -1, 1).expand_as(slots)
        self.lengths = slots + 1
        self._spare -= 1
        self.extents[:] = [extent + 1 for extent in self.extents]
        return slots

    def put(self, name: str, slots: Tensor, values: Tensor, layer: int | slice = slice(None)) -> None:
        """One value for each stretch, at these slots of it: slots [(layers,) rows, kv_heads], values the same, ..."""
        self.planes[name][self.starts[layer] + slots] = values

    def adopt(self, other: TierStore, order: Sequence[int]) -> None:
        planes, starts, lengths = other.stretches(order)
        mine = len(self.planes["pos"])
        self.planes = {name: torch.cat([plane, planes[name]]) for name, plane in self.planes.items()}
        self.starts = torch.cat([self.starts, starts + mine], dim=1)
        self.lengths = torch.cat([self.lengths, lengths], dim=1)
        self.extents.extend(lengths.amax((0, 2)).tolist())
        self._lay_out(self._room())

    def stretches(self, order: Sequence[int]) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        return self.planes, self.starts[:, list(order)], self.lengths[:, list(order)]

    def keep(self, rows: Sequence[int], chosen: Tensor) -> None:
        """Closes the gaps between tokens that stay, bool [layers, len(rows), kv_heads, used], as `read` has them."""
        rows = list(rows)
        starts, before = self.starts[:, rows], self.lengths[:, rows]
        after = chosen.sum(-1)
        old = (starts.unsqueeze(-1) + torch.arange(chosen.shape[-1], device=chosen.device))[chosen]
        new, tails = _slots(starts, after), _slots(starts + after, before - after)
        for name, plane in self.planes.items():
            plane.index_copy_(0, new, plane.index_select(0, old))
            if name in self.metadata:
                plane.index_fill_(0, tails, empty_value(name))
        self.lengths = self.lengths.index_copy(1, torch.tensor(rows, device=after.device), after)
        for row, extent in zip(rows, after.amax((0, 2)).tolist(), strict=True):
            self.extents[row] = extent
        self._spare = int((self.rooms - self.lengths).min())

    def leave(self, row: int) -> None:
        self._stale += 1
        rows = list(range(self.rows))
        rows[row] = rows[-1]
        self.starts, self.lengths, self.rooms = (
            table[:, rows[:-1]] for table in (self.starts, self.lengths, self.rooms)
        )
        self.extents[row] = self.extents[-1]
        self.extents.pop()

    def trim(self, soon: int) -> None:
        """Lays out anew where a little is neither used nor soon to be."""
        spare, self._stale = self._room(), 0
        needed = int(self.lengths.sum()) + spare * self.lengths.numel()
        if len(self.planes["pos"]) - needed > needed // GROWTH:
            self._lay_out(spare)

    def _lay_out(self, spare: int) -> None:
        """Stretches one after the other, each with `spare` free slots. One plane exists twice at a time."""
        held = _slots(self.starts, self.lengths)
        rooms = self.lengths + spare
        ends = rooms.flatten().cumsum(0).view_as(rooms)
        starts = 1 + ends - rooms
        source = torch.zeros(1 + int(rooms.sum()), dtype=torch.int64, device=self.device)
        source[_slots(starts, self.lengths)] = held
        for name in self.planes:
            self.planes[name] = self.planes[name].index_select(0, source)
        self.starts, self.rooms, self._spare = starts, rooms, spare
        self._count()

    def read(self, rows: Sequence[int], names: Iterable[str]) -> dict[str, Tensor]:
        chosen = neighbours(rows)
        index = self._index(self.starts[:, chosen], self.lengths[:, chosen], self.used(rows))
        return {name: self._at(name, index) for name in names}

    def write(self, rows: Sequence[int], name: str, values: Tensor) -> None:
        chosen = neighbours(rows)
        plane = self.planes[name]
        plane[self._index(self.starts[:, chosen], self.lengths[:, chosen], values.shape[-1])] = values
        plane[0] = empty_value(name)  # where a shorter head had ended; a mask of what is held would wait for a GPU

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        index = self._index(self.starts[layer], self.lengths[layer], self.used())
        return self._at("k", index), self._at("v", index)

    def bias(self, layer: int) -> Tensor:
        """-inf where a head of `layer` has ended: [rows, kv_heads, 1, used]."""
        beyond = torch.arange(self.used(), device=self.device) >= self.lengths[layer].unsqueeze(-1)
        bias = torch.zeros(beyond.shape, dtype=self.geometry.dtype, device=self.device)
        return bias.masked_fill_(beyond, float("-inf")).unsqueeze(2)

    def _at(self, name: str, index: Tensor) -> Tensor:
        plane = self.planes[name]
        return plane.index_select(0, index.flatten()).view(*index.shape, *plane.shape[1:])

    @staticmethod
    def _index(starts: Tensor, lengths: Tensor, used: int) -> Tensor:
        """Slots of stretches side by side, [..., used]; slot 0 where one has ended."""
        slots = torch.arange(used, device=starts.device)
        return torch.where(slots < lengths.unsqueeze(-1), starts.unsqueeze(-1) + slots, 0)

    def _room(self) -> int:
        """Free slots that a stretch is given."""
        return max(FEWEST, int(self.lengths.sum()) // max(1, self.lengths.numel()) // GROWTH)

    def keys_values_bytes(self) -> int:
        return int(self.lengths.sum()) * self._slot_bytes(self._content_layout())

    def _count(self) -> None:
        super()._count()
        self._allocated += sum(t.numel() * t.element_size() for t in (self.starts, self.lengths, self.rooms))


def _slots(starts: Tensor, lengths: Tensor) -> Tensor:
    """The slots of all stretches, one after the other: int64 [sum of lengths]."""
    flat = lengths.flatten()
    shift = starts.flatten() - (flat.cumsum(0) - flat)
    return shift.repeat_interleave(flat) + torch.arange(int(flat.sum()), device=flat.device)
