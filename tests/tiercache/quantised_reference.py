"""Quantising in loops, one range at a time."""

import math
from collections.abc import Iterable

import numpy as np
import torch
from hypothesis import strategies as st

from tiercache.packed_store import PackedStore
from tiercache.parts import Storage
from tiercache.quantize import (
    formats,
)
from tiercache.ranking import by_rank
from tiercache.retier import retier
from tiercache.store import Geometry, TierStore

CPU = torch.device("cpu")


def normal(seed: int, *shape: int, size: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * size


# A plain reference: loops over ranges, in numpy ----------------------------------------------------------------------


def ranges(tokens: int, dim: int, storage: Storage, window: int, side: str) -> Iterable[tuple[list[int], list[int]]]:
    """Rows and columns of each group of elements that share a range."""
    if side == "v" or storage.key_axis == "token":
        group = min(storage.group or dim, dim)
        for i in range(tokens):
            for first in range(0, dim, group):
                yield [i], list(range(first, first + group))
        return
    for start in range(0, tokens, window):
        rows = list(range(start, start + window))
        if storage.rope_pairs:
            yield from ((rows, [c, c + dim // 2]) for c in range(dim // 2))
        else:
            yield from ((rows, [c]) for c in range(dim))


def to_grid(value: np.float32, grids: str, up: bool) -> np.float32:
    kept = np.dtype(grids).type(value)
    if (kept < value) if up else (kept > value):
        kept = np.nextafter(kept, np.dtype(grids).type(math.inf if up else -math.inf))
    return np.float32(kept)


def fake(x: np.ndarray, storage: Storage, window: int, side: str) -> np.ndarray:
    """x [tokens, d] as it looks once it was quantised; float32."""
    x = x.astype(np.float32)
    out = np.empty_like(x)
    for rows, columns in ranges(*x.shape, storage, window, side):
        block = x[np.ix_(rows, columns)]
        if storage.packed_bits == "fp8":
            scale = to_grid(np.abs(block).max() / np.float32(448), storage.grids, up=True) or np.float32(1)
            out[np.ix_(rows, columns)] = nearest_e4m3(block / scale) * scale
            continue
        levels = np.float32(2**storage.packed_bits - 1)
        zero = to_grid(block.min(), storage.grids, up=False)
        scale = to_grid((block.max() - zero) / levels, storage.grids, up=True)
        codes = np.clip(np.rint((block - zero) / (scale or np.float32(1))), 0, levels)
        out[np.ix_(rows, columns)] = codes * scale + zero
    return out


# All finite e4m3 numbers, from the definition: 4 bits of exponent (bias 7), 3 of mantissa, the last one is NaN.
E4M3 = sorted(
    {0.0} | {m / 8 * 2.0**-6 for m in range(8)} | {(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)}
)


E4M3 = np.array(E4M3[:-1], dtype=np.float32)


def nearest_e4m3(x: np.ndarray) -> np.ndarray:
    """Ties to the even mantissa, which is an even place in the list."""
    distance = np.abs(np.abs(x)[..., None] - E4M3)
    low = distance.argmin(-1)
    high = np.minimum(low + 1, len(E4M3) - 1)
    tied = np.take_along_axis(distance, high[..., None], -1)[..., 0] == distance.min(-1)
    return np.sign(x) * E4M3[np.where(tied & (low % 2 == 1), high, low)]


STORAGES = st.builds(
    dict,
    packed_bits=st.sampled_from([8, 4, 2, "fp8"]),
    key_axis=st.sampled_from(["token", "channel"]),
    group=st.sampled_from([None, 4, 8, 64]),
    grids=st.sampled_from(["float32", "float16"]),
)


# The ledger ----------------------------------------------------------------------------------------------------------


def stores(geometry: Geometry, storage: Storage, window: int, tokens: int) -> list[TierStore]:
    """One row with this many tokens, all in T0."""
    form = formats(storage, window, geometry.head_dim)
    kept = form if storage.ledger else None
    hbm, ddr = (TierStore(geometry, {"mass": torch.float32}, CPU, kept) for _ in range(2))
    packed = PackedStore(geometry, {"mass": torch.float32}, CPU, form, storage.ledger)
    for store in (hbm, ddr, packed):
        store.join(1)
    hbm.reserve(1, tokens)
    hbm.extents[0] = tokens
    hbm.planes["pos"][:, 0, :, :tokens] = torch.arange(tokens, dtype=torch.int32)
    for i, side in enumerate("kv"):
        shape = (geometry.layers, geometry.kv_heads, tokens, geometry.head_dim)
        hbm.planes[side][:, 0, :, :tokens] = normal(i, *shape).to(geometry.dtype)
    return [hbm, ddr, packed]


def shuffle(tiers: list[TierStore], window: int, counts: tuple[int, int, int], seed: int = 0) -> None:
    """An event that leaves so many windows in each tier, drawn anew for each layer and head; the others are evicted."""
    pos = torch.cat([store.planes["pos"][:, 0, :, : store.extents[0]] for store in tiers], dim=-1)
    layers, heads, _ = pos.shape
    g = torch.Generator().manual_seed(seed)
    draw = torch.rand(layers, heads, int(pos.max()) // window + 1, generator=g).argsort(-1)
    rank = draw.gather(-1, pos.long() // window) * window + pos % window
    kept = [count * window for count in counts]
    retier(tiers, [0], [kept], by_rank(rank.argsort(-1).unsqueeze(1), [kept]))
