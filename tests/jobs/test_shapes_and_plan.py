"""Known byte counts of known models, and plans that follow from them without torch or network."""

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.benchmarks.catalog import parse_benchmarks
from jobs.plan import GPU_BYTES, Plan, plan_sweep, sequence_bytes
from jobs.spec import load_sweep, parse_sweep
from tiercache.errors import ModelError
from tiercache.gpus import gpus_for
from tiercache.model_spec import ModelSpec
from tiercache.policy import parse_policy
from tiercache.shapes import KNOWN, shape_from_config, shape_from_folder, shape_of

ROOT = Path(__file__).parents[2]
DISTILL = "deepseek-ai/DeepSeek-R1-Distill-"


@pytest.mark.parametrize(
    ("model", "per_token"),
    [
        (DISTILL + "Qwen-1.5B", 28_672),
        (DISTILL + "Qwen-7B", 57_344),
        (DISTILL + "Qwen-14B", 196_608),
        (DISTILL + "Qwen-32B", 262_144),
        (DISTILL + "Llama-8B", 131_072),
        (DISTILL + "Llama-70B", 327_680),
        ("mistralai/Mistral-7B-Instruct-v0.3", 131_072),
    ],
)
def test_kv_bytes_per_token(model: str, per_token: int) -> None:
    assert KNOWN[model].kv_bytes_per_token() == per_token
    assert KNOWN[model].kv_bytes_per_token("float32") == 2 * per_token


def test_counting_query_heads_would_be_seven_times_too_much() -> None:
    shape = KNOWN[DISTILL + "Qwen-7B"]
    assert shape.group == 7
    assert shape.group * shape.kv_bytes_per_token() == 401_408
    assert 2000 * shape.kv_bytes_per_token() == 114_688_000
    assert 2000 * shape.group * shape.kv_bytes_per_token() == 802_816_000


def test_cache_sizes_of_the_literature() -> None:
    assert 32_768 * KNOWN[DISTILL + "Llama-8B"].kv_bytes_per_token() == 4 * 2**30
    large = KNOWN[DISTILL + "Llama-70B"]
    assert 8 * 4096 * large.kv_bytes_per_token() == 10 * 2**30
    assert 8 * 4096 * large.kv_bytes_per_token() * large.group == 80 * 2**30


def test_gpus_for_the_weights() -> None:
    """A tenth of a GPU is left to activations: 65.5 GB take three cards of 24 GiB, and one of 80."""
    assert [gpus_for(KNOWN[DISTILL + name].weight_bytes or 0, 24 * 2**30) for name in ("Qwen-7B", "Qwen-32B")] == [1, 3]
    assert gpus_for(KNOWN[DISTILL + "Qwen-32B"].weight_bytes or 0, GPU_BYTES) == 1
    assert gpus_for(KNOWN[DISTILL + "Llama-70B"].weight_bytes or 0, GPU_BYTES) == 2


def test_weight_bytes() -> None:
    assert KNOWN[DISTILL + "Qwen-32B"].weight_bytes == 2 * 32_763_876_352
    assert KNOWN[DISTILL + "Llama-8B"].weights_as("float32") == 4 * 8_030_261_248


def test_shape_of_a_folder(model_folder: Path) -> None:
    shape = shape_from_folder(model_folder)
    assert (shape.layers, shape.q_heads, shape.kv_heads, shape.head_dim) == (2, 4, 2, 16)
    assert shape.kv_bytes_per_token() == 2 * 2 * 2 * 16 * 4
    assert shape.weight_bytes == 700
    assert shape_of(ModelSpec(id=str(model_folder))) == shape


CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "vocab_size": 256,
}


