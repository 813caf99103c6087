"""Latencies, traffic and rooflines, and who worked on a sweep, against numbers worked out by hand."""

from datetime import timedelta
from math import ceil

import pytest

from db import queries
from db.rows import utc_now
from db.speed import PERCENTILES

NOW = utc_now().replace(microsecond=250_000)


def nearest_rank(values, percent):
    return sorted(values)[ceil(len(values) * percent / 100) - 1]


@pytest.mark.parametrize("count", [1, 2, 7, 100, 101])
def test_quantiles_are_nearest_ranks(writer, make_sample, make_cell, count):
    writer.register_sweep("s", "s", {}, {}, [make_cell(name, count) for name in "ab"])
    ttfts = [((place * 37) % count + 1) / 10 for place in range(count)]  # in no order
    writer.record(
        [
            make_sample(problem=f"{place:03d}", ttft_s=ttft, wall_s=ttft + 2.0 + place, output_tokens=11)
            for place, ttft in enumerate(ttfts)
        ]
    )
    found = queries.cell_speeds(writer.engine, "s", "m", "bench")
    assert set(found) == {"a"}  # b has no sample
    speed = found["a"]
    assert (speed.n, speed.peaks) == (count, count)
    assert speed.ttft_s.n == count
    assert speed.ttft_s.mean == pytest.approx(sum(ttfts) / count)
    assert speed.ttft_s.at == {p: pytest.approx(nearest_rank(ttfts, p)) for p in PERCENTILES}
    tpots = [(2.0 + place) / 10 for place in range(count)]
    assert speed.tpot_s.at == {p: pytest.approx(nearest_rank(tpots, p)) for p in PERCENTILES}
    assert speed.tpot_s.median == speed.tpot_s.at[50]


def test_what_is_missing_is_left_out_and_counted(writer, make_sample):
    writer.record(
        [
            make_sample(problem="1", ttft_s=0.5, wall_s=1.5, output_tokens=5, hbm_bytes_peak=4000),
            make_sample(problem="2", ttft_s=0.7, wall_s=0.7, output_tokens=1, hbm_bytes_peak=None),
            make_sample(problem="3", ttft_s=None, wall_s=None, hbm_bytes_peak=1000),
            make_sample(problem="4", outcome="failed"),
            make_sample("b", outcome="failed"),
        ]
    )
    found = queries.cell_speeds(writer.engine, "s", "m", "bench")
    assert set(found) == {"a"}
    speed = found["a"]
    assert (speed.n, speed.peaks, speed.ttft_s.n, speed.tpot_s.n) == (3, 2, 2, 1)
    assert speed.tpot_s.median == pytest.approx(0.25)
    assert (speed.hbm_bytes_peak, speed.hbm_bytes_most, speed.full_bytes_end) == (2500.0, 4000, 8000.0)


def test_nothing_timed_at_all(writer, make_sample):
    writer.record([make_sample(ttft_s=None, wall_s=None, hbm_bytes_peak=None, full_bytes_end=None)])
    speed = queries.cell_speeds(writer.engine, None, "m", "bench")["a"]
    assert (speed.ttft_s, speed.tpot_s, speed.hbm_bytes_peak, speed.hbm_bytes_most) == (None,) * 4
    assert queries.cell_speeds(writer.engine, None, "other", "bench") == {}


def test_only_samples_that_count_for_the_sweep(writer, make_sample, make_cell):
    writer.register_sweep("small", "small", {}, {}, [make_cell("a", 2)])
    writer.record([make_sample(problem=str(place), ttft_s=float(place)) for place in range(1, 6)])
    of_sweep = queries.cell_speeds(writer.engine, "small", "m", "bench")["a"]
    assert (of_sweep.n, of_sweep.ttft_s.at[99]) == (2, 2.0)
    assert queries.cell_speeds(writer.engine, None, "m", "bench")["a"].ttft_s.at[99] == 5.0


