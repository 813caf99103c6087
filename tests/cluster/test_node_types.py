"""What an autoscaler could start decides between waiting and refusing, with numbers."""

from pathlib import Path
from typing import Any

import pytest

from cluster import node_types, preflight
from cluster.node_types import NodeType, from_groups, from_yaml, says_impossible
from cluster.preflight import Node, await_fitting
from tiercache.errors import ResourceError

ROOT = Path(__file__).parents[2]
CLUSTER = """
max_workers: 6
head_node_type: head
available_node_types:
  head: {resources: {CPU: 4}, node_config: {}}
  small: {resources: {CPU: 16, GPU: 1}, max_workers: 3}
  large: {resources: {CPU: 96, GPU: 8}}
  closed: {resources: {CPU: 500, GPU: 16}, max_workers: 0}
"""


@pytest.fixture
def cluster_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    monkeypatch.setenv(node_types.VARIABLE, str(path))
    return path


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[float, float, int]]:
    """A cluster of one node without GPU, and what its autoscaler is asked for."""
    found: list[tuple[float, float, int]] = []
    monkeypatch.setattr(preflight, "nodes", lambda: [Node(4, 0)])
    monkeypatch.setattr(preflight, "ask_autoscaler", lambda *wanted: found.append(wanted))
    monkeypatch.setattr(preflight, "impossible", lambda cpus, gpus: False)
    monkeypatch.setattr(node_types, "BOOTSTRAP", tmp_path / "none.yaml")
    monkeypatch.delenv(node_types.VARIABLE, raising=False)
    return found


def test_types_of_a_cluster_file(cluster_yaml: Path) -> None:
    """Not the head's, and none that may have no node."""
    assert from_yaml(cluster_yaml) == [NodeType("small", 16, 1, 3), NodeType("large", 96, 8, 6)]
    ours = from_yaml(ROOT / "cluster" / "files" / "autoscaler-aws.yaml")
    assert [(each.name, each.most, each.holds(1, 64)) for each in ours] == [("gpu1", 8, True), ("gpu8", 2, True)], (
        "sizes that the provider fills in refuse nothing"
    )


def test_no_type_is_large_enough(cluster_yaml: Path, asked: list[Any]) -> None:
    with pytest.raises(ResourceError) as refused:
        await_fitting(1, lambda: 16, wait_s=3600)
    assert "needs 1 CPUs and 16 GPUs on one node; the largest of 1 nodes has 4 CPUs and 0 GPUs" in str(refused.value)
    assert "small (16 CPUs and 1 GPUs, at most 3), large (96 CPUs and 8 GPUs, at most 6)" in str(refused.value)
    assert not asked, "refused at once, however long somebody would wait"


def test_a_type_could_be_started(
    cluster_yaml: Path, asked: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ResourceError, match=r"could start large \(96 CPUs and 8 GPUs, at most 6\): --wait-for-resou"):
        await_fitting(1, lambda: 4, wait_s=0)
    assert not asked
    coming = [[Node(4, 0)], [Node(4, 0), Node(96, 8)]]
    monkeypatch.setattr(preflight, "nodes", lambda: coming.pop(0))
    assert await_fitting(1, lambda: 4, wait_s=60) == 2
    assert asked == [(1, 4, 1)]
    assert "60 s left for a node of type large (96 CPUs" in capsys.readouterr().err


def test_a_type_that_never_comes(cluster_yaml: Path) -> None:
    with pytest.raises(ResourceError, match=r"could have started large \(.*\) and hasn't in 1.2 s"):
        await_fitting(1, lambda: 4, wait_s=1.2)


def test_where_nobody_says_the_autoscaler_is_asked(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert node_types.node_types() is None
    monkeypatch.setattr(preflight, "impossible", lambda cpus, gpus: (cpus, gpus) == (1, 4) and bool(asked))
    with pytest.raises(ResourceError, match=r"largest of 1 nodes .* The autoscaler says that no node"):
        await_fitting(1, lambda: 4, wait_s=60)
    assert asked == [(1, 4, 1)]


def test_the_file_that_ray_up_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ray_bootstrap_config.yaml"
    path.write_text(CLUSTER)
    monkeypatch.setattr(node_types, "BOOTSTRAP", path)
    assert [each.name for each in node_types.node_types() or []] == ["small", "large"]
    path.write_text("[not: a cluster")
    assert node_types.node_types() is None, "nobody has named it, so it refuses nothing"


@pytest.mark.parametrize("content", ["", "[]", "a: [", "available_node_types: 3", "available_node_types: {a: b}", "\0"])
def test_a_file_that_is_no_cluster(cluster_yaml: Path, content: str) -> None:
    cluster_yaml.write_text(content)
    with pytest.raises(ResourceError, match=r"TIERCACHE_CLUSTER_YAML: .*cluster\.yaml (can't be read|has no)"):
        await_fitting(1, lambda: 4, wait_s=60)
    cluster_yaml.unlink()
    with pytest.raises(ResourceError, match="can't be read"):
        node_types.node_types()


def test_rays_own_form() -> None:
    pb2 = pytest.importorskip("ray.core.generated.autoscaler_pb2")
    groups = [
        pb2.NodeGroupConfig(name="a", resources={"CPU": 8, "GPU": 2}, max_count=-1),
        pb2.NodeGroupConfig(name="b", resources={"CPU": 2}, max_count=3),
        pb2.NodeGroupConfig(name="c", resources={"CPU": 8}, max_count=0),
    ]
    assert from_groups(groups) == [NodeType("a", 8, 2, None), NodeType("b", 2, 0, 3)]
    assert from_groups([]) is None


def test_what_the_autoscaler_takes_for_impossible() -> None:
    pb2 = pytest.importorskip("ray.core.generated.autoscaler_pb2")
    request = pb2.ResourceRequestByCount(request=pb2.ResourceRequest(resources_bundle={"CPU": 1, "GPU": 4}), count=1)
    state = pb2.AutoscalingState(
        infeasible_cluster_resource_constraints=[pb2.ClusterResourceConstraint(resource_requests=[request])]
    )
    assert says_impossible(state, 1, 4)
    assert not says_impossible(state, 1, 1)
    assert not says_impossible(pb2.AutoscalingState(), 1, 4)
