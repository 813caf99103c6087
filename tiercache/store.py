"""Storage of one tier: preallocated slots for a batch of sequences, per layer and KV head.

A store is a dictionary of *planes*, tensors of shape [layers, rows, kv_heads, slots, ...]: keys and values (or their
packed form), the true position of each slot's token (-1: empty) and the scorer's slot fields. Whatever moves tokens
moves all planes by the same index, so no scorer ever re-indexes anything.

Used slots are `[0, extent)` for each row; `extent` is the same for all layers and heads of a row. Beyond it positions
are -1 and slot fields 0, so that a new token finds its fields ready.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiercache.quantize import Format

AHEAD = 6  # of what is used: so much room at most is kept for tokens that come before anything leaves again
QUANTUM = 2  # slots are allocated in multiples of this many
GROWTH = 24  # a full store grows by this part of itself: little is unused, and copying stays cheap


@dataclass(frozen=True)
class Geometry:
    """What one token's keys and values look like. KV heads are the model's own, never repeated for queries."""

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values over all layers and KV heads, unquantised."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]


class TierStore:
    """Full-precision slots. `planes` grow on demand; `trim` gives back what isn't used any more.

    With a `ledger` each slot has room for the codes of a token that comes back from the packed tier, and `kept` says
    whether they are there: they travel with the token and count as metadata.
    """

    packed = False

    def __init__(
        self,
        geometry: Geometry,
        fields: Mapping[str, torch.dtype],
        device: torch.device,
        ledger: Mapping[str, Format] | None = None,
        pinned: bool = False,
    ) -> None:
        """pinned: host memory that a GPU can read and write by itself."""
        self.geometry = geometry
        self.fields = dict(fields)
        self.ledger = ledger
        self.device = device
        self.pinned = pinned
        self.extents: list[int] = []
        self.planes: dict[str, Tensor] = {}
        self._allocated = 0
        self._create()

    def _create(self) -> None:
        for name, (tail, dtype) in self._layout().items():
            self.planes[name] = self._empty(name, tail, dtype, 0, 0)

    def _layout(self) -> Layout:
        return {**self._content_layout(), **self._kept_layout(), **self._metadata_layout()}

    def _content_layout(self) -> Layout:
        """Keys and values."""
        g = self.geometry
        return {"k": ((g.head_dim,), g.dtype), "v": ((g.head_dim,), g.dtype)}

    def _kept_layout(self) -> Layout:
        """Codes kept beside keys and values; they mean something only where `kept` is set."""
        return payload_layout(self.ledger) if self.ledger else {}

    def _metadata_layout(self) -> Layout:
        """What a free slot has empty."""
        kept: Layout = {"kept": ((), torch.bool)} if self.ledger else {}
        return {"pos": ((), torch.int32), **{name: ((), dtype) for name, dtype in self.fields.items()}, **kept}

    def _empty(
        self,
        name: str,
        tail: Sequence[int],
        dtype: torch.dtype,
        rows: int,
        slots: int,
        filled: tuple[int, int] = (0, 0),
    ) -> Tensor:
        """filled: rows and slots that the caller fills at once."""
        # Zeros, not garbage: a masked slot's value is multiplied by a zero weight, and 0 * nan is nan.
        shape = (self.geometry.layers, rows, self.geometry.kv_heads, slots, *tail)
        plane = torch.empty(shape, dtype=dtype, device=self.device, pin_memory=self.pinned)
        plane[:, filled[0] :] = empty_value(name)
        plane[:, : filled[0], :, filled[1] :] = empty_value(name)
        return plane

    @property
    def rows(self) -> int:
        return len(self.extents)

    @property
    def capacity(self) -> tuple[int, int]:
        """Allocated (rows, slots)."""
        shape = self.planes["pos"].shape
        return shape[1], shape[3]

    @property
    def vacant(self) -> bool:
        """Whether rows have left whose room is still there."""
        return self.capacity[0] > self.rows

    def reserve(self, rows: int, slots: int) -> None:
        """Grows the planes to at least this many rows and slots; existing contents stay where they are."""
        have_rows, have_slots = self.capacity
        if rows <= have_rows and slots <= have_slots:
            return
        if slots > have_slots:
            slots = _rounded(max(slots, have_slots + have_slots // GROWTH))
        self._resize(max(rows, have_rows), max(slots, have_slots))

    def trim(self, soon: int) -> None:
        """Gives back rows and slots where much more is there than is used.

        soon: tokens that come to each row before anything leaves again. Room for them is kept, as far as it is little,
            so that little is allocated between two events.
        """
        rows, slots = self.capacity
        used = self.used()
        more = min(soon, max(QUANTUM, used // AHEAD))
        few_rows, few_slots = self.rows, _rounded(used + more)
        less_rows = few_rows if rows - few_rows > few_rows // 8 else rows
        less_slots = few_slots if slots - few_slots > _rounded(few_slots // GROWTH) else slots
        if (less_rows, less_slots) != (rows, slots):
            self._resize(less_rows, less_slots)

    def _resize(self, rows: int, slots: int) -> None:
        """Reallocates; contents stay where they are. A plane exists twice while it is copied, one after the other."""
        have_rows, have_slots = self.capacity
        rows_kept, slots_kept = min(rows, have_rows), min(slots, have_slots)
        with torch.inference_mode(self.planes["pos"].is_inference()):  # the same kind of tensor, whoever calls
            for name, (tail, dtype) in self._layout().items():
                new = self._empty(name, tail, dtype, rows, slots, (rows_kept, slots_kept))
                new[:, :rows_kept, :, :slots_kept] = self.planes[name][:, :rows_kept, :, :slots_kept]
                self.planes[name] = new
        self._count()

    def _count(self) -> None:
        self._allocated = sum(plane.numel() * plane.element_size() for plane in self.planes.values())

    def adopt(self, other: "TierStore", order: Sequence[int]) -> None:
        """Appends the rows of a store like this one, in this order; where there were none, the storage itself."""
        if not self.rows and list(order) == list(range(other.rows)):
            self.planes, self.extents, self._allocated = other.planes, other.extents, other._allocated
            return
        first, used = self.rows, max((other.extents[row] for row in order), default=0)
        self.join(len(order))
        self.reserve(0, used)
        self.extents[first:] = [other.extents[row] for row in order]
        for name, plane in self.planes.items():
            plane[:, first : self.rows, :, :used] = other.planes[name][:, order, :, :used]

    def copy_row(self, source: int, row: int, used: int) -> None:
        """Slots [0, used) of one row to another."""
        for plane in self.planes.values():
            plane[:, row, :, :used] = plane[:, source, :, :used]

    def join(self, rows: int) -> None:
        """Appends empty rows."""
        self.reserve(self.rows + rows, 0)
        self.extents.extend([0] * rows)

    def leave(self, row: int) -> None:
        """Frees `row`; the last row takes its place, so that running rows are always a prefix."""
        last = self.rows - 1
        if row != last:
            used = max(self.extents[row], self.extents[last])
            for plane in self.planes.values():
                plane[:, row, :, :used] = plane[:, last, :, :used]
        self.clear(last, 0, self.extents[last])
        self.extents[row] = self.extents[last]
        self.extents.pop()

    def clear(self, row: int, start: int, stop: int) -> None:
        """Empties slots [start, stop): positions and slot fields; keys and values may stay."""
        for name in self.metadata:
            self.planes[name][:, row, :, start:stop] = empty_value(name)

    def used(self, rows: Sequence[int] | None = None) -> int:
        """Slots that any running row uses, or any of these."""
        return max(self.extents if rows is None else [self.extents[row] for row in rows], default=0)

    def views(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Keys and values of all layers for all running rows, each [rows, kv_heads, used, head_dim], as views."""
        rows, used = self.rows, self.used()
        keys, values = (self.planes[side][:, :rows, :, :used].unbind(0) for side in ("k", "v"))
        return keys, values

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, in full precision: views, or unpacked copies where the tier is packed."""
        rows, used = self.rows, self.used()
        return self.planes["k"][layer, :rows, :, :used], self.planes["v"][layer, :rows, :, :used]

    def read(self, rows: Sequence[int], names: Iterable[str]) -> dict[str, Tensor]:
        """Some planes of some rows to look at, [layers, len(rows), kv_heads, used, ...]; `k` and `v` unquantised."""
        chosen, used = neighbours(rows), self.used(rows)
        return {name: self.planes[name][:, chosen, :, :used] for name in names}

    def write(self, rows: Sequence[int], name: str, values: Tensor) -> None:
        """The inverse of `read`."""
        self.planes[name][:, neighbours(rows), :, : self.used(rows)] = values

    def stretches(self, rows: Sequence[int]) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Planes as one long line of slots, [slots, ...], and of these rows where in it each (layer, row, KV head)
        begins and how many tokens follow there: int64 [layers, len(rows), kv_heads]."""
        lengths = (self.planes["pos"][:, list(rows)] >= 0).sum(-1)
        return {name: self.line(name) for name in self.planes}, self.begins(rows), lengths

    def line(self, name: str) -> Tensor:
        """A plane as one long line of slots, [slots, ...]."""
        plane = self.planes[name]
        return plane.view(-1, *plane.shape[4:])

    def begins(self, rows: Sequence[int]) -> Tensor:
        """Where in that line each (layer, row, KV head) begins: int64 [layers, len(rows), kv_heads]."""
        *places, slots = self.planes["pos"].shape
        return (torch.arange(math.prod(places), device=self.device).view(places) * slots)[:, list(rows)]

    def take(self, slots: Tensor) -> dict[str, Tensor]:
        """Full-precision copies of the tokens in these slots of the long line: int64 [n] -> planes [n, ...].

        Where keys share ranges over windows: whole windows, in order.
        """
        return {name: self.line(name).index_select(0, slots) for name in self.planes}

    def admit(self, tokens: dict[str, Tensor]) -> dict[str, Tensor]:
        """Turns full-precision tokens into this store's own planes, on this store's device."""
        # What comes to the host is read there at once, so it is waited for.
        waits = self.device.type == "cpu"
        return {name: plane.to(self.device, non_blocking=not waits) for name, plane in tokens.items()}

    def keys_values_bytes(self) -> int:
        """Bytes that the held tokens' keys and values really occupy, read off the planes themselves."""
        tokens = int((self.planes["pos"][:, : self.rows] >= 0).sum())  # over layers and KV heads
        return tokens * self._slot_bytes(self._content_layout())

    @property
    def metadata(self) -> tuple[str, ...]:
        """Planes that a free slot has empty."""
        return tuple(self._metadata_layout())

    def metadata_slot_bytes(self) -> int:
        """Bytes beside one slot's keys and values: position, slot fields and kept codes."""
        return self._slot_bytes({**self._kept_layout(), **self._metadata_layout()})

    @staticmethod
    def _slot_bytes(layout: Layout) -> int:
        return sum(math.prod(tail) * dtype.itemsize for tail, dtype in layout.values())

    def allocated_bytes(self) -> int:
        """Bytes of all planes, metadata and unused slots included."""
        return self._allocated


