"""The read side against numbers worked out by hand."""

from datetime import timedelta

import pytest

from db import queries
from db.connection import open_engine
from db.intervals import wilson


def test_finished_keys_leave_out_failures_and_other_cells(writer, make_sample):
    writer.record([make_sample(), make_sample(problem="2", repeat=3, outcome="truncated")])
    writer.record([make_sample(problem="3", outcome="failed"), make_sample("b")])
    assert queries.finished_keys(writer.engine, ["a", "a", "zz"]) == {("a", "1", 0), ("a", "2", 3)}
    assert queries.finished_keys(writer.engine, []) == set()
    assert len(queries.finished_keys(writer.engine, [f"f{i}" for i in range(2000)] + ["a"])) == 2


def test_summary_by_hand(writer, make_sample, make_shard, make_cell):
    writer.register_sweep("s", "s", {"repeats": 2}, {}, [make_cell(name, 12) for name in "ab"])
    outcomes = ["correct", "correct", "wrong", "no_answer", "truncated", "failed"]
    writer.record([make_sample(problem=str(i), outcome=outcome) for i, outcome in enumerate(outcomes)])
    writer.record([make_sample(problem="0", repeat=1, outcome="correct", hbm_bytes_mean=2200.0, output_tokens=210)])
    read = {"decode_read_bytes": 3 * 10**9, "copy_bytes_per_s": 2e9, "transfer_s": 0.3}
    writer.record_shard(make_shard("x", device="cuda A", exclusive=True, **read))
    writer.record_shard(
        make_shard(
            "y", device="cpu", decode_tokens=100, decode_s=1.0, decode_steps=50, tpot_p50_s=0.06, exclusive=False
        )
    )
    summary, empty = queries.cell_summaries(writer.engine, "s")
    assert (summary.n, summary.problems, summary.expected) == (6, 5, 12)
    assert (summary.correct, summary.wrong, summary.no_answer, summary.truncated, summary.failed) == (3, 1, 1, 1, 1)
    assert summary.accuracy == 0.5
    assert (summary.accuracy_low, summary.accuracy_high) == pytest.approx(wilson(3, 6))
    assert summary.truncation_rate == pytest.approx(1 / 6)
    assert summary.hbm_bytes == pytest.approx(1200)
    assert summary.resident_share == pytest.approx((summary.hbm_bytes + summary.packed_bytes) / summary.full_bytes)
    assert summary.output_tokens == pytest.approx(110)
    assert summary.kept_share == pytest.approx(0.75)
    assert summary.decode_tokens_per_s == pytest.approx(400 / 4)
    assert summary.prefill_tokens_per_s == pytest.approx(200)
    assert summary.tpot_p50_s == pytest.approx((0.02 * 150 + 0.06 * 50) / 200)
    # 3 s of decoding: the second shard has measured none of it, and isn't counted.
    assert (summary.bandwidth_share, summary.transfer_share) == (pytest.approx(0.5), pytest.approx(0.1))
    assert (empty.bandwidth_share, empty.transfer_share) == (None, None)
    assert (summary.devices, summary.shards, summary.exclusive) == (("cpu", "cuda A"), 2, False)
    assert (empty.n, empty.accuracy, empty.resident_share, empty.decode_tokens_per_s, empty.exclusive) == (0,) + (
        None,
    ) * 4


def test_a_cell_whose_samples_all_failed(writer, make_sample, make_shard):
    writer.record([make_sample(outcome="failed")])
    writer.record_shard(make_shard(decode_tokens=0, decode_s=0.0, decode_steps=0, prefill_s=0.0))
    summary = queries.cell_summaries(writer.engine, "s")[0]
    assert (summary.n, summary.failed, summary.accuracy, summary.kept_share) == (0, 1, None, None)
    assert (summary.decode_tokens_per_s, summary.tpot_p50_s) == (None, None)


def test_a_sweep_shows_shared_samples_up_to_what_it_expects(writer, make_cell, make_sample):
    writer.register_sweep("small", "small", {}, {}, [make_cell("a", 2)])
    rows = [make_sample(problem=f"{i:02}", outcome="correct" if i < 2 else "wrong") for i in range(10)]
    writer.record(rows)
    (small,) = queries.cell_summaries(writer.engine, "small")
    assert (small.n, small.accuracy) == (2, 1.0)
    assert queries.cell_summaries(writer.engine, "s")[0].accuracy == 0.2
    assert [s.n for s in queries.cell_summaries(writer.engine)] == [10, 0]
    assert queries.cell_summaries(writer.engine, "unknown") == []
    progress = {sweep.id: (sweep.done, sweep.failed, sweep.expected) for sweep in queries.list_sweeps(writer.engine)}
    assert progress == {"s": (10, 0, 20), "small": (2, 0, 2)}


