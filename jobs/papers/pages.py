"""The pages of results: one for each paper and one for our own questions, with their figures. Read-only."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Engine

from jobs.papers import figures
from jobs.papers.blocks import Bullets, Figure, Heading, Links, PageBlock, Paragraph
from jobs.papers.claim_tables import claim_table
from jobs.papers.claims import PUBLISHED
from jobs.papers.evidence import Answer, Evidence, Page, answer, distinct_cells
from jobs.papers.kinds import Published
from jobs.papers.proposition import check
from jobs.papers.proposition_section import proposition
from jobs.papers.sections import STAND_IN, details, protocol, setting_section
from jobs.papers.sources import SUMMARIES, VERDICTS

FIGURES = "figures"  # folder beside the pages
WRITTEN = (
    "Written by tiercache papers; change jobs/papers, not this page. Everything here but the published numbers is read "
    "from the database. Under each table and figure stand the command or query that gives its numbers, and the files "
    "in which they are asked for and computed."
)


@dataclass
class Drawings:
    """The SVG files of all pages, by name."""

    files: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, drawn: figures.Drawn | None, sources: Sequence[str]) -> Iterator[PageBlock]:
        """The figure's block, and in words which points it numbers; nothing where there was nothing to draw."""
        if drawn is None:
            return
        address = f"{FIGURES}/{name}.svg"
        self.files[address] = drawn.svg
        yield Figure(address, drawn.alt, tuple(dict.fromkeys(sources)), (*SUMMARIES, *VERDICTS))
        for panel, best in drawn.front:
            yield Paragraph(f"{panel}: no other cell is more accurate at no more bytes than")
            yield Bullets(tuple(f"{place}: {words}" for place, words in enumerate(best, start=1)))


def page_blocks(
    engine: Engine, page: Page, evidence: Mapping[str, Evidence], drawings: Drawings
) -> tuple[list[PageBlock], list[Answer]]:
    """One page and the answers that it gives. `evidence` is of all files, whichever page shows them."""
    own = [evidence[file] for file in page.files if file in evidence]
    found = answer(page.claims(), own)
    return list(_blocks(engine, page, evidence, own, found, drawings)), found


def _blocks(
    engine: Engine,
    page: Page,
    evidence: Mapping[str, Evidence],
    own: Sequence[Evidence],
    found: Sequence[Answer],
    drawings: Drawings,
) -> Iterator[PageBlock]:
    yield Heading(1, page.title)
    yield Paragraph(WRITTEN)
    yield Paragraph(STAND_IN)
    yield Links((("All claims", "README.md"), ("How verdicts are made", "../papers.md")))
    yield Heading(2, "Verdicts")
    yield from claim_table(page.claims(), {each.claim.id: each for each in found})
    if not own:
        return
    yield from _figures(page, own, drawings)
    for each in own:
        if each.unfinished:
            yield Paragraph(f"Not finished in {each.sweep.name}, so left out: {'; '.join(each.unfinished)}.")
    if page.name == "hierarchy":
        yield from proposition(check(engine, evidence))
    yield from _tables(page, own)
    yield Heading(2, "Tests of each claim")
    for one in found:
        yield from details(one.judged, one.evidence.source)
    yield from protocol(own[0].sweep, own[0].settings, own[0].source, host=False)


def _figures(page: Page, own: Sequence[Evidence], drawings: Drawings) -> Iterator[PageBlock]:
    yield Heading(2, "Figures")
    every = [each.source.export for each in own]
    if page.name == "hierarchy":
        settings = [setting for each in own for setting in each.settings]
        yield from drawings.add("cliff", figures.cliff(settings), every)
    yield from drawings.add(f"{page.name}-bytes", figures.cost(distinct_cells(own)), every)
    for table in PUBLISHED if page.whose == "paper" else ():
        for each in own:
            if each.file in table.sweeps:
                yield from _beside(table.id, table, each, drawings)


def _beside(name: str, table: Published, each: Evidence, drawings: Drawings) -> Iterator[PageBlock]:
    for place, setting in enumerate(each.settings):
        end = f"-{place}" if place else ""
        yield from drawings.add(f"{name}-{each.file}{end}", figures.versus(setting, table), (each.source.compare,))


def _tables(page: Page, own: Sequence[Evidence]) -> Iterator[PageBlock]:
    """Each sweep's own table and the published one beside it; a sweep whose cells stand in one above is only named."""
    shown: dict[frozenset[str], str] = {}
    for each in own:
        heading = f"{each.sweep.name}: {each.sweep.done:,} of {each.sweep.expected:,} samples"
        same = shown.setdefault(each.fingerprints, each.sweep.name)
        if same != each.sweep.name:
            yield Heading(2, heading)
            yield Paragraph(f"The cells are those of {same}: see there.")
            continue
        for setting in each.settings:
            published = [table for table in PUBLISHED if each.file in table.sweeps]
            yield from setting_section(setting, each.source, published, heading)
