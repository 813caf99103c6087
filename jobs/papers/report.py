"""What a database says to the papers' claims: the document of `tiercache report`, built from the read queries alone."""

from collections.abc import Iterator, Sequence

from sqlalchemy import Engine

from db.connection import masked
from db.queries import CellSummary, SweepInfo, cell_configs, cell_summaries
from db.scores import verdicts
from jobs.papers.blocks import Block, Bullets, Heading, Paragraph
from jobs.papers.claims import CLAIMS, PUBLISHED
from jobs.papers.judging import Judged, judged
from jobs.papers.kinds import Claim, Paper
from jobs.papers.sections import details, protocol, setting_section, verdict_table
from jobs.papers.settings import Setting, settings
from jobs.papers.sources import Sources
from tiercache.errors import SpecError


def build(engine: Engine, sweep: SweepInfo, url: str, paper: Paper | None = None) -> list[Block]:
    """The document of one sweep, as far as it is judged.

    Args:
        url: the database's, which the commands in the document name; a password is masked.
        paper: only its claims and tables.

    Raises:
        SpecError: the sweep has no judged samples, or no cells of that paper's claims.
    """
    found = settings_of(engine, sweep)
    if not found:
        raise SpecError(f"sweep '{sweep.name}' has no judged samples yet; run it, then ask for its report again.")
    claims = [claim for claim in CLAIMS if paper in (None, claim.paper)]
    results = [result for claim in claims for setting in found if (result := judged(claim, setting)) is not None]
    if paper is not None and not results:
        files = sorted({name for claim in claims for name in claim.sweeps})
        raise SpecError(
            f"--paper {paper}: no claim of it can be judged on the cells of '{sweep.name}'. Those that decide them: "
            f"{', '.join(files)}, each with a _mini form for the embedded reasoner."
        )
    source = Sources(sweep.id, masked(url))
    document: list[Block] = [
        Heading(1, f"{sweep.name} beside the papers"),
        Paragraph(
            f"Sweep {sweep.id}, {sweep.created_at:%Y-%m-%d %H:%M} UTC, {sweep.done} of {sweep.expected} samples done, "
            f"{sweep.failed} failed. Everything here but the published numbers is read from the database; under each "
            "table stands what gives it. How verdicts are made: docs/papers.md."
        ),
    ]
    document += verdict_table(results)
    document += _elsewhere(claims, results)
    document += protocol(sweep, found, source, host=True)
    published = [table for table in PUBLISHED if paper in (None, table.paper)]
    for setting in found:
        document += setting_section(setting, source, published)
    document += [Heading(2, "Tests of each claim")] if results else []
    for result in results:
        document += details(result, source)
    return document


def settings_of(engine: Engine, sweep: SweepInfo, summaries: Sequence[CellSummary] | None = None) -> list[Setting]:
    """What of a sweep may be compared, read from the database.

    Args:
        summaries: those of the cells that count; None: of all.
    """
    configs = {fingerprint: config for fingerprint, (_, config) in cell_configs(engine, sweep.id).items()}
    cells = cell_summaries(engine, sweep.id) if summaries is None else summaries
    return settings(cells, verdicts(engine, sweep.id), configs)


def _elsewhere(claims: Sequence[Claim], results: Sequence[Judged]) -> Iterator[Block]:
    papers = {each.claim.paper for each in results}
    open_ = [c for c in claims if c.paper in papers and c.id not in {each.claim.id for each in results}]
    if open_:
        yield Paragraph("Claims that other sweeps decide:")
        yield Bullets(tuple(f"{claim.id}: {', '.join(claim.sweeps)}" for claim in open_))
