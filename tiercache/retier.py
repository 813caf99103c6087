"""One event for one sequence: rank the candidates, cut the ranking into tiers, move what changed its tier.

Ties are broken towards the newer token, so that with all scores equal every policy keeps the most recent, on every
backend. After an event each store's slots are sorted by position.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tiercache.placement import Move
from tiercache.scorers import Scorer
from tiercache.store import TierStore, gather

NOWHERE = torch.iinfo(torch.int32).max  # sorts after every position
Spans = Sequence[tuple[int, int]]


def retier(
    stores: Sequence[TierStore], row: int, move: Move, spans: Spans, scorer: Scorer, seed: Tensor
) -> list[list[int]]:
    """Moves `row`'s tokens between `stores`, given best tier first; the rest of the ranking is evicted.

    Returns:
        crossed[a][b]: (layer, KV head, token) triples that moved from store a to store b.
    """
    destinations = _destinations(stores, row, move, spans, scorer, seed)
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
        _rebuild(store, row, destinations[b] == b, arrivals[b], kept[b])
    return crossed


def inside(pos: Tensor, spans: Spans) -> Tensor:
    """Whether each position lies in one of the [start, stop) spans."""
    result = torch.zeros_like(pos, dtype=torch.bool)
    for start, stop in spans:
        result |= (pos >= start) & (pos < stop)
    return result


def _destinations(
    stores: Sequence[TierStore], row: int, move: Move, spans: Spans, scorer: Scorer, seed: Tensor
) -> list[Tensor]:
    """For each store, the index of the store each of its slots goes to; len(stores) means evicted."""
    device = stores[0].device
    names = ["pos", *stores[0].fields]
    planes = {
        name: torch.cat(
            [s.planes[name][:, row : row + 1, :, : s.extents[row]].to(device) for s in stores if s.extents[row]], dim=3
        )
        for name in names
    }
    score = scorer.score(planes, seed.view(1)).squeeze(1).double()  # [layers, kv_heads, n]
    pos = planes["pos"].squeeze(1)
    score = score.masked_fill(inside(pos, spans), float("inf"))
    newest_first = pos.argsort(dim=-1, descending=True)
    best_first = newest_first.gather(-1, score.gather(-1, newest_first).argsort(dim=-1, descending=True, stable=True))
    live = pos.shape[-1]
    cuts = torch.tensor(
        [live - move.evict - move.packed - move.ddr, live - move.evict - move.packed, live - move.evict]
    )
    rank_to_store = torch.bucketize(torch.arange(live), cuts, right=True).to(device)
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


def _rebuild(store: TierStore, row: int, stays: Tensor, arrivals: list[dict[str, Tensor]], count: int) -> None:
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
        store.planes[name][:, row, :, :count] = gather(plane, index)
    store.clear(row, count, extent)
    store.extents[row] = count
