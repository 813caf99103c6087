"""Codes that are written once."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quantised_reference import STORAGES, normal, shuffle, stores

from tiercache.parts import Storage
from tiercache.quantize import (
    Format,
    dequantize,
    quantize,
)
from tiercache.store import Geometry, TierStore


def payload(tiers: list[TierStore]) -> dict[tuple[int, int, int], tuple[bytes, ...]]:
    """(layer, head, position) -> codes and grids of each token in T2."""
    packed = tiers[2]
    names = [name for name in packed.planes if name not in ("pos", "mass")]
    found = {}
    for layer, head, slot in (packed.planes["pos"][:, 0] >= 0).nonzero().tolist():
        parts = tuple(packed.planes[name][layer, 0, head, slot].numpy().tobytes() for name in names)
        found[layer, head, int(packed.planes["pos"][layer, 0, head, slot])] = parts
    return found


def read(store: TierStore) -> dict[tuple[int, int, int], torch.Tensor]:
    """(layer, head, position) -> the key and value that attention sees."""
    found = {}
    for layer in range(store.geometry.layers):
        if not store.used():
            continue
        both = torch.cat(store.layer(layer), dim=-1)
        for head, slot in (store.planes["pos"][layer, 0, :, : store.used()] >= 0).nonzero().tolist():
            found[layer, head, int(store.planes["pos"][layer, 0, head, slot])] = both[0, head, slot]
    return found


def cycle(storage: Storage, window: int, seed: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Twelve events that shuffle eight windows over the tiers, one of them evicting; then (returns, changes of a
    returning token's codes, changes of a once quantised token's value)."""
    tiers = stores(Geometry(2, 4, 2, 16, dtype), storage, window, tokens=8 * window)
    codes: dict[tuple[int, int, int], tuple[bytes, ...]] = {}
    values: dict[tuple[int, int, int], torch.Tensor] = {}
    returns = recoded = changed = 0
    held: set[tuple[int, int, int]] = set()
    for event in range(12):
        shuffle(tiers, window, (3, 1, 3 if event > 5 else 4), seed=97 * seed + event)
        now = payload(tiers)
        for token, parts in now.items():
            returns += token in codes and token not in held
            recoded += codes.setdefault(token, parts) != parts
        held = set(now)
        seen = {**read(tiers[0]), **read(tiers[1]), **read(tiers[2])}
        for token in codes.keys() & seen.keys():
            changed += not torch.equal(values.setdefault(token, seen[token]), seen[token])
        for store in tiers:
            pos = store.planes["pos"][:, 0, :, : store.extents[0]]
            windows = pos.unflatten(-1, (-1, window))
            assert (windows[..., 0] % window == 0).all(), "whole windows"
            assert (windows.diff(dim=-1) == 1).all(), "each in order"
            assert (windows[..., 0].sort(-1).values.diff(dim=-1) > 0).all(), "each once"
    return returns, recoded, changed


@given(STORAGES, st.booleans(), st.sampled_from([torch.bfloat16, torch.float32, torch.float64]), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_with_a_ledger_codes_and_values_never_change_again(
    knobs: dict[str, object], pairs: bool, dtype: torch.dtype, seed: int
) -> None:
    storage = Storage(**knobs, rope_pairs=pairs and knobs["key_axis"] == "channel", ledger=True)
    returns, recoded, changed = cycle(storage, 4, seed, dtype)
    assert returns > 0
    assert (recoded, changed) == (0, 0)


def test_without_a_ledger_a_return_quantises_what_the_models_type_has_rounded() -> None:
    storage = Storage(packed_bits=8, key_axis="channel", grids="float16")
    returns, recoded, changed = cycle(storage, 4, 1, torch.bfloat16)
    assert min(returns, recoded, changed) > 0


def test_quantising_a_growing_whole_again_is_not_idempotent_and_windows_written_once_are() -> None:
    """A new extreme moves the range of everything that shares it: what a cache that re-quantises itself does."""
    x = normal(0, 64, 16)
    x[32:] *= 3
    once = dequantize(*quantize(x[:32], 2, (0,)), torch.float32)
    again = dequantize(*quantize(torch.cat([once, x[32:]]), 2, (0,)), torch.float32)[:32]
    assert not torch.equal(again, once)
    assert (again - x[:32]).abs().mean() > (once - x[:32]).abs().mean()
    form = Format(16, 2, torch.float32, 16, window=32)
    written = form.unpack(**form.pack(x), dtype=x.dtype)
    assert torch.equal(written[:32], form.unpack(**form.pack(x[:32]), dtype=x.dtype))
