"""The store for heads that keep different numbers of tokens, against lists."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tiercache.ragged_store import RaggedStore
from tiercache.store import Geometry, TierStore

LAYERS, HEADS, DIM = 2, 2, 4
GEOMETRY = Geometry(LAYERS, HEADS, HEADS, DIM, torch.float32)
CPU = torch.device("cpu")
FIELDS = {"mass": torch.float32}
Held = list[list[list[tuple[int, float]]]]  # [layer][head][token]: its position, and a value that only it has


def rectangle(prompts: list[int], number: int) -> tuple[TierStore, list[Held]]:
    """Rows as a prefill leaves them: keys, values and a field that tell tokens apart."""
    store = TierStore(GEOMETRY, FIELDS, CPU)
    store.join(len(prompts))
    store.reserve(0, max(prompts) + 1)
    rows = []
    for row, length in enumerate(prompts):
        store.extents[row] = length
        store.planes["pos"][:, row, :, :length] = torch.arange(length, dtype=torch.int32)
        value = number + row + torch.rand(LAYERS, HEADS, length)
        for name in ("k", "v"):
            store.planes[name][:, row, :, :length] = value.unsqueeze(-1)
        store.planes["mass"][:, row, :, :length] = value
        rows.append([[list(enumerate(value[x, h].tolist())) for h in range(HEADS)] for x in range(LAYERS)])
    return store, rows


def read(store: RaggedStore) -> list[Held]:
    """What the store holds, by every way of reading it."""
    if not store.rows:
        return []
    planes = store.read(range(store.rows), ["pos", "k", "v", "mass"])
    for layer in range(LAYERS):
        keys, values = store.layer(layer)
        assert torch.equal(keys, planes["k"][layer])
        assert torch.equal(values, planes["v"][layer])
        assert torch.equal(store.bias(layer)[:, :, 0] == 0, planes["pos"][layer] >= 0)
    assert torch.equal(planes["k"], planes["v"])
    assert torch.equal(planes["k"][..., 0], planes["mass"])
    free = planes["pos"] < 0
    assert not planes["k"][free].any()
    assert not planes["mass"][free].any()
    return [[[_tokens(planes, x, row, h) for h in range(HEADS)] for x in range(LAYERS)] for row in range(store.rows)]


def _tokens(planes: dict[str, Tensor], layer: int, row: int, head: int) -> list[tuple[int, float]]:
    pos, mass = planes["pos"][layer, row, head], planes["mass"][layer, row, head]
    return [(int(p), float(m)) for p, m in zip(pos, mass, strict=True) if p >= 0]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_it_holds_what_lists_hold(data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 99)))
    store, rows, seen = RaggedStore(GEOMETRY, FIELDS, CPU), list[Held](), list[int]()
    for step in range(data.draw(st.integers(1, 12))):
        does = data.draw(st.sampled_from(["arrive", "join", "append", "evict", "leave", "trim"]))
        if does == "arrive" or not rows:
            prompts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
            other, new = rectangle(prompts, 100 * step)
            order = data.draw(st.permutations(range(len(prompts))))
            store.adopt(other, order)
            rows += [new[i] for i in order]
            seen += [prompts[i] for i in order]
        elif does == "join":  # another of its kind
            prompts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=2))
            other, new = rectangle(prompts, 100 * step)
            ragged = RaggedStore(GEOMETRY, FIELDS, CPU)
            ragged.adopt(other, range(len(prompts)))
            store.adopt(ragged, range(len(prompts)))
            rows, seen = rows + new, seen + prompts
        elif does == "append":
            slots = store.append(torch.tensor(seen))
            value = 100 * step + torch.rand(LAYERS, len(rows), HEADS)
            store.put("mass", slots, value)
            for name in ("k", "v"):
                for layer in range(LAYERS):
                    store.put(name, slots[layer], value[layer].unsqueeze(-1).expand(-1, -1, DIM), layer)
            for row, held in enumerate(rows):
                for x in range(LAYERS):
                    for h in range(HEADS):
                        assert slots[x, row, h] == len(held[x][h])
                        held[x][h].append((seen[row], float(value[x, row, h])))
            seen = [count + 1 for count in seen]
        elif does == "evict":
            row = data.draw(st.integers(0, len(rows) - 1))
            used = store.used([row])
            keep = torch.rand(LAYERS, 1, HEADS, used) < data.draw(st.sampled_from([0.2, 0.7]))
            keep &= torch.arange(used) < store.lengths[:, [row]].unsqueeze(-1)
            store.keep([row], keep)
            for x in range(LAYERS):
                for h in range(HEADS):
                    rows[row][x][h] = [t for i, t in enumerate(rows[row][x][h]) if keep[x, 0, h, i]]
        elif does == "leave":
            row = data.draw(st.integers(0, len(rows) - 1))
            store.leave(row)
            for each in (rows, seen):
                each[row] = each[-1]
                each.pop()
        else:
            store.trim(1)
        assert read(store) == rows
        lengths = [len(held[x][h]) for held in rows for x in range(LAYERS) for h in range(HEADS)]
        assert store.keys_values_bytes() == sum(lengths) * 2 * DIM * 4
        assert store.extents == [max(len(head) for layer in held for head in layer) for held in rows]


def test_its_room_stays_close_to_what_it_holds() -> None:
    """Also while one head gains what another loses, and after all but one row have left."""
    other, _ = rectangle([64] * 8, 0)
    store = RaggedStore(GEOMETRY, FIELDS, CPU)
    store.adopt(other, range(8))
    token = (2 * DIM + 2) * 4  # keys, values, position, mass
    tables = 3 * 8 * LAYERS * HEADS
    for step in range(100):
        store.append(torch.full((8,), 64 + step))
        keep = torch.arange(store.used()) < store.lengths.unsqueeze(-1)
        keep[0, :, 0, 0] = False  # the first layer's first head shrinks, the second's keeps two in one step
        store.keep(range(8), keep)
        store.trim(1)
        held = int(store.lengths.sum()) * token
        assert store.allocated_bytes() <= 1.125 * held + 8 * tables + token
        assert store.allocated_bytes() == sum(p.numel() * p.element_size() for p in store.planes.values()) + 8 * tables
    for _ in range(7):
        store.leave(0)
    store.trim(1)
    assert store.allocated_bytes() <= 1.125 * int(store.lengths.sum()) * token + tables + token


def test_what_scorers_write_side_by_side_comes_back_where_it_belongs() -> None:
    other, _ = rectangle([5, 3], 0)
    store = RaggedStore(GEOMETRY, FIELDS, CPU)
    store.adopt(other, [0, 1])
    fields = store.read(range(2), ["mass"])["mass"] + 1
    store.write(range(2), "mass", fields)
    again = store.read(range(2), ["mass", "pos"])
    held = again["pos"] >= 0
    assert torch.equal(again["mass"][held], fields[held])
    assert not again["mass"][~held].any(), "what was written beside a shorter head is nobody's"
