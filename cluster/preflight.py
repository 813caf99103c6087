"""Whether the cluster can run what is asked, before anything starts. An impossible request would wait for ever.

What doesn't fit a node that is there may fit one that the autoscaler could start: `cluster.node_types` knows these.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.node_types import NodeType, impossible, node_types
from tiercache.errors import ResourceError
from tiercache.gpus import ACCELERATOR_GIB

COUNTDOWN_S = 10.0


@dataclass(frozen=True)
class Node:
    """What one node has in all. gpu_bytes: memory of one GPU, where its kind is known."""

    cpus: float
    gpus: float
    gpu_bytes: int | None = None


def nodes() -> list[Node]:
    """The living nodes of the joined Ray cluster."""
    import ray

    found = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    return [Node(each.get("CPU", 0.0), each.get("GPU", 0.0), _gpu_bytes(each)) for each in found]


def _gpu_bytes(resources: Mapping[str, float]) -> int | None:
    """By the accelerator's kind, which Ray puts among the resources."""
    kinds = (name.removeprefix("accelerator_type:") for name in resources if name.startswith("accelerator_type:"))
    return min((ACCELERATOR_GIB[kind] * 2**30 for kind in kinds if kind in ACCELERATOR_GIB), default=None)


def this_machine() -> list[Node]:
    """What a Ray started here would have, without starting it; empty where that can't be told."""
    if sys.platform != "linux" or Path("/dev/kfd").exists() or "CUDA_VISIBLE_DEVICES" in os.environ:
        return []  # other accelerators, or a choice that is Ray's to read
    gpus = Path("/proc/driver/nvidia/gpus")
    return [Node(float(os.cpu_count() or 1), float(len(list(gpus.iterdir()))) if gpus.is_dir() else 0.0)]


def fitting(available: list[Node], cpus: float, gpus: float) -> int:
    """How many workers of this size fit, each on one node.

    Raises:
        ResourceError: not even one does.
    """
    total = 0
    for node in available:
        by_cpu = int(node.cpus // cpus)
        total += min(by_cpu, int(node.gpus // gpus)) if gpus else by_cpu
    if total == 0:
        largest = max(available, key=lambda node: (node.gpus, node.cpus), default=Node(0, 0))
        raise ResourceError(
            f"cluster: a worker needs {cpus:g} CPUs and {gpus:g} GPUs on one node; the largest of {len(available)} "
            f"nodes has {largest.cpus:g} CPUs and {largest.gpus:g} GPUs. Lower cluster.cpus_per_actor or "
            "cluster.gpus_per_actor, or add a larger node."
        )
    return total


def await_fitting(cpus: float, gpus: Callable[[], float], wait_s: float) -> int:
    """`fitting` on the cluster as it is, asked again until `wait_s` is over; an autoscaler is asked for a worker.

    Where it is known what the autoscaler could start, what none of its node types holds isn't waited for.

    Args:
        gpus: of a worker, which may depend on what the cluster has by then.

    Raises:
        ResourceError: no worker fits, and none did in time or ever will.
    """
    until = time.monotonic() + wait_s
    said = float("-inf")
    types: list[NodeType] | None = None
    while True:
        try:
            return fitting(nodes(), cpus, gpus())
        except ResourceError as refusal:
            if said == float("-inf"):
                types = node_types()
            left = until - time.monotonic()
            startable = _startable(types, cpus, gpus(), str(refusal))
            if left <= 0:
                raise ResourceError(f"{refusal}{_hint(startable, wait_s)}") from None
            if said > float("-inf") and impossible(cpus, gpus()):
                raise ResourceError(f"{refusal} The autoscaler says that no node it could start has as much.") from None
            if time.monotonic() - said > COUNTDOWN_S:
                said = time.monotonic()
                of = f" of type {' or '.join(map(str, startable))}" if startable else ""
                print(f"waiting for resources: {left:.0f} s left for a node{of}", file=sys.stderr, flush=True)
                ask_autoscaler(cpus, gpus(), 1)
            time.sleep(min(1.0, left))


def _startable(types: list[NodeType] | None, cpus: float, gpus: float, refusal: str) -> list[NodeType]:
    """The node types that hold a worker; none where the types aren't known.

    Raises:
        ResourceError: they are known, and none does.
    """
    if not types:
        return []
    found = [each for each in types if each.holds(cpus, gpus)]
    if not found:
        raise ResourceError(f"{refusal} The autoscaler can't add one: its node types are {', '.join(map(str, types))}.")
    return found


def _hint(startable: list[NodeType], waited_s: float) -> str:
    if not startable:
        return ""
    names = " or ".join(map(str, startable))
    if waited_s:
        return f" The autoscaler could have started {names} and hasn't in {waited_s:g} s."
    return f" The autoscaler could start {names}: --wait-for-resources 600 asks for one and waits."


def ask_autoscaler(cpus: float, gpus: float, workers: int) -> None:
    """Asks for room for so many workers; 0 takes it back. Where there is no autoscaler, this changes nothing."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[{"CPU": cpus, **({"GPU": gpus} if gpus else {})}] * workers)


def default_gpus(available: list[Node], device: str) -> float:
    """One GPU for each worker where the cluster has any and the sweep doesn't ask for the CPU; else none."""
    return 1.0 if device != "cpu" and any(node.gpus >= 1 for node in available) else 0.0
