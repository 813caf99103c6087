"""Our results in the layout of lm-evaluation-harness's results files (0.4.13), for programs that read those.

Needs neither the harness nor torch. A results file of the harness is one model with one set of arguments, so each of
our cells becomes one: policies differ in `config.model_args.policy`.
"""

import re
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from db.intervals import Z_95
from db.progress import SweepInfo
from db.summaries import CellSummary
from jobs.lm_eval import NAME
from tiercache.model_spec import ModelSpec


def to_lm_eval(summaries: Sequence[CellSummary], sweep: SweepInfo) -> dict[str, dict[str, Any]]:
    """What a results file holds, by the cell's fingerprint; cells without a judged sample are left out.

    The metric is `exact_match`, or `score` for a benchmark that gives part marks, by the filter `strict-match`: the
    answer in the form that is asked for (`flexible-extract` where `last_number` is on). Its standard error takes the
    problems, not repeats of them, as independent: with repeats it is an upper bound. Failed samples aren't counted.
    """
    partial = {cell.benchmark for cell in summaries if cell.n and cell.accuracy != cell.correct / cell.n}
    return {cell.fingerprint: _document(cell, sweep, cell.benchmark in partial) for cell in summaries if cell.n}


def _document(cell: CellSummary, sweep: SweepInfo, partial: bool) -> dict[str, Any]:
    task, metric = cell.benchmark, "score" if partial else "exact_match"
    model, benchmark = _model(cell, sweep), _benchmark(cell, sweep)
    by = "flexible-extract" if benchmark.get("last_number") else "strict-match"
    scores = {
        "name": task,
        "alias": task,
        "sample_len": cell.n,
        f"{metric},{by}": cell.accuracy,
        f"{metric}_stderr,{by}": _stderr(cell, partial),
    }
    original = cell.n + cell.failed if cell.expected is None else cell.expected
    return {
        "results": {task: scores},
        "group_subtasks": {},
        "configs": {task: _config(cell, sweep, benchmark, metric, by)},
        "versions": {task: cell.protocol},
        "n-shot": {task: 0},
        "higher_is_better": {task: {metric: True}},
        "n-samples": {task: {"original": original, "effective": cell.n}},
        "config": {
            "model": NAME,
            "model_args": {**model, "policy": cell.policy},
            "policy": cell.policy,
            "kv_cache": _memory(cell),
            "fingerprint": cell.fingerprint,
            "sweep": sweep.id,
            "batch_size": cell.max_rows,
            "batch_sizes": [],
            "device": ", ".join(cell.devices) or None,
            "limit": None,
            "random_seed": sweep.spec.get("seed"),
        },
        "git_hash": None,
        "date": sweep.created_at.timestamp(),
        "transformers_version": sweep.environment.get("versions", {}).get("transformers"),
        "lm_eval_version": None,
        "model_source": NAME,
        "model_name": model["pretrained"],
        "model_name_sanitized": re.sub(r'["<>:/|\\?*\[\]]+', "__", model["pretrained"]),
    }


def _config(cell: CellSummary, sweep: SweepInfo, benchmark: Mapping[str, Any], metric: str, by: str) -> dict[str, Any]:
    sampling = {**(sweep.spec.get("sampling") or {}), **(benchmark.get("sampling") or {})}
    asked = {name: value for name, value in sampling.items() if value is not None}
    if "max_new_tokens" in asked:
        asked["max_gen_toks"] = asked.pop("max_new_tokens")
    return {
        "task": cell.benchmark,
        "output_type": "generate_until",
        "num_fewshot": 0,
        "repeats": sweep.spec.get("repeats", 1),
        "generation_kwargs": asked,  # what is left out is the benchmark's own default
        "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True}],
        "filter_list": [{"name": by}],
        "metadata": {"version": cell.protocol, "problems": cell.problems, **benchmark},
    }


def _stderr(cell: CellSummary, partial: bool) -> float | str:
    """As the harness does for one problem: no number."""
    if cell.problems < 2 or cell.accuracy is None:
        return "N/A"
    if not partial:
        return sqrt(cell.accuracy * (1 - cell.accuracy) / (cell.problems - 1))
    if cell.accuracy_low is None or cell.accuracy_high is None:
        return "N/A"
    width = max(cell.accuracy - cell.accuracy_low, cell.accuracy_high - cell.accuracy)  # one side may be cut at 0 or 1
    return width / Z_95 * sqrt(cell.n / cell.problems)


def _memory(cell: CellSummary) -> dict[str, Any]:
    """By the same names as a run of the harness on our engine."""
    return {
        "sequences": cell.n,
        "output_tokens_mean": cell.output_tokens,
        "device_kv_bytes_mean": cell.resident_bytes,
        "host_kv_bytes_mean": cell.ddr_bytes,
        "full_kv_bytes_mean": cell.full_bytes,
        "decode_tokens_per_s": cell.decode_tokens_per_s,
    }


def _model(cell: CellSummary, sweep: SweepInfo) -> dict[str, Any]:
    """The sweep's entry for it; its short name alone where no entry, or more than one, has that name."""
    found = [entry for entry in sweep.spec.get("models", []) if ModelSpec(id=entry["id"]).name == cell.model]
    if len(found) != 1:
        return {"pretrained": cell.model}
    return {"pretrained": found[0]["id"], **{key: value for key, value in found[0].items() if key != "id"}}


def _benchmark(cell: CellSummary, sweep: SweepInfo) -> dict[str, Any]:
    """The sweep's entry for it; nothing where no entry, or more than one, has that name."""
    entries = sweep.spec.get("benchmarks", [])
    found = [entry for entry in entries if entry["name"] == cell.benchmark.partition("/")[0]]
    return {key: value for key, value in found[0].items() if key != "name"} if len(found) == 1 else {}
