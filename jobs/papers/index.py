"""All pages of results and their figures as texts: what `tiercache papers` writes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from jobs.papers import figures
from jobs.papers.blocks import Bullets, Heading, Links, PageBlock, Paragraph
from jobs.papers.claim_tables import claim_table
from jobs.papers.evidence import FILES, PAGES, Answer, Evidence, distinct_cells, gather
from jobs.papers.pages import WRITTEN, Drawings, page_blocks
from jobs.papers.render import markdown
from jobs.papers.sections import STAND_IN
from jobs.papers.sources import portable
from tiercache.errors import SpecError

ROOT = "../.."  # the repository's, from docs/results
INDEX, ADVICE = "README.md", "which_policy.md"


@dataclass(frozen=True)
class Built:
    """Texts by file name, relative to the folder of results; `missing`: files of sweeps without a finished cell."""

    files: Mapping[str, str]
    missing: tuple[str, ...]


def build_pages(engine: Engine, url: str, folder: Path) -> Built:
    """Everything that these pages say but the published numbers is read here and now.

    Args:
        folder: where they are to lie; pages that others have written there are linked from the index.

    Raises:
        SpecError: the database has no finished cell of any small form.
    """
    from jobs.advice import advice_markdown

    shown = portable(url)
    evidence = gather(engine, shown)
    if not evidence:
        raise SpecError("--db: no small form of the papers' sweeps has a finished cell there; run: make papers-mini")
    drawings, texts, answers = Drawings(), dict[str, str](), dict[str, Answer]()
    for page in PAGES:
        blocks, found = page_blocks(engine, page, evidence, drawings)
        texts[f"{page.name}.md"] = markdown(blocks, ROOT)
        answers |= {each.claim.id: each for each in found}
    texts[ADVICE] = advice_markdown(engine, [each.sweep.id for each in evidence.values()], shown)
    texts[INDEX] = markdown(list(_index(evidence, answers, drawings, _others(folder, texts))), ROOT)
    return Built({**texts, **drawings.files}, tuple(file for file in FILES if file not in evidence))


def _index(
    evidence: Mapping[str, Evidence],
    answers: Mapping[str, Answer],
    drawings: Drawings,
    others: tuple[tuple[str, str], ...],
) -> Iterator[PageBlock]:
    yield Heading(1, "Results: every claim of the three papers, and what this machine says to it")
    yield Paragraph(WRITTEN)
    yield Paragraph(STAND_IN)
    sweeps = [each.sweep for each in evidence.values()]
    days = sorted({f"{sweep.created_at:%Y-%m-%d}" for sweep in sweeps})
    cells = distinct_cells(list(evidence.values()))
    yield Paragraph(
        f"{len(sweeps)} of {len(FILES)} sweeps, {len(cells)} cells, {sum(cell.n for cell in cells):,} generations, "
        f"{sum(cell.failed for cell in cells):,} failed; {' to '.join(dict.fromkeys((days[0], days[-1])))} (UTC). The "
        "same pages from an empty database: make papers-mini."
    )
    if absent := [file for file in FILES if file not in evidence]:
        yield Paragraph(f"Without a finished cell here: {', '.join(absent)}.")
    if unfinished := [each for each in evidence.values() if each.unfinished]:
        yield Paragraph("Cells that are not finished are left out, since what ends first is short:")
        yield Bullets(tuple(f"{each.sweep.name}: {'; '.join(each.unfinished)}" for each in unfinished))
    yield Heading(2, "Pages")
    yield Links((*((page.title, f"{page.name}.md") for page in PAGES), ("Which policy?", ADVICE), *others))
    for page in PAGES:
        yield Heading(2, page.title)
        yield from claim_table(page.claims(), answers)
    yield Heading(2, "All policies: accuracy against bytes")
    yield Paragraph(
        "Means over the sequences of a cell. Small budgets are missing here: at the papers' own, this model is at 0; "
        "chain.md has all policies at equal bytes."
    )
    sources = [each.source.export for each in evidence.values()]
    yield from drawings.add("all-policies", figures.cost(cells), sources)


def _others(folder: Path, own: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """(title, file) of pages that lie in the folder and aren't written here."""
    found = sorted(path for path in folder.glob("*.md") if path.name not in (*own, INDEX))
    return tuple((_title(path), path.name) for path in found)


def _title(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    heading = next((line for line in lines if line.startswith("# ")), "")
    return heading.removeprefix("# ").strip() or path.stem
