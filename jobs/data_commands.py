"""`tiercache prepare` and `tiercache regrade`: data before a sweep, verdicts after it."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.options import Data, Database, database_url

What = Annotated[str, typer.Argument(metavar="SPEC|BENCHMARK", help="A sweep file, or a benchmark: longbench/qasper.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Where to keep data sets. Default: $TIERCACHE_DATA or the user's cache."),
]


def prepare(
    what: What,
    data: Data = None,
    out: Out = None,
    models: Annotated[bool, typer.Option(help="Download models from the hub too.")] = True,
) -> None:
    """Fetch and check what a sweep needs, with revisions and hashes; afterwards it runs without the hub."""
    from jobs.benchmarks.catalog import parse_benchmarks
    from jobs.prepare import benchmarks_named, prepare_data, prepare_models

    specs = []
    if Path(what).is_file() or Path(what).suffix in (".yaml", ".yml"):
        from jobs.spec import load_sweep

        sweep = load_sweep(what)
        benchmarks, specs = parse_benchmarks(sweep.benchmarks), sweep.model_specs()
    else:
        benchmarks = benchmarks_named(what)
    for found in prepare_data(benchmarks, data, out):
        known = found.known
        revision = known["revision"] or "a local copy"
        typer.echo(
            f"{found.name}: {known['problems']:,} problems of {known['hub_id']} ({known['config']}, {known['split']}), "
            f"{revision}, sha256 {known['sha256'][:16]}"
        )
        typer.echo(f"  {found.place}")
    for found in prepare_models(specs if models else []):
        typer.echo(f"{found.name}: commit {found.known['revision']}\n  {found.place}")
    if out is not None:
        typer.echo(f"Runs that shall find these: export TIERCACHE_DATA={out}")


def regrade(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP|latest", help="Id or name of a sweep, or `latest`.")],
    db: Database = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change; change nothing.")] = False,
) -> None:
    """Judge stored generations again by this version's graders. Needs neither model nor GPU."""
    from db.queries import cell_configs, list_sweeps
    from db.writer import Writer
    from jobs.database import open_for_reading
    from jobs.export import pick_sweep
    from jobs.regrade import regrade_cells

    url = database_url(db)
    engine = open_for_reading(url)
    chosen = pick_sweep(list_sweeps(engine), sweep)
    moved = total = 0
    with Writer.open(url) as writer:
        for cell in regrade_cells(engine, writer, chosen.id, cell_configs(engine, chosen.id), dry=dry_run):
            changes = ", ".join(f"{n} {before} → {after}" for (before, after), n in sorted(cell.moved.items()))
            typer.echo(
                f"{cell.benchmark} · {cell.policy}: {cell.samples} samples by {cell.grader}: {changes or 'no change'}"
            )
            moved, total = moved + sum(cell.moved.values()), total + cell.samples
    typer.echo(f"{moved} of {total} verdicts {'would change' if dry_run else 'changed'}.")
