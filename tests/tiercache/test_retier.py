"""Tokens that change their tier: each is where it belongs, with all that is its own, and what stays doesn't move."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiercache.ranking import by_rank
from tiercache.retier import retier
from tiercache.store import Geometry, TierStore

GEOMETRY = Geometry(2, 2, 2, 4, torch.float32)
Place = tuple[int, int, int, int]  # layer, row, head, position


def content(layer: int, row: int, head: int, pos: int) -> float:
    return 1000.0 * layer + 500 * row + 250 * head + pos


def build(held: list[list[int]], g: torch.Generator) -> list[TierStore]:
    """held[row][store] tokens, which positions drawn for each layer and head; rows may have gone before."""
    stores = [TierStore(GEOMETRY, {"mass": torch.float32}, torch.device("cpu")) for _ in range(3)]
    for i, store in enumerate(stores):
        store.join(len(held))
        store.reserve(0, max(row[i] for row in held))
        store.extents[:] = [row[i] for row in held]
    for layer in range(2):
        for row, counts in enumerate(held):
            for head in range(2):
                parts = torch.randperm(sum(counts), generator=g).split(counts)
                for store, part in zip(stores, parts, strict=True):
                    for slot, pos in enumerate(part.tolist()):
                        value = content(layer, row, head, pos)
                        store.planes["pos"][layer, row, head, slot] = pos
                        store.planes["mass"][layer, row, head, slot] = value
                        store.planes["k"][layer, row, head, slot] = value
                        store.planes["v"][layer, row, head, slot] = -value
    return stores


def places(store: TierStore) -> dict[Place, int]:
    """Each token's slot; its planes are its own, and what is beyond a row's tokens is empty."""
    found = {}
    for layer in range(2):
        for row, extent in enumerate(store.extents):
            for head in range(2):
                pos = store.planes["pos"][layer, row, head]
                assert (pos[:extent] >= 0).all()
                assert (pos[extent:] == -1).all()
                assert not store.planes["mass"][layer, row, head, extent:].any()
                for slot, at in enumerate(pos[:extent].tolist()):
                    value = content(layer, row, head, at)
                    assert store.planes["mass"][layer, row, head, slot] == value
                    assert (store.planes["k"][layer, row, head, slot] == value).all()
                    assert (store.planes["v"][layer, row, head, slot] == -value).all()
                    found[layer, row, head, at] = slot
    return found


@st.composite
def events(draw) -> tuple[list[list[int]], list[int], list[list[int]]]:
    """Tokens held by each row, the rows whose event it is, and what of these each store holds then."""
    held = draw(st.lists(st.lists(st.integers(0, 12), min_size=3, max_size=3), min_size=1, max_size=4))
    rows = sorted(draw(st.sets(st.integers(0, len(held) - 1), min_size=1)))
    kept = []
    for row in rows:
        left, counts = sum(held[row]), []
        for _ in range(3):
            counts.append(draw(st.integers(0, left)))
            left -= counts[-1]
        kept.append(counts)
    return held, rows, kept


@given(events(), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_each_token_goes_where_its_rank_says_and_what_stays_does_not_move(event, seed: int) -> None:
    held, rows, kept = event
    g = torch.Generator().manual_seed(seed)
    stores = build(held, g)
    before = [places(store) for store in stores]
    pos = torch.cat([store.planes["pos"][:, rows, :, : store.used(rows)] for store in stores], dim=-1)
    rank = torch.rand(pos.shape, generator=g).masked_fill(pos < 0, 2).argsort(-1)  # free slots last
    crossed = retier(stores, rows, kept, by_rank(rank, kept))
    after = [places(store) for store in stores]

    expected: list[set[Place]] = [{place for place in found if place[1] not in rows} for found in before]
    for i, row in enumerate(rows):
        for layer in range(2):
            for head in range(2):
                order = pos[layer, i, head][rank[layer, i, head]].tolist()
                start = 0
                for b, count in enumerate(kept[i]):
                    expected[b] |= {(layer, row, head, at) for at in order[start : start + count]}
                    start += count
    assert [set(found) for found in after] == expected
    for i, row in enumerate(rows):
        for a in range(3):
            for b in range(3):
                moved = [place for place in before[a].keys() & after[b].keys() if place[1] == row]
                if a != b:
                    assert crossed[i][a][b] == len(moved)
                    continue
                for place in moved:
                    assert after[b][place] == before[b][place] or before[b][place] >= kept[i][b]
