"""`tiercache report`: a sweep beside the papers that it reproduces. `tiercache papers`: all of them."""

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.commands.options import Database, First, database_url
from jobs.commands.results import Chosen
from tiercache.errors import SpecError

if TYPE_CHECKING:
    from jobs.papers.minis import Minis

PAPERS_DB = "reports/papers-mini.db"
EXIT_PARTIAL, EXIT_INTERRUPTED = 1, 130


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
    _write(out, texts)


def papers(
    db: Annotated[
        str | None, typer.Option("--db", metavar="URL", help=f"SQLite file or postgresql:// URL. Default: {PAPERS_DB}.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the pages.")] = Path("docs/results"),
    n: First = None,
    sweeps: Annotated[Path, typer.Option("--sweeps", metavar="DIR", help="Folder of the *_mini.yaml.")] = Path(
        "sweeps"
    ),
    run: Annotated[
        bool, typer.Option("--run/--no-run", help="Compute what is missing, or only write the pages.")
    ] = True,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No live table; log lines only.")] = False,
) -> None:
    """Run the small forms of all sweeps of the papers, then write a page for each paper and one of all claims."""
    from jobs.database import open_for_reading
    from jobs.papers.index import build_pages
    from jobs.papers.minis import load_minis

    url = database_url(db if db is not None else PAPERS_DB)
    if run:
        if db is None:
            _make(Path(PAPERS_DB).parent)
        _run(load_minis(sweeps, n), url, progress=not no_progress)
    built = build_pages(open_for_reading(url), url, out)
    for file in built.missing:
        typer.echo(f"note: no finished cell of {file}_mini; its claims are not answered.", err=True)
    _write(out, {out / name: text for name, text in built.files.items()})


def _run(minis: "Minis", url: str, *, progress: bool) -> None:
    """Computes what the database lacks, then looks at outputs that differ although nothing was evicted."""
    from jobs.papers.minis import run

    try:
        result = run(minis, url, progress=progress)
    except KeyboardInterrupt:
        typer.echo("interrupted; finished samples are stored. Re-issue the command to continue.", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if result.state == "cancelled":
        raise typer.Exit(EXIT_INTERRUPTED)
    typer.echo(f"{result.reused} samples reused, {result.computed} computed, {result.failed} failed.")
    looked = _look(minis, url)
    if looked:
        typer.echo(f"{looked} outputs that differ without eviction were looked at in float64.")


def _look(minis: "Minis", url: str) -> int:
    from db.writer import Writer
    from jobs.database import open_for_reading
    from jobs.papers.evidence import gather
    from jobs.papers.proposition import check

    engine = open_for_reading(url)
    checked = check(engine, gather(engine, url))
    if not any(flip.looked is None for each in checked for flip in each.flips):
        return 0
    from jobs.papers.ties import examine  # loads torch

    with Writer.open(url) as writer:
        return examine(writer, checked, minis.cells())


def _write(out: Path, texts: Mapping[Path, str]) -> None:
    """Writes the files and says which.

    Raises:
        SpecError: the folder can't be written.
    """
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as problem:
        raise SpecError(f"--out {out}: can't be written: {problem.strerror or problem}; give another folder.") from None
    for path in texts:
        typer.echo(str(path))


def _make(folder: Path) -> None:
    """For the default database.

    Raises:
        SpecError: it can't be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise SpecError(f"{folder}: can't be made: {problem.strerror or problem}; give --db.") from None
