"""The pool on a real Ray: streams results, replaces dead actors, loses nothing. The worker is the fake one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.fake import FakeWorker, Script
from cluster.logs import log_context
from cluster.pool import WorkerOptions
from cluster.preflight import Node, default_gpus, fitting
from cluster.ray_pool import RayPool
from cluster.work import Arrived, Done, Ended, Event, Lost, Shard, Task
from tiercache.errors import ModelError, ResourceError
from tiercache.model_spec import ModelSpec
from tiercache.policy import parse_policy
from tiercache.rendering import Rendering
from tiercache.requests import Sampling

OPTIONS = WorkerOptions(model=ModelSpec(id="reasoner"), device="cpu", threads=1)


class FakePool(RayPool):
    """RayPool with actors that run the fake worker."""

    def __init__(self, script: Script, size: int, stall_s: float = 60.0) -> None:
        self.script = script
        super().__init__(OPTIONS, size, stall_s)

    def _actor(self) -> Any:
        import ray

        return ray.remote(FakeWorker).options(num_cpus=0.5, max_restarts=0).remote(self.script)


def shard(name: str, *keys: str) -> Shard:
    tasks = tuple(Task(key, f"prompt of {key}", seed) for seed, key in enumerate(keys))
    return Shard(name, parse_policy("full"), Sampling(), Rendering(), tasks)


def drain(pool: RayPool, shards: list[Shard]) -> list[Event]:
    """Runs until every shard has ended or was lost; lost ones aren't repeated."""
    waiting, open_ids, events = list(shards), {each.id for each in shards}, []
    for _ in range(2000):
        while waiting and pool.wants_work(len(waiting)):
            pool.submit(waiting.pop(0))
        for event in pool.poll(0.2):
            events.append(event)
            if isinstance(event, Ended | Lost):
                open_ids.discard(event.shard.id)
        if not open_ids:
            return events
    raise AssertionError(f"never ended: {open_ids}")


def keys(events: list[Event]) -> list[str]:
    return sorted(e.item.key for e in events if isinstance(e, Arrived) and isinstance(e.item, Done))


def test_results_stream_back_before_their_shard_ends(ray: Any) -> None:
    pool = FakePool(Script(sample_s=0.05), 2)
    try:
        events = drain(pool, [shard(f"s{i}", *(f"{i}-{j}" for j in range(4))) for i in range(6)])
    finally:
        pool.close()
    assert keys(events) == sorted(f"{i}-{j}" for i in range(6) for j in range(4))
    ended = [index for index, event in enumerate(events) if isinstance(event, Ended)]
    assert len(ended) == 6
    assert sum(isinstance(event, Arrived) for event in events[: ended[0]]) >= 4


def test_a_killed_actor_is_replaced_and_only_its_shard_is_to_blame(ray: Any, tmp_path: Path) -> None:
    pool = FakePool(Script(memory=tmp_path, dies={"b2": 1}, sample_s=0.02), 1)
    try:
        events = drain(pool, [shard("a", "a1", "a2"), shard("b", "b1", "b2", "b3"), shard("c", "c1")])
        lost = [event for event in events if isinstance(event, Lost)]
        assert [(event.shard.id, event.blamed, event.died) for event in lost] == [("b", True, True)]
        assert keys(events) == ["a1", "a2", "b1", "c1"], "the last shard was not queued behind it"
        assert keys(drain(pool, [shard("b2", "b2", "b3")])) == ["b2", "b3"]
        assert (tmp_path / "b2").read_text() == "xx", "the death really happened, and the sample was begun twice"
    finally:
        pool.close()


def test_a_shard_queued_behind_a_death_is_lost_without_blame(ray: Any, tmp_path: Path) -> None:
    pool = FakePool(Script(memory=tmp_path, dies={"a2": 1}, sample_s=0.05), 1)
    try:
        events = drain(pool, [shard(name, f"{name}1", f"{name}2") for name in "abcd"])
    finally:
        pool.close()
    lost = [event for event in events if isinstance(event, Lost)]
    assert [(event.shard.id, event.blamed, event.died) for event in lost] == [("a", True, True), ("b", False, True)]


