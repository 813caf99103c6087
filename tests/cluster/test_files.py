"""The files for clusters: they parse, agree with each other and with what is installed, and hold no secret."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import typer.main
import yaml

from cluster.metrics import METRICS
from jobs.cli import app

ROOT = Path(__file__).parents[2]
FILES = ROOT / "cluster" / "files"
PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
AWS, KUBERAY, SLURM = FILES / "autoscaler-aws.yaml", FILES / "kuberay-rayjob.yaml", FILES / "slurm.sh"
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(FILES.iterdir())} | {"cluster.md": PAGE}
PIN = re.search(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)
assert PIN is not None
RAY = PIN[1]


def loaded(path: Path) -> dict[str, Any]:
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def commands() -> list[tuple[str, str]]:
    """Every `tiercache COMMAND ...` that a file or the page tells somebody or something to run."""
    found: list[tuple[str, str]] = []
    for name, text in TEXTS.items():
        joined = re.sub(r"\\\n#?\s*", " ", text)
        pattern = r"(?:^(?:#|\s|RAY_AUTH_MODE=token)*|-- +|entrypoint: |`)(tiercache [a-z]+ [^\n`]*|tiercache [a-z]+)"
        found += [(name, re.split(r"\s+(?:#|&$)|&$", each)[0]) for each in re.findall(pattern, joined, re.M)]
    return found


@pytest.mark.parametrize(("file", "line"), commands())
def test_commands_exist(file: str, line: str) -> None:
    group = typer.main.get_command(app)
    name, *arguments = shlex.split(line.replace('"$@"', "sweeps/papers_full.yaml"))[1:]
    command = group.get_command(group.make_context("tiercache", ["policies"]), name)  # type: ignore[attr-defined]
    assert command is not None, f"no command {name}"
    spec = command.make_context(name, arguments).params.get("spec")
    if spec is not None and str(spec) != "/sweep/sweep.yaml":  # that one is made of any file
        assert (ROOT / str(spec).removeprefix("/home/ray/tiercache-eval/")).is_file()


def test_each_way_of_running_has_its_command() -> None:
    runs = {file for file, line in commands() if line.startswith("tiercache run")}
    assert runs >= {AWS.name, KUBERAY.name, SLURM.name, "cluster.md"}


def test_one_version_of_ray_everywhere() -> None:
    images = re.findall(r"(?:image: (?:&image )?|FROM |-t )(\S+:\S+)", "\n".join(TEXTS.values()))
    assert len(images) >= 4
    for image in images:
        assert image.split(":")[1].split("-")[:2] == [RAY, "py311"], image
    assert str(loaded(KUBERAY)["spec"]["rayClusterSpec"]["rayVersion"]) == RAY
    assert set(re.findall(r"\b2\.\d{2}\.\d+\b", "\n".join(TEXTS.values()))) == {RAY}


def test_the_autoscaler_file_is_what_ray_accepts() -> None:
    package = importlib.util.find_spec("ray")
    assert package is not None
    assert package.submodule_search_locations is not None
    schema = json.loads((Path(package.submodule_search_locations[0]) / "autoscaler" / "ray-schema.json").read_text())
    config = loaded(AWS)
    jsonschema.validate(config, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**config, "min_workers": 1}, schema)
    types = config["available_node_types"]
    head = types.pop(config["head_node_type"])
    assert head["resources"] == {"CPU": 0, "GPU": 0}
    assert sum(each["max_workers"] for each in types.values()) <= config["max_workers"]
    assert any(each["min_workers"] for each in types.values()), "a sweep looks for GPUs when it starts"
    assert "RAY_AUTH_MODE=token" in " ".join(config["docker"]["run_options"])
    assert "/home/ray/.ray/auth_token" in config["file_mounts"]
    assert any("constraints.txt" in line for line in config["setup_commands"])


def test_rays_own_preparation_takes_the_autoscaler_file() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(loaded(AWS))
    validate_config(config)
    head, workers = config["head_start_ray_commands"][-1], config["worker_start_ray_commands"][-1]
    assert "--num-gpus=0" in head
    assert "--autoscaling-config" in head
    assert "$RAY_HEAD_IP" in workers


def test_the_rayjob_has_what_kuberay_reads() -> None:
    job = loaded(KUBERAY)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,45}[a-z0-9])?", job["metadata"]["name"]), "a DNS-1035 label of 47"
    spec = job["spec"]
    assert spec.keys() == {
        "entrypoint",
        "runtimeEnvYAML",
        "submissionMode",
        "backoffLimit",
        "activeDeadlineSeconds",
        "shutdownAfterJobFinishes",
        "ttlSecondsAfterFinished",
        "rayClusterSpec",
    }
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["submissionMode"] in {"K8sJobMode", "HTTPMode", "SidecarMode"}
    assert min(spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) > 0
    environment = yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]
    assert all(isinstance(value, str) for value in environment.values())
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"]["mode"] == "token"
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0", "num-gpus": "0"}
    images = set()
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert (
            group["groupName"]
            == "gpu" + group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
        )
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        images.add(container["image"])
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert len(images) == 1
    assert any(group["minReplicas"] for group in cluster["workerGroupSpecs"])


def test_the_slurm_script_is_bash_and_says_what_it_needs() -> None:
    subprocess.run(["bash", "-n", SLURM], check=True)
    assert os.access(SLURM, os.X_OK)
    bare = {name: value for name, value in os.environ.items() if name != "TIERCACHE_DB"}
    run = subprocess.run(["bash", SLURM], env=bare, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert "usage: sbatch slurm.sh SPEC" in run.stderr
    run = subprocess.run(["bash", SLURM, "x.yaml"], env=bare, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "TIERCACHE_DB: set it to a database outside of the nodes" in run.stderr


def test_prometheus_reads_the_file_that_ray_writes() -> None:
    from ray._private.ray_constants import PROMETHEUS_SERVICE_DISCOVERY_FILE

    (job,) = loaded(FILES / "prometheus.yaml")["scrape_configs"]
    (discovery,) = job["file_sd_configs"]
    assert discovery["files"] == [f"/tmp/ray/{PROMETHEUS_SERVICE_DISCOVERY_FILE}"]


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FILES / "grafana.json").read_text(encoding="utf-8"))
    return found


def expressions() -> list[str]:
    return [target["expr"] for panel in board()["panels"] for target in panel["targets"]]


def test_the_board_shows_every_metric_and_only_such() -> None:
    shown = set(re.findall(r"\bray_\w+", json.dumps(board())))
    exported = {name: metric.exported(name) for name, metric in METRICS.items()}
    assert shown <= set().union(*exported.values())
    assert {name for name, series in exported.items() if not series & shown} == set()
    assert not any(name.endswith("_sum") for name in shown), "Ray's sums of histograms are estimates"


def test_the_boards_queries_use_declared_tags() -> None:
    for expression in expressions():
        allowed = {
            tag
            for name, metric in METRICS.items()
            if metric.exported(name) & set(re.findall(r"ray_\w+", expression))
            for tag in metric.tags
        } | {"le"}
        used = set(re.findall(r"(\w+)(?:=~|!=|=)\"", expression))
        for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            used |= {each.strip() for each in group.split(",")}
        assert used <= allowed, expression
        assert expression.count("(") == expression.count(")")
        assert expression.count("{") == expression.count("}")


def test_the_board_can_be_imported() -> None:
    found = board()
    assert [each["name"] for each in found["__inputs"]] == ["DS_PROMETHEUS"]
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids))
    cells = [
        (x, y)
        for panel in found["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert max(x for x, _ in cells) < 24
    for panel in found["panels"]:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    variables = {each["name"] for each in found["templating"]["list"]}
    assert set(re.findall(r"\$([a-z]+)", " ".join(expressions()))) == variables


def test_the_page_names_every_metric_and_every_file() -> None:
    for name, metric in METRICS.items():
        shown = f"ray_{name}_total" if metric.kind == "counter" else f"ray_{name}"
        assert f"`{shown}`" in PAGE
        (row,) = [line for line in PAGE.splitlines() if line.startswith("|") and f"`{shown}`" in line]
        assert row.split("|")[2].strip() == metric.kind
        assert re.sub(r"\([^)]*\)", "", row.split("|")[3]).replace(" ", "").split(",") == list(metric.tags or [""])
    for path in FILES.iterdir():
        assert path.suffix == ".dockerignore" or path.name in PAGE, path.name
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link


@pytest.mark.parametrize("name", TEXTS)
def test_no_secrets(name: str) -> None:
    text = TEXTS[name]
    for login in re.findall(r"://([^/\s'\"]+)@", text):
        assert login in {"user", "user:password"}, login
    assert not re.search(r"\b[0-9a-f]{32,}\b|\bhf_\w{10,}|AKIA\w{12,}", text)
    assert not re.search(r"(?i)(password|token|secret): +[\"']?[A-Za-z0-9]{12,}", text)
