"""`tiercache report`: a sweep beside the papers that it reproduces, as Markdown and as one HTML page."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.options import Database, database_url
from jobs.commands.results import Chosen
from tiercache.errors import SpecError


class PaperName(StrEnum):
    hierarchy = "hierarchy"
    epikv = "epikv"
    qevict = "qevict"


def report(
    sweep: Chosen,
    db: Database = None,
    paper: Annotated[
        PaperName | None, typer.Option("--paper", help="Only this paper's claims. Default: all that the sweep decides.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the two files.")] = Path("reports"),
) -> None:
    """Judge the papers' claims on a sweep: our table beside the published one, paired tests, a verdict for each."""
    from db.queries import list_sweeps
    from jobs.database import open_for_reading
    from jobs.export import pick_sweep
    from jobs.papers.render import markdown, page
    from jobs.papers.report import build

    url = database_url(db)
    engine = open_for_reading(url)
    chosen = pick_sweep(list_sweeps(engine), sweep)
    document = build(engine, chosen, url, None if paper is None else paper.value)
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", chosen.name).strip("-")[:80] or "sweep"
    texts = {out / f"{name}.md": markdown(document), out / f"{name}.html": page(document)}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as problem:
        raise SpecError(f"--out {out}: can't be written: {problem.strerror or problem}; give another folder.") from None
    for path in texts:
        typer.echo(str(path))