def test_progress_states(writer, make_cell, make_sample):
    names = ["done", "running", "waiting", "partial", "failed"]
    writer.register_sweep("s", "s", {}, {}, [make_cell(name, 2) for name in names])
    writer.record([make_sample("done", "1"), make_sample("done", "2"), make_sample("running", "1")])
    writer.record([make_sample("partial", "1"), make_sample("partial", "2", outcome="failed")])
    writer.record([make_sample("failed", p, outcome="failed") for p in "123"])
    cells = queries.sweep_progress(writer.engine, "s")
    assert [(cell.fingerprint, cell.state) for cell in cells] == [(name, name) for name in names]
    assert (cells[-1].failed, cells[-1].expected) == (2, 2)
    assert queries.sweep_progress(writer.engine, "unknown") == []


def test_a_running_sweep_falls_silent(writer):
    (sweep,) = queries.list_sweeps(writer.engine)
    assert sweep.live_state() == "running"
    assert sweep.live_state(sweep.heartbeat_at + timedelta(minutes=3)) == "silent"
    writer.set_state("s", "finished")
    (sweep,) = queries.list_sweeps(writer.engine)
    assert sweep.live_state(sweep.heartbeat_at + timedelta(days=3)) == "finished"


def test_sample_lists_page_filter_and_search(writer, make_sample):
    writer.record([make_sample(problem=f"{i:03}") for i in range(30)])
    writer.record([make_sample(problem="odd", outcome="wrong", output="100%_sure \\ Yes")])
    engine = writer.engine
    assert [s.problem_id for s in queries.list_samples(engine, "a", limit=3, offset=29)] == ["029", "odd"]
    assert [s.problem_id for s in queries.list_samples(engine, "a", "wrong")] == ["odd"]
    for text, count in (("100%_SURE", 1), ("%_", 1), ("\\ yes", 1), ("It is", 30), ("nothing like it", 0), ("", 31)):
        assert queries.count_samples(engine, "a", search=text) == count, text
        assert len(queries.list_samples(engine, "a", search=text, limit=99)) == count
    assert not hasattr(queries.list_samples(engine, "a")[0], "output")
    assert queries.get_sample(engine, "a", "nope", 0) is None


def test_same_problem_needs_the_same_protocol(writer, make_cell, make_sample):
    cells = [make_cell("a"), make_cell("b"), make_cell("c", protocol="p2"), make_cell("d", model="other")]
    writer.register_sweep("s", "s", {}, {}, cells)
    writer.record([make_sample(name) for name in "abcd"])
    assert [(policy, s.fingerprint) for policy, s in queries.same_problem(writer.engine, "a", "1", 0)] == [
        ("policy b", "b")
    ]


def test_paired_deltas(writer, make_sample):
    here = ["correct", "correct", "wrong", "wrong", "failed"]
    there = ["correct", "wrong", "correct", "truncated", "correct"]
    writer.record([make_sample("a", str(i), outcome=o) for i, o in enumerate(here)])
    writer.record([make_sample("b", str(i), outcome=o) for i, o in enumerate(there)])
    deltas = queries.paired_deltas(writer.engine, "b", ["a", "nothing"])
    assert list(deltas) == ["a"]
    assert (deltas["a"].pairs, deltas["a"].gained, deltas["a"].lost, deltas["a"].delta) == (4, 1, 1, 0)
    assert deltas["a"].low < 0 < deltas["a"].high


def test_change_token_without_tables(tmp_path):
    (tmp_path / "empty.db").touch()
    engine = open_engine(str(tmp_path / "empty.db"), read_only=True)
    assert queries.change_token(engine) == -1
    engine.dispose()


def test_part_marks_count_by_their_score(writer, make_sample, make_cell):
    writer.register_sweep("s", "s", {}, {}, [make_cell(name, 4) for name in "ab"])
    scores = {"a": [1.0, 0.5, 0.25, 0.25], "b": [1.0, 0.0, 0.25, 0.75]}
    for name, values in scores.items():
        writer.record(
            [
                make_sample(name, problem=str(i), outcome="correct" if score == 1 else "wrong", score=score)
                for i, score in enumerate(values)
            ]
        )
    first, second = queries.cell_summaries(writer.engine, "s")
    assert (first.accuracy, second.accuracy, first.correct) == (0.5, 0.5, 1)
    assert first.accuracy_low < 0.5 < first.accuracy_high
    assert (first.accuracy_low, first.accuracy_high) != pytest.approx(wilson(1, 4))
    delta = queries.paired_deltas(writer.engine, "a", ["b"])["b"]
    assert (delta.delta, delta.gained, delta.lost) == (0.0, 0, 0)
    assert delta.low == pytest.approx(-delta.high)
    assert delta.high > 0.3
