"""Whether the cluster can run what is asked, before anything starts. An impossible request would wait for ever."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tiercache.errors import ResourceError

COUNTDOWN_S = 10.0


@dataclass(frozen=True)
class Node:
    """What one node has in all."""

    cpus: float
    gpus: float


def nodes() -> list[Node]:
    """The living nodes of the joined Ray cluster."""
    import ray

    found = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    return [Node(resources.get("CPU", 0.0), resources.get("GPU", 0.0)) for resources in found]


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

    Args:
        gpus: of a worker, which may depend on what the cluster has by then.

    Raises:
        ResourceError: no worker fits, and none did in time.
    """
    until = time.monotonic() + wait_s
    said = float("-inf")
    while True:
        try:
            return fitting(nodes(), cpus, gpus())
        except ResourceError:
            left = until - time.monotonic()
            if left <= 0:
                raise
            if time.monotonic() - said > COUNTDOWN_S:
                said = time.monotonic()
                print(f"waiting for resources: {left:.0f} s left", file=sys.stderr, flush=True)
                ask_autoscaler(cpus, gpus(), 1)
            time.sleep(min(1.0, left))


def ask_autoscaler(cpus: float, gpus: float, workers: int) -> None:
    """Asks for room for so many workers; 0 takes it back. Where there is no autoscaler, this changes nothing."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[{"CPU": cpus, **({"GPU": gpus} if gpus else {})}] * workers)


def default_gpus(available: list[Node], device: str) -> float:
    """One GPU for each worker where the cluster has any and the sweep doesn't ask for the CPU; else none."""
    return 1.0 if device != "cpu" and any(node.gpus >= 1 for node in available) else 0.0
