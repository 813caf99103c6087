"""Workers as large as their model: a 32B model beside a 7B one in one sweep."""

from typing import Any

import pytest

from cluster.allot import Demand, allot
from cluster.preflight import Node, fitting
from jobs.grid import Cell, expand
from jobs.sizing import largest, worker_gpus
from jobs.spec import Sweep, parse_sweep
from tiercache.errors import ResourceError
from tiercache.gpus import ACCELERATOR_GIB

GIB = 2**30
DISTILL = "deepseek-ai/DeepSeek-R1-Distill-"
REVISION = "0" * 40


def sweep_of(**changes: Any) -> tuple[Sweep, dict[str, list[Cell]]]:
    models = [{"id": DISTILL + name, "revision": REVISION} for name in ("Qwen-7B", "Qwen-32B", "Llama-70B")]
    sweep = parse_sweep(
        {
            "name": "t",
            "models": models,
            "benchmarks": [{"name": "chain", "n": 2}],
            "policies": ["full"],
            "sampling": {"max_new_tokens": 1000},
            **changes,
        }
    )
    by_model: dict[str, list[Cell]] = {}
    for cell in expand(sweep):
        by_model.setdefault(cell.model.name.rsplit("-", 1)[-1], []).append(cell)
    return sweep, by_model


def test_workers_are_sized_by_their_model() -> None:
    sweep, cells = sweep_of()
    large, small = [Node(64, 8, 80 * GIB)], [Node(64, 8, 24 * GIB)]
    assert [worker_gpus(sweep, each, large) for each in cells.values()] == [1, 1, 2]
    assert [worker_gpus(sweep, each, small) for each in cells.values()] == [1, 3, 7]
    assert worker_gpus(sweep, cells["32B"], [*large, *small]) == 3, "it must fit whichever it gets"
    assert worker_gpus(sweep, cells["70B"], [Node(64, 8)]) == 2, "80 GiB where the kind of GPU isn't known"
    every = [cell for each in cells.values() for cell in each]
    assert largest(sweep, every, small) == 7


def test_a_budget_counts() -> None:
    sweep, cells = sweep_of(engine={"hbm_kv_budget": "16GiB"})
    assert [worker_gpus(sweep, each, [Node(64, 8, 80 * GIB)]) for each in cells.values()] == [1, 2, 3]
    sweep, cells = sweep_of(engine={"hbm_kv_budget": "30GiB"})
    with pytest.raises(ResourceError, match="too small for a part of this model"):
        worker_gpus(sweep, cells["7B"], [Node(8, 1, 24 * GIB)])


def test_what_the_sweep_says_comes_first() -> None:
    sweep, cells = sweep_of(cluster={"gpus_per_actor": 4})
    assert {worker_gpus(sweep, each, [Node(64, 8, 80 * GIB)]) for each in cells.values()} == {4}
    sweep, cells = sweep_of(engine={"device": "cpu"})
    assert worker_gpus(sweep, cells["32B"], [Node(64, 8, 80 * GIB)]) == 0
    sweep, cells = sweep_of()
    assert worker_gpus(sweep, cells["32B"], [Node(64, 0)]) == 0, "a cluster without GPUs"


def test_both_find_room_beside_each_other() -> None:
    """Three GPUs of 24 GiB for the 32B model, one for the 7B one, on nodes of four; none across nodes."""
    nodes = [Node(16, 4, 24 * GIB), Node(16, 4, 24 * GIB)]
    assert allot(nodes, [Demand(1, 1, 8, 1.0), Demand(1, 3, 8, 4.0)]) == [2, 2]
    with pytest.raises(ResourceError, match=r"7 GPUs on one node; the largest of 2 nodes has 16 CPUs and 4 GPUs"):
        fitting(nodes, 1, 7)


def test_kinds_of_gpus_are_those_that_ray_names() -> None:
    accelerators = pytest.importorskip("ray.util.accelerators.accelerators")
    names = {value for name, value in vars(accelerators).items() if name.startswith("NVIDIA_")}
    assert set(ACCELERATOR_GIB) <= names
