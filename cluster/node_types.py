"""What an autoscaler could still start: the node types of its configuration, with numbers, where somebody says them.

Ray has no public call for this. In order: the file that `TIERCACHE_CLUSTER_YAML` names; what the autoscaler has told
Ray's control service, which few do; the file that `ray up` leaves in the home directory of the head, where drivers run.
KubeRay tells nothing: there the autoscaler itself is asked, by a request, whether it takes it for impossible.
"""

import logging
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tiercache.errors import ResourceError

log = logging.getLogger(__name__)

VARIABLE = "TIERCACHE_CLUSTER_YAML"
BOOTSTRAP = Path("~/ray_bootstrap_config.yaml")
STATUS_TIMEOUT_S = 5


@dataclass(frozen=True)
class NodeType:
    """A kind of node that may be started. None: the size is left to the cloud's provider, or there is no limit."""

    name: str
    cpus: float | None
    gpus: float | None
    most: int | None

    def holds(self, cpus: float, gpus: float) -> bool:
        """Whether a worker of this size may fit an empty one."""
        return (self.cpus is None or self.cpus >= cpus) and (self.gpus is None or self.gpus >= gpus)

    def __str__(self) -> str:
        if self.cpus is None or self.gpus is None:
            size = "its size is the provider's"
        else:
            size = f"{self.cpus:g} CPUs and {self.gpus:g} GPUs"
        return f"{self.name} ({size}{'' if self.most is None else f', at most {self.most}'})"


def node_types() -> list[NodeType] | None:
    """The types of which the joined cluster's autoscaler may start nodes; None where nobody says.

    Raises:
        ResourceError: the file that the variable names can't be read.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return from_yaml(Path(named).expanduser(), f"{VARIABLE}: ")
    told = _told()
    if told is not None:
        return told
    path = BOOTSTRAP.expanduser()
    if not path.is_file():
        return None
    try:
        return from_yaml(path)
    except ResourceError as problem:
        log.warning("%s", problem)  # nobody has named it
        return None


def from_yaml(path: Path, where: str = "") -> list[NodeType]:
    """The node types of a cluster file for `ray up`.

    Raises:
        ResourceError: it can't be read, or isn't such a file.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as problem:
        raise ResourceError(f"{where}{path} can't be read: {str(problem).splitlines()[0]}.") from None
    types = data.get("available_node_types") if isinstance(data, Mapping) else None
    if not isinstance(types, Mapping) or not all(isinstance(each, Mapping) for each in types.values()):
        raise ResourceError(f"{where}{path} has no available_node_types: it isn't a cluster file for `ray up`.")
    limit = data.get("max_workers")
    found = (_type(str(name), each, limit) for name, each in types.items() if name != data.get("head_node_type"))
    return [each for each in found if each.most != 0]


def _type(name: str, data: Mapping[str, Any], limit: object) -> NodeType:
    resources, most = data.get("resources"), data.get("max_workers", limit)
    if not isinstance(resources, Mapping) or not resources:
        return NodeType(name, None, None, _whole(most))
    return NodeType(name, _number(resources.get("CPU", 0)), _number(resources.get("GPU", 0)), _whole(most))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _told() -> list[NodeType] | None:
    """What Ray's control service knows of the autoscaler's configuration."""
    if not _joined():
        return None
    try:
        from ray._private.state import state

        config = state.get_cluster_config()
    except Exception as problem:  # no public call, so it may be gone in another version
        log.debug("the cluster's configuration can't be asked for: %s", problem)
        return None
    return None if config is None else from_groups(config.node_group_configs)


def _joined() -> bool:
    """Whether a cluster has been joined: without one Ray's calls would start their own."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def from_groups(groups: Iterable[Any]) -> list[NodeType] | None:
    """The types in Ray's own form (autoscaler.proto, NodeGroupConfig); -1 there means no limit. None without any."""
    found = []
    for group in groups:
        cpus, gpus = (float(group.resources.get(name, 0)) for name in ("CPU", "GPU"))
        found.append(NodeType(group.name, cpus, gpus, None if group.max_count < 0 else group.max_count))
    return [each for each in found if each.most != 0] or None


def impossible(cpus: float, gpus: float) -> bool:
    """Whether the autoscaler has said that no node it could start holds such a worker, since it was asked for one."""
    if not _joined():
        return False
    try:
        import ray
        from ray._raylet import GcsClient  # type: ignore[attr-defined]
        from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply  # type: ignore[attr-defined]

        client = GcsClient(ray.get_runtime_context().gcs_address)
        reply = GetClusterStatusReply.FromString(client.get_cluster_status(timeout_s=STATUS_TIMEOUT_S))
    except Exception as problem:  # as above; the older autoscaler doesn't answer at all
        log.debug("the autoscaler can't be asked: %s", problem)
        return False
    return says_impossible(reply.autoscaling_state, cpus, gpus)


def says_impossible(state: Any, cpus: float, gpus: float) -> bool:
    """The same of an answer (autoscaler.proto, AutoscalingState)."""
    bundles = [
        dict(each.request.resources_bundle)
        for constraint in state.infeasible_cluster_resource_constraints
        for each in constraint.resource_requests
    ]
    return any(bundle.get("CPU", 0) == cpus and bundle.get("GPU", 0) == gpus for bundle in bundles)
