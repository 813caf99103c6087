"""How many workers each model gets of what the cluster has. Pure arithmetic: no Ray, so a simulation uses the same."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cluster.preflight import Node


@dataclass(frozen=True)
class Demand:
    """What one model still needs.

    cpus, gpus  of each worker, on one node.
    shards      not finished yet: more workers than that would idle.
    work        of these, in any unit that is the same for all models.
    """

    cpus: float
    gpus: float
    shards: int
    work: float


@dataclass
class _Room:
    """What is free of each node."""

    nodes: list[Node]
    alone: bool
    taken: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.taken = [False] * len(self.nodes)

    def take(self, cpus: float, gpus: float) -> bool:
        """Takes the place that leaves least over; a large worker then still finds a whole node."""
        best, least = None, (float("inf"), float("inf"))
        for index, node in enumerate(self.nodes):
            if node.cpus < cpus or node.gpus < gpus or (self.alone and self.taken[index]):
                continue
            left = (node.gpus - gpus, node.cpus - cpus)
            if left < least:
                best, least = index, left
        if best is None:
            return False
        node = self.nodes[best]
        self.nodes[best] = replace(node, cpus=node.cpus - cpus, gpus=node.gpus - gpus)
        self.taken[best] = True
        return True


def allot(nodes: Sequence[Node], demands: Sequence[Demand], most: int | None = None, alone: bool = False) -> list[int]:
    """Workers for each demand, so that what takes longest ends soonest.

    One after the other they go to the model with the most work for each worker that it would have. A model that finds
    no room waits until another's queue has drained.

    Args:
        most: workers of all models together.
        alone: one worker a node, where speed is measured.
    """
    room = _Room(list(nodes), alone)
    sizes = [0] * len(demands)
    open_demands = {index for index, demand in enumerate(demands) if demand.shards > 0}
    while open_demands and (most is None or sum(sizes) < most):
        index = max(open_demands, key=lambda i: (demands[i].work / (sizes[i] + 1), demands[i].gpus, -i))
        demand = demands[index]
        if room.take(demand.cpus, demand.gpus):
            sizes[index] += 1
        else:
            open_demands.discard(index)
        if sizes[index] >= demand.shards:
            open_demands.discard(index)
    return sizes
