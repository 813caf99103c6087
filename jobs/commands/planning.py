"""`tiercache plan`: what a sweep will cost, without running anything."""

from typing import Annotated

import typer

from jobs.commands.options import Data, First, SpecPath, load


def plan(
    spec: SpecPath,
    data: Data = None,
    n: First = None,
    mean_tokens: Annotated[
        float | None,
        typer.Option("--mean-tokens", metavar="N", help="Price N new tokens a sample instead of max_new_tokens."),
    ] = None,
    db: Annotated[
        str | None,
        typer.Option("--db", metavar="URL", help="Price the mean lengths of the samples that are stored there."),
    ] = None,
    efficiency: Annotated[
        float, typer.Option("--efficiency", metavar="SHARE", help="Share of the roofline that GPU hours reckon with.")
    ] = 1.0,
) -> None:
    """Show what a sweep will cost, without running anything: samples, KV bytes, rows that fit, GPUs, GPU hours."""
    from jobs.plan import plan_sweep
    from jobs.plan_report import plan_tables, plan_totals
    from jobs.prices import Lengths
    from jobs.report import console

    sweep, benchmarks = load(spec, data, n)
    lengths = Lengths(mean_tokens)
    if db is not None:
        from db.lengths import generation_lengths
        from jobs.commands.options import database_url
        from jobs.database import open_for_reading

        lengths = Lengths(mean_tokens, generation_lengths(open_for_reading(database_url(db))))
    planned = plan_sweep(sweep, benchmarks, lengths=lengths, efficiency=efficiency)
    screen = console()
    for table in plan_tables(planned):
        screen.print(table)
    screen.print(plan_totals(planned), soft_wrap=True)
    for note in planned.notes:
        typer.echo(f"note: {note}")
