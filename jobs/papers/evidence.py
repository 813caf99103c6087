"""What a database holds of the small forms, and which of it answers each claim."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from db.queries import CellSummary, SweepInfo, cell_summaries, list_sweeps
from jobs.papers.claims import CLAIMS
from jobs.papers.judging import Judged, judged
from jobs.papers.kinds import Claim
from jobs.papers.report import settings_of
from jobs.papers.settings import Setting
from jobs.papers.sources import Sources


@dataclass(frozen=True)
class Page:
    """One page of results.

    whose  the paper's own claims, or questions of ours.
    files  sweep files (without `_mini.yaml`) whose cells it shows, in that order.
    """

    name: str
    title: str
    whose: str
    files: tuple[str, ...]

    def claims(self) -> tuple[Claim, ...]:
        papers = {file.split("_")[0] for file in self.files}
        return tuple(c for c in CLAIMS if c.whose == self.whose and (self.whose == "ours" or c.paper in papers))


PAGES = (
    Page(
        "hierarchy",
        "A hierarchy of four tiers (arXiv 2605.09490)",
        "paper",
        ("hierarchy_grid", "hierarchy_cliff", "hierarchy_system"),
    ),
    Page("epikv", "EpiKV (arXiv 2606.26472)", "paper", ("epikv_math500", "epikv_aime")),
    Page("qevict", "QEvict (arXiv 2608.05326)", "paper", ("qevict_ruler", "qevict_longbench", "qevict_gsm8k")),
    Page(
        "audits",
        "Questions of our own to the three papers",
        "ours",
        ("audit_eviction", "audit_tiers", "audit_baselines", "audit_scorers"),
    ),
)
FILES = tuple(file for page in PAGES for file in page.files)


def sweep_name(file: str) -> str:
    """The name that the small form of a sweep file gives its sweep."""
    return f"{file.replace('_', '-')}-mini"


@dataclass(frozen=True)
class Evidence:
    """The newest sweep of one small form, as far as its cells are finished.

    unfinished  policies whose cells are not: what ends first is short, so the rest of a cell isn't like its beginning.
    """

    file: str
    sweep: SweepInfo
    settings: tuple[Setting, ...]
    source: Sources
    unfinished: tuple[str, ...]

    @property
    def fingerprints(self) -> frozenset[str]:
        return frozenset(cell.fingerprint for setting in self.settings for cell in setting.cells)


@dataclass(frozen=True)
class Answer:
    """One claim and what the first sweep that has all of its cells says to it."""

    claim: Claim
    judged: Judged
    evidence: Evidence


def gather(engine: Engine, url: str, files: Sequence[str] = FILES) -> dict[str, Evidence]:
    """By file, in that order; files without a finished cell are left out.

    Args:
        url: how the database is named in the commands.
    """
    sweeps = list_sweeps(engine)
    found = {}
    for file in files:
        sweep = next((each for each in sweeps if each.name == sweep_name(file)), None)
        if sweep is None:
            continue
        cells = cell_summaries(engine, sweep.id)
        done = [cell for cell in cells if cell.n + cell.failed >= (cell.expected or 0)]
        settings = settings_of(engine, sweep, done)
        if settings:
            unfinished = tuple(cell.policy for cell in cells if cell not in done)
            found[file] = Evidence(file, sweep, tuple(settings), Sources(sweep.id, url), unfinished)
    return found


def answer(claims: Sequence[Claim], evidence: Sequence[Evidence]) -> list[Answer]:
    """In the claims' order; those that no sweep here can judge are left out."""
    return [found for claim in claims if (found := next(_answers(claim, evidence), None)) is not None]


def _answers(claim: Claim, evidence: Sequence[Evidence]) -> Iterator[Answer]:
    for each in evidence:
        if each.file in claim.sweeps:
            for setting in each.settings:
                result = judged(claim, setting)
                if result is not None:
                    yield Answer(claim, result, each)


def distinct_cells(evidence: Sequence[Evidence]) -> list[CellSummary]:
    """Each cell once, in the order of coming, as the sweep with most of its samples has it; no tasks taken together."""
    cells: dict[str, CellSummary] = {}
    for each in evidence:
        for cell in (cell for setting in each.settings if not setting.tasks for cell in setting.cells):
            known = cells.get(cell.fingerprint)
            if known is None or known.n < cell.n:
                cells[cell.fingerprint] = cell
    return list(cells.values())
