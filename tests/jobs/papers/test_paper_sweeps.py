"""The papers' sweep files: their grids, their small forms, and the claims that rest on their cells."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from jobs.papers.claims import CLAIMS, PUBLISHED
from jobs.papers.kinds import ARXIV, Claim, Contrast, Published
from jobs.papers.picks import Pick, budget, choose, identity
from jobs.spec import Sweep, load_sweep

ROOT = Path(__file__).parents[3]
SIZES = {  # policies of the full form, of the small one
    "hierarchy_grid": (13, 13),
    "hierarchy_cliff": (26, 10),
    "hierarchy_system": (5, 4),
    "epikv_math500": (41, 13),
    "epikv_aime": (31, 9),
    "qevict_ruler": (12, 8),
    "qevict_longbench": (12, 8),
    "qevict_gsm8k": (12, 8),
    "audit_eviction": (10, 8),
    "audit_tiers": (9, 9),
    "audit_baselines": (9, 7),
    "audit_scorers": (10, 10),
}
CELLS_OF_ALL_MINIS = 63  # about 30 seconds each with 500 problems on 2 cores
SMALL = {"recent": 32, "every": 16}


def path(name: str) -> Path:
    (found,) = (ROOT / "sweeps").rglob(f"{name}.yaml")  # one lies in a folder for those that can't be planned offline
    return found


@cache
def sweep(name: str) -> Sweep:
    return load_sweep(path(name))


@cache
def policies(name: str) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(json.dumps(policy.config())) for policy in sweep(name).resolved_policies())


def cells(name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(policy, policy) for policy in policies(name)]


@pytest.mark.parametrize("name", SIZES)
def test_grids_have_the_stated_size(name: str) -> None:
    assert (len(policies(name)), len(policies(f"{name}_mini"))) == SIZES[name]
    assert sweep(name).name == name.replace("_", "-")
    assert sweep(f"{name}_mini").name == f"{name.replace('_', '-')}-mini"


def test_every_file_of_the_papers_is_listed() -> None:
    found = {
        path.stem for kind in ("hierarchy", "epikv", "qevict", "audit") for path in (ROOT / "sweeps").rglob(f"{kind}_*")
    }
    assert found == {name + end for name in SIZES for end in ("", "_mini")}


def kinds(name: str) -> set[str]:
    """Policies beside their lengths and ratios."""
    found = set()
    for policy in policies(name):
        placement = {**policy["placement"], "hbm": None, "evict": bool(policy["placement"].get("evict"))}
        found.add(identity({**policy, "placement": placement}))
    return found


@pytest.mark.parametrize("name", SIZES)
def test_the_small_form_has_the_same_policies(name: str) -> None:
    """Nothing but levels of a budget or a ratio may be fewer."""
    assert kinds(f"{name}_mini") == kinds(name)


@pytest.mark.parametrize("name", SIZES)
def test_small_forms_run_on_the_embedded_reasoner(name: str) -> None:
    small = sweep(f"{name}_mini")
    assert [model["id"] for model in small.models] == ["reasoner"]
    assert [entry["name"] for entry in small.benchmarks] == ["chain"]
    for policy in policies(f"{name}_mini"):
        if policy["name"] == "hierarchy":
            assert (policy["placement"]["recent"], policy["schedule"]["every"]) == (SMALL["recent"], SMALL["every"])


def test_all_small_forms_together_stay_affordable() -> None:
    distinct = {
        json.dumps({key: value for key, value in policy.items() if key != "name"}, sort_keys=True)
        for name in SIZES
        for policy in policies(f"{name}_mini")
    }
    assert len(distinct) <= CELLS_OF_ALL_MINIS


def test_the_hierarchys_grid_is_the_papers() -> None:
    ratios = {
        (policy["placement"]["hbm"], policy["placement"]["evict"])
        for policy in policies("hierarchy_grid")
        if policy["name"] == "hierarchy"
    }
    assert ratios == {(hbm, evict) for hbm in (0.3, 0.5, 0.7) for evict in (0, 0.03, 0.05, 0.1)}
    assert len(sweep("hierarchy_grid").models) == 3
    assert len(sweep("hierarchy_grid").benchmarks) == 4


@pytest.mark.parametrize(("name", "tokens"), [("epikv_math500", 4096), ("epikv_aime", 8192)])
def test_epikvs_budgets_are_the_papers(name: str, tokens: int) -> None:
    sizes = {size for policy in policies(name) if (size := budget(policy))}
    assert sizes == {("tokens", float(512 << i)) for i in range((tokens // 512).bit_length())}
    assert sweep(name).sampling.temperature == 0


def test_rulers_thirteen_tasks_at_32k() -> None:
    entries = sweep("qevict_ruler").benchmarks
    assert len({entry["task"] for entry in entries}) == 13
    assert {entry["length"] for entry in entries} == {32768}
    assert len({entry["task"] for entry in sweep("qevict_longbench").benchmarks}) == 12


@pytest.mark.parametrize("name", SIZES)
def test_comments_name_the_paper(name: str) -> None:
    text = path(name).read_text(encoding="utf-8")
    head = text.split("\nname:")[0]
    assert any(number in head for number in ARXIV.values()) or "All ours" in head
    assert "urs" in head, "what is ours is said"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_claims_refer_to_cells_that_exist(claim: Claim) -> None:
    assert claim.sweeps
    for name in claim.sweeps:
        for form in (name, f"{name}_mini"):
            missing = [str(pick) for pick in claim.picks if choose(pick, cells(form)) is None]
            assert not missing, form


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_claims_compare_at_equal_budgets(claim: Claim) -> None:
    for test in claim.tests:
        for form in (*claim.sweeps, *(f"{name}_mini" for name in claim.sweeps)):
            if isinstance(test, Contrast):
                found = [choose(pick, cells(form)) for pick in (test.first, test.second)]
                assert len({size for each in found if each and (size := budget(each))}) < 2, form


def test_claims_have_names_of_their_own_and_all_papers_are_there() -> None:
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)
    assert {claim.paper for claim in CLAIMS} == set(ARXIV) == {table.paper for table in PUBLISHED}
    assert all(claim.at_scale and claim.published for claim in CLAIMS)


@pytest.mark.parametrize("table", PUBLISHED, ids=lambda table: table.id)
def test_published_rows_are_cells_of_their_sweeps(table: Published) -> None:
    for pick, value in table.rows:
        assert 0 <= value <= 100
        assert any(choose(pick, cells(name)) is not None for name in table.sweeps), str(pick)


def test_aime_values_are_whole_problems() -> None:
    """Thirty problems: every figure is a multiple of 1/30."""
    (table,) = (table for table in PUBLISHED if table.id == "epikv-aime")
    for _, value in table.rows:
        assert abs(value * 0.3 - round(value * 0.3)) < 0.02


def test_a_pick_is_exact_in_all_but_lengths() -> None:
    plain, drifted = Pick("hierarchy", {"hbm": 0.5, "evict": 0.03}), {"hbm": 0.5, "evict": 0.03, "positions": "drifted"}
    found = choose(plain, cells("audit_eviction_mini"))
    assert found is not None
    assert found["storage"]["positions"] == "true"
    other = choose(Pick("hierarchy", drifted), cells("audit_eviction_mini"))
    assert other is not None
    assert other["storage"]["positions"] == "drifted"
    assert choose(Pick("hierarchy", {"hbm": 0.31, "evict": 0.03}), cells("audit_eviction_mini")) is None


def test_levels_count_from_the_largest() -> None:
    def tokens(level: int) -> float | None:
        found = choose(Pick("epikv", level=level), cells("epikv_math500"))
        size = budget(found) if found else None
        return size[1] if size else None

    assert [tokens(level) for level in (-1, -2, -4, -5)] == [4096, 2048, 512, None]
