"""Which tier each token is to lie in after an event, on CPUs, in C: see `tiers.c`."""

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from tiercache.kernels.build import library
from tiercache.kernels.native import integers

POINTER = ctypes.c_void_p


class _Job(ctypes.Structure):
    _fields_ = (*integers("layers rows heads slots stores threads"), ("kept", POINTER))


class Divide:
    """Deals a head's tokens out to stores, best first."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._divide = library.tiercache_divide
        self._divide.argtypes = (ctypes.POINTER(_Job), *[POINTER] * 4)

    def __call__(self, score: Tensor, pos: Tensor, is_protected: Tensor, kept: Sequence[Sequence[int]]) -> Tensor:
        """Protected tokens come first, then higher scores, among equals the newer; free slots (position -1) last.

        Args:
            score: float64, pos: int32, is_protected: bool, each [layers, rows, kv_heads, slots].
            kept: for each row, how many tokens each store takes, in this order.

        Returns:
            each slot's store, uint8; what is left over has the number of stores.
        """
        score, pos, is_protected = score.contiguous(), pos.contiguous(), is_protected.contiguous()
        counts = torch.tensor(kept, dtype=torch.int64, device="cpu")
        to = torch.empty(pos.shape, dtype=torch.uint8, device="cpu")
        job = _Job(*pos.shape, counts.shape[1], torch.get_num_threads(), counts.data_ptr())
        if self._divide(job, *(x.data_ptr() for x in (score, pos, is_protected, to))):
            raise MemoryError("no memory left to divide tokens among tiers")
        return to


@functools.cache
def divide() -> Divide | None:
    """It, built if it must be; None where that can't be done."""
    found = library()
    return Divide(found) if found is not None else None
