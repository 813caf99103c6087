"""Quantised formats: errors, bytes and codes, against loops over ranges."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quantised_reference import STORAGES, fake, normal, shuffle, stores

from tiercache.errors import PolicyError
from tiercache.parts import Storage
from tiercache.policy import parse_policy
from tiercache.quantize import (
    E4M3_MAX,
    Format,
    dequantize,
    dequantize_fp8,
    formats,
    pack,
    quantize,
    quantize_fp8,
    unpack,
)
from tiercache.sizes import sizes
from tiercache.store import Geometry

BITS = st.sampled_from([8, 4, 2])


GRIDS = st.sampled_from([torch.float32, torch.float16])


# Ranges and codes ----------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), BITS, GRIDS, st.sampled_from([1e-6, 1e-2, 1.0, 1e3]), st.sampled_from([0.0, 1.0, -300.0]))
@settings(max_examples=150, deadline=None)
def test_error_is_at_most_half_a_scale(seed: int, bits: int, grids: torch.dtype, size: float, offset: float) -> None:
    x = normal(seed, 3, 5, 16, size=size) + offset
    codes, scale, zero = quantize(x, bits, (-1,), grids)
    assert scale.dtype == zero.dtype == grids
    assert int(codes.max()) <= 2**bits - 1
    error = (dequantize(codes, scale, zero, torch.float64) - x).abs()
    assert (error <= scale.double() / 2 + 1e-6 * (x.abs() + size)).all()


@given(st.integers(0, 2**32), GRIDS, st.sampled_from([1e-5, 1.0, 1e3]))
@settings(max_examples=100, deadline=None)
def test_fp8_error_is_half_a_step_of_three_mantissa_bits(seed: int, grids: torch.dtype, size: float) -> None:
    x = normal(seed, 4, 16, size=size)
    codes, scale = quantize_fp8(x, (-1,), grids)
    assert codes.dtype == torch.uint8
    error = (dequantize_fp8(codes, scale, torch.float64) - x).abs()
    assert (error <= x.abs().double() / 16 * (1 + 1e-5) + scale.double() * 2.0**-10).all()


@pytest.mark.parametrize("grids", [torch.float32, torch.float16])
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_constant_groups_are_exact_and_nothing_is_nan(bits: int, grids: torch.dtype) -> None:
    x = torch.tensor([0.0, 3.25, -1024.0, 6.1035e-05]).half().float().unsqueeze(1).expand(4, 8)
    assert torch.equal(dequantize(*quantize(x, bits, (-1,), grids), torch.float32), x)
    # 1/3 is no float16: the range then spans it, and the bound still holds.
    third = torch.full((1, 8), 1 / 3)
    codes, scale, zero = quantize(third, bits, (-1,), grids)
    assert ((dequantize(codes, scale, zero, torch.float32) - third).abs() <= scale.float() / 2 + 1e-7).all()
    huge = torch.tensor([[1e30, -1e30, 0.0, 1.0]])
    assert dequantize(*quantize(huge, bits, (-1,), grids), torch.float32).isfinite().all()
    assert dequantize_fp8(*quantize_fp8(torch.zeros(2, 8), (-1,), grids), torch.float32).eq(0).all()
    assert dequantize_fp8(*quantize_fp8(huge, (-1,), grids), torch.float32).isfinite().all()


def test_the_largest_of_a_range_is_the_largest_fp8_number() -> None:
    codes, _ = quantize_fp8(torch.tensor([[-3.0, 1.5]]))
    assert codes.view(torch.float8_e4m3fn).float().tolist() == [[-E4M3_MAX, E4M3_MAX / 2]]


@given(st.integers(0, 2**32), BITS, st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_packing_loses_nothing_and_fills_every_bit(seed: int, bits: int, n: int) -> None:
    codes = torch.randint(2**bits, (2, n, 8), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    packed = pack(codes, bits)
    assert packed.shape == (2, n, bits)
    assert torch.equal(unpack(packed, bits), codes.float())
    assert pack(torch.full((1, 8), 2**bits - 1, dtype=torch.uint8), bits).eq(255).all()


@given(
    STORAGES,
    st.booleans(),
    st.sampled_from([2, 3, 4, 8, 32]),
    st.integers(1, 3),
    st.sampled_from([8, 16, 24]),
    st.integers(0, 999),
)
@settings(max_examples=150, deadline=None)
def test_formats_equal_loops_over_ranges(
    knobs: dict[str, object], pairs: bool, window: int, windows: int, dim: int, seed: int
) -> None:
    storage = Storage(**knobs, rope_pairs=pairs and knobs["key_axis"] == "channel")
    x = normal(seed, 2, window * windows, dim) * normal(seed + 1, dim).exp() + normal(seed + 2, dim)
    for side, form in formats(storage, window, dim).items():
        planes = form.pack(x)
        assert {name: (plane.shape[2:], plane.dtype) for name, plane in planes.items()} == form.layout
        got = form.unpack(**planes, dtype=torch.float32)
        for i in range(2):
            expected = fake(x[i].numpy(), storage, window, side)
            np.testing.assert_allclose(got[i].numpy(), expected, rtol=1e-5, atol=1e-5)


def outliers(along: int) -> tuple[float, float]:
    """Error by token and by channel, in 2 bits, of a tensor with one loud channel (1) or one loud token (0)."""
    x = normal(3, 32, 32)
    x.select(along, 5).add_(50)
    by_token = Format(32, 2, torch.float32, 32)
    by_channel = Format(32, 2, torch.float32, 32, window=32)
    errors = [(form.unpack(**form.pack(x), dtype=x.dtype) - x).pow(2).mean().item() for form in (by_token, by_channel)]
    return errors[0], errors[1]


def test_a_loud_channel_wants_ranges_by_channel_and_a_loud_token_by_token() -> None:
    by_token, by_channel = outliers(along=1)
    assert by_channel < by_token / 5
    by_token, by_channel = outliers(along=0)
    assert by_token < by_channel / 5


def test_paired_channels_share_a_range() -> None:
    x = normal(0, 8, 16)
    x[:, 11] *= 100  # the partner of channel 3
    alone, paired = (Format(16, 4, torch.float32, 16, 8, pairs) for pairs in (False, True))
    error = {
        pairs: (form.unpack(**form.pack(x), dtype=x.dtype) - x).abs()[:, 3].max().item()
        for pairs, form in ((False, alone), (True, paired))
    }
    assert error[True] > 10 * error[False]
    assert paired.layout["grid"][0][0] * 2 == alone.layout["grid"][0][0]


# Bytes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "group", "expected"), [(2, 32, 3.0), (2, 64, 2.5), (2, 128, 2.25), (4, 32, 5.0), (4, 64, 4.5)]
)
def test_bits_per_element_known_answers(bits: int, group: int, expected: float) -> None:
    """b + 32 / G, with scale and zero in float16."""
    storage = Storage(packed_bits=bits, key_axis="channel", group=group, grids="float16")  # type: ignore[arg-type]
    size = sizes(storage, group, 1, 1, 128, 2)
    assert size.packed * 8 / (2 * 128 * size.window) == expected


def test_qevict_window_known_answers() -> None:
    """8 tokens of 8 KV heads of 128, keys and values."""
    policy = parse_policy({"name": "qevict", "budget": {"bytes": 0.2}})
    size = sizes(policy.storage, policy.placement.window, 1, 8, 128, 2)
    assert 8 * size.token == 32_768
    codes = 8 * 2 * 128 * 2 // 8 * 8
    assert codes == 4_096
    key_grids = 8 * (64 * 2) * 2  # a scale and a zero for each pair of channels
    value_grids = 8 * (8 * 2) * 2  # and for each token
    assert size.packed == codes + key_grids + value_grids == 6_400
    assert size.packed_bytes(24) == 3 * 6_400


def test_eight_bits_alone_take_what_they_always_took() -> None:
    assert sizes(Storage(), 1, 2, 3, 128, 2).packed == 2 * 2 * 3 * (128 + 8)


@given(
    STORAGES,
    st.booleans(),
    st.sampled_from([2, 4, 8, 32, 64]),
    st.sampled_from([8, 16, 24]),
    st.integers(1, 3),
    st.booleans(),
)
@settings(max_examples=120, deadline=None)
def test_sizes_are_the_bytes_of_real_stores(
    knobs: dict[str, object], pairs: bool, window: int, dim: int, windows: int, ledger: bool
) -> None:
    storage = Storage(**knobs, rope_pairs=pairs and knobs["key_axis"] == "channel", ledger=ledger)
    geometry = Geometry(2, 6, 3, dim, torch.bfloat16)
    tiers = stores(geometry, storage, window, tokens=window * (windows + 1))
    size = sizes(storage, window, 2, 3, dim, 2)
    shuffle(tiers, window, (1, 0, windows))
    hbm, _, packed = tiers
    assert size.window == (window if storage.key_axis == "channel" else 1)
    assert packed.keys_values_bytes() == size.packed_bytes(window * windows)
    assert hbm.keys_values_bytes() == size.token * window


def test_a_head_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(PolicyError, match="group: 32 does not divide the model's head size of 48"):
        sizes(Storage(group=32), 1, 1, 1, 48, 2)
    with pytest.raises(PolicyError, match=r"packed_bits: 6 codes of 2 bits"):
        sizes(Storage(packed_bits=2), 1, 1, 1, 6, 2)
    with pytest.raises(PolicyError, match=r"key_axis: 'channel'.* give window: 2 or more"):
        parse_policy({"name": "kivi", "window": 1})
    with pytest.raises(PolicyError, match="needs key_axis: channel"):
        parse_policy({"name": "quantised", "packed_bits": 4, "rope_pairs": True})
    with pytest.raises(PolicyError, match="packed_bits: 'quantised' needs it"):
        parse_policy("quantised")
