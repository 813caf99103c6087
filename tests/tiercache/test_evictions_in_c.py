"""Evictions in C, against the same on torch."""

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiercache.compaction import best, compact
from tiercache.kernels.evict import evict
from tiercache.kernels.evict import fits as evict_fits
from tiercache.kernels.free_one import fits as free_one_fits
from tiercache.kernels.free_one import free_one
from tiercache.kernels.tiers import divide
from tiercache.ranking import by_rank, order_of
from tiercache.store import Geometry, TierStore

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler: torch's operations are used"
)
ROWS, GEOMETRY = 4, Geometry(2, 4, 2, 8, torch.bfloat16)
FIELDS = {"mass": torch.float64, "seen": torch.bool}


def store(extents: list[int], g: torch.Generator) -> TierStore:
    """Rows whose slots lie in any order; planes that tell tokens apart."""
    found = TierStore(GEOMETRY, FIELDS, torch.device("cpu"))
    found.join(ROWS)
    found.reserve(0, max(extents) + 3)
    found.extents[:] = extents
    pos = found.planes["pos"]
    for name in ("k", "v", "mass"):
        found.planes[name].copy_(torch.randn(found.planes[name].shape, generator=g))
    found.planes["seen"].copy_(torch.rand(pos.shape, generator=g) < 0.5)
    for row, extent in enumerate(extents):
        for head in (head for layer in pos[:, row] for head in layer):
            order = torch.randperm(extent, generator=g)
            head[:extent] = (order if torch.rand((), generator=g) < 0.5 else order.sort().values).int()
        found.clear(row, extent, pos.shape[3])
    return found


def copied(one: TierStore) -> TierStore:
    other = TierStore(GEOMETRY, FIELDS, torch.device("cpu"))
    other.planes, other.extents = {name: plane.clone() for name, plane in one.planes.items()}, list(one.extents)
    return other


def same(one: TierStore, other: TierStore) -> None:
    assert one.extents == other.extents
    held = one.planes["pos"] >= 0
    for name in ("pos", "mass", "seen"):  # free slots too
        assert torch.equal(one.planes[name], other.planes[name])
    for name in ("k", "v"):
        assert torch.equal(one.planes[name][held], other.planes[name][held])


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    extents=st.lists(st.integers(1, 40), min_size=ROWS, max_size=ROWS),
    rows=st.sets(st.integers(0, ROWS - 1), min_size=1).map(sorted),
    levels=st.sampled_from([1, 3, 1000]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    threads=st.sampled_from([1, 2]),
)
def test_the_best_stay(seed, extents, rows, levels, dtype, threads) -> None:
    """Ties, protected tokens, heads sorted and unsorted, scores that are the same for all layers, an infinite one."""
    g = torch.Generator().manual_seed(seed)
    ours = store(extents, g)
    theirs, used = copied(ours), ours.used(rows)
    pos = ours.planes["pos"][:, rows, :, :used]
    score = torch.randint(0, levels, (1, len(rows), 1, used) if levels == 3 else pos.shape, generator=g).to(dtype)
    score[..., 0] = float("-inf")
    score = score.expand(pos.shape)
    is_protected = (torch.rand(pos.shape, generator=g) < 0.1) & (pos >= 0)
    most = is_protected.sum(-1).amax((0, 2)).tolist()
    pairs = zip(rows, most, strict=True)
    kept = [int(torch.randint(min(few, extents[row]), extents[row] + 1, (), generator=g)) for row, few in pairs]
    kernel, before = evict(), torch.get_num_threads()
    assert kernel is not None
    assert evict_fits(ours, score)
    try:
        torch.set_num_threads(threads)
        kernel(ours, rows, score, is_protected, kept)
    finally:
        torch.set_num_threads(before)
    ranked = score.double().masked_fill(is_protected, float("inf"))
    compact(theirs, rows, best(ranked, pos, torch.tensor(kept).view(1, -1, 1)))
    same(ours, theirs)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    extents=st.lists(st.integers(3, 40), min_size=ROWS, max_size=ROWS),
    rows=st.sets(st.integers(0, ROWS - 1), min_size=1).map(sorted),
    levels=st.sampled_from([2, 1000]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_the_lowest_leaves(seed, extents, rows, levels, dtype) -> None:
    g = torch.Generator().manual_seed(seed)
    ours = store(extents, g)
    used = ours.used()
    planes = {name: ours.planes[name][:, :ROWS, :, :used] for name in ("pos", *FIELDS)}
    before = {name: plane.clone() for name, plane in planes.items()}
    score = torch.randint(0, levels, before["pos"].shape, generator=g).to(dtype)
    edges = torch.tensor([[1, extent - 1] for extent in extents], dtype=torch.int32)
    kernel, victims = free_one(), torch.full((2, ROWS + 1, 2), -7)
    assert kernel is not None
    assert free_one_fits(list(planes.values()), score)
    kernel(list(planes.values()), score, rows, edges, victims)
    for row in range(ROWS):
        for layer in range(2):
            for head in range(2):
                place = (layer, row, head)
                victim = int(victims[place])
                if row not in rows:
                    assert victim == -7
                    assert all(torch.equal(planes[name][place], before[name][place]) for name in planes)
                    continue
                pos = before["pos"][place].tolist()
                candidates = [s for s, p in enumerate(pos) if 1 <= p < extents[row] - 1]
                assert victim == min(candidates, key=lambda s: (float(score[place][s]), pos[s]))
                for name, empty in (("pos", -1), ("mass", 0), ("seen", 0)):
                    left = before[name][place].clone()
                    left[victim] = empty
                    assert torch.equal(planes[name][place], left)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    slots=st.one_of(st.integers(1, 60), st.just(6000)),  # many are worth a second thread
    rows=st.integers(1, 3),
    stores=st.integers(1, 4),
    levels=st.sampled_from([1, 3, 1000]),
    threads=st.sampled_from([1, 2]),
)
def test_tokens_are_dealt_out_to_tiers(seed, slots, rows, stores, levels, threads) -> None:
    """Ties, protected tokens, free slots anywhere, infinite scores, stores that take nothing."""
    g = torch.Generator().manual_seed(seed)
    shape = (2, rows, 2, slots)
    score = torch.randint(0, levels, shape, generator=g).double()
    score[torch.rand(shape, generator=g) < 0.1] = float("-inf")
    live = torch.rand(slots, generator=g) < 0.8  # as many in every head
    pos = torch.rand(shape, generator=g).argsort(-1).int().masked_fill(~live, -1)
    is_protected = (torch.rand(shape, generator=g) < 0.2) & (pos >= 0)
    kept = []
    for _ in range(rows):
        left, counts = int(live.sum()), []
        for _ in range(stores):
            counts.append(int(torch.randint(0, left + 1, (), generator=g)))
            left -= counts[-1]
        kept.append(counts)
    kernel, before = divide(), torch.get_num_threads()
    assert kernel is not None
    torch.set_num_threads(threads)
    try:
        found = kernel(score, pos, is_protected, kept)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found.long(), by_rank(order_of(score, pos, is_protected), kept))
