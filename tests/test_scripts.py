"""The measuring scripts run, in their smallest form."""

import io
import json
import runpy
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

SCRIPTS = Path(__file__).parents[1] / "benchmarks"


def script(name: str, *arguments: str) -> str:
    """Run it in this process, which has imported torch already; return what it prints."""
    printed, threads, path, status = io.StringIO(), torch.get_num_threads(), str(SCRIPTS / f"{name}.py"), None
    given, found = patch.object(sys, "argv", [path, *arguments]), patch.object(sys, "path", [str(SCRIPTS), *sys.path])
    with redirect_stdout(printed), given, found:
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            status = end.code
        finally:
            torch.set_num_threads(threads)
    assert not status, printed.getvalue()
    return printed.getvalue()


def test_engine_vs_generate(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    text = script("engine_vs_generate", "--pairs=1", "--batches", "1", "3", "--new-tokens=12", f"--json={out}")
    rows = json.loads(out.read_text())["rows"]
    assert [row["batch"] for row in rows] == [1, 3]
    assert all(row["equal_tokens"] == 1.0 for row in rows), "the same tokens as transformers' generate"
    assert text.count("ratio") == 2


def test_nothing_evicted_nothing_changed_on_the_reasoner() -> None:
    assert "0 of 24 sequences differ" in script("zero_eviction", "--n=3", "--dtype=float64")


def test_a_long_prompt_is_scored_without_the_matrix() -> None:
    text = script("long_prefill", "--tokens=4096", "--policies", "h2o")
    assert "4,096 tokens" in text
    assert "1,025 kept" in text


SMALL = """
name: {name}
models: [{{id: reasoner, dtype: float32}}]
benchmarks: [{{name: chain, n: 4, difficulty: ledger}}]
policies: [full, {policies}]
"""


def test_two_actors(tmp_path: Path) -> None:
    sweep, out = tmp_path / "small.yaml", tmp_path / "out.json"
    sweep.write_text(SMALL.format(name="small", policies="{name: streaming, budget: 0.5}"))
    script("two_actors", str(sweep), "--pairs=1", f"--json={out}")
    (row,) = json.loads(out.read_text())["rows"]
    assert row["ratio"] > 0


def test_the_page_of_policies_is_made_from_the_database(tmp_path: Path) -> None:
    policies = {
        "policies": "{name: random, budget: [{bytes: 0.7}]}, {name: h2o, budget: [{bytes: 0.7}]}, "
        "{name: quantised, packed_bits: 8}",
        "positions": "{name: hierarchy, hbm: 1.0, evict: 0.25, compound: false, every: 16, positions: [true, drifted]}",
    }
    given = []
    for name, entries in policies.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(SMALL.format(name=name, policies=entries))
        given += [f"--{name}={path}"]
    page = tmp_path / "chain.md"
    script("chain_results", "--n=3", "--diagnose=1", f"--db={tmp_path / 'r.db'}", f"--out={page}", *given)
    text = page.read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows][:4] == [
        "| `full`",
        "| `random budget=bytes:0.7`",
        "| `h2o budget=bytes:0.7`",
        "| `quantised packed_bits=8`",
    ]
    assert all(len(row) == 11 for row in rows[:4])
    shares = [float(row[1]) for row in rows[:4]]
    assert shares[0] == 100
    assert 60 < shares[1] < 80, "the pinned prompt alone can be more than the budget"
    recall, missed, _, error, kl = rows[0][6:]
    assert (recall, missed, error, kl) == ("1.000", "0.000", "0.000", "0.000 |"), "the full cache misses nothing"
    assert float(rows[1][6]) < 1, "recall"
    assert "**0.7**: chance with the prompt kept has" in text
    assert "positions=drifted" in rows[-1][0]


def test_what_signals_and_tiers_cost(tmp_path: Path) -> None:
    for name in ("scoring_overhead", "tier_overhead"):
        out = tmp_path / f"{name}.json"
        script(name, "--context=48", "--batch=2", "--new=12", "--pairs=1", f"--json={out}")
        found = json.loads(out.read_text())
        assert found["threads"] == 1
        assert found["rows"][0]["policy"] == "full"
        assert found["rows"][0]["ratio"] == 1
        assert all(row["ratio"] > 0 for row in found["rows"])


