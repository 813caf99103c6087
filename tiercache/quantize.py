"""Asymmetric min/max quantisation to 8 bits over the last dimension."""

import torch
from torch import Tensor

LEVELS = 255


def quantize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x [..., d] -> codes uint8 [..., d], scale and zero float32 [..., 1].

    The error of each element is at most half a scale (up to float32 rounding); a constant group is exact.
    """
    wide = x.float()
    low = wide.amin(-1, keepdim=True)
    scale = (wide.amax(-1, keepdim=True) - low) / LEVELS
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    codes = ((wide - low) / safe).round_().clamp_(0, LEVELS).to(torch.uint8)
    return codes, scale, low


def dequantize(codes: Tensor, scale: Tensor, zero: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of `quantize`, in `dtype`."""
    return torch.addcmul(zero, codes.float(), scale).to(dtype)