def payload_layout(formats: Mapping[str, Format]) -> Layout:
    """Planes of quantised keys and values."""
    return {f"{side}_{part}": shape for side in ("k", "v") for part, shape in formats[side].layout.items()}


def _rounded(slots: int) -> int:
    return -(-slots // QUANTUM) * QUANTUM


def neighbours(rows: Sequence[int]) -> slice | list[int]:
    """One slice where the rows lie one after the other: indexing by a list copies."""
    first, last = rows[0], rows[-1] + 1
    return slice(first, last) if list(rows) == list(range(first, last)) else list(rows)


def empty_value(plane: str) -> int:
    """What an unused slot holds: no position is -1."""
    return -1 if plane == "pos" else 0


def gather(plane: Tensor, index: Tensor) -> Tensor:
    """Slots by index: plane [*places, slots, *content], index [*places, n] -> [*places, n, *content].

    Where each slot's content lies in one piece, pieces are copied whole: on a CPU fourteen times as fast as torch's
    `gather`, which looks at every element's index.
    """
    index = index.to(plane.device)
    places = index.dim() - 1
    content = plane.shape[places + 1 :]
    size = math.prod(content)
    steps = plane.stride()[:places]
    whole = bool(content) and min(plane.shape) > 0 and plane.stride(places) == size
    whole = whole and plane[(0,) * (places + 1)].is_contiguous()
    if whole and all(step % size == 0 for step in steps):
        flat, last = index, plane.shape[places]
        for dim, step in enumerate(steps):
            there = torch.arange(plane.shape[dim], device=index.device) * (step // size)
            flat = flat + there.view(-1, *[1] * (places - dim))
            last += (plane.shape[dim] - 1) * (step // size)
        pieces = plane.as_strided((last, size), (size, 1))
        return pieces.index_select(0, flat.flatten()).view(*index.shape, *content)
    wide = index.reshape(*index.shape, *[1] * len(content)).expand(*index.shape, *content)
    return plane.gather(places, wide)
