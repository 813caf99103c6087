"""`tiercache compare` and `tiercache regrade`: what stored results show, and judging them again."""

import json
from contextlib import nullcontext
from typing import Annotated

import typer

from jobs.commands.options import Database, database_url

Chosen = Annotated[str, typer.Argument(metavar="SWEEP|latest", help="Id or name of a sweep, or `latest`.")]


def compare(
    sweep: Chosen,
    db: Database = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="POLICY", help="Label or name of a policy. Default: full.")
    ] = None,
    k: Annotated[int | None, typer.Option("--k", min=1, help="Also pass@k and maj@k; needs k repeats.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Plain data instead of tables.")] = False,
) -> None:
    """Test each policy against the full cache, problem by problem; test a hierarchy's HBM and eviction ratios."""
    from db.queries import cell_configs, cell_summaries, list_sweeps
    from db.scores import verdicts
    from jobs.compare import compare as compared
    from jobs.compare_report import as_data, tables
    from jobs.database import open_for_reading
    from jobs.export import pick_sweep
    from jobs.report import console

    engine = open_for_reading(database_url(db))
    chosen = pick_sweep(list_sweeps(engine), sweep).id
    configs = {fingerprint: config for fingerprint, (_, config) in cell_configs(engine, chosen).items()}
    groups = compared(cell_summaries(engine, chosen), verdicts(engine, chosen), configs, baseline, k)
    if as_json:
        typer.echo(json.dumps(as_data(groups), indent=1, ensure_ascii=False))
        return
    screen = console()
    for table in tables(groups):
        screen.print(table)
    if not groups:
        typer.echo("No judged samples yet.")


def regrade(
    sweep: Chosen,
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
    with nullcontext() if dry_run else Writer.open(url) as writer:
        for cell in regrade_cells(engine, writer, chosen.id, cell_configs(engine, chosen.id)):
            changes = ", ".join(f"{n} {before} → {after}" for (before, after), n in sorted(cell.moved.items()))
            typer.echo(
                f"{cell.benchmark} · {cell.policy}: {cell.samples} samples by {cell.grader}: {changes or 'no change'}"
            )
            moved, total = moved + sum(cell.moved.values()), total + cell.samples
    typer.echo(f"{moved} of {total} verdicts {'would change' if dry_run else 'changed'}.")
