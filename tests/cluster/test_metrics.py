"""Metrics: what is declared is what Ray gets, means come out right, and nothing happens or breaks without Ray."""

import os
import re
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.metrics import KINDS, METRICS, Metrics
from db.rows import SampleRow, ShardRow

CELL = ("reasoner", "chain", "hierarchy")
INTERVAL = "RAY_metrics_report_interval_ms"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SAMPLE = SampleRow(
    fingerprint="f",
    problem_id="secret-problem",
    repeat=3,
    seed=1,
    outcome="correct",
    finish_reason="eos",
    prompt="p",
    output="o",
    reference="r",
    prompt_tokens=100,
    output_tokens=40,
    ttft_s=0.2,
    wall_s=3.0,
    hbm_bytes_mean=300.0,
    ddr_bytes_mean=700.0,
    packed_bytes_mean=0.0,
    evicted_bytes_end=11,
)
NOTHING: dict[str, Any] = dict.fromkeys(
    ("prompt_tokens", "output_tokens", "ttft_s", "wall_s", "hbm_bytes_mean", "ddr_bytes_mean", "packed_bytes_mean")
)
FAILED = replace(SAMPLE, outcome="failed", finish_reason="error", evicted_bytes_end=None, **NOTHING)
SHARD = ShardRow(
    id="secret-shard",
    fingerprint="f",
    sweep_id="s",
    actor="a",
    host="h",
    device="cpu",
    started_at=NOW,
    finished_at=NOW,
    samples=2,
    prefill_tokens=200,
    prefill_s=0.1,
    decode_tokens=80,
    decode_s=0.5,
    decode_steps=40,
    bytes_to_host=4096,
)


class Made:
    """One metric as Ray has it: refuses what Ray refuses."""

    def __init__(self, name: str, description: str = "", tag_keys: Any = None, boundaries: Any = None) -> None:
        assert isinstance(tag_keys, tuple)
        assert description
        self.tag_keys = tag_keys
        self.values: dict[tuple[str, ...], float] = {}
        self.sets = 0
        STORE[name] = self

    def key(self, tags: dict[str, str]) -> tuple[str, ...]:
        assert tags.keys() == set(self.tag_keys)
        assert all(isinstance(value, str) for value in tags.values())
        return tuple(tags[name] for name in self.tag_keys)

    def inc(self, value: float, tags: dict[str, str]) -> None:
        if value <= 0:
            raise ValueError(f"value must be >0, got {value}")
        self.values[self.key(tags)] = self.values.get(self.key(tags), 0) + value

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.sets += 1
        self.values[self.key(tags)] = value

    observe = set


STORE: dict[str, Made] = {}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Made]]:
    from ray.util import metrics as of_ray

    for kind in ("Counter", "Gauge", "Histogram"):
        monkeypatch.setattr(of_ray, kind, Made)
    monkeypatch.setattr("cluster.metrics._ray_runs", lambda: True)
    STORE.clear()
    yield STORE
    STORE.clear()


def test_a_sample_is_counted_with_its_tokens_and_bytes(store: dict[str, Made]) -> None:
    metrics = Metrics()
    for row in (SAMPLE, replace(SAMPLE, hbm_bytes_mean=500.0), FAILED):
        metrics.sample(row, *CELL)
    assert store["tiercache_samples"].values == {(*CELL, "correct"): 2, (*CELL, "failed"): 1}
    assert store["tiercache_prompt_tokens"].values == {CELL: 200}
    assert store["tiercache_generated_tokens"].values == {CELL: 80}
    held = {tags[-1]: value for tags, value in store["tiercache_sequence_bytes"].values.items()}
    assert held == {"hbm": 800, "ddr": 1400, "evicted": 22}, "over the 2 that did not fail: a mean of 400 in hbm"


def test_a_shard_gives_throughput_and_traffic(store: dict[str, Made]) -> None:
    metrics = Metrics()
    metrics.shard(SHARD, "reasoner", "h2o")
    metrics.shard(replace(SHARD, decode_tokens=40, bytes_to_device=5), "reasoner", "h2o")
    cell = ("reasoner", "h2o")
    assert store["tiercache_decode_tokens_per_second"].values == {cell: 80}, "the last one's"
    assert store["tiercache_decode_tokens"].values[cell] / store["tiercache_decode_seconds"].values[cell] == 120
    assert store["tiercache_moved_bytes"].values == {(*cell, "to_host"): 8192, (*cell, "to_device"): 5}


def test_a_shard_that_decoded_nothing_has_no_throughput(store: dict[str, Made]) -> None:
    Metrics().shard(replace(SHARD, decode_tokens=0, decode_s=0.0, bytes_to_host=0), "m", "p")
    assert not store or not any(made.values for made in store.values())


