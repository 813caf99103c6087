"""docs/sweeps.md and docs/policies.md are complete, and what they state follows from the code."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.benchmarks.base import registry
from jobs.spec import ClusterSpec, EngineSpec, SamplingOverrides, Sweep, parse_sweep
from tiercache.model_spec import ModelSpec
from tiercache.placement import footprint
from tiercache.policy import KNOBS, PARTS, PRESETS, parse_policy

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
PAGES["README.md"] = (ROOT / "README.md").read_text(encoding="utf-8")
SWEEPS, POLICIES = PAGES["sweeps.md"], PAGES["policies.md"]
BLOCKS = [
    (name, text) for name, page in PAGES.items() for text in re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
]


def tables(page: str, heading: str) -> list[list[str]]:
    """Cells of the table rows below a heading, up to the next one."""
    section = re.split(r"^#", page.split(heading + "\n", 1)[1], maxsplit=1, flags=re.M)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def fields(page: str, heading: str) -> dict[str, str]:
    """Second column by the field named in the first."""
    return {row[0].strip("`"): row[1] for row in tables(page, heading)}


def shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize(("page", "text"), BLOCKS, ids=[page for page, _ in BLOCKS])
def test_yaml_blocks_are_valid_sweeps(page: str, text: str) -> None:
    assert parse_sweep(yaml.safe_load(text)).resolved_policies()


def test_there_are_examples() -> None:
    assert {page for page, _ in BLOCKS} >= {"README.md", "sweeps.md", "policies.md"}


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("## The whole", Sweep),
        ("## `sampling`", SamplingOverrides),
        ("## `engine`", EngineSpec),
        ("## `cluster`", ClusterSpec),
        ("## `models`", ModelSpec),
    ],
)
def test_every_field_of_a_sweep_is_documented(heading: str, model: Any) -> None:
    documented = fields(SWEEPS, heading)
    assert set(documented) == set(model.model_fields)
    if heading in ("## `engine`", "## `cluster`"):
        defaults = {name: shown(info.default) for name, info in model.model_fields.items()}
        assert documented == {name: value.removesuffix(".0") for name, value in defaults.items()}


@pytest.mark.parametrize("name", registry())
def test_every_option_of_a_benchmark_is_documented(name: str) -> None:
    section = SWEEPS.split(f"\n`{name}`: ", 1)[1].split("\n\n", 2)[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()[2:]]
    kind = registry()[name].options_type
    assert {row[0].strip("`") for row in rows} == set(kind.model_fields)
    for row in rows:
        default = kind.model_fields[row[0].strip("`")].default
        assert default is None or row[1] == shown(default), row


def test_every_knob_is_documented_with_its_default() -> None:
    documented = fields(POLICIES, "## Knobs")
    assert set(documented) == set(KNOBS)
    for knob, part in KNOBS.items():
        default = PARTS[part].model_fields[knob].default
        assert documented[knob] == ("none" if default is None else shown(default)), knob


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_source_defaults_and_required_knobs(name: str) -> None:
    preset = PRESETS[name]
    title, text = re.split(rf"^### `{name}` ", POLICIES, maxsplit=1, flags=re.M)[1].split("\n", 1)
    text = " ".join(re.split(r"^##", text, maxsplit=1, flags=re.M)[0].split())
    assert title == f"({preset.source})"
    needs = re.search(r"Needs ([^;.]*)", text)
    assert tuple(re.findall(r"`(\w+)`", needs[1] if needs else "")) == preset.required
    found = re.search(r"defaults (`[^.]*?(?:\d\.\d[^.]*?)?)\.", text)
    stated = dict(re.findall(r"`(\w+): ([^`]+)`", found[1])) if found else {}
    assert stated == {knob: shown(value) for knob, value in preset.defaults.items()}


def test_the_readme_lists_the_presets() -> None:
    rows = {row[0].strip("`"): row for row in tables(PAGES["README.md"], "## Policies")}
    for name, preset in PRESETS.items():
        assert name in rows
        assert re.findall(r"`(\w+)`", rows[name][2]) == list(preset.required)
        assert preset.source in rows[name][3], name


def test_the_table_of_compounding() -> None:
    rows = tables(POLICIES, "## An eviction ratio compounds")
    assert len(rows) == 5
    for generated, *evicted in ([int(cell.replace(",", "")) for cell in row] for row in rows):
        for ratio, tokens in zip((0.03, 0.05, 0.1, 0.2), evicted, strict=True):
            policy = parse_policy({"name": "hierarchy", "hbm": 0.5, "evict": ratio})
            assert footprint(policy, 50, generated).evicted_end == tokens


def test_other_stated_numbers() -> None:
    cumulative = parse_policy({"name": "hierarchy", "hbm": 0.5, "evict": 0.1, "compound": False})
    assert footprint(cumulative, 50, 2048).evicted_end == 191
    assert 2048 - 4 - 128 == 1916
    assert "has evicted 191, a tenth\nof the 1,916" in POLICIES
    for pin, kept in ((False, 150), (True, 200)):
        half = parse_policy({"name": "h2o", "budget": 0.5, "pin_prompt": pin})
        assert 300 - footprint(half, 100, 200).evicted_end == kept


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    folder = ROOT if name == "README.md" else ROOT / "docs"
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", PAGES[name]):
        assert (folder / link).exists(), link
