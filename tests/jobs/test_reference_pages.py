"""docs/sweeps.md and docs/policies/ are complete, and what they state follows from the code."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.benchmarks.catalog import registry
from jobs.spec import ClusterSpec, EngineSpec, SamplingOverrides, Sweep, parse_sweep
from tiercache.catalog import SIGNALS
from tiercache.footprint import footprint
from tiercache.model_spec import ModelSpec
from tiercache.policy import DEFAULT_SCORER, KNOBS, PARTS, PRESETS, parse_policy

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
SWEEPS, POLICIES = PAGES["docs/sweeps.md"], PAGES["docs/policies/README.md"]
HIERARCHY = PAGES["docs/policies/hierarchy.md"]
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
    assert {page for page, _ in BLOCKS} >= {"README.md", "docs/sweeps.md", "docs/policies/README.md"}
    assert {page for page, _ in BLOCKS} >= {f"docs/policies/{name}.md" for name in PRESETS}


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
    section = PAGES["docs/benchmarks.md"].split(f"\n`{name}`: ", 1)[1].split("\n\n", 2)[1]
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
        default = DEFAULT_SCORER if knob == "scorer" else PARTS[part].model_fields[knob].default
        assert documented[knob] == ("none" if default is None else shown(default)), knob


def test_the_index_names_every_preset() -> None:
    rows = tables(POLICIES, "## Presets")
    assert [row[0] for row in rows] == [f"[`{name}`]({name}.md)" for name in PRESETS]
    for row, preset in zip(rows, PRESETS.values(), strict=True):
        assert re.findall(r"`(\w+)`", row[2]) == list(preset.required)
        assert (row[1], row[3]) == (preset.summary, preset.source)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_page(name: str) -> None:
    """With its source, what it needs, its defaults and its scorer's own parameters, as the code has them."""
    preset, page = PRESETS[name], PAGES[f"docs/policies/{name}.md"]
    assert page.startswith(f"# `{name}`")
    assert re.search(rf"^Source: .*{re.escape(preset.source)}", page, re.M)
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page, re.M)
    stated = {knob: default.strip().strip("`") for knob, default in rows}
    for knob in preset.required:
        assert stated.get(knob, "needed") == "needed"
        assert re.search(rf"\b{knob}: ", page), knob
    own = set(SIGNALS[preset.defaults.get("scorer", DEFAULT_SCORER)].model_fields) - {"scorer", "scope"}
    assert not preset.open or own <= set(stated), own - set(stated)
    settled = {**defaults(preset.defaults.get("scorer", DEFAULT_SCORER)), **preset.defaults}
    for knob, value in stated.items():
        if value != "needed":
            assert value == ("none" if settled[knob] is None else shown(settled[knob])), knob
    for word in ("acts?", "protects?", "our decisions"):
        assert re.search(rf"\b{word}\b", page, re.I), word


def defaults(scorer: str) -> dict[str, Any]:
    models = [*(model for part, model in PARTS.items() if part != "scorer"), SIGNALS[scorer]]
    return {knob: info.default for model in models for knob, info in model.model_fields.items()}


def test_the_readme_lists_the_presets() -> None:
    assert set(re.findall(r"\[`(\w+)`\]\(docs/policies/\1\.md\)", PAGES["README.md"])) == set(PRESETS)


def test_the_table_of_compounding() -> None:
    rows = tables(HIERARCHY, "## An eviction ratio compounds")
    assert len(rows) == 5
    for generated, *evicted in ([int(cell.replace(",", "")) for cell in row] for row in rows):
        for ratio, tokens in zip((0.03, 0.05, 0.1, 0.2), evicted, strict=True):
            policy = parse_policy({"name": "hierarchy", "hbm": 0.5, "evict": ratio})
            assert footprint(policy, 50, generated).evicted_end == tokens


def test_other_stated_numbers() -> None:
    cumulative = parse_policy({"name": "hierarchy", "hbm": 0.5, "evict": 0.1, "compound": False})
    assert footprint(cumulative, 50, 2048).evicted_end == 191
    assert 2048 - 4 - 128 == 1916
    assert "has evicted 191, a tenth\nof the 1,916" in HIERARCHY
    for pin, kept in ((False, 150), (True, 200)):
        half = parse_policy({"name": "h2o", "budget": 0.5, "pin_prompt": pin})
        assert 300 - footprint(half, 100, 200).evicted_end == kept


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", PAGES[name]):
        assert ((ROOT / name).parent / link).exists(), link
