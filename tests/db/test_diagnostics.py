"""Diagnostics beside samples: kept once, counted for the right sweep, and added to databases that had none."""

import pytest
import sqlalchemy as sa

from db import queries
from db.connection import open_engine
from db.migrate import current, upgrade
from db.rows import DiagnosticRow
from db.writer import Writer


def row(problem="1", fingerprint="a", repeat=0, **values):
    return DiagnosticRow(fingerprint=fingerprint, problem_id=problem, repeat=repeat, **{"steps": 40, **values})


def test_the_first_one_stays(writer, make_sample):
    writer.record([make_sample()])
    writer.record_diagnostics([row(kl=0.5, detail={"layers": {"recall": [0.5, None]}})])
    writer.record_diagnostics([row(kl=0.7), row("2")])
    assert queries.diagnosed_keys(writer.engine, ["a", "b"]) == {("a", "1", 0), ("a", "2", 0)}
    with writer.engine.connect() as connection:
        found = connection.execute(sa.text("select kl, detail from diagnostics where problem_id = '1'")).one()
    assert found.kl == 0.5
    assert "0.5, null" in str(found.detail).replace("None", "null")


def test_means_by_hand(writer, make_sample):
    writer.record([make_sample(problem=str(i)) for i in range(4)])
    writer.record_diagnostics(
        [
            row("0", fmm_acc=0.2, kl=1.0, lir_rescued=1, lir_eligible=4, first_divergent=10),
            row("1", fmm_acc=0.4, kl=float("nan"), lir_rescued=2, lir_eligible=2),
            row("2", kl=2.0, first_divergent=20),
        ]
    )
    (found,) = queries.diagnostic_summaries(writer.engine, "s").values()
    assert (found.diagnosed, found.diverged_share) == (3, pytest.approx(2 / 3))
    assert (found.fmm_acc, found.kl, found.lir) == (pytest.approx(0.3), pytest.approx(1.5), pytest.approx(0.5))
    assert (found.first_divergent, found.recall) == (15.0, None)


def test_a_sweep_counts_only_its_own_samples(writer, make_cell, make_sample):
    writer.register_sweep("small", "small", {}, {}, [make_cell("a", 2)])
    writer.record([make_sample(problem=f"{i:02}") for i in range(10)])
    writer.record_diagnostics([row(f"{i:02}", kl=float(i)) for i in range(10)])
    small = queries.diagnostic_summaries(writer.engine, "small")["a"]
    assert (small.diagnosed, small.kl) == (2, 0.5)
    assert queries.diagnostic_summaries(writer.engine)["a"].diagnosed == 10
    assert queries.diagnostic_summaries(writer.engine, "unknown") == {}


def test_they_wait_for_an_absent_database(writer, outage, make_sample):
    writer.record([make_sample()])
    cure = outage(writer.engine)
    writer.record_diagnostics([row(kl=0.25, detail={"x": 1})])
    cure()
    writer.record([make_sample(problem="2")])
    assert queries.diagnostic_summaries(writer.engine)["a"].kl == 0.25


def test_samples_of_an_older_database_are_kept(url, tmp_path, make_cell, make_sample):
    old = open_engine(url)
    upgrade(old, "0001")
    assert current(old) == "0001"
    values = {"fingerprint": "a", "model": "m", "benchmark": "b", "policy": "p", "policy_name": "p", "protocol": "x"}
    with old.begin() as connection:
        connection.execute(
            sa.text(
                "insert into cells (fingerprint, model, benchmark, policy, policy_name, protocol, kv_bytes_per_token, "
                "created_at, config) values (:fingerprint, :model, :benchmark, :policy, :policy_name, :protocol, 1, "
                "'2026-01-01', '{}')"
            ),
            values,
        )
        connection.execute(
            sa.text(
                "insert into samples (fingerprint, problem_id, repeat, attempt, seed, outcome, finish_reason, "
                "finished_at, reference, prompt, output) values ('a', '1', 0, 1, 7, 'correct', 'eos', '2026-01-01', "
                "'2', '1+1', '2')"
            )
        )
    assert queries.finished_keys(old, ["a"]) == {("a", "1", 0)}, "found before it is migrated too"
    old.dispose()
    with Writer.open(url, tmp_path / "spool") as writer:
        assert queries.finished_keys(writer.engine, ["a"]) == {("a", "1", 0)}
        writer.record_diagnostics([row(kl=1.0)])
        assert queries.diagnostic_summaries(writer.engine)["a"].kl == 1.0
