"""Attention of one decode query per row, by the quickest means at hand: our C kernel, our Triton kernel or torch's own.

All give the same: the output and, where asked, the log-sum-exp and every key's share. On a CPU the C kernel reads keys
and values once and of each row only what it holds; it needs a C compiler, and without one torch does the work.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tiercache import attention
from tiercache.attention import Partial
from tiercache.kernels import native, on_cuda


@dataclass
class Visible:
    """Which of `used` slots a step's queries see: the first `extents[row]`, and of these where `bias` isn't -inf.

    bias: broadcasts to [rows, kv_heads, group, used], of the keys' type and on their device; None: all of them.
    """

    extents: Tensor  # int64 [rows], on the host
    used: int
    dtype: torch.dtype
    device: torch.device
    bias: Tensor | None = None

    @cached_property
    def mask(self) -> Tensor | None:
        """Both conditions as one bias; None if every slot is seen."""
        if bool((self.extents == self.used).all()):
            return self.bias
        beyond = torch.arange(self.used, device=self.device) >= self.extents.to(self.device).view(-1, 1, 1, 1)
        mask = torch.zeros(beyond.shape, dtype=self.dtype, device=self.device).masked_fill_(beyond, float("-inf"))
        return mask if self.bias is None else mask + self.bias


def decode_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Visible,
    scaling: float,
    *,
    lse: bool = False,
    weights: bool = False,
) -> Partial:
    """query [rows, kv_heads, group, d]; keys, values [rows, kv_heads, used, d] -> what of `Partial` is asked for.

    Output and weights are normalised within these keys; a row that sees none has output 0 and log-sum-exp -inf.
    """
    kernel: Callable[..., Partial] | None = native.kernel() if native.fits(query, keys, values) else None
    if kernel is None and on_cuda.fits(query):
        kernel = on_cuda.decode_attention
    if kernel is not None:
        return kernel(query, keys, values, visible.extents, visible.bias, scaling, lse=lse, weights=weights)
    if lse:
        return attention.partial_attention(query, keys, values, visible.mask, scaling)
    if weights:
        out, shares = attention.softmax_attention(query, keys, values, visible.mask, scaling)
        return Partial(out, None, shares)
    return Partial(attention.fused_attention(query, keys, values, visible.mask, scaling), None, None)
