"""Whole evaluations: under `full` the harness's own model, token for token; under a policy, what the policy does."""

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest

from jobs import lm_eval as adapter
from jobs.lm_eval.__main__ import main
from jobs.lm_eval.hook import register_in_harness
from reasoner.grammar import Problem

ROOT = Path(__file__).parents[3]


def evaluate(harness: Any, tasks: Path, model: Any, **arguments: Any) -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found = harness.simple_evaluate(
        model=model, model_args=arguments or None, tasks=["chain_lm"], task_manager=manager, bootstrap_iters=100
    )
    assert found is not None
    return dict(found)


def test_full_is_the_harness_s_own_model_sample_by_sample(
    harness: Any, hf: Any, tasks: Path, problems: list[Problem]
) -> None:
    reference = evaluate(harness, tasks, hf)
    full = evaluate(harness, tasks, "tiercache", pretrained="reasoner", policy="full", max_batch=5)
    by_id = [sorted(found["samples"]["chain_lm"], key=lambda s: int(s["doc_id"])) for found in (reference, full)]
    assert [s["resps"] for s in by_id[0]] == [s["resps"] for s in by_id[1]]
    score = "exact_match,strict-match"
    assert full["results"]["chain_lm"][score] == reference["results"]["chain_lm"][score] > 0.9
    cache = full["config"]["kv_cache"]
    assert cache["device_kv_bytes_mean"] == cache["full_kv_bytes_mean"] > 0
    assert cache["sequences"] == len(problems)


def test_a_policy_acts_and_the_results_say_which(harness: Any, tasks: Path, loaded: Any) -> None:
    found = evaluate(harness, tasks, "tiercache", pretrained=loaded, policy="h2o", budget=0.5)
    assert found["results"]["chain_lm"]["exact_match,strict-match"] < 0.5
    assert found["config"]["policy"] == "h2o budget=0.5"
    assert found["config"]["policy_config"]["placement"]["budget"]["ratio"] == 0.5
    cache = found["config"]["kv_cache"]
    assert 0.4 < cache["device_kv_bytes_mean"] / cache["full_kv_bytes_mean"] < 0.6
    assert cache["evicted_tokens_mean"] > 0
    assert cache["decode_tokens_per_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("command", ["lm_eval", "jobs.lm_eval"])
def test_the_command_line(harness: Any, tasks: Path, tmp_path: Path, command: str) -> None:
    """The harness's own command finds the model, where the package is installed; ours does anyway."""
    if command == "lm_eval" and not entry_points(group="torch.backends", name="tiercache_in_lm_eval"):
        pytest.skip("the package isn't installed, so its entry points aren't known")
    arguments = ["--model_args", "pretrained=reasoner,policy=h2o,budget=0.5,max_batch=2"]
    arguments += ["--tasks", "chain_lm", "--include_path", str(tasks), "--limit", "2", "--output_path", str(tmp_path)]
    arguments += ["--gen_kwargs", "max_gen_toks=30"]
    done = subprocess.run(
        [sys.executable, "-m", command, "--model", "tiercache", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "chain_lm" in done.stdout
    (file,) = (tmp_path / "reasoner").glob("results_*.json")
    found = json.loads(file.read_text())
    assert found["n-samples"]["chain_lm"]["effective"] == 2
    assert found["config"]["policy"] == "h2o budget=0.5"
    assert found["config"]["kv_cache"]["output_tokens_mean"] == 30


def test_the_command_line_refuses_with_one_message(
    ours: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = "pretrained=reasoner,policy=h2o,buget=0.5"
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: ours.create_from_arg_string(bad, {"batch_size": 1}))
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("error: model_args.buget: unknown key. Did you mean 'budget'?")


def test_without_the_harness_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(SystemExit, match=r"pip install 'tiercache-eval\[lm-eval\]'"):
        main()


def test_the_harness_finds_the_class_and_keeps_its_own(harness: Any) -> None:
    from lm_eval.api.registry import get_model

    from jobs.lm_eval.model import TierCacheLM

    adapter.register()
    assert get_model("tiercache") is TierCacheLM
    assert get_model("hf").__name__ == "HFLM"
    assert EntryPoint("tiercache", adapter.CLASS, "lm_eval.models").load() is TierCacheLM


def test_in_other_processes_the_hook_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "lm_eval", raising=False)
    monkeypatch.setattr(adapter, "register", lambda: pytest.fail("registered without a harness"))
    register_in_harness()


def test_a_harness_that_cant_be_used_does_not_keep_torch_from_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("another version")

    monkeypatch.setitem(sys.modules, "lm_eval", object())
    monkeypatch.setattr(adapter, "register", broken)
    register_in_harness()
