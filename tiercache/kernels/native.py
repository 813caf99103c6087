"""Attention's C kernel for CPUs, called through ctypes."""

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tiercache.attention import Partial
from tiercache.kernels.build import library
from tiercache.quantize import Format
from tiercache.ragged_store import RaggedStore
from tiercache.store import TierStore

LANES = 8  # floats of one vector: head_dim is a multiple
TILE, CHANNELS = 64, 512  # as in the source
NO_MEMORY = "no memory left for attention's logits"


def _integers(names: str) -> tuple[tuple[str, type[ctypes.c_int64]], ...]:
    return tuple((name, ctypes.c_int64) for name in names.split())


class _Side(ctypes.Structure):
    """`side` in the source; the others have their names there too."""

    _fields_ = _integers("slot bits grid_slot wide window share group half")


class _Shape(ctypes.Structure):
    _fields_ = (
        *_integers("group dim query_group bias_group summed"),
        ("key", _Side),
        ("value", _Side),
        ("scaling", ctypes.c_float),
    )


class _Steps(ctypes.Structure):
    _fields_ = _integers("row head grid_row grid_head")


class _Rectangle(ctypes.Structure):
    _fields_ = (
        ("shape", _Shape),
        ("keys", _Steps),
        ("values", _Steps),
        *_integers("rows heads threads used query_row query_head bias_row bias_head"),
        ("extents", ctypes.c_void_p),
    )


