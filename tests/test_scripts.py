"""The measuring scripts run, in their smallest form."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def script(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, f"benchmarks/{name}.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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
