"""`tiercache search`: the best policy that fits a share of the full cache's bytes."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.options import Data, Database
from tiercache.errors import SpecError

EXIT_PARTIAL = 1
EXIT_INTERRUPTED = 130

SearchPath = Annotated[Path, typer.Argument(metavar="FILE", help="A search file, for example sweeps/search/mini.yaml.")]


def search(
    spec: SearchPath,
    db: Database = None,
    data: Data = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the page there instead of printing it.")
    ] = None,
    only_report: Annotated[
        bool, typer.Option("--only-report", help="Compute nothing; the page of what is stored.")
    ] = False,
    address: Annotated[
        str | None, typer.Option("--address", metavar="ADDRESS", help="Ray cluster, as for `tiercache run`.")
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait-for-resources", metavar="SECONDS", min=0, help="Wait for nodes to join.")
    ] = 0.0,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No live table; log lines only.")] = False,
) -> None:
    """Search scorer × placement × storage for the best policy at a byte budget; report it on held-out problems.

    Every trial is an ordinary cell in the database. A search that was killed goes on when the command is issued again.
    """
    from jobs.search.spec import load_benchmarks, load_search

    wanted = load_search(spec)
    from jobs.database import choose

    url, remark = choose(db, wanted.database)
    if remark:
        typer.echo(f"note: {remark}", err=True)
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise SpecError(f"--out {out}: give a file in a folder that exists.")
    _optuna()
    if only_report:
        from jobs.database import open_for_reading
        from jobs.search.report import search_markdown

        _write(search_markdown(open_for_reading(url), wanted, data), out)
        return
    benchmarks = load_benchmarks(wanted, data)
    from cluster.session import session
    from jobs.search.objective import Computed, Stopped
    from jobs.search.report import page
    from jobs.search.study import conduct

    with ExitStack() as stack:
        opened = False

        def before(title: str) -> None:
            """One Ray for all rounds; none if all is there already."""
            nonlocal opened
            typer.echo(f"{wanted.name}: {title}", err=True)
            if not opened:
                stack.enter_context(session(address))
                opened = True

        measure = Computed(
            wanted, benchmarks, url, progress=not no_progress, address=address, wait_s=wait, before=before
        )
        try:
            outcome = conduct(wanted, measure)
        except (KeyboardInterrupt, Stopped) as ended:
            word = "cancelled" if isinstance(ended, Stopped) else "interrupted"
            typer.echo(f"{word}; finished samples are stored. Re-issue the command to continue.", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None
    _write(page(outcome), out)
    typer.echo(f"{measure.reused} samples reused, {measure.computed} computed.", err=True)
    if not outcome.complete:
        typer.echo(
            "Some samples failed, and their policies were not ranked. Re-issue the command to try again.", err=True
        )
        raise typer.Exit(EXIT_PARTIAL)


def _optuna() -> None:
    from importlib.util import find_spec

    if find_spec("optuna") is None:
        raise SpecError("a search needs Optuna: pip install 'tiercache-eval[search]'.")


def _write(text: str, out: Path | None) -> None:
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise SpecError(f"--out {out}: can't be written: {problem.strerror or problem}; give another file.") from None
    typer.echo(str(out))
