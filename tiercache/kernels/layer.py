"""Decoder layers and single products on CPUs, in C: see `decoder_layer.c` and `products.c`.

Weights are copied into the order in which they are read, so they are in memory twice.
"""

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from tiercache.kernels.build import library
from tiercache.kernels.native import empty, integers

LANES = 8  # floats of one vector
SOME = 224  # rows worked on at a time, a multiple of what a product takes at once with wide vectors
MOST_BYTES = 2 * 2**30  # of a model's weights: larger ones aren't copied

POINTER = ctypes.c_void_p


class _Product(ctypes.Structure):
    _fields_ = (*integers("inputs outputs"), ("weights", POINTER), ("bias", POINTER))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Product) for name in ("inputs", "output", "gates", "down")),
        *((name, POINTER) for name in ("before", "between", "query_norm", "key_norm")),
        *integers("width inner queries keys dim threads"),
        ("eps", ctypes.c_float),
    )


class _Angles(ctypes.Structure):
    _fields_ = (("cos", POINTER), ("sin", POINTER), *integers("tokens row token"))


class Kernels:
    """The functions of the library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        number = ctypes.c_int64
        self.size, self.pack = library.tiercache_packed_size, library.tiercache_pack
        self.multiply = library.tiercache_multiply
        self.before, self.after = library.tiercache_before_attention, library.tiercache_after_attention
        self.size.argtypes, self.size.restype = (number, number), number
        self.pack.argtypes = (number, number, POINTER, number, POINTER, number)
        self.multiply.argtypes = (POINTER, number, POINTER, number, POINTER, POINTER, number)
        self.before.argtypes = (POINTER, POINTER, number, number, *[POINTER] * 3)
        self.after.argtypes = (POINTER, number, number, *[POINTER] * 4)
        for function in (self.pack, self.multiply, self.before, self.after):
            function.restype = None


@functools.cache
def kernels() -> Kernels | None:
    """Them, built if they must be; None where that can't be done."""
    found = library()
    return Kernels(found) if found is not None else None


class Packed:
    """A linear layer with weights in the kernel's order: a copy."""

    def __init__(self, kernels: Kernels, weight: Tensor, bias: Tensor | None) -> None:
        """weight [outputs, inputs], bias [outputs]: float32 on the CPU."""
        weight, self._bias = weight.detach(), _plain(bias)
        weight = weight if weight.stride(1) == 1 else weight.contiguous()
        self._kernels, (self.outputs, self.inputs) = kernels, weight.shape
        self._floats = empty(kernels.size(self.inputs, self.outputs))
        floats, threads = self._floats.data_ptr(), torch.get_num_threads()
        kernels.pack(self.inputs, self.outputs, weight.data_ptr(), weight.stride(0), floats, threads)
        self.product = _Product(self.inputs, self.outputs, floats, _pointer(self._bias))
        self._at = ctypes.byref(self.product)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]"""
        x, out = x.contiguous(), empty(*x.shape[:-1], self.outputs)
        rows, threads = x.numel() // self.inputs, torch.get_num_threads()
        self._kernels.multiply(self._at, rows, x.data_ptr(), self.inputs, None, out.data_ptr(), threads)
        return out


class LayerKernel:
    """What a decoder layer does before and after its attention: llama's layer, also with biases and norms of heads."""

    def __init__(
        self,
        kernels: Kernels,
        linears: Sequence[tuple[Tensor, Tensor | None]],
        norms: Sequence[Tensor | None],
        heads: tuple[int, int, int],
        eps: float,
    ) -> None:
        """Float32 on the CPU; see `fits`.

        Args:
            linears: weight and bias of queries with keys and values, of attention's output, of gates with what they let
                through, and of the way back.
            norms: weights of the norms before attention and before the gates, and of queries' and keys' heads.
            heads: of queries, of keys, and their size.
        """
        self._kernels, self._heads = kernels, heads
        self._packed = [Packed(kernels, *linear) for linear in linears]
        self._norms = list(map(_plain, norms))
        self.width, self.inner = self._packed[0].inputs, self._packed[3].inputs
        products, pointers = (packed.product for packed in self._packed), map(_pointer, self._norms)
        self._layer = _Layer(*products, *pointers, self.width, self.inner, *heads, 1, eps)
        self._at = ctypes.byref(self._layer)

    def before(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """hidden [rows, n, width]; cos and signed sin [rows or 1, 1, n, d] -> rotated queries and keys, and values,
        each [rows, heads, n, d]."""
        hidden, (rows, n, _) = hidden.contiguous(), hidden.shape
        if cos.stride() != sin.stride() or cos.stride(-1) != 1:
            cos, sin = cos.contiguous(), sin.contiguous()
        row, _, token, _ = cos.stride()
        angles = _Angles(cos.data_ptr(), sin.data_ptr(), n, row * (cos.shape[0] > 1), token)
        queries, keys, dim = self._heads
        states, some = empty(rows, n, queries + 2 * keys, dim), min(SOME, rows * n)
        scratch = empty(some * self.width)
        self._layer.threads = torch.get_num_threads()
        places = (hidden.data_ptr(), states.data_ptr(), scratch.data_ptr())
        self._kernels.before(self._at, ctypes.byref(angles), rows * n, some, *places)
        query, key, value = states.transpose(1, 2).split((queries, keys, keys), dim=1)  # type: ignore[no-untyped-call]
        return query, key, value

    def after(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """hidden [rows, n, width] and attention's output [rows, n, heads, d] -> the layer's [rows, n, width]."""
        hidden, attended, (rows, n, _) = hidden.contiguous(), attended.contiguous(), hidden.shape
        out, some = torch.empty_like(hidden), min(SOME, rows * n)
        scratch = empty(some * (self.width + 2 * self.inner))
        self._layer.threads = torch.get_num_threads()
        places = (hidden.data_ptr(), attended.data_ptr(), out.data_ptr(), scratch.data_ptr())
        self._kernels.after(self._at, rows * n, some, *places)
        return out


def fits(width: int, inner: int, dim: int) -> bool:
    """Whether they know this kind of layer: the width of hidden states and gates, the size of heads (halves are
    rotated)."""
    return width % LANES == inner % LANES == dim % (2 * LANES) == 0


def worth_packing(weights: Sequence[Tensor]) -> bool:
    """Whether they are float32 on the CPU, and together small enough to be there twice."""
    return takes(*weights) and sum(weight.numel() * weight.element_size() for weight in weights) <= MOST_BYTES


def takes(*states: Tensor) -> bool:
    """Whether they know this kind of numbers."""
    return all(state.dtype is torch.float32 and state.device.type == "cpu" for state in states)


def _plain(x: Tensor | None) -> Tensor | None:
    return x.detach().contiguous() if x is not None else None


def _pointer(x: Tensor | None) -> int | None:
    return x.data_ptr() if x is not None else None
