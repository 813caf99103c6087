"""Budgets that heads or layers share: each (layer, KV head) keeps another number of tokens, the mean is the budget.

Slots stay rectangular: a row's extent is its largest head's, and heads with fewer tokens leave slots free, which
attention masks. So the ledger counts what is kept, and allocated bytes what that costs a rectangular store.
"""

import torch
from torch import Tensor

from tiercache.budgets import divide, pyramid
from tiercache.parts import Placement
from tiercache.ranking import NOWHERE
from tiercache.store import TierStore, empty_value, gather


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
        return _best(score.view(1, -1), pos.view(1, -1), [layers * heads * kept]).view(layers, heads, n)
    counts = [heads * kept] * layers
    if placement.pyramid is not None:
        counts = _pyramid_counts(live, protected, kept, placement.pyramid, by_head=placement.share == "head")
    if placement.share == "layer":
        return _best(score.view(layers, -1), pos.view(layers, -1), counts).view(layers, heads, n)
    each = [count // heads for count in counts for _ in range(heads)]
    return _best(score.view(layers * heads, n), pos.view(layers * heads, n), each).view(layers, heads, n)


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
    layers, heads, n = pos.shape
    fixed = int((~candidate & (pos >= 0))[0, 0].sum())
    each = [int(floor * max(0, kept - fixed))] * (layers * heads)
    masked = score.masked_fill(~candidate, float("-inf"))
    best = _best(masked.view(-1, n), pos.masked_fill(~candidate, -1).view(-1, n), each)
    return best.view(layers, heads, n)


def _best(score: Tensor, pos: Tensor, counts: list[int]) -> Tensor:
    """The `counts[i]` highest of row i, bool [rows, n]; among equals the newer, free slots never."""
    newest_first = pos.argsort(dim=-1, descending=True, stable=True)
    ranked = score.masked_fill(pos < 0, float("-inf")).gather(-1, newest_first)
    order = newest_first.gather(-1, ranked.argsort(dim=-1, descending=True, stable=True))
    places = torch.arange(pos.shape[-1], device=pos.device)
    chosen = places < torch.tensor(counts, device=pos.device).unsqueeze(1)
    return torch.zeros_like(pos, dtype=torch.bool).scatter_(-1, order, chosen) & (pos >= 0)


def compact(store: TierStore, row: int, keep: Tensor) -> None:
    """Compacts a row to the tokens kept, bool [L, H, extent], each head's sorted by position."""
    extent, count = store.extents[row], int(keep.sum(-1).max())
    pos = store.planes["pos"][:, row, :, :extent]
    index = torch.where(keep, pos, NOWHERE).argsort(dim=-1)[..., :count]
    filled = keep.gather(-1, index)
    metadata = ("pos", *store.fields)
    for name, plane in store.planes.items():
        moved = gather(plane[:, row, :, :extent], index)
        if name in metadata:
            moved = torch.where(filled, moved, empty_value(name))
        plane[:, row, :, :count] = moved
    store.clear(row, count, extent)
    store.extents[row] = count