def test_device_speeds_by_hand(writer, make_shard):
    writer.record_shard(
        make_shard("x", device="G", decode_read_bytes=6000, copy_bytes_per_s=5000.0, transfer_s=0.6, bytes_to_host=30)
    )
    more = {"decode_tokens": 100, "decode_s": 1.0, "exclusive": False, "allocated_bytes_peak": 70}
    writer.record_shard(make_shard("y", device="G", decode_read_bytes=2000, copy_bytes_per_s=9000.0, **more))
    writer.record_shard(make_shard("z", device="G", bytes_to_device=12, **{**more, "allocated_bytes_peak": 90}))
    writer.record_shard(make_shard("w", device="cpu"))
    writer.record_shard(make_shard("v", "b", device="cpu", decode_tokens=0, decode_s=0.0, decode_steps=0))
    gpu, cpu, idle = sorted(
        queries.device_speeds(writer.engine, ["a", "b", "none"]),
        key=lambda each: (each.fingerprint, each.device != "G"),
    )
    assert (gpu.shards, gpu.shared, gpu.measured, gpu.decode_tokens) == (3, 2, 2, 500)
    # x and y alone are measured: 400 tokens in 4 s, 8,000 bytes; bandwidth is the mean over their decode time.
    assert (gpu.tokens_per_s, gpu.bytes_per_token) == (pytest.approx(100), pytest.approx(20))
    assert gpu.copy_bytes_per_s == pytest.approx((5000 * 3 + 9000) / 4)
    assert gpu.roof_tokens_per_s == pytest.approx(300)
    assert gpu.roof_share == pytest.approx(1 / 3)
    assert (gpu.bytes_to_host, gpu.bytes_to_device, gpu.allocated_bytes_peak) == (30, 12, 90)
    assert gpu.transfer_share == pytest.approx(0.2)  # of x's decode time; the others have measured none
    assert (cpu.device, cpu.roof_share, cpu.transfer_share, cpu.tokens_per_s) == ("cpu", None, None, None)
    assert (idle.fingerprint, idle.decode_tokens, idle.roof_share) == ("b", 0, None)


def test_bandwidth_share_and_roof_share_agree(writer, make_shard):
    read = {"decode_read_bytes": 3 * 10**9, "copy_bytes_per_s": 2e9}
    writer.record_shard(make_shard("x", **read))
    writer.record_shard(make_shard("y", **{**read, "copy_bytes_per_s": 1e9, "decode_s": 7.0}))
    (one,) = queries.device_speeds(writer.engine, ["a"])
    summary = queries.cell_summaries(writer.engine, "s")[0]
    assert one.roof_share == pytest.approx(summary.bandwidth_share)


def test_actors_by_hand(writer, make_shard):
    def shard(name, actor, begin_s, end_s, **more):
        times = {"started_at": NOW + timedelta(seconds=begin_s), "finished_at": NOW + timedelta(seconds=end_s)}
        writer.record_shard(make_shard(name, actor=actor, **times, **more))

    shard("1", "one", 0, 10.5)
    shard("2", "one", 11, 20, samples=5)
    shard("3", "two", 0, 30, device="NVIDIA H100")
    writer.register_sweep("other", "other", {}, {}, [])
    shard("4", "one", 40, 50, sweep_id="other")
    two, one = queries.list_actors(writer.engine, "s")  # the last heard of first
    assert (two.actor, two.device, two.on_cpu, one.on_cpu) == ("two", "NVIDIA H100", False, True)
    assert (one.shards, one.samples, one.host) == (2, 7, "host-1")
    assert one.busy_s == pytest.approx(19.5, abs=0.002)
    assert (one.first_at, one.last_at) == (NOW, NOW + timedelta(seconds=20))
    assert queries.list_actors(writer.engine, "nobody") == []


def test_coordinators_and_losses(writer):
    from db.leases import acquire

    before = utc_now()
    acquire(writer.engine, ["a", "b"], "host:1:x", "s")
    (held,) = queries.list_coordinators(writer.engine, "s")
    assert (held.holder, held.cells) == ("host:1:x", 2)
    assert abs(held.last_at - before) < timedelta(seconds=60)
    assert queries.list_coordinators(writer.engine, "other") == []
    for kind in ("actor_died", "stalled", "actor_died", "model_loaded"):
        writer.event("s", kind, "it happened")
    assert [(loss.kind, loss.times) for loss in queries.list_losses(writer.engine, "s")] == [
        ("actor_died", 2),
        ("stalled", 1),
    ]


def test_arrivals_of_late(writer, make_sample):
    def at(seconds):
        return NOW + timedelta(seconds=seconds)

    begun = at(-2000)
    for place, seconds in enumerate((-1500, -500, -300, -100, 5)):
        writer.record([make_sample(problem=str(place), finished_at=at(seconds))])
    came = queries.arrivals(writer.engine, "s", begun, NOW)
    assert (came.samples, came.since) == (3, at(-600))  # not what is older, nor of the future
    assert came.per_second == pytest.approx(3 / 600)
    assert queries.arrivals(writer.engine, "s", at(-400), NOW).since == at(-400)  # it runs for less long
    assert queries.arrivals(writer.engine, "s", begun, at(-1600)).per_second is None


def test_a_resumed_run_begins_with_its_model(writer, make_sample):
    from sqlalchemy import update

    from db.schema import Event

    writer.event("s", "model_loaded", "m")
    with writer.engine.begin() as connection:
        connection.execute(update(Event).values(at=NOW - timedelta(seconds=60)))
    writer.record([make_sample(finished_at=NOW - timedelta(seconds=30))])
    begun = NOW - timedelta(days=1)
    assert queries.arrivals(writer.engine, "s", begun, NOW).since == NOW - timedelta(seconds=60)
    writer.record([make_sample(problem="2", finished_at=NOW - timedelta(seconds=500))])
    assert queries.arrivals(writer.engine, "s", begun, NOW).since == NOW - timedelta(seconds=600)