def test_configuration_defaults_and_windows() -> None:
    shape = shape_from_config(CONFIG, "c")
    assert (shape.kv_heads, shape.head_dim, shape.sliding_window) == (4, 16, None)
    assert shape_from_config({**CONFIG, "model_type": "mistral", "sliding_window": 16}, "c").sliding_window == 16
    qwen = {**CONFIG, "model_type": "qwen2", "sliding_window": 16}
    assert shape_from_config(qwen, "c").sliding_window is None
    assert shape_from_config({**qwen, "use_sliding_window": True}, "c").sliding_window == 16


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "gpt2"}, ["'gpt2' isn't supported", "llama, qwen2, qwen3, mistral"]),
        ({"model_type": "gemma3_text"}, ["gemma3_text"]),
        ({"model_type": None}, ["None isn't supported"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers is 0"]),
        ({"num_hidden_layers": "2"}, ["num_hidden_layers"]),
        ({"vocab_size": None}, ["vocab_size"]),
        ({"num_key_value_heads": 3}, ["4 attention heads", "3 KV heads"]),
    ],
)
def test_unsupported_configurations_are_refused_by_name(change: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        shape_from_config({**CONFIG, **change}, "some/config.json")
    assert all(word in str(caught.value) for word in ["some/config.json", *words])


@pytest.mark.parametrize("content", ["", "[]", "{", '"x"', "nul"])
def test_malformed_configuration_files(model_folder: Path, content: str) -> None:
    (model_folder / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        shape_from_folder(model_folder)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a gguf file at all" * 50, b"GGUF\x03\0\0\0" + b"\xff" * 64])
def test_malformed_gguf_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="GGUF"):
        shape_of(ModelSpec(id=str(path)))


def test_shape_of_a_gguf_file(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_embedding_length(64)
    writer.add_context_length(512)
    writer.add_vocab_size(256)
    writer.add_tensor("token_embd.weight", numpy.zeros((256, 64), dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shape = shape_of(ModelSpec(id=str(path)))
    assert shape is not None
    assert (shape.layers, shape.kv_heads, shape.head_dim, shape.max_context) == (3, 2, 16, 512)
    assert shape.weight_bytes == 256 * 64 * 4


def test_sequence_bytes_of_full_and_of_a_budget() -> None:
    """100 prompt tokens and 1,900 new ones: the last one's keys and values are never written."""
    shape = KNOWN[DISTILL + "Qwen-7B"]
    whole = 1999 * 57_344
    assert sequence_bytes(parse_policy("full"), shape, "auto", 100, 1900) == (whole, whole, 0, whole)
    one_above = 513 * 57_344  # the newest token is in before another leaves
    h2o = parse_policy({"name": "h2o", "budget": 512})
    assert sequence_bytes(h2o, shape, "auto", 100, 1900) == (one_above, one_above, 0, whole)
    prompt = sequence_bytes(h2o, shape, "auto", 1000, 1000)
    assert (prompt.device, prompt.running) == (1000 * 57_344, one_above), "the whole prompt, until the policy acts"
    device, _, host, _ = sequence_bytes(
        parse_policy({"name": "hierarchy", "hbm": 0.3, "evict": 0}), shape, "auto", 100, 1900
    )
    assert device + host >= whole  # nothing is lost, and what isn't on the device is on the host


def test_quantised_tokens_are_counted_on_the_device() -> None:
    shape = KNOWN[DISTILL + "Qwen-7B"]
    packed = shape.sizes(parse_policy({"name": "hierarchy", "hbm": 0.3, "evict": 0})).packed
    assert packed == 2 * 28 * 4 * (128 + 8)  # codes, a float32 scale and a float32 zero
    none, some = (
        sequence_bytes(parse_policy({"name": "hierarchy", "hbm": 0.3, "evict": 0, **packed}), shape, "auto", 100, 1900)
        for packed in ({}, {"packed": 0.4})
    )
    assert some.device > none.device
    assert some.host < none.host
    everything = parse_policy({"name": "hierarchy", "hbm": 0, "evict": 0, "packed": 1})
    assert sequence_bytes(everything, shape, "auto", 100, 1900).host == 0


POLICIES: list[Any] = [
    "full",
    {"name": "streaming", "budget": 64},
    {"name": "h2o", "budget": 0.4, "pin_prompt": True},
    {"name": "random", "budget": 0.5},
    {"name": "hierarchy", "hbm": 0.3, "evict": 0.1, "every": 8, "recent": 8},
    {"name": "hierarchy", "hbm": 0.3, "evict": 0.1, "packed": 0.4, "every": 8, "recent": 8},
    {"name": "hierarchy", "hbm": 0.0, "evict": 0, "packed": 1.0, "every": 8, "recent": 8},
]


@pytest.mark.parametrize("entry", POLICIES, ids=str)
@pytest.mark.parametrize("new", [1, 2, 65])
def test_plan_agrees_with_admission(entry: Any, new: int) -> None:
    """The engine admits by the bytes that the plan prints: same tokens, same formula, same dimensions."""
    torch = pytest.importorskip("torch")
    from types import SimpleNamespace

    from tiercache.engine import Engine
    from tiercache.requests import Request, Sampling
    from tiercache.store import Geometry

    shape = shape_from_config({**CONFIG, "num_key_value_heads": 2, "torch_dtype": "float16"}, "c")
    geometry = Geometry(layers=2, query_heads=4, kv_heads=2, head_dim=16, dtype=torch.float16)
    assert geometry.token_bytes == shape.kv_bytes_per_token()
    engine = Engine(SimpleNamespace(geometry=geometry))  # type: ignore[arg-type]
    request = Request("r", tuple(range(40)), Sampling(max_new_tokens=new), seed=0)
    policy = parse_policy(entry)
    prompt, running = engine._bytes(request, policy)
    planned = sequence_bytes(policy, shape, "auto", 40, new)
    assert (planned.device, planned.running) == (max(prompt, running), running)


def plan_of(data: dict[str, Any]) -> Plan:
    sweep = parse_sweep(data)
    return plan_sweep(sweep, parse_benchmarks(sweep.benchmarks))


def test_plan_counts_samples_rows_and_gpus(sweep_data: dict[str, Any]) -> None:
    planned = plan_of({**sweep_data, "repeats": 3, "engine": {"hbm_kv_budget": 10**6, "device": "cpu"}})
    assert [row.samples for row in planned.rows] == [15, 15, 15]
    assert planned.samples == 45
    assert planned.new_tokens == 45 * 512
    full, less, half = planned.rows
    assert full.rows is not None
    assert less.rows is not None
    assert half.rows is not None
    assert full.rows < half.rows < less.rows
    assert {row.gpus for row in planned.rows} == {0.0}
    assert any("estimated" in note for note in planned.notes)


def test_plan_says_when_nothing_fits(sweep_data: dict[str, Any]) -> None:
    planned = plan_of({**sweep_data, "engine": {"hbm_kv_budget": 1000}})
    assert {row.rows for row in planned.rows} == {0}
    assert sum("one sequence needs more" in note for note in planned.notes) == 3


def test_plan_warns_about_the_context_and_the_window(sweep_data: dict[str, Any], model_folder: Path) -> None:
    config = json.loads((model_folder / "config.json").read_text())
    path = model_folder / "config.json"
    path.write_text(json.dumps({**config, "max_position_embeddings": 64}))
    assert any("exceed its 64" in note for note in plan_of(sweep_data).notes)
    path.write_text(json.dumps({**config, "model_type": "mistral", "sliding_window": 16}))
    notes = " ".join(plan_of(sweep_data).notes)
    assert "exceed its 16" in notes  # the engine refuses what a window would forget
    assert "sliding window of 16" in notes


def test_plan_splits_a_model_that_is_too_large_for_one_gpu(sweep_data: dict[str, Any]) -> None:
    planned = plan_of({**sweep_data, "models": [DISTILL + "Llama-70B"], "policies": ["full"]})
    assert planned.rows[0].gpus == 2
    assert any("is split over 2 GPUs of one node" in note for note in planned.notes)


def test_no_gpu_is_planned_for_a_model_that_a_cpu_runs_well(sweep_data: dict[str, Any]) -> None:
    small = {**sweep_data, "models": ["reasoner"]}
    planned = plan_of(small)
    assert {row.gpus for row in planned.rows} == {None}
    assert not any("GPU" in note for note in planned.notes)
    assert {row.gpus for row in plan_of({**small, "engine": {"device": "cuda"}}).rows} == {1.0}
    assert {row.gpus for row in plan_of({**small, "cluster": {"gpus_per_actor": 0.5}}).rows} == {0.5}
    large = {**sweep_data, "models": [DISTILL + "Qwen-7B"], "policies": ["full"]}
    assert plan_of(large).rows[0].gpus == 1.0


def test_cluster_grid_is_planned_without_network() -> None:
    sweep = load_sweep(ROOT / "sweeps" / "papers_full.yaml")
    planned = plan_sweep(sweep, parse_benchmarks(sweep.benchmarks))
    assert all(row.device_peak_bytes and row.gpus for row in planned.rows)
    assert any("assumed" in note for note in planned.notes)
    assert any("not pinned" in note for note in planned.notes)


def test_unknown_hub_models_are_planned_without_bytes(sweep_data: dict[str, Any]) -> None:
    planned = plan_of({**sweep_data, "models": ["someone/unheard-of"]})
    assert {row.device_peak_bytes for row in planned.rows} == {None}
    assert any("aren't known" in note for note in planned.notes)
