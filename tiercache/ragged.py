"""Budgets that heads or layers share: each (layer, KV head) keeps another number of tokens, the mean is the budget.

Where such rows run, each head has room for what it keeps itself: `tiercache.ragged_store`.
"""

import torch
from torch import Tensor

from tiercache.budgets import divide, pyramid
from tiercache.compaction import best
from tiercache.parts import Placement


def keep_mask(score: Tensor, pos: Tensor, protected: Tensor, kept: int, placement: Placement) -> Tensor:
    """Which tokens stay, bool [L, H, n], on average `kept` for each (layer, head).

    Args:
        score: float [L, H, n]; pos: int [L, H, n], -1 for a free slot; protected: bool [L, H, n].
    """
    layers, heads, n = pos.shape
    live = pos >= 0
    score = score.masked_fill(protected, float("inf"))
    if placement.floor:
        score = score.masked_fill(_guaranteed(score, pos, live & ~protected, kept, placement.floor), float("inf"))
    if placement.share == "all":
        return best(score.view(1, -1), pos.view(1, -1), torch.tensor([layers * heads * kept], device=pos.device)).view(
            layers, heads, n
        )
    counts = [heads * kept] * layers
    if placement.pyramid is not None:
        counts = _pyramid_counts(live, protected, kept, placement.pyramid, by_head=placement.share == "head")
    if placement.share == "layer":
        return best(score.view(layers, -1), pos.view(layers, -1), torch.tensor(counts, device=pos.device)).view(
            layers, heads, n
        )
    return best(score, pos, torch.tensor(counts, device=pos.device).unsqueeze(1) // heads)


def _pyramid_counts(live: Tensor, protected: Tensor, kept: int, beta: float, by_head: bool) -> list[int]:
    """Tokens for all heads of each layer. Protected tokens are everybody's; the pyramid divides the rest."""
    layers, heads, _ = live.shape
    unit = heads if by_head else 1  # all heads of a layer alike, or only their sum
    fixed = int((live & protected)[0, 0].sum())
    free = ((live & ~protected).sum((1, 2)) // unit).tolist()
    parts = divide(layers * heads * (kept - fixed) // unit, pyramid(layers, beta), free)
    return [part * unit + fixed * heads for part in parts]


def _guaranteed(score: Tensor, pos: Tensor, candidate: Tensor, kept: int, floor: float) -> Tensor:
    """The best candidates of each head, up to a share of what it would keep if all heads kept alike (2407.11550)."""
    layers, heads, _ = pos.shape
    fixed = int((~candidate & (pos >= 0))[0, 0].sum())
    each = torch.full((layers, heads), int(floor * max(0, kept - fixed)), device=pos.device)
    return best(score, pos.masked_fill(~candidate, -1), each)
