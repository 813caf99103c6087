"""One in, one out, on CPUs, in C: see `free_one.c`."""

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from tiercache.kernels.build import library

POINTER = ctypes.c_void_p
NUMBERS = (
    "layers due heads used threads layer row head score_layer score_row score_head score_slot wide victim_layer "
    "victim_row fields"
)


class _Job(ctypes.Structure):
    _fields_ = (*((name, ctypes.c_int64) for name in NUMBERS.split()), ("rows", POINTER), ("edges", POINTER))


class FreeOne:
    """Empties the lowest-ranked candidate's slot of each (layer, row, KV head)."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._free = library.tiercache_free_one
        self._free.argtypes = (ctypes.POINTER(_Job), *[POINTER] * 5)
        self._free.restype = None

    def __call__(
        self, planes: Sequence[Tensor], score: Tensor, rows: Sequence[int], edges: Tensor, victims: Tensor
    ) -> None:
        """The lowest score's token leaves; among equals the oldest.

        Args:
            planes: the positions, int32 [layers, rows, kv_heads, used], and slot fields that lie as they do.
            score: float32 or float64, of the same shape.
            rows: which ones; edges: positions [first, last) of every row's candidates, int32 [rows, 2].
            victims: takes the emptied slots, int64 [layers, rows or more, kv_heads].
        """
        (pos, *fields), due = planes, torch.tensor(rows)
        layers, _, heads, used = pos.shape
        steps = (*pos.stride()[:3], *score.stride(), score.dtype is torch.float64, *victims.stride()[:2])
        n = _Job(layers, len(rows), heads, used, torch.get_num_threads(), *steps, len(fields))
        n.rows, n.edges = due.data_ptr(), edges.data_ptr()
        places = (POINTER * len(fields))(*(field.data_ptr() for field in fields))
        sizes = (ctypes.c_int64 * len(fields))(*(field.element_size() for field in fields))
        self._free(n, pos.data_ptr(), score.data_ptr(), places, sizes, victims.data_ptr())


@functools.cache
def free_one() -> FreeOne | None:
    """It, built if it must be; None where that can't be done."""
    found = library()
    return FreeOne(found) if found is not None else None


def fits(planes: Sequence[Tensor], score: Tensor) -> bool:
    """Whether it knows this kind of tensors."""
    pos = planes[0]
    alike = all(plane.stride() == pos.stride() for plane in planes)
    return alike and pos.device.type == "cpu" and score.dtype in (torch.float32, torch.float64)
