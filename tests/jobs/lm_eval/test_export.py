"""Our results in the layout of the harness's results files. Most of it needs no harness."""

import json
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest

from db.progress import SweepInfo
from db.summaries import CellSummary
from jobs.lm_eval.export import to_lm_eval


def cell(**values: Any) -> CellSummary:
    empty: dict[str, Any] = {field.name: None for field in fields(CellSummary)}
    counts = {"problems": 10, "n": 10, "correct": 8, "failed": 1, "expected": 11, "accuracy": 0.8}
    named = {"model": "Qwen2.5-7B-Instruct", "benchmark": "gsm8k", "policy": "h2o budget=0.5", "policy_name": "h2o"}
    keys = {"fingerprint": "f1", "protocol": "p1", "devices": ("cpu",), "hbm_bytes": 50.0, "full_bytes": 100.0}
    return CellSummary(**{**empty, **counts, **named, **keys, **values})


def sweep(**spec: Any) -> SweepInfo:
    model = {"id": "Qwen/Qwen2.5-7B-Instruct", "revision": "abc"}
    whole = {"models": [model], "benchmarks": [{"name": "gsm8k", "n": 11}], "seed": 3, "repeats": 1, **spec}
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return SweepInfo("s1", "mine", "done", at, at, 1, 11, 10, 1, whole, {"versions": {"transformers": "5.23.0"}})


def test_export_has_the_harness_s_layout() -> None:
    found = to_lm_eval([cell(), cell(fingerprint="f2", policy="full", correct=10, accuracy=1.0)], sweep())
    assert list(found) == ["f1", "f2"]
    one = found["f1"]
    assert json.loads(json.dumps(one)) == one
    assert one["results"]["gsm8k"] == {
        "name": "gsm8k",
        "alias": "gsm8k",
        "sample_len": 10,
        "exact_match,strict-match": 0.8,
        "exact_match_stderr,strict-match": pytest.approx((0.8 * 0.2 / 9) ** 0.5),
    }
    assert one["n-samples"] == {"gsm8k": {"original": 11, "effective": 10}}
    assert one["config"]["model_args"] == {
        "pretrained": "Qwen/Qwen2.5-7B-Instruct",
        "revision": "abc",
        "policy": "h2o budget=0.5",
    }
    assert one["model_name_sanitized"] == "Qwen__Qwen2.5-7B-Instruct"
    assert one["config"]["kv_cache"]["device_kv_bytes_mean"] == 50.0
    assert found["f2"]["results"]["gsm8k"]["exact_match,strict-match"] == 1.0
    assert found["f2"]["config"]["model_args"]["policy"] == "full"


def test_export_s_standard_error_is_the_sample_s(harness: Any) -> None:
    from lm_eval.api.metrics import mean_stderr

    found = to_lm_eval([cell()], sweep())["f1"]["results"]["gsm8k"]["exact_match_stderr,strict-match"]
    assert found == pytest.approx(mean_stderr([1] * 8 + [0] * 2))


def test_export_has_no_key_that_the_harness_has_not(harness: Any) -> None:
    from lm_eval.result_schema import EvalResults

    found = to_lm_eval([cell()], sweep())["f1"]
    assert found.keys() <= EvalResults.__annotations__.keys()
    assert {"results", "configs", "versions", "n-shot", "higher_is_better", "n-samples", "config"} <= found.keys()


@pytest.mark.parametrize(
    ("values", "spec", "key", "stderr"),
    [
        ({"problems": 1, "n": 1, "correct": 1, "accuracy": 1.0}, {}, "exact_match,strict-match", "N/A"),
        ({"problems": 5, "n": 10}, {"repeats": 2}, "exact_match,strict-match", 0.2),
        ({}, {"benchmarks": [{"name": "gsm8k", "last_number": True}]}, "exact_match,flexible-extract", None),
        (
            {"accuracy": 0.85, "accuracy_low": 0.85 - 0.196, "accuracy_high": 1.0},
            {},
            "score,strict-match",
            0.196 / 1.959963984540054,
        ),
    ],
)
def test_export_of_repeats_of_part_marks_and_of_one_sample(
    values: dict[str, Any], spec: dict[str, Any], key: str, stderr: Any
) -> None:
    results = to_lm_eval([cell(**values)], sweep(**spec))["f1"]["results"]["gsm8k"]
    assert results[key] == values.get("accuracy", 0.8)
    if stderr is not None:
        assert results[key.replace(",", "_stderr,")] == (stderr if isinstance(stderr, str) else pytest.approx(stderr))


def test_export_leaves_out_what_was_not_judged_and_names_what_the_sweep_does_not() -> None:
    unknown = cell(fingerprint="f3", model="other", benchmark="jsonl/mine")
    found = to_lm_eval([cell(n=0, correct=0, accuracy=None), unknown], sweep())
    assert list(found) == ["f3"]
    assert found["f3"]["model_name"] == "other"


def test_one_benchmark_has_one_metric_in_all_cells() -> None:
    whole, part = cell(fingerprint="a"), cell(fingerprint="b", accuracy=0.83)
    found = to_lm_eval([whole, part], sweep())
    assert all("score,strict-match" in document["results"]["gsm8k"] for document in found.values())
