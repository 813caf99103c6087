"""What the README and the footguns say has to be true: commands exist, settings are named, files are there."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main
import yaml

from jobs.benchmarks.catalog import registry
from jobs.cli import app
from jobs.spec import ClusterSpec, EngineSpec, SamplingOverrides, Sweep, parse_sweep
from tiercache.footprint import footprint
from tiercache.policy import PRESETS, parse_policy
from tiercache.shapes import KNOWN

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = sorted(
    set(re.findall(r"^    (?:ray job submit .*-- )?(tiercache .*?)(?:\s{2,}#.*)?$", README, re.M))
    | set(re.findall(r"-- (tiercache run [^\n]*)", README))
)


@pytest.mark.parametrize("line", COMMANDS)
def test_readme_commands_parse(line: str) -> None:
    """Command, options and arguments are understood by the command line itself; nothing is run."""
    group = typer.main.get_command(app)
    name, *arguments = shlex.split(line.strip())[1:]
    command = group.get_command(group.make_context("tiercache", ["policies"]), name)  # type: ignore[attr-defined]
    assert command is not None, f"no command {name}"
    context = command.make_context(name, arguments)
    spec = context.params.get("spec")
    assert spec is None or (ROOT / spec).is_file()


def test_the_readme_shows_a_few_commands() -> None:
    assert len(COMMANDS) >= 8


def test_readme_names_every_setting() -> None:
    for model in (Sweep, EngineSpec, ClusterSpec, SamplingOverrides):
        for field in model.model_fields:
            assert f"{field}:" in README, field
    for name in [*PRESETS, *registry()]:
        assert f"`{name}`" in README, name


def test_readme_sweep_is_valid() -> None:
    text = re.search(r"```yaml\n(.*?)```", README, re.S)
    assert text is not None
    sweep = parse_sweep(yaml.safe_load(text[1]))
    assert len(sweep.resolved_policies()) == 1 + 3 + 4


def test_make_targets_and_links_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)", README, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
    for path in re.findall(r"`((?:sweeps|docs)/[\w./]+)`", README):
        assert (ROOT / path).is_file(), path


def test_numbers_of_the_footguns() -> None:
    """The stated numbers follow from the code: compounding, bytes per token, standard errors."""
    text = " ".join((ROOT / "docs" / "footguns.md").read_text(encoding="utf-8").split())
    policy = parse_policy({"name": "hierarchy", "hbm": 0.5, "evict": 0.03})
    evicted = footprint(policy, 100, 2048).evicted_end
    assert "2,048 generated tokens lose about a third" in text
    assert 0.30 < evicted / 2048 < 0.36
    shape = KNOWN["Qwen/Qwen2.5-7B-Instruct"]
    assert f"{shape.kv_bytes_per_token():,}" in text
    assert f"{shape.group * shape.kv_bytes_per_token():,}" in text
    for n, points in ((25, "10"), (100, "5"), (500, "2.2")):
        assert f"{points} for n={n}" in text or f"{points} points for n={n}" in text
        assert round(100 * 0.5 / n**0.5, 1) == float(points)
