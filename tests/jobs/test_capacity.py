"""The capacity model: known byte counts, what can only fall or rise, and what the real cache holds."""

import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from jobs import plan
from jobs.capacity import DEFAULT_POLICIES, capacities, find_shape, notes, read_bytes, read_counts
from tiercache.cache import TieredCache
from tiercache.capacity import FORMULAS, PROJECTIONS, T1_READS, Capacity, capacity, formulas
from tiercache.engine import Engine
from tiercache.errors import ModelError, PolicyError, RequestError, TierCacheError
from tiercache.gpus import GPU_USABLE, GPUS, Machine
from tiercache.model import LoadedModel, load
from tiercache.model_spec import ModelSpec
from tiercache.parts import Storage
from tiercache.policy import PRESETS, parse_policy
from tiercache.policy_text import policy_entry, read_policy
from tiercache.requests import Completion, Request, Sampling
from tiercache.shapes import ELEMENT_BYTES, KNOWN, shape_of

SEVEN = "DeepSeek-R1-Distill-Qwen-7B"
SEVENTY = "DeepSeek-R1-Distill-Llama-70B"
VALUES = {"budget": 0.25, "hbm": 0.3, "evict": 0.03, "packed_bits": 4, "read_budget": 256, "chunk_keep": 0.5}


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
            "t0_tokens": found.tokens.hbm_peak,
            "t1_tokens": found.tokens.ddr_peak,
            "t2_tokens": found.tokens.packed_peak,
        },
    }
    for name, formula in FORMULAS.items():
        names[name] = eval(formula, {"max": max}, names)
    to_host, to_device = found.bus(found.t1_read)
    computed = {"to_host": to_host, "to_device": to_device, "tokens_per_s": found.tokens_per_s(rows)}
    for name in ("token", "token_by_query_heads", "t0", "t1", "t2", "staging", "row", "device_reads", "most_rows"):
        computed[name] = getattr(found, name)
    if not found.t1:
        del computed["to_host"], computed["to_device"]  # they are of a policy that has a T1
        return
    assert {name: names[name] for name in computed} == pytest.approx(computed, abs=1)
    assert all(name in formulas() for name in FORMULAS)


# What the real cache holds, over the embedded reasoner. A CPU has no staging buffers: reads are counted all the same.


@cache
def reasoner() -> LoadedModel:
    return load(ModelSpec(id="reasoner"), "cpu")


@cache
def measured(policy: str) -> tuple[Completion, int, int, int]:
    """One long generation: itself, the most bytes that the tensors of T0 and T2 ever held, and T1's; steps."""
    loaded = replace(reasoner(), eos=frozenset())
    prompt = tuple(7 + i % 90 for i in range(120))
    peak = [0, 0, 0]

    def probe(cache: TieredCache, first: int, keys: object, hidden: object) -> None:
        bytes_ = [store.keys_values_bytes() for store in cache.stores]
        device, host = bytes_[0] + sum(bytes_[2:]), sum(bytes_[1:2])
        peak[0], peak[1], peak[2] = max(peak[0], device), max(peak[1], host), peak[2] + 1

    engine = Engine(loaded)
    (done,) = engine.run(
        [Request("r", prompt, Sampling(max_new_tokens=600), 1)], parse_policy(policy_entry(policy)), probe
    )
    assert engine.stats is not None
    return done, peak[0], peak[1], engine.stats.bytes_to_device


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
    ],
)
def test_what_the_real_cache_holds(policy: str) -> None:
    done, device, host, _ = measured(policy)
    shape = shape_of(ModelSpec(id="reasoner"))
    assert shape is not None
    found = capacity(shape, read_policy(policy), 120 + len(done.tokens) - 1, prompt=120)
    assert len(done.tokens) == 600
    assert found.t0 == done.ledger.hbm_bytes_peak
    assert found.full == done.ledger.full_bytes_end
    resting = replace(found, t1_read="merge")  # between steps nothing is staged
    # The tensors are seen after each event, so without the token, or the interval's tokens, that came before it.
    every = max(1, found.policy.schedule.every) * found.token
    assert device <= resting.row <= max(1.02 * device, device + every + found.token)
    assert host == pytest.approx(found.t1, rel=0.02)
    packed = shape.sizes(found.policy).packed_bytes(done.ledger.packed_tokens)
    assert packed == pytest.approx(found.t2, rel=0.02)


