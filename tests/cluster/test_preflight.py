"""What can't run is refused at once, with numbers; what may come is waited for."""

import time
from typing import Any

import pytest

from cluster import preflight
from cluster.preflight import Node, await_fitting, this_machine
from jobs.coordinator import run_sweep
from jobs.grid import expand
from jobs.spec import parse_sweep
from tiercache.errors import ResourceError


def test_more_gpus_than_this_machine_has(tmp_path: Any) -> None:
    """Without starting Ray, which alone takes seconds."""
    sweep = parse_sweep(
        {
            "name": "t",
            "models": ["reasoner"],
            "benchmarks": [{"name": "chain", "n": 1}],
            "policies": ["full"],
            "cluster": {"gpus_per_actor": 64},
        }
    )
    if not this_machine():
        pytest.skip("this machine's accelerators can't be counted without Ray")
    started = time.monotonic()
    with pytest.raises(ResourceError, match=r"64 GPUs on one node; the largest of 1 nodes has .* GPUs"):
        run_sweep(sweep, expand(sweep), f"sqlite:///{tmp_path}/x.db", progress=False, address="local")
    assert time.monotonic() - started < 5
    assert not (tmp_path / "x.db").exists()


def test_waiting_for_nodes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found: list[list[Node]] = [[], [], [Node(4, 1)]]
    asked: list[tuple[float, float, int]] = []
    monkeypatch.setattr(preflight, "nodes", lambda: found.pop(0) if len(found) > 1 else found[0])
    monkeypatch.setattr(preflight, "ask_autoscaler", lambda *wanted: asked.append(wanted))
    assert await_fitting(1, lambda: 1, wait_s=10) == 1
    assert asked == [(1, 1, 1)]
    assert "waiting for resources: 10 s left" in capsys.readouterr().err


def test_waiting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "nodes", lambda: [Node(4, 0)])
    monkeypatch.setattr(preflight, "ask_autoscaler", lambda *_: None)
    started = time.monotonic()
    with pytest.raises(ResourceError, match="1 GPUs on one node; the largest of 1 nodes has 4 CPUs"):
        await_fitting(1, lambda: 1, wait_s=1.5)
    assert 1 < time.monotonic() - started < 10