def test_a_worker_that_hangs_is_replaced(ray: Any) -> None:
    pool = FakePool(Script(hangs=frozenset({"a2"})), 1, stall_s=1.0)
    try:
        events = drain(pool, [shard("a", "a1", "a2", "a3")])
        lost = [event for event in events if isinstance(event, Lost)]
        assert [(event.blamed, event.died) for event in lost] == [(True, True)]
        assert "taken for hung" in lost[0].reason
        assert keys(drain(pool, [shard("b", "b1")])) == ["b1"], "its successor works"
    finally:
        pool.close()


def test_a_pool_grows_and_ends_idle_workers(ray: Any) -> None:
    pool = FakePool(Script(sample_s=0.05), 1)
    try:
        assert pool.facts() is None
        drain(pool, [shard("a", "a1")])
        facts = pool.facts()
        assert facts is not None
        assert facts.token_bytes == 1024
        pool.resize(3)
        assert pool.size == 3
        drain(pool, [shard(f"s{i}", f"{i}") for i in range(6)])
        pool.resize(1)
        assert (pool.size, pool.idle) == (1, 1)
        assert pool.hosts == ["fake"]
    finally:
        pool.close()


def test_an_exception_loses_its_shard_and_keeps_the_actor(ray: Any) -> None:
    pool = FakePool(Script(raises=frozenset({"a2"})), 1)
    try:
        events = drain(pool, [shard("a", "a1", "a2", "a3"), shard("b", "b1")])
    finally:
        pool.close()
    lost = [event for event in events if isinstance(event, Lost)]
    assert [(event.shard.id, event.blamed, event.died) for event in lost] == [("a", True, False)]
    assert "raised at a2" in lost[0].reason
    assert keys(events) == ["a1", "b1"]


def test_closing_frees_what_the_actors_held(ray: Any) -> None:
    import time

    pool = FakePool(Script(), 4)
    pool.close()
    for _ in range(100):
        if ray.available_resources().get("CPU") == 4.0:
            return
        time.sleep(0.1)
    raise AssertionError(f"CPUs still held: {ray.available_resources()}")


def test_a_model_that_is_missing_is_the_users_error_not_rays(ray: Any) -> None:
    pool = RayPool(WorkerOptions(model=ModelSpec(id="/no/such/model"), device="cpu"), 1)
    try:
        with pytest.raises(ModelError, match="no folder '/no/such/model'"):
            drain(pool, [shard("a", "a1")])
    finally:
        pool.close()


def test_preflight_compares_with_the_largest_node_not_with_the_sum() -> None:
    nodes = [Node(cpus=8, gpus=1), Node(cpus=8, gpus=1), Node(cpus=4, gpus=0)]
    assert fitting(nodes, cpus=2, gpus=0) == 10
    assert fitting(nodes, cpus=2, gpus=1) == 2
    with pytest.raises(ResourceError, match="2 GPUs on one node; the largest of 3 nodes has 8 CPUs and 1 GPUs"):
        fitting(nodes, cpus=1, gpus=2)
    with pytest.raises(ResourceError, match="16 CPUs"):
        fitting(nodes, cpus=16, gpus=0)
    with pytest.raises(ResourceError):
        fitting([], cpus=1, gpus=0)


def test_gpus_are_taken_where_there_are_any_unless_the_sweep_says_cpu() -> None:
    assert default_gpus([Node(8, 1)], "auto") == 1
    assert default_gpus([Node(8, 1)], "cpu") == 0
    assert default_gpus([Node(8, 0)], "auto") == 0


def test_an_actors_log_names_sweep_cell_and_shard(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERCACHE_LOG", "json")
    monkeypatch.setenv("TIERCACHE_LOG_LEVEL", "info")
    with log_context(sweep="demo-1"):
        pool = RayPool(OPTIONS, 1)
    try:
        drain(pool, [replace(shard("s", "a"), sampling=Sampling(max_new_tokens=1), cell="c")])
    finally:
        pool.close()
    files = Path(ray.get_runtime_context().worker.node.get_session_dir_path(), "logs").glob("worker-*.err")
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines() if line.startswith("{")]
    found = [line for line in lines if line["logger"] == "cluster.worker"]
    assert [(each["sweep"], each["cell"], each["shard"]) for each in found] == [("demo-1", "c", "s")]
    assert found[0]["actor"].count(":") == 1