class _Table(ctypes.Structure):
    _fields_ = (
        ("shape", _Shape),
        *_integers("rows heads threads used layer"),
        *_integers("query_row query_head key_row key_head value_row value_head"),
        ("entries", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class Codes:
    """Quantised keys or values: codes and grid [rows, kv_heads, used, ...] in this format."""

    codes: Tensor
    grid: Tensor
    format: Format


class Kernel:
    """The functions of the library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._attend = library.tiercache_attend
        self._attend.argtypes = (ctypes.POINTER(_Rectangle), *[ctypes.c_void_p] * 9)
        self.append_and_attend = library.tiercache_append_and_attend
        self.append_and_attend.argtypes = (ctypes.POINTER(_Table), *[ctypes.c_void_p] * 5)

    def __call__(
        self,
        query: Tensor,
        keys: Tensor | Codes,
        values: Tensor | Codes,
        extents: Tensor,
        bias: Tensor | None,
        scaling: float,
        *,
        lse: bool = False,
        weights: bool = False,
    ) -> Partial:
        """Shapes as in `decode_attention`, floats as `fits` has them. extents: int64 [rows], contiguous."""
        rows, heads, group, dim = query.shape
        key, key_steps, key_planes = _side(keys)
        value, value_steps, value_planes = _side(values)
        used = key_planes[0].shape[2]
        out = torch.empty((rows, heads, group, dim))
        logs = torch.empty((rows, heads, group)) if lse else None
        shares = torch.empty((rows, heads, group, used)) if weights else None
        if bias is not None:
            bias = bias.expand(rows, heads, group, used)
            bias = bias if bias.stride(3) == 1 else bias.contiguous()
        q, b = query.stride(), bias.stride() if bias is not None else (0, 0, 0)
        shape = _Shape(group, dim, q[2], b[2], False, key, value, scaling)
        threads = torch.get_num_threads()
        n = _Rectangle(shape, key_steps, value_steps, rows, heads, threads, used, *q[:2], *b[:2], extents.data_ptr())
        places = (query, *key_planes, *value_planes, bias, out, logs, shares)
        if self._attend(n, *(part.data_ptr() if part is not None else None for part in places)):
            raise MemoryError(NO_MEMORY)
        return Partial(out, logs, shares)


def _side(x: Tensor | Codes) -> tuple[_Side, _Steps, tuple[Tensor, Tensor | None]]:
    if isinstance(x, Tensor):
        row, head, slot, _ = x.stride()
        return _Side(slot, 32), _Steps(row, head), (x, None)
    (row, head, slot, _), (grid_row, grid_head, grid_slot, share) = x.codes.stride(), x.grid.stride()
    share, f, wide = x.grid.shape[-1], x.format, x.grid.dtype is torch.float32
    half = f.head_dim // 2 if f.pairs else f.head_dim
    side = _Side(slot, f.bits, grid_slot, wide, f.window, share, f.group, half)
    return side, _Steps(row, head, grid_row, grid_head), (x.codes, x.grid)


@dataclass(frozen=True)
class Plane:
    """Keys and values of a lane's running rows, as floats of two tensors; slots of one head follow one another.

    starts, extents: int64, broadcast to [layers, rows, kv_heads]: the first float of each head, and its tokens with the
    new one.
    """

    keys: Tensor
    values: Tensor
    starts: Tensor
    extents: Tensor
    used: int


def plane(store: TierStore) -> Plane:
    keys, values = store.planes["k"], store.planes["v"]
    if isinstance(store, RaggedStore):
        return Plane(keys, values, store.starts * keys.stride(0), store.lengths, store.used())
    (layer, row, head, *_), (layers, _, heads, *_) = keys.stride(), keys.shape
    by_row = torch.arange(store.rows).view(-1, 1) * row + torch.arange(heads) * head
    starts = torch.arange(layers).view(-1, 1, 1) * layer + by_row
    return Plane(keys, values, starts, torch.tensor(store.extents).view(-1, 1), store.used())


class RowTable:
    """One decode step over rows of several planes: new keys and values are written, then attended to, in one call."""

    def __init__(
        self,
        kernel: Kernel,
        planes: Sequence[Plane],
        slots: Tensor,
        group: int,
        scaling: float,
        summed: bool = False,
    ) -> None:
        """slots: where each head's new token goes, int64 [layers, rows, kv_heads], contiguous. summed: weights are."""
        _, rows, heads = slots.shape
        wide = 1 if summed else group
        self._rows = [plane.starts.shape[1] for plane in planes]
        self._entries = torch.empty((*slots.shape, 5), dtype=torch.int64)
        self.starts, first = [0], 0
        for plane, count in zip(planes, self._rows, strict=True):
            keys, values, extents, used, weights = self._entries[:, first : first + count].unbind(-1)
            for addresses, floats in ((keys, plane.keys), (values, plane.values)):
                torch.mul(plane.starts, floats.element_size(), out=addresses).add_(floats.data_ptr())
            extents.copy_(plane.extents)
            used.fill_(plane.used)
            weights.copy_(self.starts[-1] + torch.arange(count * heads).view(-1, heads) * (wide * plane.used))
            self.starts.append(self.starts[-1] + count * heads * wide * plane.used)
            first += count
        self._kernel, self._planes, self._slots = kernel, planes, slots
        dim = planes[0].keys.shape[-1]
        shape = _Shape(group, dim, 0, 0, summed, _Side(dim, 32), _Side(dim, 32), scaling)
        self._n = _Table(shape, rows, heads, torch.get_num_threads(), max(plane.used for plane in planes))
        self._n.entries, self._n.slots = self._entries.data_ptr(), slots.data_ptr()

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, weights: bool
    ) -> tuple[Tensor, list[Tensor] | None]:
        """query [rows, heads, 1, dim]; key, value [rows, kv_heads, 1, dim], as `fits` has them.

        Returns:
            output [rows, heads, dim], and each plane's weights [its rows, kv_heads, group, used], or without the group.
        """
        n, rows = self._n, query.shape[0]
        group, heads = n.shape.group, n.heads
        n.layer, (n.query_row, n.shape.query_group) = layer, query.stride()[:2]
        n.query_head = group * n.shape.query_group
        (n.key_row, n.key_head), (n.value_row, n.value_head) = key.stride()[:2], value.stride()[:2]
        out = torch.empty((rows, heads * group, query.shape[-1]))
        shares = torch.empty(self.starts[-1]) if weights else None
        places = (query, key, value, out, shares)
        if self._kernel.append_and_attend(n, *(part.data_ptr() if part is not None else None for part in places)):
            raise MemoryError(NO_MEMORY)
        if shares is None:
            return out, None
        edges = zip(pairwise(self.starts), self._planes, strict=True)
        inner = (heads,) if n.shape.summed else (heads, group)
        shaped = zip(edges, self._rows, strict=True)
        return out, [shares[a:b].view(rows, *inner, p.used) for ((a, b), p), rows in shaped]


def fits(query: Tensor, *others: Tensor) -> bool:
    """Whether the kernel knows this kind of tensors: float32 on the CPU, whole vectors, channels side by side."""
    return query.shape[-1] % LANES == 0 and all(
        part.dtype is torch.float32 and part.device.type == "cpu" and part.stride(-1) == 1 for part in (query, *others)
    )


def unfolds(*packed: Codes) -> bool:
    """Whether the kernel can read codes as they are. A tile must hold whole windows, and a vector one range."""
    return all(
        x.format.bits in (2, 4, 8)
        and x.format.head_dim <= CHANNELS
        and TILE % x.format.window == 0
        and x.codes.device.type == "cpu"
        and x.codes.stride(-1) == x.grid.stride(-1) == 1
        for x in packed
    )


@functools.cache
def kernel() -> Kernel | None:
    """The kernel, built if it must be; None where that can't be done."""
    found = library()
    return Kernel(found) if found is not None else None
