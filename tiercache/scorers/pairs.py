"""RoPE's pairs of dimensions as complex numbers, for scorers that compute with rotations."""

import torch
from torch import Tensor

from tiercache.rope import Rope


def to_pairs(x: Tensor) -> Tensor:
    """[..., d] -> complex [..., d / 2]; dimension c is paired with c + d / 2. x is float32 or float64."""
    return torch.complex(*(half.contiguous() for half in x.chunk(2, dim=-1)))


def from_pairs(x: Tensor) -> Tensor:
    """The inverse of `to_pairs`."""
    return torch.cat([x.real, x.imag], dim=-1)


def mean_turn(rope: Rope, offsets: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Mean over offsets o of exp(i f o) for each frequency f: complex [d / 2], of the precision of `dtype`."""
    angle = offsets.double().unsqueeze(1) * rope.frequencies.cpu().double()
    return to_pairs(torch.cat([angle.cos(), angle.sin()], dim=-1).mean(0).to(device, dtype))
