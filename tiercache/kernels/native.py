"""Attention's C kernel for CPUs, called through ctypes."""

import ctypes
import functools

import torch
from torch import Tensor

from tiercache.attention import Partial
from tiercache.kernels.build import library

LANES = 8  # floats of one vector: head_dim is a multiple
NO_MEMORY = "no memory left for attention's logits"


def integers(names: str) -> tuple[tuple[str, type[ctypes.c_int64]], ...]:
    """Fields of a structure."""
    return tuple((name, ctypes.c_int64) for name in names.split())


def empty(*shape: int) -> Tensor:
    """Room for a kernel's floats, whatever torch's defaults are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


class Side(ctypes.Structure):
    """How keys or values lie: `side` in the source; the others have their names there too."""

    _fields_ = integers("slot bits grid_slot wide window share group half")


class Shape(ctypes.Structure):
    _fields_ = (
        *integers("group dim query_group bias_group summed added"),
        ("scaling", ctypes.c_float),
        ("retains", ctypes.c_float),
    )


class _Rectangle(ctypes.Structure):
    _fields_ = (
        ("shape", Shape),
        *integers("rows heads threads used query_row query_head bias_row bias_head"),
        *integers("key_row key_head value_row value_head"),
        ("key", Side),
        ("value", Side),
        ("extents", ctypes.c_void_p),
    )


class Kernel:
    """The functions of the library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._attend = library.tiercache_attend
        self._attend.argtypes = (ctypes.POINTER(_Rectangle), *[ctypes.c_void_p] * 7)
        self.append_and_attend = library.tiercache_append_and_attend  # see `table`
        self.append_and_attend.argtypes = (ctypes.c_void_p, *[ctypes.c_void_p] * 5)

    def __call__(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        extents: Tensor,
        bias: Tensor | None,
        scaling: float,
        *,
        lse: bool = False,
        weights: bool = False,
    ) -> Partial:
        """Shapes as in `decode_attention`, floats as `fits` has them. extents: int64 [rows], contiguous."""
        rows, heads, group, dim = query.shape
        used = keys.shape[2]
        out = empty(rows, heads, group, dim)
        logs = empty(rows, heads, group) if lse else None
        shares = empty(rows, heads, group, used) if weights else None
        if bias is not None:
            bias = bias.expand(rows, heads, group, used)
            bias = bias if bias.stride(3) == 1 else bias.contiguous()
        q, k, v = query.stride(), keys.stride(), values.stride()
        b = bias.stride() if bias is not None else (0, 0, 0)
        shape, sides = Shape(group, dim, q[2], b[2], False, False, scaling), (Side(k[2], 32), Side(v[2], 32))
        sizes = (rows, heads, torch.get_num_threads(), used)
        n = _Rectangle(shape, *sizes, *q[:2], *b[:2], *k[:2], *v[:2], *sides, extents.data_ptr())
        places = (query, keys, values, bias, out, logs, shares)
        if self._attend(n, *(part.data_ptr() if part is not None else None for part in places)):
            raise MemoryError(NO_MEMORY)
        return Partial(out, logs, shares)


def fits(query: Tensor, *others: Tensor) -> bool:
    """Whether the kernel knows this kind of tensors: float32 on the CPU, whole vectors, channels side by side."""
    return query.shape[-1] % LANES == 0 and all(
        part.dtype is torch.float32 and part.device.type == "cpu" and part.stride(-1) == 1 for part in (query, *others)
    )


@functools.cache
def kernel() -> Kernel | None:
    """The kernel, built if it must be; None where that can't be done."""
    found = library()
    return Kernel(found) if found is not None else None
