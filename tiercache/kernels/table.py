"""One decode step over all rows of several lanes, each row over all of its tiers, in one C call per layer.

Logits of all tiers stand side by side before their softmax, so a token counts exactly as if it had never moved.
"""

import ctypes
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tiercache.kernels.native import LANES, NO_MEMORY, Kernel, Shape, Side, empty, integers
from tiercache.packed_store import PackedStore
from tiercache.ragged_store import RaggedStore
from tiercache.store import TierStore

POINTER = ctypes.c_void_p
TILE, CHANNELS = 64, 512  # as in the source


class _Region(ctypes.Structure):
    _fields_ = (
        ("key", Side),
        ("value", Side),
        *((name, POINTER) for name in ("keys", "key_grid", "values", "value_grid")),
        *integers("layer row head"),
        ("starts", POINTER),
        ("extents", POINTER),
        *integers("used weights"),
        ("sums", POINTER),
    )


class _Lane(ctypes.Structure):
    _fields_ = (
        *integers("rows many"),
        ("regions", POINTER),
        ("queries", POINTER),
        *integers("queries_row queries_place"),
        ("queries_now", POINTER),
    )


class _Table(ctypes.Structure):
    _fields_ = (
        ("shape", Shape),
        *integers("rows heads threads used layer query_row query_head key_row key_head value_row value_head"),
        ("lanes", POINTER),
        ("slots", POINTER),
    )


class RowTable:
    """New keys and values are written to the first tier of their lane, then attended to with all others."""

    def __init__(
        self,
        kernel: Kernel,
        lanes: Sequence[Sequence[TierStore]],
        slots: Tensor,
        group: int,
        scaling: float,
        summed: bool = False,
        sums: str | None = None,
        retains: float = 1.0,
        rings: Sequence[tuple[Tensor, Tensor] | None] = (),
    ) -> None:
        """Stores that `reads` knows, with plain floats first.

        Args:
            slots: where each head's new token goes, int64 [layers, rows, kv_heads].
            summed: weights are, over the group.
            sums: the slot field, float32, to which these sums are added; before, it is multiplied by `retains`.
            rings: for each lane where its queries are written to, float32 [rows, places, layers, heads, dim], and at
                which place of each row, int64 [rows].
        """
        _, rows, heads = slots.shape
        self._kernel, self._slots, self._sums = kernel, slots.contiguous(), sums
        self._inner = (heads,) if summed else (heads, group)
        self._shapes = [[(store.rows, *self._inner, store.used()) for store in lane] for lane in lanes]
        self._sizes = [math.prod(shape) for lane in self._shapes for shape in lane]
        self._weights = 0  # of all regions so far
        self._kept: list[object] = []  # what the structures point to
        table = (_Lane * len(lanes))()
        for place, stores in zip(table, lanes, strict=True):
            regions = (_Region * len(stores))(*map(self._region, stores))
            self._kept.append(regions)
            place.rows, place.many, place.regions = stores[0].rows, len(stores), ctypes.addressof(regions)
        for place, ring in zip(table, rings, strict=False):
            if ring is not None:
                place.queries, (place.queries_row, place.queries_place) = ring[0].data_ptr(), ring[0].stride()[:2]
                place.queries_now = ring[1].data_ptr()
                self._kept.append(ring)
        self._kept.append(table)
        shape = Shape(group, lanes[0][0].geometry.head_dim, 0, 0, summed, sums is not None, scaling, retains)
        used = max(sum(store.used() for store in lane) for lane in lanes)
        self._n = _Table(shape, rows, heads, torch.get_num_threads(), used)
        self._n.lanes, self._n.slots = ctypes.addressof(table), self._slots.data_ptr()
        self._at = ctypes.byref(self._n)

    def _region(self, store: TierStore) -> _Region:
        r = _Region(side(store, "k"), side(store, "v"))
        if isinstance(store, PackedStore):
            names = ["k_codes", "k_grid", "v_codes", "v_grid"]
            r.keys, r.key_grid, r.values, r.value_grid = (store.planes[name].data_ptr() for name in names)
        else:
            r.keys, r.values = store.planes["k"].data_ptr(), store.planes["v"].data_ptr()
        if isinstance(store, RaggedStore):
            starts, lengths = store.starts.contiguous(), store.lengths.contiguous()
            r.starts, r.extents = starts.data_ptr(), lengths.data_ptr()
            self._kept += [starts, lengths]
        else:
            r.layer, r.row, r.head = store.planes["pos"].stride()[:3]
            extents = (ctypes.c_int64 * store.rows)(*store.extents)
            r.extents = ctypes.addressof(extents)
            self._kept.append(extents)
        r.used, r.weights = store.used(), self._weights
        self._weights += math.prod((store.rows, *self._inner, r.used))
        if self._sums is not None:
            r.sums = store.planes[self._sums].data_ptr()
        return r

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, weights: bool
    ) -> tuple[Tensor, list[list[Tensor]] | None]:
        """query [rows, heads, 1, dim]; key, value [rows, kv_heads, 1, dim], as `fits` has them.

        Returns:
            output [rows, heads, dim], and each lane's and tier's weights [its rows, kv_heads, group, used], or without
            the group.
        """
        n, rows = self._n, query.shape[0]
        group, heads = n.shape.group, n.heads
        n.layer, (n.query_row, n.shape.query_group) = layer, query.stride()[:2]
        n.query_head = group * n.shape.query_group
        (n.key_row, n.key_head), (n.value_row, n.value_head) = key.stride()[:2], value.stride()[:2]
        out = empty(rows, heads * group, query.shape[-1])
        shares = empty(self._weights) if weights else None
        places = (query, key, value, out, shares)
        if self._kernel.append_and_attend(self._at, *(p.data_ptr() if p is not None else None for p in places)):
            raise MemoryError(NO_MEMORY)
        if shares is None:
            return out, None
        parts = iter(torch.split(shares, self._sizes))
        return out, [[next(parts).view(shape) for shape in lane] for lane in self._shapes]


def side(store: TierStore, name: str) -> Side:
    """How one tier's keys (`k`) or values (`v`) lie."""
    if not isinstance(store, PackedStore):
        return Side(store.geometry.head_dim, 32)
    codes, grid, form = store.planes[f"{name}_codes"], store.planes[f"{name}_grid"], store.formats[name]
    width, share = codes.shape[-1], grid.shape[-1]
    half = form.head_dim // 2 if form.pairs else form.head_dim
    return Side(width, form.bits, share, grid.dtype is torch.float32, form.window, share, form.group, half)


def reads(store: TierStore) -> bool:
    """Whether the kernel can read a tier as it lies: a tile must hold whole windows, and a vector one range."""
    if store.device.type != "cpu":
        return False
    if not isinstance(store, PackedStore):
        return store.geometry.dtype is torch.float32 and store.geometry.head_dim % LANES == 0
    return all(
        form.bits in (2, 4, 8) and form.head_dim <= CHANNELS and TILE % form.window == 0
        for form in store.formats.values()
    )
