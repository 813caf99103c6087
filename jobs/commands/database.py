"""`tiercache db`: looking after the database of results."""

from typing import TYPE_CHECKING, Annotated

import typer

from jobs.commands.options import Database, database_url

if TYPE_CHECKING:
    from rich.table import Table

    from db.maintenance import Report

EXIT_FOUND = 1

app = typer.Typer(
    name="db",
    help="Look after the database of results: upgrade its tables, check it, give back unused space.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command()
def upgrade(
    db: Database = None,
    to: Annotated[
        str, typer.Option("--to", metavar="REVISION", help="Another revision, also an earlier one.")
    ] = "head",
    create: Annotated[bool, typer.Option("--create", help="Make the tables if there are none yet.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Go back, though that drops what later versions store.")] = False,
) -> None:
    """Bring an existing database to this version's tables, or with --to back to an earlier version's."""
    from db.connection import masked, open_engine
    from db.errors import DatabaseMissing, StorageError
    from db.maintenance import refuse_while_running, revisions
    from db.migrate import current, downgrade
    from db.migrate import upgrade as migrate

    url, known = database_url(db), revisions()
    place, order = masked(url), list(known)
    target = order[-1] if to == "head" else to
    if target not in known:
        raise StorageError(f"--to {to!r} is no revision that this version knows; allowed: head, {', '.join(order)}")
    try:
        reader = open_engine(url, read_only=True)
        before = current(reader)
        reader.dispose()
    except DatabaseMissing:
        before = None
    if before is None and not create:
        raise StorageError(f"database {place} has no tables to upgrade; make them with --create, or check --db")
    if before == target:
        typer.echo(f"{place} is at revision {target} already.")
        return
    engine = open_engine(url)
    lost = order[order.index(target) + 1 : order.index(before) + 1] if before in known else []
    if lost:
        if not yes:
            what = "; ".join(f"{revision}: {known[revision]}" for revision in lost)
            raise StorageError(
                f"database {place}: going back from {before} to {target} drops what these brought ({what}); "
                "copy the database first, then give --yes"
            )
        refuse_while_running(engine, "go back")
        downgrade(engine, target)
    else:
        migrate(engine, target)
    engine.dispose()
    typer.echo(f"{place}: revision {before or 'none'} → {target}")
    if lost:
        typer.echo("The next tiercache run of this version upgrades it again.")


@app.command()
def check(db: Database = None) -> None:
    """Look for damage and for what waits or is missing. Changes nothing; exits with 1 if it finds something."""
    from db.connection import open_engine, parse_url
    from db.maintenance import check as examine
    from db.spool import Spool
    from jobs.report import console

    url = database_url(db)
    engine = open_engine(url, read_only=True)
    report = examine(engine, Spool.beside(parse_url(url), None))
    engine.dispose()
    console().print(_table(report))
    for finding in report.findings:
        typer.echo(f"found: {_printable(finding.what)}\n  remedy: {_printable(finding.remedy)}")
    if not report.sound:
        raise typer.Exit(EXIT_FOUND)
    typer.echo("Nothing is wrong.")


@app.command()
def vacuum(
    db: Database = None,
    force: Annotated[bool, typer.Option("--force", help="Even while a sweep is running; it waits or spools.")] = False,
) -> None:
    """Give back unused space and renew the planner's statistics."""
    from db.connection import open_engine
    from db.maintenance import vacuum as tidy
    from jobs.report import bytes_text

    url = database_url(db)
    open_engine(url, read_only=True).dispose()  # says if there is none, where the next line would make it
    engine = open_engine(url)
    before, after = tidy(engine, force=force)
    engine.dispose()
    typer.echo(f"{bytes_text(before)} before, {bytes_text(after)} after.")


def _table(report: "Report") -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from jobs.report import bytes_text

    table = Table(box=SIMPLE_HEAD, show_edge=False, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    sizes = {} if report.size is None else {"size": bytes_text(report.size)}
    rows = {f"rows of {name}": f"{n:,}" for name, n in report.rows.items()}
    for name, value in (dict(report.facts) | sizes | rows).items():
        table.add_row(name, Text(value))
    return table


def _printable(text: str) -> str:
    """A sweep's name is a user's text, and terminals obey control characters."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
