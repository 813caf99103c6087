"""How the newest queries vote on tokens, on CPUs, in C: see `votes.c`."""

import ctypes
import functools

import torch
from torch import Tensor

from tiercache.kernels.build import library
from tiercache.kernels.native import LANES, NO_MEMORY

NUMBERS = (
    "rows heads group queries dim used threads largest "
    "query_row query_head query_step key_row key_head key_slot pos_row pos_head"
)


class _Window(ctypes.Structure):
    _fields_ = (*((name, ctypes.c_int64) for name in NUMBERS.split()), ("scaling", ctypes.c_float))


class Votes:
    """Shares of each token in the attention of a window of queries, summed over the queries."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._vote = library.tiercache_vote
        self._vote.argtypes = (ctypes.POINTER(_Window), *[ctypes.c_void_p] * 5)

    def __call__(
        self, query: Tensor, query_pos: Tensor, keys: Tensor, pos: Tensor, scaling: float, largest: bool
    ) -> Tensor:
        """[rows, kv_heads, slots]: over the heads that share a KV head the sum, or the largest.

        query [rows, heads, w, d], at positions query_pos int64 [rows, w]; keys [rows, kv_heads, slots, d], at positions
        pos int32. A query sees tokens up to its own position; one that sees none votes for none.
        """
        (rows, heads, used, dim), group, queries = keys.shape, query.shape[1] // keys.shape[1], query.shape[2]
        query_pos, votes = query_pos.contiguous(), keys.new_empty((rows, heads, used))
        steps = (*query.stride()[:3], *keys.stride()[:3], *pos.stride()[:2])
        sizes = (rows, heads, group, queries, dim, used, torch.get_num_threads(), largest)
        places = (part.data_ptr() for part in (query, keys, pos, query_pos, votes))
        if self._vote(_Window(*sizes, *steps, scaling), *places):
            raise MemoryError(NO_MEMORY)
        return votes


@functools.cache
def votes() -> Votes | None:
    """It, built if it must be; None where that can't be done."""
    found = library()
    return Votes(found) if found is not None else None


def fits(query: Tensor, keys: Tensor, pos: Tensor) -> bool:
    """Whether it knows this kind of tensors: float32 on the CPU, whole vectors, channels and slots side by side."""
    floats = all(x.dtype is torch.float32 and x.device.type == "cpu" and x.stride(-1) == 1 for x in (query, keys))
    return floats and pos.stride(-1) == 1 and keys.shape[-1] % LANES == 0
