"""The capacity model: known byte counts, what can only fall or rise, and what the real cache holds."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import plan
from jobs.capacity import DEFAULT_POLICIES, find_shape, notes
from tiercache.cache import TieredCache
from tiercache.capacity import FORMULAS, PROJECTIONS, T1_READS, Capacity, capacity, formulas
from tiercache.engine import Engine
from tiercache.errors import RequestError
from tiercache.gpus import GPU_USABLE, GPUS, Machine
from tiercache.model import LoadedModel, load
from tiercache.model_spec import ModelSpec
from tiercache.parts import Storage
from tiercache.policy_text import read_policy
from tiercache.requests import Completion, Request, Sampling
from tiercache.shapes import KNOWN
from tiercache.thoughts import TRANSITION

SEVEN = "DeepSeek-R1-Distill-Qwen-7B"
SEVENTY = "DeepSeek-R1-Distill-Llama-70B"


def held(model: str, policy: str, context: int, **how: Any) -> Capacity:
    return capacity(find_shape(model), read_policy(policy), context, **how)


@pytest.mark.parametrize(
    ("model", "token", "weights"),
    [
        (SEVEN, 57_344, 15_231_233_024),
        ("DeepSeek-R1-Distill-Qwen-14B", 196_608, 29_540_067_328),
        ("DeepSeek-R1-Distill-Qwen-32B", 262_144, 65_527_752_704),
        ("DeepSeek-R1-Distill-Llama-8B", 131_072, 16_060_522_496),
        ("Mistral-7B-Instruct-v0.3", 131_072, 14_496_047_104),
        (SEVENTY, 327_680, 141_107_412_992),
    ],
)
def test_bytes_of_a_token_and_of_the_weights(model: str, token: int, weights: int) -> None:
    found = held(model, "full", 1000)
    assert (found.token, found.weights) == (token, weights)
    assert found.row == found.full == 1000 * token


def test_sizes_of_the_literature_and_what_query_heads_make_of_them() -> None:
    seven, seventy = held(SEVEN, "full", 2000), held(SEVENTY, "full", 4096)
    assert seven.token_by_query_heads == 401_408
    assert (seven.row, 2000 * seven.token_by_query_heads) == (114_688_000, 802_816_000)
    assert held("DeepSeek-R1-Distill-Llama-8B", "full", 32_768).row == 4_294_967_296
    assert (8 * seventy.row, 8 * 4096 * seventy.token_by_query_heads) == (10 * 2**30, 80 * 2**30)
    assert [projection.corrected(KNOWN[projection.model]) for projection in PROJECTIONS] == [114_688_000, 10 * 2**30]


def test_six_hundred_tokens_over_the_bus() -> None:
    """34.4 MB take 0.69 ms at 50 GB/s; all of T1 crosses, the same at every step."""
    found = held(SEVEN, "hierarchy hbm=0 evict=0 t1_read=stream", 512 + 4 + 600 + 128, machine=Machine(bus_gbps=50))
    assert found.tokens.ddr_peak == pytest.approx(600, abs=64)
    moved = replace(found, tokens=replace(found.tokens, ddr_peak=600))
    assert moved.bus("stream") == (0, 34_406_400)
    assert (moved.step_seconds(1) or {})["bus"] == pytest.approx(0.69e-3, abs=0.01e-3)


def test_by_hand() -> None:
    """Of 1,000 tokens that compete half lies on the host; layers come up in pairs of 28."""
    found = held(SEVEN, "hierarchy hbm=0.5 evict=0 recent=1 generated_sinks=0 every=1 t1_read=stream", 1513)
    assert (found.tokens.hbm_peak, found.tokens.ddr_peak) == (512 + 1 + 500, 500)
    t1 = 500 * 57_344
    assert (found.t1, found.staging) == (t1, t1 // 14)
    assert replace(found, t1_read="mirror").row == 1013 * 57_344 + t1
    assert replace(found, t1_read="merge").row == 1013 * 57_344
    assert found.bus("merge") == (28 * 28 * 256, 28 * 28 * 260)
    assert found.bus("mirror") == (57_344, 0)
    assert {held(SEVEN, "h2o budget=0.5", 2048).bus(mode) for mode in T1_READS} == {(0, 0)}


def test_rows_fill_the_usable_bytes() -> None:
    found = held(SEVEN, "full", 32_768)
    assert found.most_rows == (int(0.9 * 80 * 2**30) - 15_231_233_024) // found.row == 33
    assert held(SEVEN, "full", 32_768, machine=GPUS["RTX4090-24GB"]).most_rows == 4
    assert held(SEVENTY, "full", 2048).most_rows == 0
    long = held(SEVEN, "snapkv budget=512", 65_536, prompt=65_000)
    assert long.most_rows == 1 + (long.usable - 15_231_233_024 - 65_000 * 57_344) // long.row
    assert GPU_USABLE == plan.GPU_USABLE


def test_the_slowest_channel_decides() -> None:
    merge, stream, mirror = (held(SEVEN, "hierarchy hbm=0.3 evict=0", 32_768, t1_read=read) for read in T1_READS)
    assert [each.bound_by(64) for each in (merge, stream, mirror)] == ["host memory", "bus", "HBM"]
    assert stream.tokens_per_s(64) == pytest.approx(64e9 / stream.t1)
    assert merge.tokens_per_s(64) == pytest.approx(300e9 / merge.t1)
    reads = 15_231_233_024 - 152_064 * 3584 * 2
    assert held(SEVEN, "full", 2048).tokens_per_s(1) == pytest.approx(3350e9 / (reads + 2048 * 57_344))
    pages = held(SEVEN, "quest pages=16 read_budget=256 dense_layers=2", 8192)
    assert pages.row == 8192 * 57_344
    assert pages.device_reads == (2 * 8192 + 26 * (256 + 512)) * 57_344 // 28


def test_unknown_weights_leave_rows_and_speed_open(model_folder: Path) -> None:
    (model_folder / "model.safetensors").unlink()
    found = held(str(model_folder), "full", 1024)
    assert (found.most_rows, found.tokens_per_s(8), found.bound_by(8)) == (None, None, None)
    assert any("isn't known here" in note for note in notes("tiny", found, [4096]))
    assert any("2,048 tokens at most" in note for note in notes("tiny", found, [4096]))


LENGTHS = st.integers(1, 1500)
POLICIES = st.sampled_from(
    [*DEFAULT_POLICIES, "kivi", "thinkv budget=256 segment=32", "lagkv chunk_keep=0.5", "random budget=300"]
)
MACHINES = st.sampled_from(list(GPUS.values()))


@given(POLICIES, LENGTHS, LENGTHS, st.integers(1, 300), st.sampled_from(T1_READS), MACHINES)
@settings(max_examples=60, deadline=None)
def test_more_context_never_fits_more_rows(
    policy: str, a: int, b: int, prompt: int, read: str, machine: Machine
) -> None:
    less, more = (held(SEVEN, policy, prompt + n, prompt=prompt, t1_read=read, machine=machine) for n in sorted((a, b)))
    assert less.row <= more.row
    assert (less.most_rows or 0) >= (more.most_rows or 0)
    assert (less.tokens_per_s(8) or 0) >= (more.tokens_per_s(8) or 0)


@given(
    st.sampled_from(["h2o budget={}", "streaming budget={}", "random budget={} pin_prompt", "tova budget={} every=16"]),
    st.floats(0.02, 1),
    st.floats(0.02, 1),
    st.integers(64, 2000),
)
@settings(max_examples=60, deadline=None)
def test_a_smaller_budget_never_needs_more(policy: str, a: float, b: float, context: int) -> None:
    less, more = (held(SEVEN, policy.format(share), context, prompt=50) for share in sorted((a, b)))
    assert less.row <= more.row <= held(SEVEN, "full", context, prompt=50).row
    assert (less.most_rows or 0) >= (more.most_rows or 0)


@given(POLICIES, LENGTHS, st.integers(1, 4000), st.sampled_from(T1_READS), MACHINES)
@settings(max_examples=60, deadline=None)
def test_so_many_rows_fit_and_no_more(policy: str, length: int, scale: int, read: str, machine: Machine) -> None:
    found = held(SEVEN, policy, length + 20, prompt=20, t1_read=read, machine=machine)
    machine = replace(machine, gpu_bytes=machine.gpu_bytes * scale // 4000 + 1)
    found = replace(found, machine=machine)
    rows, weights = found.most_rows, found.weights
    assert rows is not None
    assert weights is not None
    arriving = max(found.prompt, found.row)
    assert rows == 0 or weights + (rows - 1) * found.row + arriving <= found.usable
    assert weights + rows * found.row + arriving > found.usable


@given(POLICIES, LENGTHS, st.integers(1, 200), st.sampled_from(T1_READS), MACHINES)
@settings(max_examples=40, deadline=None)
def test_the_formulas_are_what_is_computed(policy: str, length: int, rows: int, read: str, machine: Machine) -> None:
    found = held(SEVEN, policy, length + 20, prompt=20, t1_read=read, machine=machine)
    shape, size = found.shape, found.shape.sizes(found.policy)
    names: dict[str, Any] = {
        **{name: getattr(shape, name) for name in ("layers", "q_heads", "kv_heads", "head_dim", "vocab", "hidden")},
        **{mode: mode == read for mode in T1_READS},
        **{"element": 2, "weights": found.weights, "rows": rows, "prompt_tokens": 20, "gpu": machine.gpu_bytes},
        **{name: getattr(machine, f"{name}_gbps") * 1e9 for name in ("hbm", "bus", "host")},
        **{"window": size.window, "packed_window": size.packed},
        **{
            "t0_tokens": found.tokens.fullest[0],
            "t1_tokens": found.tokens.ddr_peak,
            "t2_tokens": found.tokens.fullest[1],
        },
    }
    for name, formula in FORMULAS.items():
        names[name] = eval(formula, {"max": max}, names)
    to_host, to_device = found.bus(found.t1_read)
    computed: dict[str, Any] = {"to_host": to_host, "to_device": to_device}
    for name in ("token", "token_by_query_heads", "t0", "t1", "t2", "staging", "row", "device_reads", "most_rows"):
        computed[name] = getattr(found, name)
    assert {name: names[name] for name in computed} == pytest.approx(computed, abs=1)
    assert names["tokens_per_s"] == pytest.approx(found.tokens_per_s(rows), rel=1e-6)
    assert all(name in formulas() for name in FORMULAS)


# What the real cache holds, over the embedded reasoner. A CPU has no staging buffers: reads are counted all the same.


PROMPT, NEW = 120, 420


@cache
def reasoner() -> LoadedModel:
    return load(ModelSpec(id="reasoner"), "cpu")


@dataclass
class Measured:
    """One long generation. Bytes are read off the tensors after each step, their peaks; `moved` went to the device."""

    done: Completion
    device: int
    host: int
    packed: int
    moved: int


@cache
def measured(policy: str) -> Measured:
    torch.set_num_threads(1)  # a small model: a second thread costs more than it does
    peaks = [0, 0, 0]

    before: list[int] = []

    def probe(cache: TieredCache, first: int, keys: object, hidden: object) -> None:
        cache.row_positions(first)  # they are written when they are asked for
        held = [store.keys_values_bytes() for store in cache.stores]
        packed = sum(held[2:])
        # In each step a token comes before the event that may take others away.
        arrived = before[-1] + cache.geometry.token_bytes if before else 0
        before.append(held[0] + packed)
        peaks[:] = map(max, peaks, (max(before[-1], arrived), sum(held[1:2]), packed))

    engine = Engine(replace(reasoner(), eos=frozenset()))
    request = Request("r", tuple(7 + i % 90 for i in range(PROMPT)), Sampling(max_new_tokens=NEW), 1)
    (done,) = engine.run([request], read_policy(policy), probe)
    assert engine.stats is not None
    assert len(done.tokens) == NEW
    return Measured(done, peaks[0], peaks[1], peaks[2], engine.stats.bytes_to_device)


@pytest.mark.parametrize(
    "policy",
    [
        "full",
        "h2o budget=0.5",
        "hierarchy hbm=0.5 evict=0",
        "hierarchy hbm=0.5 evict=0 t1_read=stream",
        "qevict budget=bytes:0.3",
        "kivi",
        "quantised packed_bits=8",
        "hierarchy hbm=0.3 evict=0.05 packed=0.4 every=16 recent=32",
        "hierarchy hbm=0 evict=0 packed=1 recent=16",
    ],
)
def test_what_the_real_cache_holds(policy: str) -> None:
    real = measured(policy)
    found = held("reasoner", policy, PROMPT + NEW - 1, prompt=PROMPT, t1_read="merge")  # at rest nothing is staged
    size = found.shape.sizes(found.policy)
    assert max(found.prompt, found.tokens.hbm_peak * found.token) == real.done.ledger.hbm_bytes_peak
    assert found.full == real.done.ledger.full_bytes_end
    assert (found.t1, size.packed_bytes(*found.tokens.packed_peak)) == (real.host, real.packed)
    assert found.row == real.device


def test_thoughts_have_kinds() -> None:
    """Told kinds, the plan isn't a bound any more; `benchmarks/capacity_vs_measured.py` finds it exact."""
    policy, shape = read_policy("thinkv budget=0.5 segment=32"), held("reasoner", "full", 300, prompt=40).shape
    bound, told = (capacity(shape, policy, 300, prompt=40, thoughts=kinds) for kinds in ((), (TRANSITION,) * 8))
    assert (bound.depends_on_data, told.depends_on_data) == (True, False)
    assert told.row < bound.row
    with pytest.raises(RequestError, match=r"thoughts: kinds are 0, 1, 2 \(got 7\)"):
        capacity(shape, policy, 300, prompt=40, thoughts=(1, 7))


def test_what_the_real_cache_moves() -> None:
    """Both ways of reading move the same tokens at events; beyond these `stream` brings up T1 at each step."""
    merge, stream = (measured(f"hierarchy hbm=0.5 evict=0{read}") for read in ("", " t1_read=stream"))
    assert merge.done.tokens == stream.done.tokens
    found = held("reasoner", "hierarchy hbm=0.5 evict=0", PROMPT + NEW - 1, prompt=PROMPT)
    brought = merge.done.ledger.ddr_bytes_mean * (NEW - 1)
    first = 192  # steps before T1 holds anything: the first event with more than the protected 4 + 128
    parts = found.bus("merge").to_device * (NEW - 1 - first)
    assert parts > 0
    assert stream.moved - merge.moved == pytest.approx(brought - parts, rel=0.02)


def test_weights_that_a_step_reads() -> None:
    found = held("reasoner", "full", 600)
    assert found.weight_reads is not None
    assert found.weight_reads <= 1.02 * reasoner().step_weight_bytes


def test_every_reading_of_the_engine_is_known() -> None:
    assert {*get_args(Storage.model_fields["t1_read"].annotation)} <= {*T1_READS}
