"""One event for one sequence: cut the ranking into tiers and move what changed its tier.

After an event each store's slots are sorted by position.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tiercache.placement import Move
from tiercache.ranking import NOWHERE
from tiercache.rope import Rope
from tiercache.store import TierStore, gather


def retier(
    stores: Sequence[TierStore], row: int, move: Move, best_first: Tensor, renumber: Rope | None = None
) -> list[list[int]]:
    """Moves `row`'s tokens between `stores`, given best tier first; the rest of the ranking is evicted.

    Args:
        best_first: slots over all stores, one after the other, best first: int64 [layers, kv_heads, tokens].
        renumber: turns the kept keys so that their positions are 0, 1, …; for a single store.

    Returns:
        crossed[a][b]: (layer, KV head, token) triples that moved from store a to store b.
    """
    destinations = _destinations(stores, row, move, best_first)
    crossed = [[0] * len(stores) for _ in stores]
    arrivals: list[list[dict[str, Tensor]]] = [[] for _ in stores]
    for a, source in enumerate(stores):
        pos = source.planes["pos"][:, row, :, : source.extents[row]]
        for b, target in enumerate(stores):
            if a == b or not source.extents[row]:
                continue
            leaving = destinations[a] == b
            crossed[a][b] = int(leaving.sum())
            if crossed[a][b]:
                arrivals[b].append(target.admit(_collect(source, row, pos, leaving)))
    live = sum(store.extents[row] for store in stores)
    kept = [live - move.evict - move.ddr - move.packed, move.ddr, move.packed]
    for b, store in enumerate(stores):
        _rebuild(store, row, destinations[b] == b, arrivals[b], kept[b], renumber)
    return crossed


def _destinations(stores: Sequence[TierStore], row: int, move: Move, best_first: Tensor) -> list[Tensor]:
    """For each store, the index of the store each of its slots goes to; len(stores) means evicted."""
    live = best_first.shape[-1]
    cuts = torch.tensor(
        [live - move.evict - move.packed - move.ddr, live - move.evict - move.packed, live - move.evict]
    )
    rank_to_store = torch.bucketize(torch.arange(live), cuts, right=True).to(best_first.device)
    destination = torch.empty_like(best_first).scatter_(-1, best_first, rank_to_store.expand_as(best_first))
    sizes = [store.extents[row] for store in stores]
    if len(stores) == 1:  # no host or packed tier: whatever isn't kept is evicted
        destination = destination.clamp(max=1)
    return [part.to(store.device) for part, store in zip(torch.split(destination, sizes, dim=-1), stores, strict=True)]


def _collect(source: TierStore, row: int, pos: Tensor, leaving: Tensor) -> dict[str, Tensor]:
    """The leaving tokens of all layers and heads, padded to the largest number among them; padding sorts last."""
    width = int(leaving.sum(-1).max())
    index = torch.where(leaving, pos, NOWHERE).argsort(dim=-1)[..., :width]
    tokens = source.take(row, index)
    tokens["pos"] = torch.where(leaving.gather(-1, index), tokens["pos"], NOWHERE)
    return tokens


def _rebuild(
    store: TierStore, row: int, stays: Tensor, arrivals: list[dict[str, Tensor]], count: int, renumber: Rope | None
) -> None:
    """Compacts `row` to the tokens that stay and those that arrived, sorted by position."""
    extent = store.extents[row]
    if not arrivals and count == extent:
        return
    local = {name: plane[:, row, :, :extent] for name, plane in store.planes.items()}
    local["pos"] = torch.where(stays, local["pos"], NOWHERE)
    merged = {name: torch.cat([plane, *(a[name] for a in arrivals)], dim=2) for name, plane in local.items()}
    index = merged["pos"].argsort(dim=-1)[..., :count]
    store.reserve(0, count)
    for name, plane in merged.items():
        moved = gather(plane, index)
        if name == "k" and renumber is not None:
            moved = renumber.turn(moved, torch.arange(count, device=index.device) - index)
        store.planes[name][:, row, :, :count] = moved
    store.clear(row, count, extent)
    store.extents[row] = count
