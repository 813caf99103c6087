"""Quantised keys and values: ranges, codes and the bytes in which they lie.

`Format` turns vectors into two planes of one slot for each token: packed codes, and the token's share of the grids
(scales and zero points). Ranges over a whole window belong to no single token, so their grid is dealt out evenly over
the window's tokens and put together again when it is read. Everything that moves tokens then moves all planes by one
index, and no range is ever cut, because windows move as a whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, unflatten

from tiercache.parts import Storage

E4M3_MAX = 448.0


def quantize(
    x: Tensor, bits: int = 8, dims: tuple[int, ...] = (-1,), grids: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Asymmetric min/max over `dims`: codes uint8 in x's shape, scale and zero in type `grids`, `dims` kept as 1.

    The error of each element is at most half a scale (up to float32 rounding); a constant group is exact wherever
    `grids` can hold its value.
    """
    wide, levels = x.float(), 2**bits - 1
    low = _outward(wide.amin(dims, keepdim=True), grids, up=False)
    scale = _outward((wide.amax(dims, keepdim=True) - low.float()) / levels, grids, up=True)
    codes = ((wide - low.float()) / _divisor(scale)).round_().clamp_(0, levels).to(torch.uint8)
    return codes, scale, low


def dequantize(codes: Tensor, scale: Tensor, zero: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of `quantize`, in `dtype`."""
    return (codes.float() * scale.float()).add_(zero.float()).to(dtype)


def quantize_fp8(x: Tensor, dims: tuple[int, ...] = (-1,), grids: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """e4m3 floats (their bits as uint8) of x over one scale, which takes the largest magnitude to 448."""
    wide = x.float()
    scale = _outward(wide.abs().amax(dims, keepdim=True) / E4M3_MAX, grids, up=True)
    scaled = (wide / _divisor(scale)).clamp_(-E4M3_MAX, E4M3_MAX)  # a conversion beyond the range would give NaN
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8), scale


def dequantize_fp8(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of `quantize_fp8`, in `dtype`."""
    floats: Tensor = torch.take(_e4m3(codes.device), codes.long())
    return floats.mul_(scale.float()).to(dtype)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes uint8 [..., d] -> bytes uint8 [..., d * bits / 8], the first code in the lowest bits."""
    if bits == 8:
        return codes
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    return (unflatten(codes, -1, (-1, 8 // bits)) << shifts).sum(-1, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """The inverse of `pack`, as float32: one look into a table of what each byte holds, not a shift for each code."""
    if bits == 8:
        return packed.float()
    codes: Tensor = F.embedding(packed.int(), _bytes(bits, packed.device)).flatten(-2)
    return codes


@cache
def _e4m3(device: torch.device) -> Tensor:
    """The number for each byte, float32 [256]: quicker to look up than to convert on a CPU."""
    return torch.arange(256, device=device).to(torch.uint8).view(torch.float8_e4m3fn).float()


@cache
def _bytes(bits: int, device: torch.device) -> Tensor:
    """The codes in each byte, the lowest bits first: float32 [256, 8 / bits]."""
    shifts = torch.arange(0, 8, bits, device=device)
    codes: Tensor = (torch.arange(256, device=device).unsqueeze(1) >> shifts) & (2**bits - 1)
    return codes.float()


def _outward(x: Tensor, dtype: torch.dtype, up: bool) -> Tensor:
    """x in type float32 or float16, rounded up or down so that the range never shrinks, and finite."""
    limit = torch.finfo(dtype).max
    x = x.clamp(-limit, limit)
    kept = x.to(dtype)
    if dtype == torch.float32:
        return kept
    short = kept.float() < x if up else kept.float() > x
    # A float's bits, read as an integer, count its magnitude: one more is the next number away from zero.
    away = torch.signbit(kept) != up
    beyond = (kept.view(torch.int16) + torch.where(away, 1, -1).to(torch.int16)).view(dtype)
    return torch.where(short, beyond, kept)


def _divisor(scale: Tensor) -> Tensor:
    """A scale of 0 (all elements are alike) divides nothing."""
    return torch.where(scale > 0, scale, torch.ones_like(scale)).float()


@dataclass(frozen=True)
class Format:
    """How the keys or the values of one KV head lie in T2.

    bits    8, 4 or 2: min/max codes with scale and zero; None: e4m3 floats with a scale.
    grids   type of scale and zero.
    group   along the token axis: channels of a token that share a range.
    window  along the channel axis: tokens that share a range in each channel; 1: the token axis.
    pairs   along the channel axis: the channels c and c + d/2, which RoPE turns together, share a range.
    """

    head_dim: int
    bits: int | None
    grids: torch.dtype
    group: int
    window: int = 1
    pairs: bool = False

    @property
    def layout(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Planes for one token: name -> (shape, type)."""
        codes = self.head_dim * (self.bits or 8) // 8
        share = -(-self._parts * self._ranges // self.window)
        return {"codes": ((codes,), torch.uint8), "grid": ((share,), self.grids)}

    def pack(self, x: Tensor) -> dict[str, Tensor]:
        """x [..., n, d], whole windows in order -> planes [..., n, ...]."""
        blocks = self._blocks(x)
        if self.bits is None:
            codes, *grid = quantize_fp8(blocks, self._dims, self.grids)
        else:
            codes, *grid = quantize(blocks, self.bits, self._dims, self.grids)
        codes = codes.flatten(-2).flatten(-3, -2)
        entry = torch.cat([part.flatten(-3) for part in grid], dim=-1)  # [..., windows, parts * ranges]
        share = self.layout["grid"][0][0]
        entry = F.pad(entry, (0, share * self.window - entry.shape[-1]))
        dealt = unflatten(entry, -1, (self.window, share)).flatten(-3, -2)
        return {"codes": codes if self.bits is None else pack(codes, self.bits), "grid": dealt}

    def unpack(self, codes: Tensor, grid: Tensor, dtype: torch.dtype) -> Tensor:
        """The inverse of `pack`: planes [..., n, ...] -> [..., n, d]."""
        codes = codes if self.bits is None else unpack(codes, self.bits)
        blocks = self._blocks(codes)
        entry = unflatten(grid, -2, (-1, self.window)).flatten(-2)[..., : self._parts * self._ranges]
        shape = (1, 1, -1) if self.window > 1 else (1, -1, 1)
        parts = [unflatten(part, -1, shape) for part in entry.chunk(self._parts, dim=-1)]
        if self.bits is None:
            x = dequantize_fp8(blocks, parts[0], dtype)
        else:
            x = dequantize(blocks, parts[0], parts[1], dtype)
        return x.flatten(-2).flatten(-3, -2)

    def _blocks(self, x: Tensor) -> Tensor:
        """[..., n, d] -> [..., windows, window, *split]."""
        return unflatten(unflatten(x, -2, (-1, self.window)), -1, self._split)

    @property
    def _split(self) -> tuple[int, int]:
        """The head's channels as [groups, group], or as [halves, channels of a half]."""
        if self.window == 1:
            return self.head_dim // self.group, self.group
        halves = 2 if self.pairs else 1
        return halves, self.head_dim // halves

    @property
    def _dims(self) -> tuple[int, int]:
        """Of blocks [..., windows, window, *split]: the dimensions that share a range."""
        return (-3, -2) if self.window > 1 else (-3, -1)

    @property
    def _ranges(self) -> int:
        """Ranges of a window."""
        return self._split[1] if self.window > 1 else self._split[0]

    @property
    def _parts(self) -> int:
        """Numbers for each range: scale and zero, or a scale alone."""
        return 1 if self.bits is None else 2


def formats(storage: Storage, window: int, head_dim: int) -> Mapping[str, Format]:
    """The formats of keys (`k`) and values (`v`). `window`: tokens that move together."""
    bits = None if storage.packed_bits == "fp8" else storage.packed_bits
    grids = {"float32": torch.float32, "float16": torch.float16}[storage.grids]
    tokens = Format(head_dim, bits, grids, storage.group_of(head_dim))
    channels = Format(head_dim, bits, grids, head_dim, window, storage.rope_pairs)
    return {"k": channels if storage.key_axis == "channel" else tokens, "v": tokens}
