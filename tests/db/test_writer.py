"""The writer: idempotence, precedence of outcomes, and what it refuses."""

import pickle

import pytest
from sqlalchemy import func, select

from db import queries
from db.errors import StorageError
from db.queries import cell_summaries
from db.rows import GradeRow
from db.schema import Event, Sample, Shard
from db.writer import Writer


def count(writer, table):
    with writer.engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()


def test_recording_twice_stores_once(writer, make_sample):
    rows = [make_sample(problem=str(i)) for i in range(450)]  # more than one statement
    assert writer.record(rows) == 450
    assert writer.record(rows) == 0
    assert writer.record([*rows, make_sample(problem="new"), make_sample(problem="new")]) == 1
    assert count(writer, Sample) == 451


def test_recording_nothing_is_nothing(writer):
    before = queries.change_token(writer.engine)
    assert writer.record([]) == 0
    assert queries.change_token(writer.engine) == before


def test_success_replaces_failure_and_is_never_overwritten(writer, make_sample):
    assert writer.record([make_sample(outcome="failed", error="out of memory")]) == 1
    assert writer.record([make_sample(outcome="failed", error="again")]) == 0
    assert writer.record([make_sample(outcome="wrong", attempt=2)]) == 1
    assert writer.record([make_sample(outcome="failed", error="late"), make_sample(outcome="correct")]) == 0
    stored = queries.get_sample(writer.engine, "a", "1", 0)
    assert (stored.outcome, stored.error, stored.attempt, stored.hbm_tokens) == ("wrong", None, 2, 40)


def test_within_one_batch_success_wins_in_either_order(writer, make_sample):
    writer.record([make_sample(problem="1", outcome="failed"), make_sample(problem="1")])
    writer.record([make_sample(problem="2"), make_sample(problem="2", outcome="failed")])
    assert {s.outcome for s in queries.list_samples(writer.engine, "a")} == {"correct"}


def test_registering_again_keeps_samples_and_updates_the_list(writer, make_cell, make_sample):
    writer.record([make_sample()])
    created = queries.list_sweeps(writer.engine)[0].created_at
    writer.set_state("s", "interrupted")
    writer.register_sweep("s", "renamed", {}, {}, [make_cell("c", 3), make_cell("a", 5)])
    (sweep,) = queries.list_sweeps(writer.engine)
    assert (sweep.name, sweep.state, sweep.cells, sweep.expected, sweep.done) == ("renamed", "running", 2, 8, 1)
    assert sweep.created_at == created
    assert [cell.fingerprint for cell in queries.sweep_progress(writer.engine, "s")] == ["c", "a"]


def test_shards_once_events_each_time(writer, make_shard):
    writer.record_shard(make_shard())
    writer.record_shard(make_shard(decode_tokens=1))
    writer.event("s", "note", "same words", data={"x": float("nan"), "y": [1, "\x00"]})
    writer.event("s", "note", "same words", fingerprint="a")
    assert (count(writer, Shard), count(writer, Event)) == (1, 2)
    latest, first = queries.list_events(writer.engine, "s")
    assert (latest.fingerprint, first.data) == ("a", {"x": None, "y": [1, "\ufffd"]})


def test_hostile_text_is_stored(writer, make_sample):
    writer.record([make_sample(output="nul \x00 surrogate \ud800 <script>", prompt="ü" * 10, ttft_s=float("inf"))])
    stored = queries.get_sample(writer.engine, "a", "1", 0)
    assert stored.output == "nul \ufffd surrogate ? <script>"
    assert (stored.prompt, stored.ttft_s) == ("ü" * 10, None)


def test_largest_seed_and_times_survive(writer, make_sample):
    row = make_sample(seed=2**63 - 1)
    writer.record([row])
    stored = queries.get_sample(writer.engine, "a", "1", 0)
    assert (stored.seed, stored.finished_at) == (row.seed, row.finished_at)


def test_a_regrade_changes_the_verdict_only(writer, make_sample):
    writer.record([make_sample(), make_sample(problem="2", outcome="failed")])
    verdicts = [
        GradeRow(fingerprint="a", problem_id=p, repeat=0, outcome="wrong", extracted="3") for p in ("1", "2", "absent")
    ]
    writer.regrade(verdicts)
    stored = queries.get_sample(writer.engine, "a", "1", 0)
    assert (stored.outcome, stored.extracted, stored.output) == ("wrong", "3", "It is 2.")
    assert queries.get_sample(writer.engine, "a", "2", 0).outcome == "failed"
    assert queries.count_samples(writer.engine, "a") == 2


def test_unregistered_cells_are_refused_by_name(writer, make_sample):
    with pytest.raises(StorageError, match="register_sweep"):
        writer.record([make_sample("nowhere")])
    assert not writer.spool.waiting()


def test_change_token_moves_with_changes_but_not_with_heartbeats(writer, make_sample, make_shard):
    seen = [queries.change_token(writer.engine)]
    for change in (
        lambda: writer.record([make_sample()]),
        lambda: writer.record_shard(make_shard()),
        lambda: writer.event("s", "note", "hello"),
        lambda: writer.set_state("s", "finished"),
    ):
        change()
        seen.append(queries.change_token(writer.engine))
    assert seen == sorted(set(seen))
    before = queries.list_sweeps(writer.engine)[0].heartbeat_at
    assert writer.heartbeat("s")
    assert queries.change_token(writer.engine) == seen[-1]
    assert queries.list_sweeps(writer.engine)[0].heartbeat_at > before


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"outcome": "maybe"}, "outcome='maybe'"), ({"finish_reason": "stop"}, "eos"), ({"seed": 2**63}, "2\\*\\*63")],
)
def test_rows_name_what_is_wrong(make_sample, changes, words):
    with pytest.raises(StorageError, match=words):
        make_sample(**changes)


def test_states_are_checked(writer):
    with pytest.raises(StorageError, match=r"state='done'.*running, paused, finished"):
        writer.set_state("s", "done")


def test_rows_travel_through_pickle(make_cell, make_sample, make_shard):
    for row in (make_cell("a"), make_sample(), make_shard()):
        assert pickle.loads(pickle.dumps(row)) == row


def test_two_writers_of_one_database(writer, url, tmp_path, make_cell, make_sample):
    with Writer.open(url, tmp_path / "other") as second:
        second.register_sweep("t", "other sweep", {}, {}, [make_cell("a", 1)])
        assert second.record([make_sample()]) == 1
        assert writer.record([make_sample()]) == 0
    assert {sweep.id: sweep.done for sweep in queries.list_sweeps(writer.engine)} == {"s": 1, "t": 1}


def test_bytes_of_a_model_that_was_not_known(writer, make_cell):
    writer.register_sweep("s", "s", {}, {}, [make_cell("new", kv_bytes_per_token=0), make_cell("known")])
    known = {cell.fingerprint: cell.kv_bytes_per_token for cell in cell_summaries(writer.engine)}["known"]
    writer.set_kv_bytes(["new", "known"], 77)
    found = {cell.fingerprint: cell.kv_bytes_per_token for cell in cell_summaries(writer.engine)}
    assert (found["new"], found["known"]) == (77, known)
