"""GPU hours in `tiercache plan`: which lengths they reckon with, what is said where there is no price."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from db.lengths import GenerationLength
from jobs.benchmarks.catalog import parse_benchmarks
from jobs.cli import app
from jobs.plan import Plan, plan_sweep
from jobs.plan_report import hours_text
from jobs.prices import Lengths
from jobs.spec import parse_sweep
from tiercache.errors import RequestError

DISTILL = "deepseek-ai/DeepSeek-R1-Distill-"
SWEEP: dict[str, Any] = {
    "name": "t",
    "models": [DISTILL + "Qwen-7B", DISTILL + "Qwen-32B"],
    "benchmarks": [{"name": "chain", "n": 64}],
    "policies": ["full", {"name": "h2o", "budget": 64}],
    "sampling": {"max_new_tokens": 1001},
}


def plan_of(lengths: Lengths | None = None, efficiency: float = 1.0, **changes: Any) -> Plan:
    sweep = parse_sweep({**SWEEP, **changes})
    return plan_sweep(sweep, parse_benchmarks(sweep.benchmarks), lengths=lengths, efficiency=efficiency)


def test_hours_of_a_cell_by_hand() -> None:
    """64 samples in one batch, 1,000 steps: each reads the weights, 14,141,238,272 bytes, and 64 rows of the cache."""
    full, h2o, *_ = plan_of().rows
    prompt = full.prompt_tokens
    mean = prompt + 500.5
    prefill = 64 * (2 * 6_525_621_760 * prompt + 2 * 28 * 28 * 128 * prompt**2) / 989e12
    steps = 1000 * (14_141_238_272 + 64 * mean * 57_344) / 3350e9
    assert full.prices[0].hours == pytest.approx((prefill + steps) / 3600)
    assert (full.prices[0].rows, full.prices[0].bound_by) == (64, "HBM")
    least = 1000 * (14_141_238_272 + 64 * 64 * 57_344) / 3350e9
    assert h2o.prices[0].hours == pytest.approx((prefill + least) / 3600)


def test_a_dash_says_why_and_how_many_gpus_it_takes() -> None:
    found = plan_of()
    large = [row for row in found.rows if "32B" in row.model]
    for row in large:
        assert [(each.card, each.hours is None, each.gpus) for each in row.prices] == [
            ("H100-80GB", False, 1),
            ("RTX4090-24GB", True, 3),
        ]
    (note,) = [note for note in found.notes if note.startswith("no price")]
    assert "32B doesn't fit one RTX4090-24GB: weights of 61.0 GiB" in note
    assert "21.6 GiB usable (90%)" in note
    assert "takes 3 of them" in note


def test_a_bound_that_depends_on_the_data_is_called_one() -> None:
    found = plan_of(models=[DISTILL + "Qwen-7B"], policies=["full", {"name": "thinkv", "budget": 256}])
    assert sum("bytes are an upper bound" in note for note in found.notes) == 1
    assert any(note.startswith("thinkv budget=256: bytes") for note in found.notes)


def test_efficiency_divides() -> None:
    whole, half = plan_of(), plan_of(efficiency=0.5)
    for a, b in zip(whole.rows, half.rows, strict=True):
        assert b.prices[0].hours == pytest.approx(2 * (a.prices[0].hours or 0))
    for wrong in (0, -1, 1.5, float("nan")):
        with pytest.raises(RequestError, match="--efficiency: is a number, above 0, at most 1"):
            plan_of(efficiency=wrong)


def test_shards_and_limits_bound_the_batch() -> None:
    assert plan_of(cluster={"shard_size": 16}).rows[0].prices[0].rows == 16
    assert plan_of(engine={"max_batch": 8}).rows[0].prices[0].rows == 8
    starved = plan_of(engine={"hbm_kv_budget": 1000})
    assert [each.hours for each in starved.rows[0].prices] == [None, None]
    assert not any("no price: DeepSeek-R1-Distill-Qwen-7B" in note for note in starved.notes), "it has another note"


def test_no_gpu_no_price() -> None:
    assert {row.prices for row in plan_of(engine={"device": "cpu"}).rows} == {()}
    assert {row.prices for row in plan_of(models=["reasoner"]).rows} == {()}
    assert plan_of(models=["reasoner"], engine={"device": "cuda"}).rows[0].prices[0].hours


def length(policy: str, mean: float, samples: int = 10, most: int = 1001, model: str = "M") -> GenerationLength:
    return GenerationLength(model, "b", policy, most, samples, mean)


def test_where_lengths_come_from() -> None:
    stored = [length("full", 100), length("h2o", 400, 30), length("full", 7, most=50), length("full", 9, model="N")]
    known = Lengths(None, stored)
    assert known.of("M", "b", "full", 1001) == Lengths(100).of("M", "b", "full", 1001).__class__(100, "measured")
    other = known.of("M", "b", "new", 1001)
    assert (other.mean, other.source) == ((10 * 100 + 30 * 400) / 40, "other policies")
    assert known.of("M", "c", "full", 1001).source == "limit"
    assert known.of("M", "b", "full", 2000).mean == 2000, "under another limit they would have ended elsewhere"
    assert (Lengths(5000).of("M", "b", "full", 1001).mean, Lengths(12).of("M", "b", "full", 99).source) == (
        1001,
        "given",
    )
    with pytest.raises(RequestError, match="--mean-tokens: is a number, from 1"):
        Lengths(0)


def test_hours_are_readable() -> None:
    assert [hours_text(x) for x in (0.0123, 1.234, 12.34, 1234.5)] == ["0.0123", "1.23", "12.3", "1,234"]


@pytest.fixture
def spec(write: Callable[[str], Path]) -> Path:
    return write(
        "{name: t, models: [reasoner], benchmarks: [{name: chain, n: 3}], policies: [full],\n"
        " sampling: {max_new_tokens: 64}, engine: {device: cuda}}"
    )


def test_the_command(spec: Path) -> None:
    done = CliRunner().invoke(app, ["plan", str(spec)])
    assert done.exit_code == 0, done.output
    for words in ("H100-80GB", "RTX4090-24GB", "GPU h", "lower bound (roofline)", "gpu_hours = (prefill_s", "together"):
        assert words in done.output
    assert "the worst case" in done.output
    given = CliRunner().invoke(app, ["plan", str(spec), "--mean-tokens", "12", "--efficiency", "0.5"])
    assert "--mean-tokens says" in given.output
    assert "at 50% of the roofline" in given.output