def test_memory_is_what_the_ledger_says(tmp_path: Path) -> None:
    text = script("memory_honesty", "--rows=4", "--context=2048", "--policies", "full", "h2o", "quest")
    rows = {line.split()[0]: line.split() for line in text.splitlines()}
    assert 1 <= float(rows["h2o"][1]) < 1.4
    assert int(rows["streaming"][1]) == 512, "a quarter stays"
    assert float(rows["full"][4]) < 2


def test_the_other_speed_scripts_run(tmp_path: Path) -> None:
    small = {
        "scaling": ["--context", "64", "160", "--budget=64", "--policies", "full", "h2o", "--new=6", "--pairs=1"],
        "budgeted_batch": ["--problems=16", "--rows=16", "--new=8", "--pairs=1"],
        "roofline": ["--layers=1", "--hidden=64", "--heads=2", "--kv-heads=1", "--context=32", "--new=4", "--pairs=1"],
    }
    found = {}
    for name, arguments in small.items():
        out = tmp_path / f"{name}.json"
        script(name, *arguments, f"--json={out}")
        found[name] = json.loads(out.read_text())["rows"]
    assert [row["tokens_kept"] for row in found["scaling"]] == [64 + 6, 160 + 6, 64, 64]
    full, *quarters = [row["rows"] for row in found["budgeted_batch"]]
    assert full in (4, 5), "a quarter of 16, and shorter prompts leave room for one more"
    assert all(rows >= 10 for rows in quarters), "less one whole prompt, before the policy acts on it"
    assert all(row["share"] > 0 for row in found["roofline"])


def test_what_only_a_gpu_shows_runs_on_a_cpu_too(tmp_path: Path) -> None:
    shape = ("--layers=2", "--hidden=64", "--heads=4", "--kv-heads=2", "--batch=2", "--context=32")
    out = tmp_path / "out.json"
    script("on_gpu", *shape, "--new=8", "--pairs=1", "--problems=2", f"--json={out}")
    rows = json.loads(out.read_text())["rows"]
    by_table = {name: [row for row in rows if row["table"] == name] for name in ("order", "decode", "host tier")}
    assert [row["equal"] for row in by_table["order"]] == ["True", "True"]
    assert [row["ratio"] > 0 for row in by_table["decode"]] == [True] * 4
    assert {(row["hbm"], row["t1_read"]) for row in by_table["host tier"]} == {
        (hbm, read) for hbm in (0.3, 0.5, 0.7) for read in ("stream", "merge")
    }


def test_decoding_goes_on_from_the_same_past_as_generate(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    script("decode_at_context", "--context", "40", "96", "--batch", "3", "--new=5", "--pairs=1", f"--json={out}")
    rows = json.loads(out.read_text())["rows"]
    assert [(row["context"], row["equal"]) for row in rows] == [(40, 1.0), (96, 1.0)]


@pytest.mark.skipif(shutil.which("cc") is None, reason="it builds the kernel anew")
def test_distances_of_reading_ahead_are_compared(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    script("reading_ahead", "--shapes", "reasoner", "--ahead", "512", "--pairs=1", f"--json={out}")
    rows = json.loads(out.read_text())["rows"]
    assert [(row["shape"], row["ahead"], row["ratio"] > 0) for row in rows] == [
        ("reasoner", 0, True),
        ("reasoner", 512, True),
    ]


@pytest.mark.skipif(shutil.which("cc") is None, reason="it compares the C kernel")
def test_products_are_compared(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    script("products", "--shapes", "192 to 1,152", "--rows", "1", "9", "--pairs=1", f"--json={out}")
    assert [(row["rows"], row["ratio"] > 0) for row in json.loads(out.read_text())["rows"]] == [(1, True), (9, True)]


def test_a_large_cluster_is_simulated(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    text = script("scale", "--gpus=16", "--cells=40", "--rows=300", f"--json={out}")
    assert "us_per_sample" in text
    assert "rows_written_per_s" in text
    assert "4,000" in text, "forty cells of a hundred samples"
