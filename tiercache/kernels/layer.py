"""What lies between the products of a decoder layer, on CPUs, in C: see `decoder_layer.c`."""

import ctypes
import functools

import torch
from torch import Tensor

from tiercache.kernels.build import library

LANES = 8  # floats of one vector


class _Vectors(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int64) for name in ("outer", "inner", "outer_step", "inner_step", "width", "threads")
    )


class Operations:
    """Float32 on the CPU, channels side by side, their number a multiple of 8 (`fits`)."""

    def __init__(self, library: ctypes.CDLL) -> None:
        vectors, pointer = ctypes.POINTER(_Vectors), ctypes.c_void_p
        self._norm, self._rotate = library.tiercache_norm, library.tiercache_rotate
        self._gate = library.tiercache_gate
        self._norm.argtypes = (vectors, pointer, pointer, pointer, ctypes.c_float)
        self._rotate.argtypes = (vectors, pointer, pointer, pointer, *[ctypes.c_int64] * 3)
        self._gate.argtypes = (vectors, pointer, pointer)
        for function in (self._norm, self._rotate, self._gate):
            function.restype = None

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root mean square norm of the last dimension."""
        x, width = x.contiguous(), x.shape[-1]
        to = torch.empty_like(x)
        n = _Vectors(x.numel() // width, 1, width, 0, width, torch.get_num_threads())
        self._norm(n, x.data_ptr(), weight.data_ptr(), to.data_ptr(), eps)
        return to

    def norm_heads(self, x: Tensor, queries: int, query: Tensor, key: Tensor, eps: float) -> Tensor:
        """The same in place, [rows, n, heads, d]: the first `queries` heads have one weight, the others another."""
        for heads, weight in ((x[:, :, :queries], query), (x[:, :, queries:], key)):
            self._norm(self._heads(heads), heads.data_ptr(), weight.data_ptr(), heads.data_ptr(), eps)
        return x

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """RoPE in place: [rows, n, heads, d], a part of contiguous heads; cos and signed sin [rows or 1, 1, n, d]."""
        if cos.stride() != sin.stride() or cos.stride(-1) != 1:
            cos, sin = cos.contiguous(), sin.contiguous()
        row, _, token, _ = cos.stride()
        n = self._heads(x)
        self._rotate(n, x.data_ptr(), cos.data_ptr(), sin.data_ptr(), x.shape[1], row * (cos.shape[0] > 1), token)
        return x

    def gate(self, both: Tensor) -> Tensor:
        """[..., 2 width], gates before what they let through -> [..., width]."""
        both, width = both.contiguous(), both.shape[-1] // 2
        to = both.new_empty((*both.shape[:-1], width))
        self._gate(
            _Vectors(both.numel() // (2 * width), 1, 2 * width, 0, width, torch.get_num_threads()),
            both.data_ptr(),
            to.data_ptr(),
        )
        return to

    @staticmethod
    def _heads(x: Tensor) -> _Vectors:
        rows, count, heads, dim = x.shape
        return _Vectors(rows * count, heads, x.stride(1), dim, dim, torch.get_num_threads())


@functools.cache
def operations() -> Operations | None:
    """Them, built if they must be; None where that can't be done."""
    found = library()
    return Operations(found) if found is not None else None


def fits(hidden: Tensor, cos: Tensor, dim: int, inner: int) -> bool:
    """Whether they know this kind of model: its hidden states, head size (halves are rotated) and width of gates.

    Weights are of the hidden states' type, which `lean` sees to.
    """
    whole = hidden.shape[-1] % LANES == inner % LANES == dim % (2 * LANES) == 0
    return whole and hidden.dtype is cos.dtype is torch.float32 and hidden.device.type == "cpu"
