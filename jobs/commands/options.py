"""Arguments that several commands have, and what they come to."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiercache.errors import BenchmarkError

if TYPE_CHECKING:
    from jobs.benchmarks.base import Benchmark
    from jobs.spec import Sweep

SpecPath = Annotated[Path, typer.Argument(metavar="SPEC", help="A sweep file, for example sweeps/demo.yaml.")]
Database = Annotated[
    str | None,
    typer.Option(
        "--db", metavar="URL", help="SQLite file or postgresql:// URL. Default: $TIERCACHE_DB or tiercache.db."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="PATH", help="Local data file or folder, for benchmarks that would read the hub."),
]
First = Annotated[int | None, typer.Option("--n", min=1, help="Run only the first N problems of each benchmark.")]


def load(spec: Path, data: Path | None, n: int | None) -> "tuple[Sweep, list[Benchmark]]":
    """The sweep, with `--n` put into it, and its benchmarks, which have read nothing yet."""
    from jobs.spec import load_sweep

    sweep = load_sweep(spec)
    if n is not None:
        sweep = sweep.model_copy(update={"benchmarks": [{**entry, "n": n} for entry in sweep.benchmarks]})
    from jobs.benchmarks.catalog import parse_benchmarks

    benchmarks = parse_benchmarks(sweep.benchmarks, data)
    if data is not None and not any(benchmark.reads_files for benchmark in benchmarks):
        names = ", ".join(benchmark.name for benchmark in benchmarks)
        raise BenchmarkError(f"--data {data}: no benchmark of this sweep ({names}) reads a file; leave it out.")
    return sweep, benchmarks


def database_url(db: str | None, sweep: "Sweep | None" = None) -> str:
    """The database's URL, checked: a malformed one is refused here, before any work."""
    from jobs.database import choose

    url, remark = choose(db, sweep.database if sweep else None)
    if remark:
        typer.echo(f"note: {remark}", err=True)
    return url
