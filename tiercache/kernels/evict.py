"""Events that only evict, on CPUs, in C: see `evict.c`."""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tiercache.kernels.build import library
from tiercache.store import TierStore, empty_value

POINTER = ctypes.c_void_p
NUMBERS = "layers rows heads used threads layer row head score_layer score_row score_head score_slot wide planes"


class _Job(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in NUMBERS.split()),
        *((name, POINTER) for name in ("which", "kept", "is_protected", "plane", "size", "empty")),
    )


class Evict:
    """Keeps the best tokens and closes the gaps."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._evict = library.tiercache_evict
        self._evict.argtypes = (ctypes.POINTER(_Job), POINTER, POINTER, ctypes.c_int64)

    def __call__(
        self, store: TierStore, rows: Sequence[int], score: Tensor, is_protected: Tensor, kept: Sequence[int]
    ) -> None:
        """Compacts rows of a store; each head's slots are then sorted by position.

        Args:
            score: float32 or float64 [layers, len(rows), kv_heads, used]; the highest stay, among equals the newer.
            is_protected: bool, of the same shape; these stay before all others.
            kept: tokens of each of the rows that stay, in every head.
        """
        layers, _, heads, used = score.shape
        is_protected = is_protected.contiguous()
        planes = store.planes
        sizes = [plane[0, 0, 0, 0].numel() * plane.element_size() for plane in planes.values()]
        empties = [empty_value(name) & 255 if name in store.metadata else -1 for name in planes]
        numbers, pos = ctypes.c_int64 * len(planes), planes["pos"]
        tables: tuple[ctypes.Array[Any], ...] = (
            (ctypes.c_int64 * len(rows))(*rows),
            (ctypes.c_int64 * len(rows))(*kept),
            (POINTER * len(planes))(*(plane.data_ptr() for plane in planes.values())),
            numbers(*sizes),
            numbers(*empties),
        )
        steps = (*pos.stride()[:3], *score.stride(), score.dtype is torch.float64)
        job = _Job(layers, len(rows), heads, used, torch.get_num_threads(), *steps, len(planes))
        job.is_protected = is_protected.data_ptr()
        for name, table in zip(("which", "kept", "plane", "size", "empty"), tables, strict=True):
            setattr(job, name, ctypes.addressof(table))
        if self._evict(job, pos.data_ptr(), score.data_ptr(), max(sizes)):
            raise MemoryError("no memory left to sort tokens")
        for row, count in zip(rows, kept, strict=True):
            store.extents[row] = min(count, store.extents[row])


@functools.cache
def evict() -> Evict | None:
    """It, built if it must be; None where that can't be done."""
    found = library()
    return Evict(found) if found is not None else None


def fits(store: TierStore, score: Tensor) -> bool:
    """Whether it knows this kind of store and scores."""
    plain = all(plane.is_contiguous() for plane in store.planes.values())
    return plain and store.device.type == "cpu" and score.dtype in (torch.float32, torch.float64)
