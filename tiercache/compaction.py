"""Keeping some tokens of many rows at once and closing the gaps, in a store without other tiers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tiercache.ranking import NOWHERE
from tiercache.rope import Rope
from tiercache.store import TierStore, empty_value, gather, neighbours


def best(score: Tensor, pos: Tensor, counts: Tensor) -> Tensor:
    """The `counts` highest along the last dimension, bool like `score`; among equals the newer, free slots never.

    counts: integers that broadcast to score's shape without its last dimension.
    """
    newest_first = pos.argsort(dim=-1, descending=True, stable=True)
    ranked = score.masked_fill(pos < 0, float("-inf")).gather(-1, newest_first)
    order = newest_first.gather(-1, ranked.argsort(dim=-1, descending=True, stable=True))
    chosen = torch.arange(pos.shape[-1], device=pos.device) < counts.unsqueeze(-1)
    return torch.zeros_like(pos, dtype=torch.bool).scatter_(-1, order, chosen.expand_as(order)) & (pos >= 0)


def compact(
    store: TierStore, rows: Sequence[int], keep: Tensor, renumber: Rope | None = None, settled: int = 0
) -> None:
    """Compacts rows to the tokens kept, bool [L, len(rows), H, used], each head's sorted by position.

    Args:
        renumber: turns the kept keys so that their positions are 0, 1, …
        settled: so many slots at the start of each row hold the first tokens, in order, and all of them stay.
    """
    used, keep = keep.shape[-1], keep[..., settled:]
    count = int(keep.sum(-1).max())
    chosen = neighbours(rows)
    pos = store.planes["pos"][:, chosen, :, settled:used]
    index = torch.where(keep, pos, NOWHERE).argsort(dim=-1)[..., :count]
    filled = keep.gather(-1, index)
    metadata = ("pos", *store.fields)
    for name, plane in store.planes.items():
        old = plane[:, chosen, :, settled:used]
        moved = gather(old, index)
        if name in metadata:
            moved = moved.masked_fill(~filled, empty_value(name))
            plane[:, chosen, :, settled + count : used] = empty_value(name)
        elif name == "k" and renumber is not None:
            moved = renumber.turn(moved, torch.arange(count, device=index.device) - index)
        plane[:, chosen, :, settled : settled + count] = moved
    most = filled.sum(-1).amax((0, 2)).tolist()
    for row, extent in zip(rows, most, strict=True):
        store.extents[row] = settled + extent
