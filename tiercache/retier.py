"""One event for one sequence: say in which tier each token is to lie, and move what changes its tier.

After an event each store's slots are sorted by position.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tiercache.placement import Move
from tiercache.ranking import NOWHERE
from tiercache.rope import Rope
from tiercache.store import TierStore, gather
from tiercache.thoughts import TRANSITION, Thoughts


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
    live = best_first.shape[-1]
    cuts = torch.tensor(
        [live - move.evict - move.packed - move.ddr, live - move.evict - move.packed, live - move.evict]
    )
    rank_to_store = torch.bucketize(torch.arange(live), cuts, right=True).to(best_first.device)
    destination = torch.empty_like(best_first).scatter_(-1, best_first, rank_to_store.expand_as(best_first))
    if len(stores) == 1:  # no host or packed tier: whatever isn't kept is evicted
        destination = destination.clamp(max=1)
    return relocate(stores, row, move, destination, renumber)


def move_thought(
    stores: Sequence[TierStore], row: int, move: Move, thoughts: Thoughts, best_first: Tensor | None
) -> list[list[int]]:
    """A thought that has ended goes to its store, or the last of the ranking leave; all else stays where it is.

    Args:
        best_first: as for `retier`; not needed where nothing leaves.
    """
    pos = torch.cat([store.planes["pos"][:, row, :, : store.extents[row]] for store in stores], dim=-1)
    extents = torch.tensor([store.extents[row] for store in stores])
    here = torch.repeat_interleave(torch.arange(len(stores)), extents).to(pos.device)
    destination = here.expand(pos.shape).clone()
    if thoughts.ended is not None:
        packed, coarse = 2, len(stores) - 1  # one and the same where transitions have no format of their own
        inside = (pos >= thoughts.ended.start) & (pos < thoughts.ended.stop)
        destination[inside] = coarse if thoughts.ended.kind == TRANSITION else packed
    if best_first is not None:
        destination.scatter_(-1, best_first[..., best_first.shape[-1] - move.evict :], len(stores))
    return relocate(stores, row, move, destination)


def relocate(
    stores: Sequence[TierStore], row: int, move: Move, destination: Tensor, renumber: Rope | None = None
) -> list[list[int]]:
    """Moves each token to the store with this index, or drops it (len(stores)): int64 [layers, kv_heads, tokens]."""
    sizes = [store.extents[row] for store in stores]
    live = sum(sizes)
    destinations = [
        part.to(store.device) for part, store in zip(torch.split(destination, sizes, dim=-1), stores, strict=True)
    ]
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
    kept = [live - move.evict - move.ddr - move.packed, move.ddr, move.packed - move.coarse, move.coarse]
    for b, store in enumerate(stores):
        _rebuild(store, row, destinations[b] == b, arrivals[b], kept[b], renumber)
    return crossed


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
