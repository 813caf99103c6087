"""GPU time of a cell, against numbers worked out by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiercache.gpus import GPUS, Machine
from tiercache.policy_text import read_policy
from tiercache.price import PRICE_FORMULAS, Price, Work, at_length, layer_params, price
from tiercache.shapes import KNOWN, ModelShape

SEVEN = KNOWN["deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"]
THIRTY_TWO = KNOWN["deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"]
H100, CARD_24 = GPUS["H100-80GB"], GPUS["RTX4090-24GB"]


def priced(policy: str, work: Work, rows: int, machine: Machine = H100, shape: ModelShape = SEVEN) -> Price:
    found = price(shape, read_policy(policy), "auto", work, rows, machine)
    assert found is not None
    return found


def test_one_sample_of_the_full_cache_by_hand() -> None:
    """1,000 prompt tokens, 1,001 new ones.

    A step reads 15,231,233,024 bytes of weights less the embedding table, 152,064 x 3,584 x 2 = 1,089,994,752, and
    the cache: 1,001 tokens after the first step, 2,000 after the last, 1,500.5 in the mean, 57,344 bytes each. So
    1,000 steps read 1,000 x (14,141,238,272 + 86,044,672) bytes: 4.247 s at 3,350 GB/s.
    The prefill computes 2 x 6,525,621,760 x 1,000 + 2 x 28 x 28 x 128 x 1,000² operations: 13.4 ms at 989 TFLOP/s.
    """
    found = priced("full", Work(1, 1, 1000, 1001, 1001), 64)
    assert found.rows == 1
    assert layer_params(SEVEN) == 6_525_621_760
    assert found.prefill_s == pytest.approx((13_051_243_520_000 + 200_704_000_000) / 989e12)
    assert found.channels["HBM"] == pytest.approx(14_227_282_944_000 / 3350e9)
    assert found.channels["arithmetic"] == pytest.approx(1000 * 14_141_238_272 / 989e12)
    assert found.channels["bus"] == found.channels["host memory"] == 0
    assert found.bound_by == "HBM"
    assert found.hours == pytest.approx((4.24695 + 0.01340) / 3600, rel=1e-4)


def test_a_batch_shares_the_weights_by_hand() -> None:
    """640 samples, 64 together: weights are read 10 x 1,000 times, each row's cache as often as before."""
    found = priced("full", Work(640, 640, 1000, 1001, 1001), 64)
    assert found.rows == 64
    assert found.channels["HBM"] == pytest.approx((10_000 * 14_141_238_272 + 640_000 * 86_044_672) / 3350e9)
    assert found.prefill_s == pytest.approx(640 * 13_251_947_520_000 / 989e12)


def test_a_small_card_takes_fewer_rows_by_hand() -> None:
    """24 GiB, nine tenths usable: 23,192,823,398 bytes. Beside the weights 7,961,590,374 are left for rows of 2,000
    tokens, 114,688,000 bytes each, one of them arriving: 1 + (7,961,590,374 - 114,688,000) // 114,688,000 = 69."""
    found = priced("full", Work(640, 640, 1000, 1001, 1001), 128, CARD_24)
    assert found.rows == 69
    assert found.channels["HBM"] == pytest.approx(640_000 * (14_141_238_272 / 69 + 86_044_672) / 1008e9)


def test_an_evicting_policy_reads_less_by_hand() -> None:
    """h2o keeps 512 tokens after each step, of 1,000 from the prompt's event on."""
    found = priced("h2o budget=512", Work(1, 1, 1000, 1001, 1001), 64)
    assert found.channels["HBM"] == pytest.approx(1000 * (14_141_238_272 + 512 * 57_344) / 3350e9)


def test_host_memory_decides_where_attention_reads_it() -> None:
    merge, stream = (
        priced(f"hierarchy hbm=0.3 evict=0 t1_read={read}", Work(64, 64, 512, 8192, 8192), 64)
        for read in ("merge", "stream")
    )
    assert (merge.bound_by, stream.bound_by) == ("host memory", "bus")
    held = at_length(SEVEN, read_policy("hierarchy hbm=0.3 evict=0"), "auto", 512, 8192, H100).tokens
    assert merge.channels["host memory"] == pytest.approx(64 * 8191 * held.ddr_mean * 57_344 / 300e9)
    assert stream.channels["bus"] == pytest.approx(64 * 8191 * held.ddr_mean * 57_344 / 64e9)


def test_repeats_share_their_prefill() -> None:
    once, four = (priced("full", Work(10, 10 * n, 30_000, 2, 2), 64) for n in (1, 4))
    assert once.prefill_s == four.prefill_s
    assert once.bound_by == "prefill"
    assert four.channels["HBM"] > once.channels["HBM"]


def test_what_does_not_fit_has_no_price() -> None:
    work = Work(1, 1, 100, 1000, 1000)
    full = read_policy("full")
    assert price(THIRTY_TWO, full, "auto", work, 64, CARD_24) is None
    assert price(THIRTY_TWO, full, "auto", work, 64, H100) is not None
    assert price(THIRTY_TWO, full, "float32", work, 64, H100) is None
    assert price(replace(SEVEN, weight_bytes=None), full, "auto", work, 64, H100) is None
    assert price(SEVEN, full, "auto", work, 0, H100) is None


@given(
    st.sampled_from(["full", "h2o budget=0.5", "hierarchy hbm=0.3 evict=0.03", "qevict budget=bytes:0.3", "kivi"]),
    st.integers(1, 600),
    st.integers(1, 600),
    st.integers(1, 64),
    st.sampled_from(list(GPUS.values())),
)
@settings(max_examples=30, deadline=None)
def test_no_price_is_above_what_the_fullest_steps_would_take(
    policy: str, prompt: int, new: int, rows: int, machine: Machine
) -> None:
    """`capacity` has the speed of the fullest step; all steps as full as that are an upper bound of this bound."""
    found = priced(policy, Work(8, 8, prompt, new, new), rows, machine)
    fullest = at_length(SEVEN, read_policy(policy), "auto", prompt, new, machine).step_seconds(found.rows)
    assert fullest is not None
    steps = 8 * (new - 1) / found.rows
    for channel, seconds in fullest.items():
        assert found.channels[channel] <= steps * seconds * (1 + 1e-9)
    assert priced(policy, Work(8, 8, prompt, new, new + 100), rows, machine).seconds >= found.seconds * (1 - 1e-9)


def test_the_formulas_are_what_is_computed() -> None:
    work = Work(5, 20, 700, 300, 300)
    policy = read_policy("hierarchy hbm=0.3 evict=0.03 every=16 recent=16")
    found, held = priced(policy.label, work, 8), at_length(SEVEN, policy, "auto", 700, 300, H100).held()
    names = {
        **{name: getattr(SEVEN, name) for name in ("layers", "q_heads", "head_dim")},
        **{name: getattr(work, name) for name in ("prompts", "samples", "prompt", "new")},
        **{"layer_params": layer_params(SEVEN), "weight_reads": 14_141_238_272, "element": 2, "rows": 8},
        **{"held_device_reads": held.device, "held_bus": held.bus, "held_host_reads": held.host},
        **{"flops": 989e12, "hbm": 3350e9, "bus": 64e9, "host": 300e9},
    }
    for name, formula in PRICE_FORMULAS.items():
        names[name] = eval(formula, {"max": max}, names)
    assert names["gpu_hours"] == pytest.approx(found.hours)
    assert found.channels == pytest.approx(
        dict(zip(found.channels, (names[f"{part}_s"] for part in ("hbm", "bus", "host", "arithmetic")), strict=True))
    )