def test_what_the_real_cache_moves() -> None:
    """Both ways of reading move the same tokens at events; beyond these `stream` brings up T1 at each step."""
    merge, stream = (measured(f"hierarchy hbm=0.5 evict=0{read}") for read in ("", " t1_read=stream"))
    shape = shape_of(ModelSpec(id="reasoner"))
    assert shape is not None
    assert merge[0].tokens == stream[0].tokens
    steps = merge[0].ledger.ddr_bytes_mean * 599
    found = capacity(shape, read_policy("hierarchy hbm=0.5 evict=0"), 719, prompt=120)
    assert found.t1 > 0
    first = 64 * (-(-(4 + 128 + 1) // 64))  # the step after whose event something lies in T1
    read = found.bus("merge").to_device * (599 - first)
    assert stream[3] - merge[3] == pytest.approx(steps - read, rel=0.02)


def test_weights_that_a_step_reads() -> None:
    shape = shape_of(ModelSpec(id="reasoner"))
    assert shape is not None
    found = capacity(shape, read_policy("full"), 600)
    assert found.weight_reads is not None
    assert found.weight_reads <= 1.02 * reasoner().step_weight_bytes


@pytest.mark.parametrize("name", PRESETS)
def test_a_label_reads_back_as_its_policy(name: str) -> None:
    policy = parse_policy({"name": name, **{knob: VALUES[knob] for knob in PRESETS[name].required}})
    assert read_policy(policy.label) == policy


@pytest.mark.parametrize(
    "text",
    [
        "h2o budget=bytes:0.4 scope=layer",
        "thinkv budget=512 ladder=(16, 8, 4)",
        "random budget=20 scope=token pin_prompt=False",
        "streaming budget=24 positions=true",
        "streaming budget=None chunk=8 chunk_keep=0.4",
    ],
)
def test_more_labels(text: str) -> None:
    policy = read_policy(text)
    assert read_policy(policy.label) == policy


@given(st.one_of(st.text(max_size=60), st.text("h2o budget=:.015[]()1eN-,'\"", max_size=60).map("h2o ".__add__)))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_policy_or_one_clear_error(text: str) -> None:
    try:
        read_policy(text)
    except PolicyError as problem:
        assert "policy" in str(problem)


@pytest.mark.parametrize("text", ["h2o " * 10**5, "h2o a=" + "[" * 10**6, "x" * 10**6, "h2o budget=0.5 budget=0.6"])
def test_long_and_doubled_text_is_refused_at_once(text: str) -> None:
    with pytest.raises(PolicyError, match="policy: "):
        policy_entry(text)


@pytest.mark.parametrize(
    ("text", "size"), [("80GiB", 80 * 2**30), ("24 gb", 24 * 10**9), ("1.5MiB", 3 * 2**19), ("7B", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert read_bytes(text, "--gpu") == size


@pytest.mark.parametrize("text", ["", "80", "GiB", "-1GiB", "0GiB", "1e9GB", "9" * 5000 + "B", "٣GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(RequestError, match="--gpu: is a size with its unit"):
        read_bytes(text, "--gpu")


@pytest.mark.parametrize("text", ["", ",", "0", "1,,2", "-3", "1.5", "x", "9" * 5000])
def test_what_are_no_counts(text: str) -> None:
    assert read_counts("8, 1,8", "--batch") == [8, 1]
    with pytest.raises(RequestError, match="--batch: "):
        read_counts(text, "--batch")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"model": "DeepSeek-R1-Distil-Qwen-7B"}, ModelError, "Did you mean 'DeepSeek-R1-Distill-Qwen-7B'"),
        ({"model": ""}, ModelError, "tiercache models"),
        ({"context": 100}, RequestError, "from prompt"),
        ({"context": 2**20 + 1}, RequestError, "1,048,576"),
        ({"prompt": 0}, RequestError, "prompt"),
        ({"dtype": "int8"}, RequestError, "float16"),
        ({"t1_read": "streem"}, RequestError, "Did you mean 'stream'"),
        ({"policy": "h20 budget=0.5"}, PolicyError, "Did you mean 'h2o'"),
        ({"policy": "h2o"}, PolicyError, "budget"),
    ],
)
def test_wrong_input(change: dict[str, Any], error: type[TierCacheError], words: str) -> None:
    with pytest.raises(error, match=words):
        held(**{"model": SEVEN, "policy": "full", "context": 2048, **change})


@pytest.mark.parametrize("name", ["hbm_gbps", "bus_gbps", "host_gbps"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_bandwidths_are_above_zero(name: str, value: float) -> None:
    with pytest.raises(RequestError, match=name):
        Machine(**{name: value})


def command(*arguments: str) -> str:
    import typer

    from jobs.capacity_command import capacity as named

    app = typer.Typer()
    app.command()(named)
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_prints_a_table_for_each_context() -> None:
    text = command(SEVEN, "--context", "1024,2048", "--batch", "1,4096")
    assert "1,024 tokens" in text
    assert "2,048 tokens" in text
    assert "57,344 bytes a token" in text
    assert "401,408" in text
    assert "114,688,000" in text
    assert "about 800 MB" in text
    for policy in DEFAULT_POLICIES:
        assert text.count(read_policy(policy).label.split()[-1]) >= 2
    assert "(" in next(line for line in text.splitlines() if line.strip().startswith("full")), "4,096 rows don't fit"


def test_the_command_as_data() -> None:
    data = json.loads(
        command(SEVENTY, "--context", "4096", "--batch", "8", "--policy", "full", "--gpu", "200GB", "--json")
    )
    assert data["kv_bytes_per_token"] * 8 == data["kv_bytes_per_token_by_query_heads"] == 2_621_440
    (context,) = data["contexts"]
    (full,) = context["policies"]
    assert (context["tokens"], full["policy"], full["row"]) == (4096, "full", 4096 * 327_680)
    assert full["most_rows"] == (int(0.9 * 200e9) - 141_107_412_992) // full["row"]
    assert full["batches"][0]["fits"] is True


def test_a_wrong_length_is_refused_before_anything_is_counted() -> None:
    with pytest.raises(RequestError, match="context"):
        capacities(KNOWN[PROJECTIONS[0].model], ["h2o budget=0.5"], [131_072, 8], 512, "auto", None, Machine())


def test_every_reading_of_the_engine_is_known() -> None:
    assert {Storage(t1_read=read).t1_read for read in ("merge", "stream")} <= set(T1_READS)
    assert set(ELEMENT_BYTES.values()) == {2, 4, 8}
    assert torch.float32.itemsize == 4
    assert "torch" in sys.modules
