"""One event of some sequences: say in which tier each token is to lie, and move what changes its tier.

Where there are several stores, what stays doesn't move: those that come take the slots of those that left, and if fewer
come than left, a store's last tokens close its gaps. In a single store tokens stay sorted by position.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tiercache.compaction import compact
from tiercache.placement import Move
from tiercache.rope import Rope
from tiercache.store import GROWTH, TierStore
from tiercache.thoughts import TRANSITION, Thoughts


def kept_by(stores: Sequence[TierStore], row: int, move: Move) -> list[int]:
    """How many of a row's tokens each store holds after a move."""
    live = sum(store.extents[row] for store in stores)
    return [live - move.evict - move.ddr - move.packed, move.ddr, move.packed][: len(stores)]


def move_thought(
    stores: Sequence[TierStore], row: int, move: Move, thoughts: Thoughts, best_first: Tensor | None
) -> list[list[int]]:
    """A thought that has ended goes to its store, or the last of the ranking leave; all else stays where it is.

    Args:
        best_first: slots over all stores, one after the other, best first: int64 [layers, 1, kv_heads, slots]; not
            needed where nothing leaves.
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
    return retier(stores, [row], [kept], destination)[0]


def retier(
    stores: Sequence[TierStore],
    rows: Sequence[int],
    kept: Sequence[Sequence[int]],
    destination: Tensor,
    renumber: Rope | None = None,
) -> list[list[list[int]]]:
    """Moves each token of some rows to the store with this number, or drops it (len(stores)).

    Args:
        kept: how many tokens of each row each store holds then.
        destination: integers [layers, len(rows), kv_heads, slots of all stores].
        renumber: turns the kept keys so that their positions are 0, 1, …; for a single store.

    Returns:
        crossed[row][a][b]: (layer, KV head, token) triples that moved from store a to store b.
    """
    if len(stores) == 1:
        compact(stores[0], rows, destination == 0, renumber)
        return [[[0]] for _ in rows]
    parts = torch.split(destination, [store.used(rows) for store in stores], dim=-1)
    destinations = [part.to(store.device) for part, store in zip(parts, stores, strict=True)]
    crossed = [[[0] * len(stores) for _ in stores] for _ in rows]
    homeless: list[list[_Homeless]] = [[] for _ in stores]
    for a, source in enumerate(stores):
        for b, target in enumerate(stores):
            held = [counts[b] for counts in kept]
            if a == b and all(count >= source.extents[row] for row, count in zip(rows, held, strict=True)):
                continue
            goes = destinations[a] == b
            if a == b:  # the last tokens of a store that shrinks
                goes &= _beyond(source, goes, held)
            elif source.used(rows):
                for row, count in enumerate(goes.sum((0, 2, 3)).tolist()):
                    crossed[row][a][b] = count
            found = _collect(source, target, rows, goes)
            if found is not None:
                homeless[b].append(found)
    for b, store in enumerate(stores):
        _settle(store, rows, destinations[b] == b, homeless[b], [counts[b] for counts in kept])
    return crossed


class _Homeless(NamedTuple):
    """Tokens that need a slot, as their new store's planes [n, ...], by head and position: int64 [n], ascending."""

    keys: Tensor
    planes: dict[str, Tensor]


def _collect(source: TierStore, target: TierStore, rows: Sequence[int], goes: Tensor) -> _Homeless | None:
    """The tokens that leave their slots, bool [layers, len(rows), kv_heads, slots]; None if there are none."""
    heads, slots = _slots(source, rows, goes)
    if not len(slots):
        return None
    keys = (heads << 32) + source.line("pos")[slots]
    keys, order = keys.sort()
    slots = slots[order]
    if source is target:
        return _Homeless(keys, {name: source.line(name).index_select(0, slots) for name in source.planes})
    planes = target.admit(source.take(slots))
    return _Homeless(keys.to(target.device), planes)


def _settle(
    store: TierStore, rows: Sequence[int], stays: Tensor, homeless: Sequence[_Homeless], counts: Sequence[int]
) -> None:
    """Gives them the slots below `counts` where nobody stays, and empties those beyond."""
    if homeless:
        most = max(counts)
        if most > store.capacity[1]:  # with room for the next events, as for every token that comes to a full store
            store.reserve(0, most + most // GROWTH)
        taken = F.pad(stays, (0, max(0, max(counts) - stays.shape[-1])))
        _, slots = _slots(store, rows, ~taken & ~_beyond(store, taken, counts))
        order = torch.cat([each.keys for each in homeless]).argsort()
        for name in store.planes:
            planes = torch.cat([each.planes[name] for each in homeless])
            store.line(name).index_copy_(0, slots, planes.index_select(0, order))
    for row, count in zip(rows, counts, strict=True):
        if count < store.extents[row]:
            store.clear(row, count, store.extents[row])
        store.extents[row] = count


def _beyond(store: TierStore, slots: Tensor, counts: Sequence[int]) -> Tensor:
    """Which slots of the last dimension are beyond each row's count: bool [rows, 1, slots]."""
    least = torch.tensor(counts, device=store.device).view(-1, 1, 1)
    return torch.arange(slots.shape[-1], device=store.device) >= least


def _slots(store: TierStore, rows: Sequence[int], where: Tensor) -> tuple[Tensor, Tensor]:
    """Heads, counted over layers and rows, and slots of `TierStore.line` where it is true, in order: int64 [n]."""
    places = where.flatten().nonzero().squeeze(1)
    heads = places // where.shape[-1]
    return heads, store.begins(rows).flatten()[heads] + places % where.shape[-1]
