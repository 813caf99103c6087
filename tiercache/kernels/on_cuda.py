"""The Triton kernel for CUDA: output, log-sum-exp and weights of a decode row in one pass over its keys and values.

Long rows are split over several programs, whose parts are put together by their log-sum-exps. Not measured on a GPU yet
(`benchmarks/on_gpu.py` does it), so it is used only where `TIERCACHE_TRITON=1` asks for it.
"""

import functools
import os
from typing import Any

import torch
from torch import Tensor

from tiercache.attention import Partial

BLOCK = 64  # slots that a program loads at once
PROGRAMS = 256  # as many keep a large GPU busy; rows are split until there are so many


def fits(query: Tensor) -> bool:
    """Whether the kernel is wanted and knows this kind of tensors."""
    return query.device.type == "cuda" and os.environ.get("TIERCACHE_TRITON") == "1" and _compiled() is not None


@functools.cache
def _compiled() -> Any:
    """The kernel; None where Triton isn't installed."""
    try:
        import triton
        import triton.language as tl
    except ImportError:
        return None

    @triton.jit  # type: ignore[untyped-decorator]
    def attend(  # type: ignore[no-untyped-def]
        query, keys, values, bias, starts, extents, out, lse, logits,
        heads, group, used, span, scaling,
        query_row, query_head, query_group, key_row, key_head, key_slot, value_row, value_head, value_slot,
        bias_row, bias_head, bias_group,
        DIM: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
        BIASED: tl.constexpr, KEPT: tl.constexpr, RAGGED: tl.constexpr,
    ):  # fmt: skip
        item, part = tl.program_id(0), tl.program_id(1)
        row, head = item // heads, item % heads
        g, d = tl.arange(0, GROUP), tl.arange(0, COLUMNS)
        known = (g[:, None] < group) & (d[None, :] < DIM)
        query += row * query_row + head * query_head
        q = tl.load(query + g[:, None] * query_group + d[None, :], mask=known, other=0.0)
        if RAGGED:
            start_slot = tl.load(starts + item)
            keys += start_slot * key_slot
            values += start_slot * value_slot
            extent = tl.load(extents + item)
        else:
            keys += row * key_row + head * key_head
            values += row * value_row + head * value_head
            extent = tl.load(extents + row)
        first = part * span
        last = tl.minimum(first + span, extent)
        top = tl.full([GROUP], float("-inf"), tl.float32)
        total = tl.zeros([GROUP], tl.float32)
        sums = tl.zeros([GROUP, COLUMNS], tl.float32)
        for start in range(first, last, BLOCK):
            s = start + tl.arange(0, BLOCK)
            held = s < last
            inside = held[:, None] & (d[None, :] < DIM)
            k = tl.load(keys + s[:, None].to(tl.int64) * key_slot + d[None, :], mask=inside, other=0.0)
            x = tl.dot(q, tl.trans(k), input_precision="ieee").to(tl.float32) * scaling
            seen = (g[:, None] < group) & held[None, :]
            if BIASED:
                place = bias + row * bias_row + head * bias_head + g[:, None] * bias_group + s[None, :]
                x += tl.load(place, mask=seen, other=0.0).to(tl.float32)
            x = tl.where(seen, x, float("-inf"))
            if KEPT:
                place = logits + (item * group + g[:, None]).to(tl.int64) * used + s[None, :]
                tl.store(place, x, mask=seen)
            higher = tl.maximum(top, tl.max(x, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            shrink = tl.exp(top - base)
            w = tl.exp(x - base[:, None])
            v = tl.load(values + s[:, None].to(tl.int64) * value_slot + d[None, :], mask=inside, other=0.0)
            total = total * shrink + tl.sum(w, 1)
            sums = sums * shrink[:, None] + tl.dot(w.to(v.dtype), v, input_precision="ieee")
            top = higher
        place = (part * tl.num_programs(0) + item) * group + g
        sums = sums / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out + place[:, None] * DIM + d[None, :], sums, mask=known)
        tl.store(lse + place, top + tl.log(total), mask=g < group)

    return attend


def decode_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    extents: Tensor,
    bias: Tensor | None,
    scaling: float,
    *,
    lse: bool = False,
    weights: bool = False,
    parts: int | None = None,
    starts: Tensor | None = None,
    longest: int = 0,
) -> Partial:
    """Shapes and results as in `tiercache.kernels.decode_attention`; `parts`: programs for one row and head.

    With `starts`, int64 [rows, kv_heads], keys and values are one line of slots [slots, d], in which each head begins
    there and has `extents` [rows, kv_heads] tokens, `longest` at most: that many weights it gets.
    """
    rows, heads, group, dim = query.shape
    used, device = keys.shape[2] if starts is None else longest, query.device
    blocks = max(1, -(-used // BLOCK))
    parts = min(parts or max(1, PROGRAMS // (rows * heads)), blocks)
    span = -(-blocks // parts) * BLOCK
    out = torch.empty((parts, rows, heads, group, dim), dtype=torch.float32, device=device)
    logs = torch.empty((parts, rows, heads, group), dtype=torch.float32, device=device)
    logits = torch.full((rows, heads, group, used), float("-inf"), device=device) if weights else None
    wide = bias.expand(rows, heads, group, used) if bias is not None else None
    if wide is not None and wide.stride(3) != 1:
        wide = wide.contiguous()
    query, keys, values = (part if part.stride(-1) == 1 else part.contiguous() for part in (query, keys, values))
    if starts is not None:
        starts, extents = starts.contiguous(), extents.contiguous()
    steps = [_steps(part) for part in (query, keys, values, wide)]
    _compiled()[(rows * heads, parts)](
        query, keys, values, wide, starts, extents.to(device, non_blocking=True), out, logs, logits,
        heads, group, used, span, scaling, *sum(steps, ()),
        DIM=dim, COLUMNS=_power(dim), GROUP=_power(group), BLOCK=BLOCK, BIASED=wide is not None, KEPT=weights,
        RAGGED=starts is not None,
    )  # fmt: skip
    level = torch.logsumexp(logs, dim=0)
    base = torch.where(level == float("-inf"), torch.zeros_like(level), level)  # for a row that sees nothing
    whole = ((logs - base).exp_().unsqueeze(-1) * out).sum(0).to(values.dtype)
    shares = (logits - base.unsqueeze(-1)).exp_() if logits is not None else None
    return Partial(whole, level if lse else None, shares)


def _steps(part: Tensor | None) -> tuple[int, int, int]:
    """Of rows, heads and slots (or queries of a group)."""
    if part is None:
        return 0, 0, 0
    return (0, 0, part.stride(0)) if part.dim() == 2 else part.stride()[:3]  # type: ignore[return-value]


def _power(n: int) -> int:
    """Tensor cores take sixteen rows and columns or more, and powers of two."""
    return max(16, 1 << (n - 1).bit_length())
