"""Exact attention over keys that lie in several places.

Each tier contributes a partial result that is normalised within the tier; partial results combine by the
log-sum-exp identity o = sum_j exp(l_j - l) o_j, so a token counts exactly as if it had never moved.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Partial:
    """Attention of one decode query per row over one set of keys.

    out     [rows, kv_heads, group, head_dim], normalised within the set; zero for an empty set
    lse     [rows, kv_heads, group], log of the sum of exponentiated logits, float32 or float64; -inf for an empty set
    weights [rows, kv_heads, group, slots], normalised within the set

    The last two are None where nobody asked for them.
    """

    out: Tensor
    lse: Tensor | None
    weights: Tensor | None


def partial_attention(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scaling: float) -> Partial:
    """query [rows, kv_heads, group, d]; keys, values [rows, kv_heads, slots, d]; bias [rows, 1, 1, slots] or None."""
    logits = torch.matmul(query, keys.transpose(2, 3)).mul_(scaling)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if bias is not None:
        logits = logits + bias
    top = logits.amax(-1, keepdim=True)
    top = torch.where(top == float("-inf"), torch.zeros_like(top), top)
    weights = (logits - top).exp_()
    total = weights.sum(-1, keepdim=True)
    weights = weights / torch.where(total > 0, total, torch.ones_like(total))
    out = torch.matmul(weights.to(values.dtype), values)
    return Partial(out, (total.log() + top).squeeze(-1), weights)


def combine(parts: list[Partial]) -> tuple[Tensor, list[Tensor]]:
    """The attention over the union of disjoint sets, and each set's share of it [rows, kv_heads, group]."""
    lse = torch.stack([part.lse for part in parts if part.lse is not None])
    assert len(lse) == len(parts), "every part's is needed"
    shares = (lse - torch.logsumexp(lse, dim=0)).exp()
    out = sum(
        (share.unsqueeze(-1).to(part.out.dtype) * part.out for share, part in zip(shares, parts, strict=True)),
        torch.zeros_like(parts[0].out),
    )
    return out, list(shares)


def softmax_attention(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scaling: float
) -> tuple[Tensor, Tensor]:
    """One set of keys only: output and weights, shapes as in `partial_attention`."""
    logits = torch.matmul(query, keys.transpose(2, 3)).mul_(scaling)
    if bias is not None:
        logits = logits + bias
    wide = torch.float32 if logits.dtype in (torch.float16, torch.bfloat16) else logits.dtype
    weights = torch.softmax(logits, dim=-1, dtype=wide)
    return torch.matmul(weights.to(values.dtype), values), weights


def fused_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float, causal: bool = False
) -> Tensor:
    """torch's fused kernel, no weights: query [rows, heads, n, d] -> [rows, heads, n, d]."""
    grouped_heads = query.shape[1] != keys.shape[1]
    return F.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=grouped_heads
    )


BLOCK_WEIGHTS = 2**24  # weights that are in memory at once: 64 MiB in float32


def prefill_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor,
    scaling: float,
    observe: Callable[[int, int, Tensor], None],
) -> Tensor:
    """Attention of a chunk of queries; the weights are shown once and thrown away.

    Args:
        query: [rows, heads, chunk, d]; keys, values: [rows, kv_heads, n, d], n keys so far with the chunk's own.
        visible: bool [chunk, n], causal.
        observe: called with a row's number, the first of some queries, and their weights [kv_heads, group, queries, n].

    Returns:
        output [rows, heads, chunk, d]. A row's queries are taken in blocks, so that memory doesn't grow with n x n.
    """
    rows, heads, chunk, _ = query.shape
    kv_heads, length = keys.shape[1], keys.shape[2]
    out = torch.empty_like(query)
    wide = torch.float32 if query.dtype in (torch.float16, torch.bfloat16) else query.dtype
    block = max(1, BLOCK_WEIGHTS // (heads * length))
    for first in range(0, chunk, block):
        bias = torch.zeros(visible[first : first + block].shape, dtype=wide, device=query.device)
        bias.masked_fill_(~visible[first : first + block], float("-inf"))
        for row in range(rows):
            part = query[row, :, first : first + block]
            groups = part.reshape(kv_heads, -1, part.shape[-1])
            logits = torch.matmul(groups, keys[row].transpose(1, 2)).mul_(scaling)
            logits = logits.view(kv_heads, -1, part.shape[1], length).to(wide).add_(bias)
            weights = torch.softmax(logits, dim=-1)
            del logits
            flat = weights.view(kv_heads, -1, length)
            out[row, :, first : first + block] = torch.matmul(flat.to(values.dtype), values[row]).view(part.shape)
            observe(row, first, weights)
    return out
