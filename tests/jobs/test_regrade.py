"""Stored generations get new verdicts: no model is loaded, and nothing else of a sample changes."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from db.queries import cell_configs, get_sample, list_events, list_samples
from db.rows import CellRow, SampleRow
from db.writer import Writer
from jobs.cli import app

CONFIG = {"benchmark": {"name": "gsm8k", "prompt_mode": "chat", "last_number": False, "revision": "r", "system": None}}
OUTPUTS = {"a": "#### 12", "b": "#### 13", "c": "it is 12", "d": "half <think>"}


@pytest.fixture
def database(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    cell = CellRow(
        fingerprint="f",
        model="m",
        benchmark="gsm8k",
        policy="full",
        policy_name="full",
        config=CONFIG,
        protocol="p",
        kv_bytes_per_token=1,
        expected_samples=5,
    )
    with Writer.open(url) as writer:
        writer.register_sweep("s", "s", {}, {}, [cell])
        for name, output in OUTPUTS.items():
            writer.record([sample(name, output=output, outcome="wrong", extracted="old", grader="old/1")])
        writer.record([sample("e", output="", outcome="failed", finish_reason="error", error="lost")])
    return url


def sample(name: str, **values: Any) -> SampleRow:
    made: dict[str, Any] = {
        "fingerprint": "f",
        "problem_id": name,
        "repeat": 0,
        "seed": 1,
        "outcome": "wrong",
        "finish_reason": "eos",
        "prompt": "<user>x<think>\n" if name == "d" else "x",
        "output": "",
        "reference": "12",
        "hbm_tokens": 7,
    }
    return SampleRow(**{**made, **values})


def outcomes(url: str) -> dict[str, str]:
    from jobs.database import open_for_reading

    return {s.problem_id: s.outcome for s in list_samples(open_for_reading(url), "f")}


def test_verdicts_change_and_nothing_else_does(database: str) -> None:
    from jobs.database import open_for_reading

    engine = open_for_reading(database)
    before = get_sample(engine, "f", "a", 0)
    dry = CliRunner().invoke(app, ["regrade", "latest", "--dry-run", "--db", database])
    assert dry.exit_code == 0, dry.output
    assert "3 of 4 verdicts would change" in dry.output
    assert outcomes(database)["a"] == "wrong"
    done = CliRunner().invoke(app, ["regrade", "latest", "--db", database])
    assert "3 of 4 verdicts changed" in done.output
    assert outcomes(database) == {"a": "correct", "b": "wrong", "c": "no_answer", "d": "no_answer", "e": "failed"}
    after = get_sample(engine, "f", "a", 0)
    assert before is not None
    assert after is not None
    changed = {key for key, value in asdict(after).items() if value != getattr(before, key)}
    assert changed == {"outcome", "extracted", "score", "grader"}
    assert (after.score, after.grader, after.extracted) == (1.0, "number/2", "12")
    assert [event.kind for event in list_events(engine, "s")] == ["regraded"]


def test_again_changes_nothing(database: str) -> None:
    for expected in ("3 of 4", "0 of 4"):
        assert f"{expected} verdicts" in CliRunner().invoke(app, ["regrade", "s", "--db", database]).output


def test_configurations_of_a_sweep(database: str) -> None:
    from jobs.database import open_for_reading

    assert cell_configs(open_for_reading(database), "s") == {"f": ("full", CONFIG)}
