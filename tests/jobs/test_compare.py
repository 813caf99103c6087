"""`tiercache compare` over a database: pairs, corrections, repeats and a hierarchy's grid."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from db.rows import CellRow, SampleRow
from db.writer import Writer
from jobs.cli import app
from jobs.statistics import StatisticsError
from tiercache.errors import SpecError
from tiercache.policy import parse_policy

RIGHT = {  # problems from 0 to 39 that each policy gets right
    "full": set(range(40)),
    "h2o budget=0.5": set(range(10)),
    "hierarchy hbm=0.3 evict=0": set(range(40)),
    "hierarchy hbm=0.5 evict=0": set(range(40)),
    "hierarchy hbm=0.3 evict=0.2": set(range(12)),
    "hierarchy hbm=0.5 evict=0.2": set(range(12)),
}
ENTRIES: list[dict[str, Any]] = [
    {"name": "full"},
    {"name": "h2o", "budget": 0.5},
    *({"name": "hierarchy", "hbm": hbm, "evict": evict} for evict in (0, 0.2) for hbm in (0.3, 0.5)),
]


def samples(fingerprint: str, right: set[int], repeats: int) -> Iterator[SampleRow]:
    for problem in range(40):
        for repeat in range(repeats):
            good = problem in right
            yield SampleRow(
                fingerprint=fingerprint,
                problem_id=f"{problem:02d}",
                repeat=repeat,
                seed=1,
                outcome="correct" if good else "wrong",
                score=float(good),
                extracted="7" if good else "8",
                finish_reason="eos",
                prompt="p",
                output="o",
                reference="7",
            )


@pytest.fixture
def database(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    repeats = getattr(request, "param", 1)
    url = f"sqlite:///{tmp_path / 'c.db'}"
    policies = [parse_policy(entry) for entry in ENTRIES]
    cells = [
        CellRow(
            fingerprint=policy.label,
            model="m",
            benchmark="b",
            policy=policy.label,
            policy_name=policy.name,
            config={"policy": policy.config(), "benchmark": {"name": "chain"}},
            protocol="p",
            kv_bytes_per_token=1,
            expected_samples=40 * repeats,
        )
        for policy in policies
    ]
    with Writer.open(url) as writer:
        writer.register_sweep("s", "s", {"repeats": repeats}, {}, cells)
        for cell, right in zip(cells, RIGHT.values(), strict=True):
            writer.record(list(samples(cell.fingerprint, right, repeats)))
    return url


def compared(url: str, *more: str) -> Any:
    done = CliRunner().invoke(app, ["compare", "latest", "--db", url, "--json", *more])
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout)


def test_each_policy_against_the_full_cache(database: str) -> None:
    (group,) = compared(database)
    full, h2o = group["cells"][:2]
    assert group["baseline"] == "full"
    assert full["versus"] is None
    assert full["accuracy"]["value"] == 1.0
    versus = h2o["versus"]
    assert (versus["gained"], versus["lost"], versus["difference"]) == (0, 30, -0.75)
    assert versus["p_value"] == pytest.approx(2 * 0.5**30)
    assert h2o["p_holm"] >= versus["p_value"]
    lossless = group["cells"][2]["versus"]
    assert (lossless["difference"], lossless["p_value"]) == (0.0, 1.0)


def test_the_hierarchys_questions(database: str) -> None:
    ((name, grid),) = compared(database)[0]["grids"]
    assert name == "hierarchy"
    by_question = {(row["question"], row["stratum"]): row for row in grid["rows"]}
    assert by_question["hbm_ratio", 0.0]["p_value"] == 1.0
    assert by_question["evict_ratio", 0.3]["p_value"] < 0.001
    assert grid["hbm"]["p_value"] == 1.0
    assert grid["evict"]["p_value"] < 0.001


def test_a_sample_that_failed_is_left_out_on_both_sides(database: str) -> None:
    with Writer.open(database) as writer, writer.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE samples SET outcome='failed' WHERE fingerprint='full' AND problem_id='39'")
    h2o = compared(database)[0]["cells"][1]["versus"]
    assert (h2o["n_problems"], h2o["lost"]) == (39, 29)


def test_another_baseline(database: str) -> None:
    (group,) = compared(database, "--baseline", "h2o")
    assert group["baseline"].startswith("h2o")
    assert group["cells"][0]["versus"]["gained"] == 30
    with pytest.raises(SpecError, match="no policy 'nope'"):
        compared(database, "--baseline", "nope")


@pytest.mark.parametrize("database", [4], indirect=True)
def test_repeats(database: str) -> None:
    h2o = compared(database, "--k", "4")[0]["cells"][1]
    assert h2o["pass_k"]["value"] == h2o["maj_k"]["value"] == h2o["accuracy"]["value"] == 0.25
    assert h2o["versus"]["test"].startswith("sign-flip")
    with pytest.raises(StatisticsError, match="k=5 needs 5 generations"):
        compared(database, "--k", "5")


def test_tables_say_what_n_can_show(database: str) -> None:
    shown = CliRunner().invoke(app, ["compare", "s", "--db", database]).stdout
    assert "80% power" in shown
    assert "<0.001" in shown
    assert "does the HBM ratio matter" in shown


def test_results_for_the_harness(database: str) -> None:
    done = CliRunner().invoke(app, ["export", "s", "--db", database, "--format", "lm-eval"])
    found = json.loads(done.stdout)
    assert {doc["results"]["b"]["exact_match,strict-match"] for doc in found.values()} == {1.0, 0.25, 0.3}
