"""One event of some sequences: say in which tier each token is to lie, and move what changes its tier.

After an event each store's slots are sorted by position.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tiercache.placement import Move
from tiercache.ranking import NOWHERE
from tiercache.rope import Rope
from tiercache.store import TierStore, empty_value, gather, neighbours
from tiercache.thoughts import TRANSITION, Thoughts


def retier(
    stores: Sequence[TierStore],
    rows: Sequence[int],
    moves: Sequence[Move],
    best_first: Tensor,
    renumber: Rope | None = None,
) -> list[list[list[int]]]:
    """Moves the rows' tokens between `stores`, given best tier first; the rest of each ranking is evicted.

    Args:
        best_first: slots over all stores, one after the other, best first: int64 [layers, len(rows), kv_heads, slots].
        renumber: turns the kept keys so that their positions are 0, 1, …; for a single store.

    Returns:
        crossed[row][a][b]: (layer, KV head, token) triples that moved from store a to store b.
    """
    kept = []
    for row, move in zip(rows, moves, strict=True):
        live = sum(store.extents[row] for store in stores)
        kept.append([live - move.evict - move.ddr - move.packed, move.ddr, move.packed])
    cuts = torch.tensor(kept).cumsum(-1)
    store_of_rank = (torch.arange(best_first.shape[-1]).view(-1, 1) >= cuts.unsqueeze(1)).sum(-1)  # [rows, slots]
    store_of_rank = store_of_rank.to(best_first.device).view(1, len(rows), 1, -1)
    destination = torch.empty_like(best_first).scatter_(-1, best_first, store_of_rank.expand_as(best_first))
    if len(stores) == 1:  # no host or packed tier: whatever isn't kept is evicted
        destination = destination.clamp(max=1)
    return relocate(stores, rows, kept, destination, renumber)


def move_thought(
    stores: Sequence[TierStore], row: int, move: Move, thoughts: Thoughts, best_first: Tensor | None
) -> list[list[int]]:
    """A thought that has ended goes to its store, or the last of the ranking leave; all else stays where it is.

    Args:
        best_first: as for `retier`; not needed where nothing leaves.
    """
    extents = [store.extents[row] for store in stores]
    pos = torch.cat([store.planes["pos"][:, [row], :, : store.extents[row]] for store in stores], dim=-1)
    here = torch.repeat_interleave(torch.arange(len(stores)), torch.tensor(extents)).to(pos.device)
    destination = here.expand(pos.shape).clone()
    if thoughts.ended is not None:
        packed, coarse = 2, len(stores) - 1  # one and the same where transitions have no format of their own
        inside = (pos >= thoughts.ended.start) & (pos < thoughts.ended.stop)
        destination[inside] = coarse if thoughts.ended.kind == TRANSITION else packed
    if best_first is not None:
        destination.scatter_(-1, best_first[..., best_first.shape[-1] - move.evict :], len(stores))
    kept = [sum(extents) - move.evict - move.ddr - move.packed, move.ddr, move.packed - move.coarse, move.coarse]
    return relocate(stores, [row], [kept], destination)[0]


def relocate(
    stores: Sequence[TierStore],
    rows: Sequence[int],
    kept: Sequence[Sequence[int]],
    destination: Tensor,
    renumber: Rope | None = None,
) -> list[list[list[int]]]:
    """Moves each token to the store with this index, or drops it (len(stores)): int64 [layers, rows, kv_heads, slots].

    kept: how many tokens of each row each store holds then.
    """
    parts = torch.split(destination, [store.used(rows) for store in stores], dim=-1)
    destinations = [part.to(store.device) for part, store in zip(parts, stores, strict=True)]
    crossed = [[[0] * len(stores) for _ in stores] for _ in rows]
    arrivals: list[list[dict[str, Tensor]]] = [[] for _ in stores]
    for a, source in enumerate(stores):
        pos = source.planes["pos"][:, neighbours(rows), :, : source.used(rows)]
        for b, target in enumerate(stores):
            if a == b or not source.used(rows):
                continue
            leaving = destinations[a] == b
            counts = leaving.sum((0, 2, 3)).tolist()
            for row, count in enumerate(counts):
                crossed[row][a][b] = count
            if any(counts):
                arrivals[b].append(target.admit(_collect(source, rows, pos, leaving)))
    for b, store in enumerate(stores):
        _rebuild(store, rows, destinations[b] == b, arrivals[b], [counts[b] for counts in kept], renumber)
    return crossed


def _collect(source: TierStore, rows: Sequence[int], pos: Tensor, leaving: Tensor) -> dict[str, Tensor]:
    """The leaving tokens, padded to the largest number of a row, layer and head; padding sorts last."""
    width = int(leaving.sum(-1).max())
    index = torch.where(leaving, pos, NOWHERE).argsort(dim=-1)[..., :width]
    tokens = source.take(rows, index)
    tokens["pos"] = torch.where(leaving.gather(-1, index), tokens["pos"], NOWHERE)
    return tokens


def _rebuild(
    store: TierStore,
    rows: Sequence[int],
    stays: Tensor,
    arrivals: list[dict[str, Tensor]],
    counts: Sequence[int],
    renumber: Rope | None,
) -> None:
    """Compacts rows to the tokens that stay and those that arrived, sorted by position."""
    if not arrivals and list(counts) == [store.extents[row] for row in rows]:
        return
    used, count, chosen = store.used(rows), max(counts), neighbours(rows)
    store.reserve(0, count)
    pos = torch.where(stays, store.planes["pos"][:, chosen, :, :used], NOWHERE)
    pos = torch.cat([pos, *(arrived["pos"] for arrived in arrivals)], dim=3)
    index = pos.argsort(dim=-1)[..., :count]
    filled = pos.gather(-1, index) != NOWHERE
    for name, plane in store.planes.items():  # one after the other: less memory beside the store's own
        moved = gather(torch.cat([plane[:, chosen, :, :used], *(arrived[name] for arrived in arrivals)], dim=3), index)
        if name in store.metadata:
            moved = moved.masked_fill(~filled, empty_value(name))
            plane[:, chosen, :, count:used] = empty_value(name)
        elif name == "k" and renumber is not None:
            moved = renumber.turn(moved, torch.arange(count, device=index.device) - index)
        plane[:, chosen, :, :count] = moved
    for row, left in zip(rows, counts, strict=True):
        store.extents[row] = left
