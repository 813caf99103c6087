"""Wrong input to the real command, in a process of its own: one message, exit code 2, quickly, and nothing left behind.

Quickly means that what is slow to import isn't: torch, Ray, `datasets`, transformers.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "datasets", "transformers", "streamlit")
LIMIT_S = 5  # usually below one; the margin is for busy machines
CODE = f"""
import sys
from jobs import cli
try:
    cli.main()
finally:
    print("imported:", *[name for name in {HEAVY} if name in sys.modules])
"""
GOOD = {
    "name": "t",
    "models": "[reasoner]",
    "benchmarks": "[{name: chain, n: 2}]",
    "policies": "[full]",
}


def spec(**changes: str) -> bytes:
    return "\n".join(f"{key}: {value}" for key, value in {**GOOD, **changes}.items()).encode()


# content of s.yaml (None: no such file), what stderr has to say
WRONG: dict[str, tuple[bytes | None, list[str]]] = {
    "unknown key": (spec(repeat="2"), ["repeat: unknown key", "Did you mean 'repeats'?", "Allowed keys"]),
    "unknown knob": (spec(policies="[{name: h2o, buget: 512}]"), ["policies[0].buget", "'budget'", "Allowed keys"]),
    "unknown policy": (spec(policies="[h20]"), ["policies[0].name", "'h20'", "Did you mean 'h2o'?", "Allowed: full"]),
    "ratio above one": (spec(policies="[{name: h2o, budget: 1.5}]"), ["policies[0].budget", "1.5", "equal to 1"]),
    "budget zero": (spec(policies="[{name: h2o, budget: 0}]"), ["policies[0].budget", "got 0", "equal to 1"]),
    "budget below sinks and window": (
        spec(policies="[{name: streaming, budget: 100, recent: 128}]"),
        ["policies[0]", "budget of 100", "sinks 4", "recent 128", "allowed: 132 or more"],
    ),
    "missing file": (None, ["s.yaml: no such file", "Did you mean t.yaml?"]),
    "malformed YAML": (spec(policies="[full"), ["s.yaml: line", "not valid YAML"]),
    "binary": (bytes(range(256)) * 4, ["s.yaml", "isn't UTF-8 text"]),
    "duplicate keys": (spec() + b"\nseed: 1\nseed: 2", ["the key 'seed' is given twice", "line 6"]),
    "empty file": (b"", ["s.yaml", "an empty file", "name, models"]),
    "unknown benchmark": (spec(benchmarks="[gsm9k]"), ["benchmarks[0].name", "'gsm9k'", "'gsm8k'", "Allowed: chain"]),
    "missing model folder": (
        spec(models="[./tiny-modle]"),
        ["models[0].id", "tiny-modle", "Did you mean 'tiny-model'?"],
    ),
    "a folder that is no model": (spec(models="[./tiny-model]"), ["tiny-model", "no weight files"]),
    "unknown dtype": (spec(models="[{id: reasoner, dtype: int4}]"), ["models[0].dtype", "'int4'"]),
    "unusable database": (spec(database="mysql://x/y"), ["mysql", "allowed:"]),
}


def run(folder: Path, *arguments: str) -> tuple[int, str, str, float]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "TIERCACHE_", "COV_"))}
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr, time.monotonic() - started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny-model").mkdir()
    (tmp_path / "tiny-model" / "config.json").write_text("{}")
    (tmp_path / "t.yaml").write_bytes(spec())
    return tmp_path


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_costs_one_message(folder: Path, case: str) -> None:
    content, words = WRONG[case]
    if content is not None:
        (folder / "s.yaml").write_bytes(content)
    before = sorted(folder.rglob("*"))
    code, out, err, seconds = run(folder, "run", "s.yaml")
    assert (code, out) == (2, "imported:\n"), err
    assert err.startswith("error: ")
    assert all(word in err for word in words), err
    assert "Traceback" not in err
    assert sorted(folder.rglob("*")) == before, "nothing is written"
    assert seconds < LIMIT_S


def test_a_folder_instead_of_a_file(folder: Path) -> None:
    code, out, err, _ = run(folder, "run", ".")
    assert (code, out) == (2, "imported:\n")
    assert "is a folder; name a file in it: t.yaml" in err


@pytest.mark.parametrize("command", ["plan", "policies", "benchmarks", "models"])
def test_looking_around_needs_nothing_heavy(folder: Path, command: str) -> None:
    code, out, err, _ = run(folder, command, *(["t.yaml"] if command == "plan" else []))
    assert code == 0, err
    assert out.endswith("imported:\n")
