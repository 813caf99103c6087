"""`tiercache advise`: which policy to use at a byte budget, which to avoid, and what can't be decided yet."""

import json
from typing import Annotated

import typer

from jobs.commands.options import Database, database_url


def advise(
    sweeps: Annotated[
        list[str], typer.Argument(metavar="SWEEP|latest|all …", help="Whose policies are candidates, and the evidence.")
    ],
    budget: Annotated[
        str, typer.Option("--budget", metavar="SHARE|SIZE", help="0.5: of the full cache's device bytes; or 8GiB.")
    ],
    db: Database = None,
    loss: Annotated[float, typer.Option("--loss", metavar="POINTS", help="Loss of accuracy that is still fine.")] = 2.0,
    model: Annotated[str | None, typer.Option("--model", help="Only what was measured on this model.")] = None,
    benchmark: Annotated[str | None, typer.Option("--benchmark", help="Only what was measured on this one.")] = None,
    protocol: Annotated[str | None, typer.Option("--protocol", help="Only what begins so.")] = None,
    on: Annotated[
        str | None, typer.Option("--on", metavar="MODEL", help="With a SIZE: the model to plan for. Default: --model.")
    ] = None,
    context: Annotated[int, typer.Option("--context", min=1, help="With a SIZE: tokens of a sequence.")] = 8192,
    prompt: Annotated[int, typer.Option("--prompt", min=1, help="How many of them are the prompt's.")] = 512,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences decoded together.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Plain data instead of sentences.")] = False,
) -> None:
    """Say which policies keep the full cache's accuracy at a byte budget, with what confidence, and which to avoid."""
    from db.queries import cell_summaries, list_sweeps
    from jobs.advice import Question, answer, as_data, command, read_budget, sentences, settings
    from jobs.database import open_for_reading
    from jobs.export import pick_sweep
    from tiercache.errors import SpecError

    question = Question(read_budget(budget, on or model, context, prompt, batch), loss / 100)
    url = database_url(db)
    engine = open_for_reading(url)
    known = list_sweeps(engine)
    chosen = [sweep.id for sweep in known] if "all" in sweeps else [pick_sweep(known, each).id for each in sweeps]
    cells = [
        cell
        for sweep_id in dict.fromkeys(chosen)
        for cell in cell_summaries(engine, sweep_id)
        if model in (None, cell.model) and benchmark in (None, cell.benchmark)
        if cell.protocol.startswith(protocol or "")
    ]
    if not cells:
        raise SpecError("advise: no cell of these sweeps has that model, benchmark and protocol; see tiercache status.")
    answers = [answer(setting, question) for setting in settings(engine, cells)]
    names = [] if "all" in sweeps else list(dict.fromkeys(chosen))
    if as_json:
        typer.echo(json.dumps([as_data(each, names, url) for each in answers], indent=1, ensure_ascii=False))
        return
    for each in answers:
        for sentence in sentences(each):
            typer.echo(sentence.text)
        typer.echo(f"Numbers: {command(each, names, url)} --json\n")
