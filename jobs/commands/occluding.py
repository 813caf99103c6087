"""`tiercache occlusion`: hold each scorer against what a sweep's answers really needed, and store what was found."""

from typing import Annotated

import typer

from jobs.commands.options import Database, database_url
from jobs.commands.results import Chosen


def occlusion(
    sweep: Chosen,
    db: Database = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Chains: the first right answers of the full cache.")] = 8,
    window: Annotated[int, typer.Option("--window", min=1, help="Generated tokens hidden at a time.")] = 32,
    stride: Annotated[int, typer.Option("--stride", min=1, help="From one window's start to the next one's.")] = 16,
    scorer: Annotated[
        list[str] | None, typer.Option("--scorer", metavar="NAME", help="Repeat for several. Default: all.")
    ] = None,
) -> None:
    """Rank correlation of every scorer with occlusion labels, on stored chains; kept as an event of the sweep."""
    from db.occlusion import KIND
    from db.queries import cell_configs, cell_summaries, list_sweeps
    from db.writer import Writer
    from jobs.database import open_for_reading
    from jobs.export import pick_sweep
    from tiercache.catalog import SIGNALS
    from tiercache.errors import SpecError
    from tiercache.strict import nearest

    unknown = next((name for name in scorer or () if name not in SIGNALS), None)
    if unknown is not None:
        known = ", ".join(SIGNALS)
        raise SpecError(f"--scorer: no scorer '{unknown}'.{nearest(unknown, list(SIGNALS))} It is one of: {known}.")
    if stride > window:
        raise SpecError(f"--stride: is at most --window ({window}), or tokens are never hidden (got {stride}).")
    url = database_url(db)
    engine = open_for_reading(url)
    chosen = pick_sweep(list_sweeps(engine), sweep)
    configs = cell_configs(engine, chosen.id)
    cells = [cell for cell in cell_summaries(engine, chosen.id) if cell.policy_name == "full" and cell.correct]
    if not cells:
        raise SpecError(f"occlusion: '{chosen.name}' has no right answer of the full cache; add `full` and run it.")
    from jobs.occlusion import check

    found = [(cell, check(engine, cell.fingerprint, configs[cell.fingerprint][1], n, window, stride,
                          scorer or tuple(SIGNALS))) for cell in cells]  # fmt: skip
    with Writer.open(url) as writer:
        for cell, data in found:
            said = f"{len(data['values'])} scorers against occlusion labels on {len(data['chains'])} chains"
            writer.event(chosen.id, KIND, said, fingerprint=cell.fingerprint, data=data)
            typer.echo(f"{cell.model} on {cell.benchmark}: {said}")
            for name, values in data["values"].items():
                known_values = [value for value in values if value is not None]
                mean = f"{sum(known_values) / len(known_values):+.3f}" if known_values else "–"
                typer.echo(f"  {name:<20} {mean}  ({len(known_values)} chains)")
            for name, why in data["refused"].items():
                typer.echo(f"  {name:<20} –  {why}")
