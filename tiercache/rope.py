"""Rotary positions, for what has to turn keys and queries to another position than the one they were written at."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rope:
    """frequencies: float [head_dim / 2]; dimension c is paired with c + head_dim / 2, as in Llama and Qwen."""

    frequencies: Tensor

    def turn(self, x: Tensor, by: Tensor) -> Tensor:
        """Rotates x [..., d] by `by` positions (integers that broadcast to x's shape without d); may be negative."""
        wide = torch.promote_types(x.dtype, torch.float32)
        angle = by.unsqueeze(-1).to(wide) * self.frequencies.to(x.device, wide)
        cos, sin = angle.cos(), angle.sin()
        first, second = x.to(wide).chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
