"""Attention of the newest queries over all tokens: what SnapKV, R-KV and G-KV have in common.

Only w rows of the attention matrix are ever computed, a layer at a time: memory is R · Hq · w · S, never S · S.
Queries lie in a ring, so nothing here depends on their order; each sees the tokens up to its own position.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from tiercache.kernels import votes
from tiercache.scorers.base import View


def own_tokens(view: View, queries: int) -> Tensor:
    """Which slots hold the newest tokens themselves, those whose queries vote: bool [L, R, H, S]."""
    return view.pos >= (view.seen - queries).clamp_min(0).view(1, -1, 1, 1)


def window_votes(view: View, layer: int, wide: torch.dtype, largest: bool = False) -> Tensor:
    """Shares of one layer's tokens in the attention of the newest queries, summed over these: [R, H, S].

    Over the query heads that share a KV head, the mean or the `largest`.
    """
    assert view.queries is not None, "this scorer needs queries"
    assert view.query_pos is not None, "queries have positions"
    assert view.keys is not None, "this scorer needs keys"
    query, keys, pos = view.queries[layer], view.keys[layer], view.pos[layer]
    kernel = votes.votes() if votes.fits(query, keys, pos) else None
    if kernel is not None:
        found = kernel(query, view.query_pos, keys, pos, view.scaling, largest)
        return found if largest else found.div_(query.shape[1] // keys.shape[1])
    shares = softmax(window_logits(view, layer, wide))  # [R, H, group, w, S]
    return shares.amax(2).sum(2) if largest else shares.sum(3).mean(2)


def window_logits(view: View, layer: int, wide: torch.dtype) -> Tensor:
    """Logits of one layer's queries over its tokens: [R, H, group, w, S]; -inf where a query doesn't see a token."""
    assert view.queries is not None, "this scorer needs queries"
    assert view.query_pos is not None, "queries have positions"
    assert view.keys is not None, "this scorer needs keys"
    keys, pos = view.keys[layer].to(wide), view.pos[layer]
    rows, heads, slots, dim = keys.shape
    queries = view.queries[layer].to(wide).reshape(rows, heads, -1, dim)
    logits = torch.matmul(queries, keys.transpose(2, 3)).mul_(view.scaling)
    logits = logits.view(rows, heads, -1, view.query_pos.shape[1], slots)
    pos = pos.view(rows, heads, 1, 1, slots)
    visible = (pos >= 0) & (pos <= view.query_pos.view(rows, 1, 1, -1, 1))
    return logits.masked_fill_(~visible, float("-inf"))


def softmax(logits: Tensor) -> Tensor:
    """Over the last dimension; zeros where nothing is visible."""
    return torch.softmax(logits, dim=-1).masked_fill(logits.amax(-1, keepdim=True) == float("-inf"), 0)


def pooled(score: Tensor, kernel: int, kind: str) -> Tensor:
    """Each token's score pooled with its neighbours' along the last dimension; the shape stays.

    Beyond the ends there are zeros for `avg`, so that they count low, and nothing for `max`.
    """
    flat = score.reshape(-1, 1, score.shape[-1])
    pool = F.avg_pool1d if kind == "avg" else F.max_pool1d
    result: Tensor = pool(flat, kernel, stride=1, padding=kernel // 2)
    return result.view(score.shape)
