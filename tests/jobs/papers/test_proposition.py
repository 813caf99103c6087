"""Proposition 1 on stored generations: what counts as keeping all, what differs, and what the model says of it."""

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_sweeps import fill, write_files

from db.connection import open_engine
from db.writer import Writer
from jobs.papers.evidence import gather
from jobs.papers.minis import load_minis
from jobs.papers.proposition import TINY_GAP, Checked, Flip, check, keeps_all
from jobs.papers.proposition_section import proposition
from jobs.papers.render import markdown
from jobs.papers.ties import examine
from tiercache.policy import parse_policy

KEEP = {"name": "hierarchy", "hbm": 0.5, "evict": 0}
FILES = ("hierarchy_grid",)
POLICIES = "policies: [full, {name: hierarchy, hbm: [0.3, 0.6], evict: 0, every: 4, recent: 8}]\n"
N = 3


def config(entry: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(parse_policy(entry).config()))
    return found


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (KEEP, True),
        ({**KEEP, "t1_read": "stream", "hbm": 0.1}, True),
        ({**KEEP, "scorer": "random"}, True),
        ("full", False),  # nothing to compare it with
        ({**KEEP, "evict": 0.03}, False),
        ({**KEEP, "packed": 0.5}, False),
        ({"name": "h2o", "budget": 0.5}, False),
        ({"name": "quest", "read_budget": 0.5}, False),
        ({"name": "quantised", "packed_bits": 8}, False),
        ({"name": "kivi"}, False),
    ],
)
def test_what_keeps_all_tokens(entry: Any, expected: bool) -> None:
    assert keeps_all(config(entry)) is expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three problems under the full cache and two HBM ratios, by the embedded reasoner."""
    folder = tmp_path_factory.mktemp("made")
    path = write_files(folder / "sweeps") / "hierarchy_grid_mini.yaml"
    path.write_text(path.read_text().split("policies:")[0] + POLICIES)
    fill(load_minis(folder / "sweeps", N, FILES), f"sqlite:///{folder / 'r.db'}")
    return folder


@pytest.fixture
def database(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(folder / "r.db", tmp_path / "r.db"))


def checked(database: Path) -> list[Checked]:
    url = f"sqlite:///{database}"
    engine = open_engine(url, read_only=True)
    return check(engine, gather(engine, url, FILES))


def text(database: Path) -> str:
    return markdown(list(proposition(checked(database)))).replace("\\", "")


def alter(database: Path) -> None:
    """The answer of one problem under one HBM ratio ends in another digit."""
    with sqlite3.connect(database) as connection:
        key = connection.execute(
            "SELECT fingerprint, problem_id, output FROM samples JOIN cells USING (fingerprint) "
            "WHERE policy LIKE '%hbm=0.3%' ORDER BY problem_id LIMIT 1"
        ).fetchone()
        output = key[2][:-1] + ("1" if key[2][-1] != "1" else "2")
        connection.execute(
            "UPDATE samples SET output = ? WHERE fingerprint = ? AND problem_id = ?", (output, key[0], key[1])
        )
    connection.close()


def test_all_problems_of_all_ratios_are_equal(database: Path) -> None:
    found = checked(database)
    assert [(each.compared, each.flips) for each in found] == [(N, ()), (N, ())]
    assert f"All {2 * N} generations are the full cache's" in text(database)
    assert proposition([])


def test_a_difference_is_looked_at_once_and_not_explained_away(folder: Path, database: Path) -> None:
    """The stored text was changed by hand: both policies really give the same tokens, and the gap is no near-tie."""
    alter(database)
    assert [len(each.flips) for each in checked(database)] == [1, 0]
    assert "1 were not looked at with the model yet" in text(database)
    cells = load_minis(folder / "sweeps", N, FILES).cells()
    with Writer.open(f"sqlite:///{database}") as writer:
        assert examine(writer, checked(database), cells) == 1
        assert examine(writer, checked(database), cells) == 0, "once"
    (flip,) = checked(database)[0].flips
    assert flip.looked is not None
    assert flip.looked["same_in_float64"] is True
    assert flip.looked["gap"] > TINY_GAP
    with sqlite3.connect(database) as connection:
        (tokens,) = connection.execute(
            "SELECT output_tokens FROM samples WHERE fingerprint = ? AND problem_id = ?",
            (flip.cell.fingerprint, flip.ours.problem_id),
        ).fetchone()
    assert flip.looked["at"] == tokens - 1 - (flip.ours.finish_reason == "eos"), "the last one that is written"
    assert not flip.explained
    assert "contradict the proposition" in text(database)
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE samples SET output = output || '0' WHERE output = ?", (flip.ours.output,))
    connection.close()
    assert "1 were not looked at" in text(database), "what was found of another text doesn't count"


@pytest.mark.parametrize(
    ("looked", "explained"),
    [
        (None, False),
        ({"gap": 1e-6, "same_in_float64": True}, True),
        ({"gap": 1e-6, "same_in_float64": False}, False),
        ({"gap": 1.0, "same_in_float64": True}, False),
        ({"gap": None, "same_in_float64": True}, False),
    ],
)
def test_only_a_near_tie_that_float64_settles_is_explained(database: Path, looked: Any, explained: bool) -> None:
    alter(database)
    first = checked(database)[0]
    flip: Flip = replace(first.flips[0], looked=looked)
    assert flip.explained is explained
    said = markdown(list(proposition([replace(first, flips=(flip,))])))
    assert f"{int(explained)} are near-ties of float32" in said
