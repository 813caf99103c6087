"""A cell's identity: what must change it, what must not, and what policies have in common."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jobs.grid import Cell, canonical, expand, sample_seed
from jobs.revision import model_revision
from jobs.spec import parse_sweep
from tiercache.errors import BenchmarkError, ModelError
from tiercache.model_spec import ModelSpec

Data = dict[str, Any]


def cells(data: Data, **changes: Any) -> list[Cell]:
    return expand(parse_sweep({**data, **changes}))


def prints(data: Data, **changes: Any) -> list[str]:
    return [cell.fingerprint for cell in cells(data, **changes)]


def test_grid_is_model_by_benchmark_by_policy(sweep_data: Data) -> None:
    two = cells(sweep_data, benchmarks=[{"name": "chain"}, {"name": "chain", "difficulty": "ledger"}])
    assert [(cell.benchmark.options.difficulty, cell.policy.label) for cell in two] == [  # type: ignore[attr-defined]
        (difficulty, label)
        for difficulty in ("registers", "ledger")
        for label in ("full", "h2o budget=0.3", "h2o budget=0.5")
    ]
    assert len({cell.fingerprint for cell in two}) == 6
    assert len({cell.protocol for cell in two}) == 2


def test_fingerprints_are_deterministic_and_configurations_plain(sweep_data: Data) -> None:
    assert prints(sweep_data) == prints(sweep_data)
    for cell in cells(sweep_data):
        assert json.loads(canonical(cell.config)) == json.loads(json.dumps(cell.config))
        assert len(cell.fingerprint) == len(cell.protocol) == 20


NOT_IDENTITY: list[Data] = [
    {"name": "another"},
    {"repeats": 7},
    {"benchmarks": [{"name": "chain", "n": 9}]},
    {"engine": {"max_batch": 3, "hbm_kv_budget": "1GiB", "threads": 2, "device": "cpu"}},
    {"cluster": {"shard_size": 3, "max_actors": 2}},
    {"database": "other.db"},
    {"sampling": {"temperature": 0.0}},
]


@pytest.mark.parametrize("changes", NOT_IDENTITY, ids=str)
def test_what_cannot_change_a_result_keeps_the_fingerprint(sweep_data: Data, changes: Data) -> None:
    assert prints(sweep_data, **changes) == prints(sweep_data)


IDENTITY: list[Data] = [
    {"seed": 1},
    {"sampling": {"temperature": 0.6}},
    {"sampling": {"max_new_tokens": 511}},
    {"engine": {"prefill_chunk": 64}},
    {"benchmarks": [{"name": "chain", "n": 5, "difficulty": "ledger"}]},
    {"benchmarks": [{"name": "chain", "n": 5, "seed": 1}]},
    {"benchmarks": [{"name": "chain", "n": 5, "leaves": 10}]},
]


@pytest.mark.parametrize("changes", IDENTITY, ids=str)
def test_what_can_change_a_result_changes_fingerprint_and_protocol(sweep_data: Data, changes: Data) -> None:
    before, after = cells(sweep_data), cells(sweep_data, **changes)
    assert not {cell.fingerprint for cell in before} & {cell.fingerprint for cell in after}
    assert before[0].protocol != after[0].protocol


def test_extending_a_sweep_keeps_the_cells_that_were_there(sweep_data: Data) -> None:
    more = [*sweep_data["policies"], {"name": "streaming", "budget": 64}]
    assert prints(sweep_data, policies=more)[:3] == prints(sweep_data)


def test_the_larger_n_wins_for_a_benchmark_listed_twice(sweep_data: Data) -> None:
    sizes = [{"name": "chain", "n": 3}, {"name": "chain", "n": 8}, {"name": "chain", "n": 5}]
    assert Counter(cell.n for cell in cells(sweep_data, benchmarks=sizes)) == {8: 3}
    assert cells(sweep_data, repeats=4)[0].samples == 20


def test_seeds_are_common_to_policies_and_differ_between_samples(sweep_data: Data) -> None:
    full, h2o, _ = cells(sweep_data)
    seeds = {sample_seed(full, f"p{i}", repeat) for i in range(200) for repeat in range(5)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert sample_seed(full, "p0", 0) == sample_seed(h2o, "p0", 0)
    assert sample_seed(cells(sweep_data, seed=1)[0], "p0", 0) != sample_seed(full, "p0", 0)


def test_a_moved_model_is_the_same_and_a_changed_one_is_not(sweep_data: Data, model_folder: Path) -> None:
    moved = model_folder.parent / "elsewhere" / model_folder.name
    shutil.copytree(model_folder, moved)
    assert prints(sweep_data, models=[str(moved)]) == prints(sweep_data)
    (moved / "model.safetensors").write_bytes(b"other weights")
    assert prints(sweep_data, models=[str(moved)]) != prints(sweep_data)


def test_revision_of_a_gguf_file_sees_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    seen = set()
    for content in (b"a" * 3_000_000, b"b" + b"a" * 2_999_999, b"a" * 2_999_999 + b"b", b"a" * 3_000_001):
        path.write_bytes(content)
        seen.add(model_revision(ModelSpec(id=str(path))).revision)
    assert len(seen) == 4


def test_hub_models_are_pinned_or_warned_about() -> None:
    pinned = model_revision(ModelSpec(id="org/model-x", revision="abc"))
    assert (pinned.id, pinned.revision, pinned.warning) == ("org/model-x", "abc", None)
    loose = model_revision(ModelSpec(id="org/model-x"))
    assert loose.revision == "unpinned"
    assert "revision" in (loose.warning or "")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("./tiny-modle", ["models[0].id", "no such model folder"]),
        ("missing.gguf", ["models[0].id", "missing.gguf", "no such GGUF file"]),
    ],
)
def test_missing_local_models_are_named(sweep_data: Data, model: str, words: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        cells(sweep_data, models=[model])
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_folder_without_weights_and_local_revision_are_refused(sweep_data: Data, model_folder: Path) -> None:
    with pytest.raises(ModelError, match="hub"):
        cells(sweep_data, models=[{"id": str(model_folder), "revision": "main"}])
    (model_folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weight files"):
        cells(sweep_data)


def test_missing_data_file_names_the_command(sweep_data: Data) -> None:
    with pytest.raises(BenchmarkError, match=r"(?s)benchmarks\[0\].*no such file.*tiercache prepare gsm8k.*--data"):
        cells(sweep_data, benchmarks=[{"name": "gsm8k", "data": "nowhere.jsonl"}])
