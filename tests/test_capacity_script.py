"""The capacity model against the tensors of real runs, for a preset of each kind; the script itself runs all."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = ["full", "hierarchy", "adakv", "lagkv", "thinkv", "kivi", "qevict", "quest"]


def test_plans_are_what_the_cache_holds(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    small = ["--prompt=24", "--new=64", f"--json={out}", "--policies", *KINDS]
    command = [sys.executable, "benchmarks/capacity_vs_measured.py", *small]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [row["policy"].split()[0] for row in rows if row["plan"] != "bound"] == KINDS
    assert [row["policy"].split()[0] for row in rows if row["plan"] != "exact"] == ["thinkv", "thinkv"]
    for row in rows:
        assert row["ok"] == "yes"
        if row["plan"] != "bound":
            assert all(row[tier] in (None, 1) for tier in ("device", "T0", "host", "packed")), row
    assert any(row["host"] for row in rows)
    assert sum(row["packed"] is not None for row in rows) >= 2
