"""The pages of results over a real small database: they follow from it, all of them, each time."""

import os
import platform
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
from markdown_it import MarkdownIt
from small_sweeps import FILES, HEAD, N, fill, small_minis, write_files
from typer.testing import CliRunner

from db.connection import open_engine
from db.errors import StorageError
from db.queries import list_sweeps
from jobs.commands.reporting import papers
from jobs.papers.claims import CLAIMS
from jobs.papers.index import build_pages
from jobs.papers.minis import load_minis
from tiercache.errors import SpecError, TierCacheError

ROOT = Path(__file__).parents[3]
CELLS = 7 + 4 - 1  # the full cache is common to both


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both sweeps, computed by the embedded reasoner."""
    folder = tmp_path_factory.mktemp("made")
    database = folder / "r.db"
    assert fill(small_minis(folder / "sweeps"), f"sqlite:///{database}") == CELLS * N
    return database


@pytest.fixture(scope="module")
def written(made: Path) -> dict[str, str]:
    """The pages of the untouched database, built beside it."""
    here = Path.cwd()
    os.chdir(made.parent)
    try:
        return pages(made)
    finally:
        os.chdir(here)


@pytest.fixture
def database(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy in the current folder, to be changed."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(made, tmp_path / "r.db"))


def pages(database: Path, folder: Path = Path("nowhere")) -> dict[str, str]:
    url = f"sqlite:///{database}"
    return dict(build_pages(open_engine(url, read_only=True), url, folder).files)


def change(database: Path, statement: str, *values: Any) -> None:
    with sqlite3.connect(database) as connection:
        assert connection.execute(statement, values).rowcount == 1
    connection.close()


def test_each_file_is_a_sweep_and_nothing_is_computed_twice(database: Path, tmp_path: Path) -> None:
    minis = small_minis(tmp_path / "sweeps")
    assert fill(minis, f"sqlite:///{database}") == 0
    found = {sweep.name: sweep for sweep in list_sweeps(open_engine(f"sqlite:///{database}", read_only=True))}
    assert set(found) == {"papers-mini", "hierarchy-grid-mini", "hierarchy-system-mini"}
    assert {sweep.state for sweep in found.values()} == {"finished"}
    assert [found[name].done for name in ("papers-mini", "hierarchy-grid-mini")] == [CELLS * N, 7 * N]
    assert fill(small_minis(tmp_path / "sweeps", N + 1), f"sqlite:///{database}") == CELLS, "one problem more"


def test_one_outcome_changes_every_page_that_shows_it(database: Path, written: dict[str, str]) -> None:
    assert pages(database) == written, "equal data, equal bytes"
    where = "fingerprint = (SELECT fingerprint FROM cells WHERE policy = 'full') AND problem_id LIKE '%000000'"
    change(database, f"UPDATE samples SET outcome = 'wrong', score = 0.0 WHERE {where}")
    after = pages(database)
    for name in ("README.md", "hierarchy.md", "which_policy.md", "figures/all-policies.svg"):
        assert after[name] != written[name], name


def test_numbers_of_the_table_are_those_of_the_database(made: Path, written: dict[str, str]) -> None:
    with sqlite3.connect(made) as connection:
        right, n = connection.execute(
            "SELECT sum(outcome = 'correct'), count(*) FROM samples JOIN cells USING (fingerprint) "
            "WHERE policy = 'hierarchy evict=0.1 hbm=0.5 recent=8 every=4'"
        ).fetchone()
    row = next(
        line
        for line in written["hierarchy.md"].splitlines()
        if line.startswith("| hierarchy evict=0.1 hbm=0.5 recent=8 every=4 |")
    )
    cells = row.split("|")
    assert cells[4].split()[0] == f"{100 * right / n:.1f}"
    assert cells[5].strip() == str(n) == str(N)


def test_every_claim_of_the_papers_is_in_the_index(written: dict[str, str]) -> None:
    text = written["README.md"]
    for claim in CLAIMS:
        row = next(line for line in text.splitlines() if line.startswith(f"| {claim.id} |"))
        assert claim.at_scale in row.replace("\\", "")
        assert any(
            words in row for words in ("supported", "can't be decided", "not run: this database lacks its cells")
        )
    assert "epikv\\_math500" in text, "files without samples are named"


def test_sources_and_links(written: dict[str, str]) -> None:
    """Every table and figure says where its numbers come from, and every link leads somewhere."""
    found = written
    parser = MarkdownIt().enable("table")
    for name, text in found.items():
        if not name.endswith(".md") or name == "which_policy.md":
            continue
        assert text.count("\nFrom: ") == len(re.findall(r"^\|[-:|]+\|$|^!\[", text, re.M)), name
        inline = [child for token in parser.parse(text) for child in token.children or ()]
        targets = [child.attrGet("href") or child.attrGet("src") for child in inline]
        for target in filter(None, map(str, (target for target in targets if target))):
            known = target in found or (ROOT / "docs" / "results" / target).resolve().is_file()
            assert known, f"{name}: {target}"
        assert all(child.content for child in inline if child.type == "image"), "alt text"
    assert "--db sqlite:///r.db" in found["hierarchy.md"]


def test_no_machine_is_named(made: Path, written: dict[str, str]) -> None:
    for name, text in written.items():
        for secret in (platform.node(), str(made.parent), str(ROOT), os.path.expanduser("~") + "/"):
            assert secret not in text, f"{name}: {secret}"


def test_figures_are_whole_and_are_shown(written: dict[str, str]) -> None:
    found = written
    drawn = {name for name in found if name.endswith(".svg")}
    assert {"figures/cliff.svg", "figures/all-policies.svg", "figures/hierarchy-bytes.svg"} <= drawn
    for name in drawn:
        root = ElementTree.fromstring(found[name])
        assert root.attrib["role"] == "img"
        assert root.find("{http://www.w3.org/2000/svg}title") is not None
        assert any(name in text for page, text in found.items() if page.endswith(".md"))


def test_pages_of_others_are_linked(database: Path, tmp_path: Path) -> None:
    (tmp_path / "search.md").write_text("# Search: <b>best</b>\n\ntext\n")
    done = command("--no-run", "--db", f"sqlite:///{database}", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "* [Search: \\<b\\>best\\</b\\>](search.md)" in (tmp_path / "README.md").read_text()
    assert (tmp_path / "figures" / "cliff.svg").is_file()
    assert "no finished cell of epikv_aime_mini" in done.stderr


def test_a_cell_that_is_not_finished_is_left_out_and_named(database: Path) -> None:
    """Its first samples are the shortest ones."""
    where = "fingerprint = (SELECT fingerprint FROM cells WHERE policy LIKE 'h2o %') AND problem_id LIKE '%000003'"
    change(database, f"DELETE FROM samples WHERE {where}")
    found = pages(database)
    assert "* hierarchy-system-mini: h2o scope=token budget=0.5 pin\\_prompt" in found["README.md"]
    assert "\n| h2o scope=token" not in found["hierarchy.md"]


def test_a_database_without_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'other.db'}"
    fill(load_minis(write_files(tmp_path / "sweeps"), 1, FILES[1:]), url)
    change(tmp_path / "other.db", "UPDATE sweeps SET name = 'x' WHERE name = 'hierarchy-system-mini'")
    with pytest.raises(SpecError, match="make papers-mini"):
        pages(tmp_path / "other.db")


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (HEAD.replace("float32", "float64"), "differs from hierarchy-grid-mini"),
        (f"{HEAD}seed: 1\n", "differs from hierarchy-grid-mini"),
    ],
)
def test_files_that_differ_in_more_than_policies_are_refused(tmp_path: Path, head: str, says: str) -> None:
    write_files(tmp_path, head)
    first = tmp_path / "hierarchy_grid_mini.yaml"
    first.write_text(first.read_text().replace(head, HEAD))
    with pytest.raises(SpecError, match=says):
        load_minis(tmp_path, None, FILES)


def test_the_papers_own_small_forms_are_one_sweep() -> None:
    minis = load_minis(ROOT / "sweeps", 2)
    assert len(minis.each) == 12
    assert len(minis.cells()) == len({cell.fingerprint for cell in minis.cells()}) == 63


def command(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(papers)
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize(
    "arguments",
    [
        lambda folder: ("--no-run", "--db", f"sqlite:///{folder}/none.db"),
        lambda folder: ("--sweeps", str(folder), "--db", f"sqlite:///{folder}/none.db"),
    ],
    ids=["no database", "no files"],
)
def test_bad_arguments(tmp_path: Path, arguments: Callable[[Path], tuple[str, ...]]) -> None:
    done = command(*arguments(tmp_path))
    assert isinstance(done.exception, TierCacheError | StorageError)
    assert not (tmp_path / "none.db").exists()