@pytest.mark.parametrize("kind", [*KINDS, "something new"])
def test_losses_by_kind_have_bounded_tags(store: dict[str, Made], kind: str) -> None:
    Metrics().lost(kind, again=5)
    known = kind if kind in KINDS else "other"
    assert store["tiercache_losses"].values == {(known,): 1}
    assert store["tiercache_retried_samples"].values == {(known,): 5}


def test_states_are_gauges_that_a_beat_sets_again(store: dict[str, Made]) -> None:
    metrics = Metrics()
    metrics.cells(waiting=5, running=2, done=1)
    metrics.actors(starting=1, busy=2, idle=0, lost=3)
    metrics.left(70)
    metrics.left(69)
    assert store["tiercache_cells"].values == {("waiting",): 5, ("running",): 2, ("done",): 1}
    assert store["tiercache_actors"].values == {("starting",): 1, ("busy",): 2, ("idle",): 0, ("lost",): 3}
    before = {name: made.sets for name, made in store.items()}
    metrics.beat()
    assert {name: made.sets - before[name] for name, made in store.items()} == {
        "tiercache_cells": 3,
        "tiercache_actors": 4,
        "tiercache_samples_left": 1,
    }
    assert store["tiercache_samples_left"].values == {(): 69}


def everything(metrics: Metrics) -> None:
    metrics.sample(SAMPLE, *CELL)
    metrics.shard(replace(SHARD, bytes_to_device=1), "reasoner", "hierarchy")
    metrics.lost("actor_died", again=2)
    metrics.actors(0, 1, 0, 1)
    metrics.cells(1, 1, 0)
    metrics.left(4)
    metrics.beat()


def test_every_declared_metric_is_used_and_none_names_a_sample(store: dict[str, Made]) -> None:
    everything(Metrics())
    assert store.keys() == METRICS.keys()
    assert "secret" not in repr([made.values for made in store.values()])
    for name, metric in METRICS.items():
        assert name.startswith("tiercache_")
        assert not name.endswith("_total"), "Ray adds it"
        assert set(metric.tags) <= {"model", "benchmark", "policy", "outcome", "tier", "state", "kind", "direction"}


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_what_is_no_number_is_left_out(store: dict[str, Made], value: float | None) -> None:
    Metrics().sample(replace(SAMPLE, ttft_s=value, hbm_bytes_mean=value), *CELL)
    assert "tiercache_ttft_seconds" not in store
    assert (*CELL, "hbm") not in store["tiercache_sequence_bytes"].values


def test_without_ray_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    metrics = Metrics()
    everything(metrics)
    assert not metrics._made


def test_a_fault_in_ray_switches_metrics_off_and_says_so_once(
    store: dict[str, Made], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Made, value: float, tags: dict[str, str]) -> None:
        raise RuntimeError("no agent")

    monkeypatch.setattr(Made, "inc", broken)
    metrics = Metrics()
    everything(metrics)
    everything(metrics)
    assert [record.getMessage() for record in caplog.records] == [
        "metrics are switched off for the rest of this run: no agent"
    ]


@pytest.fixture(scope="module")
def reporting_ray() -> Iterator[Any]:
    """A Ray whose agents report every second."""
    import ray

    before = os.environ.get(INTERVAL)
    os.environ[INTERVAL] = "1000"
    try:
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
        yield ray
    finally:
        ray.shutdown()
        os.environ.pop(INTERVAL)
        if before is not None:
            os.environ[INTERVAL] = before


def test_ray_exports_them(reporting_ray: Any) -> None:
    metrics = Metrics()
    everything(metrics)
    node = reporting_ray.nodes()[0]
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    wanted = set().union(*(metric.exported(name) for name, metric in METRICS.items()))
    text, seen, deadline = "", set[str](), time.monotonic() + 60
    while not wanted <= seen and time.monotonic() < deadline:
        time.sleep(0.5)
        metrics.beat()
        text = urllib.request.urlopen(url, timeout=10).read().decode()
        seen = set(re.findall(r"^(ray_tiercache_\w+)", text, re.M))
    assert seen == wanted
    samples = re.findall(r"^ray_tiercache_samples_total\{(.*)\} (\S+)$", text, re.M)
    assert len(samples) == 1
    tags, value = samples[0]
    assert float(value) == 1
    for tag in ('model="reasoner"', 'benchmark="chain"', 'policy="hierarchy"', 'outcome="correct"'):
        assert tag in tags
    assert re.search(r'^ray_tiercache_actors\{.*state="lost".*\} 1\.0$', text, re.M)
