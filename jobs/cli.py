"""`tiercache`: the console command. Bad input costs one clear message on stderr, exit code 2, and nothing written.

Heavy imports live inside the commands, so that `tiercache --help` and a wrong sweep file answer at once.
"""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.commands import database
from jobs.commands.advising import advise
from jobs.commands.capacity import capacity
from jobs.commands.control import cancel, pause, resume
from jobs.commands.data import prepare
from jobs.commands.exporting import export
from jobs.commands.occluding import occlusion
from jobs.commands.options import Data, Database, First, SpecPath, database_url, load
from jobs.commands.planning import plan
from jobs.commands.reporting import papers, report
from jobs.commands.results import compare, regrade
from jobs.commands.searching import search
from jobs.commands.submitting import logs, submit
from jobs.printable import printable
from tiercache.errors import TierCacheError

if TYPE_CHECKING:
    from jobs.failures import Reason

EXIT_BAD_INPUT = 2
EXIT_PARTIAL = 1
EXIT_INTERRUPTED = 130
PORT = 8501  # of the dashboard

app = typer.Typer(
    help="Evaluate KV-cache policies of reasoning models: accuracy, throughput, memory; on one machine or a cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tiercache {version('tiercache-eval')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    from cluster.logs import configure

    configure()


@app.command()
def run(
    spec: SpecPath,
    db: Database = None,
    data: Data = None,
    n: First = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="Ray cluster: its address, `auto`, or `local` to start one here. Default: $RAY_ADDRESS, else one "
            "that runs on this machine, else a new one.",
        ),
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait-for-resources", metavar="SECONDS", min=0, help="Wait for nodes to join.")
    ] = 0.0,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No live table; log lines only.")] = False,
) -> None:
    """Run a sweep, or finish one: samples that are already in the database are not computed again."""
    sweep, benchmarks = load(spec, data, n)
    url = database_url(db, sweep)
    from jobs.grid import expand

    cells = expand(sweep, benchmarks)
    for warning in dict.fromkeys(cell.model_revision.warning for cell in cells if cell.model_revision.warning):
        typer.echo(f"warning: {warning}", err=True)
    from jobs.coordinator import run_sweep

    try:
        result = run_sweep(sweep, cells, url, progress=not no_progress, address=address, wait_s=wait)
    except KeyboardInterrupt:
        typer.echo("interrupted; finished samples are stored. Re-issue the command to continue.", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if result.state == "cancelled":
        typer.echo("cancelled; finished samples are stored. Re-issue the command to continue.", err=True)
        raise typer.Exit(EXIT_INTERRUPTED)
    found = _print_results(url, result.sweep_id)
    from jobs.database import dashboard_command
    from jobs.failures import advice

    typer.echo(f"{result.reused} samples reused, {result.computed} computed, {result.failed} failed.")
    typer.echo(f"Dashboard: {dashboard_command(url)}   then http://127.0.0.1:{PORT}")
    if result.failed:
        typer.echo(advice(result.failed, found), err=True)
        raise typer.Exit(EXIT_PARTIAL)


app.command()(plan)


@app.command()
def status(
    sweep: Annotated[
        str | None, typer.Argument(metavar="[SWEEP]", help="Id, name or `latest`: show its results.")
    ] = None,
    db: Database = None,
) -> None:
    """List the sweeps of a database, or show the results of one so far."""
    from db.queries import list_sweeps
    from jobs.database import open_for_reading
    from jobs.export import pick_sweep
    from jobs.report import console, sweep_table

    url = database_url(db)
    engine = open_for_reading(url)
    sweeps = list_sweeps(engine)
    if sweep is not None:
        _print_results(url, pick_sweep(sweeps, sweep).id)
    elif not sweeps:
        typer.echo("No sweeps yet. Start one with: tiercache run sweeps/demo.yaml")
    else:
        console().print(sweep_table(sweeps))


@app.command()
def policies() -> None:
    """List the cache policies and their knobs."""
    from jobs.listing import policies_table
    from jobs.report import console

    console().print(policies_table())


@app.command()
def benchmarks() -> None:
    """List the benchmarks and their options."""
    from jobs.listing import benchmarks_table
    from jobs.report import console

    console().print(benchmarks_table())


@app.command()
def models() -> None:
    """List the models whose dimensions are known without network."""
    from jobs.listing import models_table
    from jobs.report import console

    console().print(models_table())


@app.command()
def dashboard(
    db: Database = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = PORT,
) -> None:
    """Open the dashboard over a database, in the browser."""
    from dashboard.launch import command, environment

    url = database_url(db)
    arguments = command(port)
    typer.echo(f"dashboard: http://127.0.0.1:{port}")
    sys.stdout.flush()
    os.execvpe(arguments[0], arguments, environment(url))


app.add_typer(database.app)
app.command()(prepare)
app.command()(submit)
app.command()(logs)
app.command()(compare)
app.command()(export)
app.command()(report)
app.command()(papers)
app.command()(capacity)
app.command()(advise)
app.command()(occlusion)
app.command()(pause)
app.command()(resume)
app.command()(cancel)
app.command()(regrade)
app.command()(search)


def _print_results(url: str, sweep_id: str) -> "list[Reason]":
    """Prints the tables and why samples failed; returns these reasons."""
    from db.queries import cell_summaries, diagnostic_summaries, failed_samples
    from jobs.database import open_for_reading
    from jobs.failures import reason_lines, reasons
    from jobs.report import console, diagnostic_tables, result_tables

    screen, engine = console(), open_for_reading(url)
    summaries = cell_summaries(engine, sweep_id)
    for table in result_tables(summaries, screen.width):
        screen.print(table)
    for table in diagnostic_tables(summaries, diagnostic_summaries(engine, sweep_id)):
        screen.print(table)
    found = reasons(failed_samples(engine, sweep_id))
    for line in reason_lines(found):
        typer.echo(printable(line))
    return found


def main() -> None:
    """Entry point: turns the errors that a user can cause into one message and exit code 2."""
    try:
        app()
    except TierCacheError as problem:
        _fail(str(problem))
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; keep Python from complaining at shutdown.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as problem:
        message = _storage_message(problem)
        if message is None:
            raise
        _fail(message)


def _storage_message(problem: Exception) -> str | None:
    """What to say about an error of `db` or of a driver under it; None for any other. `db` imports nothing of ours, so
    its errors have no root in common with ours: this is the seam. Nothing is imported for it here."""
    errors, alchemy = sys.modules.get("db.errors"), sys.modules.get("sqlalchemy.exc")
    if errors is not None and isinstance(problem, errors.StorageError):
        return str(problem)
    if alchemy is not None and isinstance(problem, alchemy.DBAPIError):
        return f"the database can't be used: {problem.orig}; check --db, $TIERCACHE_DB or the sweep's `database`."
    return None


def _fail(message: str) -> None:
    sys.stderr.write(f"error: {printable(message)}\n".encode("utf-8", "replace").decode())
    sys.exit(EXIT_BAD_INPUT)


if __name__ == "__main__":
    main()
