"""`tiercache export`: a sweep's results as a file for other programs, for papers, or to be read in a browser."""

import os
import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from jobs.commands.options import Database, database_url
from jobs.commands.results import Chosen
from tiercache.errors import SpecError

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from db.queries import SweepInfo
    from jobs.export import Format

STDOUT = Path("-")


class Form(StrEnum):
    csv = "csv"
    json = "json"
    md = "md"
    lm_eval = "lm-eval"
    html = "html"


def export(
    sweep: Chosen,
    form: Annotated[
        Form | None,
        typer.Option(
            "--format", help="csv (default), json, a Markdown table, lm-evaluation-harness results, or an HTML report."
        ),
    ] = None,
    html: Annotated[
        bool, typer.Option("--html", help="The same as --format html: one file that needs no server or network.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Where to. Default: stdout; with --html, the sweep's name. -: stdout."
        ),
    ] = None,
    db: Database = None,
) -> None:
    """Write a sweep's results to stdout or a file: numbers for other programs, or a report to read."""
    from db.queries import list_sweeps
    from jobs.database import open_for_reading
    from jobs.export import pick_sweep

    if html and form not in (None, Form.html):
        raise SpecError(f"--html and --format {form} are two formats; give one of them.")
    wanted = Form.html if html else form or Form.csv
    if out is not None and out != STDOUT:
        _writable(out)
    engine = open_for_reading(database_url(db))
    chosen = pick_sweep(list_sweeps(engine), sweep)
    if wanted is Form.html and out is None:
        out = Path(f"{re.sub(r'[^A-Za-z0-9_-]+', '-', chosen.name).strip('-')[:80] or 'sweep'}.html")
        _writable(out)
    text = _html(engine, chosen) if wanted is Form.html else _plain(engine, chosen, wanted)
    if out is None or out == STDOUT:
        typer.echo(text.encode("utf-8", "replace").decode(), nl=False)
        return
    _write(out, text)
    typer.echo(str(out))


def _plain(engine: "Engine", sweep: "SweepInfo", form: Form) -> str:
    from db.queries import cell_summaries, diagnostic_summaries, failed_samples
    from jobs.export import export as render

    diagnostics, failed = diagnostic_summaries(engine, sweep.id), failed_samples(engine, sweep.id)
    kind = cast("Format", form.value)
    return render(sweep, cell_summaries(engine, sweep.id), kind, diagnostics, failed)


def _html(engine: "Engine", sweep: "SweepInfo") -> str:
    from dashboard.static_report import Failure, report
    from db.queries import failed_samples
    from jobs.failures import reasons
    from tiercache.diagnostics.values import MEANING

    failures = [
        Failure(
            each.text,
            each.samples,
            each.cells,
            f"{each.example.model} · {each.example.benchmark} · {each.example.policy}: {each.example.problem_id}",
        )
        for each in reasons(failed_samples(engine, sweep.id))
    ]
    return report(engine, sweep, failures, MEANING)


def _writable(out: Path) -> None:
    """Refuse what can't become a file, before anything is read or written."""
    if out.is_dir():
        raise SpecError(f"-o {out}: that is a folder; give a file in it.")
    if not out.absolute().parent.is_dir():
        raise SpecError(f"-o {out}: folder {out.absolute().parent} doesn't exist; make it first.")
    if not os.access(out if out.exists() else out.absolute().parent, os.W_OK):
        raise SpecError(f"-o {out}: can't be written; give another place.")


def _write(out: Path, text: str) -> None:
    """All of it or nothing: a file of that name stays until the new one is complete."""
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", errors="replace", newline="\n")
        part.replace(out)
    except OSError as problem:
        raise SpecError(f"-o {out}: can't be written: {problem.strerror or problem}; give another place.") from None
    finally:
        part.unlink(missing_ok=True)
