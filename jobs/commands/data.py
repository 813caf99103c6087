"""`tiercache prepare`: data and models before a sweep."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.options import Data

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
